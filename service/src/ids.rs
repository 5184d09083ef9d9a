//! Identifiers as an argument: UUIDv7s that sort by time. Must never be made but where a service is put
//! together, so that tests own them.

use schema::Micros;
use uuid::{NoContext, Timestamp, Uuid};

/// Makes identifiers.
pub trait Ids: Send + Sync + 'static {
    /// A new UUIDv7 of the moment `now`.
    fn uuid_v7(&self, now: Micros) -> Uuid;
}

/// Identifiers from the operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn uuid_v7(&self, now: Micros) -> Uuid {
        let seconds = u64::try_from(now.seconds()).unwrap_or_default();
        let nanoseconds = u32::try_from(now.0.rem_euclid(1_000_000) * 1_000).unwrap_or_default();
        Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, nanoseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_differ() {
        let earlier = RandomIds.uuid_v7(Micros(1_760_000_000_000_000));
        let later = RandomIds.uuid_v7(Micros(1_760_000_000_001_000));
        assert!(earlier < later);
        assert_ne!(earlier, RandomIds.uuid_v7(Micros(1_760_000_000_000_000)));
        assert_eq!(earlier.get_version_num(), 7);
    }
}
