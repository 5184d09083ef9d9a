//! The reader: all partitions of one topic, in turn, and the publisher of what was made of them. Must never
//! show a record that is not synced, and never step over one that should be there.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::layout::{committed_key, committed_of, record_key, record_of};
use super::writer::{Command, Publish};
use super::{Ends, Log, lock};
use crate::disk::{self, Tree};
use crate::{
    Alone, Assigned, Consumer, Group, PartitionOwner, Polled, Publication, PublishError, ReadError, Record,
    Topic,
};

/// Records one poll brings at most.
const POLL_RECORDS_MAX: usize = 1_000;
/// Bytes of records one poll brings at most, unless one record alone has more.
const POLL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Reads all partitions of one topic, in turn.
#[derive(Debug)]
pub struct EmbeddedConsumer {
    log: Arc<Log>,
    /// Where publications are queued; weak, so that a reader does not keep the journal from closing.
    queue: mpsc::WeakSender<Command>,
    topic: Topic,
    /// The next offset of each partition; `None` where it is not read: the owner refused it, or what it
    /// wanted is not there. Empty until the first poll.
    positions: Vec<Option<u64>>,
    /// What was found wrong when the partitions were assigned, and is still to be said.
    problems: VecDeque<ReadError>,
    turn: usize,
}

impl EmbeddedConsumer {
    pub(super) fn new(log: Arc<Log>, queue: mpsc::WeakSender<Command>, topic: Topic) -> Self {
        Self { log, queue, topic, positions: Vec::new(), problems: VecDeque::new(), turn: 0 }
    }

    /// Gives the owner every partition. What is wrong with one of them does not keep it from the others.
    fn assign(&mut self, owner: &mut dyn PartitionOwner) -> Result<(), ReadError> {
        let assignments = (0..self.log.partitions.get()).map(|partition| {
            let (log_start, log_end) = self.log.bounds(self.topic, partition).map_err(unavailable)?;
            let key = committed_key(self.topic, partition);
            let committed = match self.log.committed.get(&key).map_err(unavailable)? {
                Some(value) => {
                    let damaged = || self.log.committed.damaged(&key, "it is not an offset and metadata");
                    Some(committed_of(&value).ok_or_else(|| unavailable(damaged()))?)
                }
                None => None,
            };
            Ok(Assigned { partition, log_start, log_end, committed })
        });
        for assigned in assignments.collect::<Result<Vec<_>, ReadError>>()? {
            let Assigned { partition, log_start, log_end, .. } = assigned;
            self.positions.push(match owner.assigned(assigned) {
                Ok(wanted) if wanted < log_start => {
                    self.problems.push_back(ReadError::Lost { partition, log_start, wanted });
                    None
                }
                Ok(wanted) if wanted > log_end => {
                    self.problems.push_back(ReadError::Unavailable(format!(
                        "partition {partition} ends at offset {log_end}, but reading stands at {wanted}: the log was cut or is another one"
                    )));
                    None
                }
                Ok(wanted) => Some(wanted),
                Err(reason) => {
                    tracing::error!(partition, reason, "the partition is not read");
                    None
                }
            });
        }
        Ok(())
    }

    /// The next partition, in turn, that has something to read: it, and from where to where.
    fn next_readable(&mut self, ends: &Ends) -> Option<(u32, u64, u64)> {
        let count = self.positions.len();
        (0..count).find_map(|step| {
            let index = (self.turn + step) % count;
            let (partition, from) = (index as u32, (*self.positions.get(index)?)?);
            let to = ends.of(self.topic, partition);
            (from < to).then(|| {
                self.turn = index + 1;
                (partition, from, to)
            })
        })
    }

    fn read(&mut self, partition: u32, from: u64, to: u64) -> Result<Polled, ReadError> {
        let records = read_records(self.log.tree(self.topic), partition, from, to)?;
        if let Some(position) = self.positions.get_mut(partition as usize) {
            *position = Some(from + records.len() as u64);
        }
        Ok(Polled::Records { partition, records })
    }
}

impl Consumer for EmbeddedConsumer {
    fn group(&self) -> Arc<dyn Group> {
        Arc::new(Alone)
    }

    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError> {
        if self.positions.is_empty() {
            self.assign(owner)?;
        }
        if let Some(problem) = self.problems.pop_front() {
            return Err(problem);
        }
        let deadline = Instant::now() + timeout;
        let log = self.log.clone();
        let mut ends = lock(&log.ends);
        loop {
            if let Some((partition, from, to)) = self.next_readable(&ends) {
                drop(ends);
                return self.read(partition, from, to);
            }
            if ends.closed {
                return Err(ReadError::Unavailable(log.why_closed()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Polled::Nothing);
            }
            ends = log.grown.wait_timeout(ends, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        let partitions = self.log.partitions.get();
        let records = publications.iter().flat_map(|of| of.projections.iter().chain(&of.claims));
        if let Some(record) = records.into_iter().find(|record| record.partition >= partitions) {
            let problem = format!("partition {} of {partitions} does not exist", record.partition);
            return Err(PublishError::Fatal(problem));
        }
        let closed = || PublishError::Fatal(self.log.why_closed());
        let (answer, answered) = oneshot::channel();
        let publish = Publish { reads: self.topic, publications, answer };
        let queue = self.queue.upgrade().ok_or_else(closed)?;
        queue.blocking_send(Command::Publish(publish)).map_err(|_| closed())?;
        answered.blocking_recv().unwrap_or_else(|_| Err(closed()))
    }
}

type Item = Result<(Vec<u8>, Vec<u8>), disk::Error>;

/// The records from `from` up to `to`, or to a bound. Every offset between has a record, or the log is damaged.
pub(super) fn read_records(
    tree: &Tree,
    partition: u32,
    from: u64,
    to: u64,
) -> Result<Vec<Record>, ReadError> {
    let mut records = Vec::new();
    let mut bytes = 0;
    let mut items = tree.range(&record_key(partition, from), &record_key(partition, to));
    for offset in from..to {
        match read_record(partition, offset, items.next()) {
            Ok(record) => {
                bytes += record.key.len() + record.value.len();
                records.push(record);
            }
            Err(problem) if records.is_empty() => return Err(problem),
            // What stands before the damage is read first; the next read meets it again.
            Err(_) => break,
        }
        if records.len() >= POLL_RECORDS_MAX || bytes >= POLL_BYTES_MAX {
            break;
        }
    }
    Ok(records)
}

/// The record at `offset`, where `item` is what the tree has at or after it.
fn read_record(partition: u32, offset: u64, item: Option<Item>) -> Result<Record, ReadError> {
    let problem =
        |what: &str| ReadError::Unavailable(format!("partition {partition}, offset {offset}: {what}"));
    let found = item.transpose().map_err(|error| problem(&error.to_string()))?;
    match found {
        Some((key, value)) if key == record_key(partition, offset) => {
            record_of(offset, value).ok_or_else(|| problem("the record's key is cut"))
        }
        Some(_) | None => Err(problem("the record is missing")),
    }
}

pub(super) fn unavailable(error: disk::Error) -> ReadError {
    ReadError::Unavailable(error.to_string())
}
