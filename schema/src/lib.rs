//! What Witness knows about the world: subjects, observations, the providers' contracts, and the
//! shapes of its answers.
//!
//! Owns every rule that is a function of bytes alone. It must never read a clock, the environment,
//! a file or a socket, and never depend on tokio, axum, rdkafka or sled: time, ids and randomness
//! come in as arguments.

pub mod avro;
pub mod claim;
pub mod json;
pub mod limits;
pub mod observation;
pub mod operator;
pub mod projection;
pub mod provider;
pub mod published;
pub mod reading;
pub mod signature;
mod single_object;
pub mod subject;
pub mod timestamp;
pub mod wire;

pub use claim::{Claim, Verdict};
pub use observation::{Digest, Observation, Source};
pub use provider::Provider;
pub use reading::{Reading, Unreadable};
pub use signature::{Unverified, Verified};
pub use subject::Subject;
pub use timestamp::Micros;
