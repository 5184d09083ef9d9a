//! The consumer group as queries see it: whether it still counts on us, and who has the other partitions. Must never
//! touch the membership itself, which is the polling thread's.

use std::sync::Arc;
use std::time::Instant;

use super::members::Members;
use super::pulse::Pulse;
use crate::{Group, Owner};

/// Shared by the polling thread and those who answer.
pub(super) struct KafkaGroup {
    pub(super) pulse: Arc<Pulse>,
    pub(super) members: Members,
}

impl Group for KafkaGroup {
    fn confirmed(&self) -> Result<(), String> {
        self.pulse.confirmed(Instant::now())
    }

    fn owner(&self, partition: u32) -> Result<Owner, String> {
        self.members.owner(partition)
    }
}
