//! The clock as an argument. Must never be read anywhere but where a service is put together, so that
//! tests and simulations own time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use schema::Micros;

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Micros;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        #[expect(clippy::disallowed_methods, reason = "the one clock that everything else is given")]
        let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
        };
        Micros(micros)
    }
}

/// A clock that stands where it is put.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Stands at `now`.
    pub fn new(now: Micros) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Moves to `now`.
    pub fn set(&self, now: Micros) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}
