//! placeholder
pub mod derive;
