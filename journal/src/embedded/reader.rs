//! The reader outside any group: a topic as it stands. Must never show a record that is not synced, and never
//! step over one that should be there.

use std::sync::Arc;
use std::time::Duration;

use super::Log;
use super::consumer::{read_records, unavailable};
use crate::{LogReader, ReadError, Record, Topic};

/// Reads one topic of the embedded journal. It goes on reading what was written when the journal is closed.
#[derive(Debug)]
pub struct EmbeddedLogReader {
    log: Arc<Log>,
    topic: Topic,
}

impl EmbeddedLogReader {
    pub(super) fn new(log: Arc<Log>, topic: Topic) -> Self {
        Self { log, topic }
    }
}

impl LogReader for EmbeddedLogReader {
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError> {
        let partitions = self.log.partitions;
        if partition >= partitions.get() {
            return Err(ReadError::no_such_partition(partition, partitions));
        }
        self.log.bounds(self.topic, partition).map_err(unavailable)
    }

    /// What is written is there at once: nothing is waited for.
    fn read(&mut self, partition: u32, from: u64, _timeout: Duration) -> Result<Vec<Record>, ReadError> {
        let (log_start, log_end) = self.bounds(partition)?;
        if from < log_start {
            return Err(ReadError::Lost { partition, log_start, wanted: from });
        }
        read_records(self.log.tree(self.topic), partition, from, log_end)
    }
}
