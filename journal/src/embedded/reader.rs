//! Reads a topic as it stands, outside any group. Must never show a record that is not synced, and never step
//! over one that should be there.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::consumer::read_records;
use super::layout::bounds;
use super::{Log, lock};
use crate::{LogReader, ReadError, Record, Topic};

/// Reads one topic. It keeps the journal's folder in use until it is dropped.
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
        let end = lock(&self.log.ends).of(self.topic, partition);
        let found = bounds(self.log.tree(self.topic), partition);
        let found = found.map_err(|error| ReadError::Unavailable(error.to_string()))?;
        Ok((found.map_or(end, |(start, _)| start.min(end)), end))
    }

    fn read(&mut self, partition: u32, from: u64, timeout: Duration) -> Result<Vec<Record>, ReadError> {
        let deadline = Instant::now() + timeout;
        let (log_start, _) = self.bounds(partition)?;
        if from < log_start {
            return Err(ReadError::Lost { partition, log_start, wanted: from });
        }
        let mut ends = lock(&self.log.ends);
        loop {
            let end = ends.of(self.topic, partition);
            let left = deadline.saturating_duration_since(Instant::now());
            if from < end {
                drop(ends);
                return read_records(&self.log, self.topic, partition, from, end);
            }
            if left.is_zero() || ends.closed {
                return Ok(Vec::new());
            }
            ends = self.log.grown.wait_timeout(ends, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
