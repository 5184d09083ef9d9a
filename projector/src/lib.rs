//! placeholder
pub mod derive;
mod metrics;
pub mod project;
pub mod store;
