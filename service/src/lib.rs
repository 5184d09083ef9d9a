//! What both services share: the clock and ids they are given, an HTTP server that drains, errors as
//! problems, health and metrics routes. Must never know what a delivery or a projection is.

pub mod clock;
pub mod ids;
pub mod problem;
pub mod server;
