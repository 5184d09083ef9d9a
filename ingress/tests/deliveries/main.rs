//! The path of one delivery over a real socket: every check, in its order, with its exact status and code.
//! Must never reach into the door, only send bytes to it and look at the journal behind it.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test stops at the first surprise"
)]

mod acceptance;
mod claims;
mod envelope;
mod harness;
mod keys;
mod request;
mod signature;
