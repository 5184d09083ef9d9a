//! An endpoint's rate: a token bucket with the clock as an argument. Must never be spent by a delivery
//! that is not verified, and never be kept by anything a sender can choose.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use schema::Micros;

/// Parts of one token, so that microseconds add whole numbers of them.
const PARTS_PER_TOKEN: u64 = 1_000_000;

/// How many verified deliveries an endpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In the long run.
    pub per_second: NonZeroU32,
    /// At once, after a rest.
    pub burst: NonZeroU32,
}

/// The bucket of one endpoint.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    parts: u64,
    /// When `parts` was right; `None` before the first delivery.
    at: Option<Micros>,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(rate: Rate) -> Self {
        let parts = u64::from(rate.burst.get()) * PARTS_PER_TOKEN;
        Self { rate, level: Mutex::new(Level { parts, at: None }) }
    }

    /// Takes a token, or answers in how many seconds (at least one) there is one. A clock that goes back
    /// adds nothing.
    pub(crate) fn take(&self, now: Micros) -> Result<(), u64> {
        let per_second = u64::from(self.rate.per_second.get());
        let full = u64::from(self.rate.burst.get()) * PARTS_PER_TOKEN;
        // Nothing panics while the level is held, and every level is a right one.
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_micros = level.at.map_or(0, |at| u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0));
        let parts = level.parts.saturating_add(elapsed_micros.saturating_mul(per_second)).min(full);
        level.at = Some(now);
        match parts.checked_sub(PARTS_PER_TOKEN) {
            Some(rest) => {
                level.parts = rest;
                Ok(())
            }
            None => {
                level.parts = parts;
                let micros = (PARTS_PER_TOKEN - parts).div_ceil(per_second);
                Err(micros.div_ceil(1_000_000).max(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_second: u32, burst: u32) -> Bucket {
        let number = |n| NonZeroU32::new(n).expect("not zero");
        Bucket::new(Rate { per_second: number(per_second), burst: number(burst) })
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let bucket = bucket(2, 3);
        let taken = |at| bucket.take(Micros(at));
        assert_eq!([taken(0), taken(0), taken(0), taken(0)], [Ok(()), Ok(()), Ok(()), Err(1)]);
        assert_eq!(taken(499_999), Err(1));
        assert_eq!(taken(500_000), Ok(()));
        assert_eq!(taken(500_000), Err(1));
        assert_eq!([taken(60_000_000), taken(60_000_000), taken(60_000_000)], [Ok(()); 3]);
        assert_eq!(taken(60_000_000), Err(1), "a rest fills it up to the burst, not beyond");
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_and_takes_nothing() {
        let bucket = bucket(1, 1);
        assert_eq!(bucket.take(Micros(100_000_000)), Ok(()));
        assert_eq!(bucket.take(Micros(50_000_000)), Err(1));
        assert_eq!(bucket.take(Micros(51_000_000)), Ok(()));
        assert_eq!(bucket.take(Micros(i64::MAX)), Ok(()));
        assert_eq!(bucket.take(Micros(i64::MIN)), Err(1));
        assert_eq!(bucket.take(Micros(i64::MAX)), Ok(()));
    }
}
