//! The journal: an ordered, partitioned, immutable log per topic, behind one small pair of traits.
//!
//! Owns durability and order. It must never look inside a value (but at its header, in [`registry`]), never
//! answer an append before the record is durable, and never show a reader a record that is not. Adapters:
//! [`embedded`] (sled, one machine) and [`kafka`]; [`registry`] goes around the latter.

pub mod disk;
pub mod embedded;
mod group;
pub mod kafka;
pub mod registry;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use thiserror::Error;

pub use self::group::{Alone, Group, Owner};

/// The topics. The numbers are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Topic {
    /// The source of truth.
    Observations = 0,
    /// The published projections, compacted by key.
    Projections = 1,
    /// Which subject claimed an inbox key first.
    Claims = 2,
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Observations, Self::Projections, Self::Claims];

    /// The default name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observations => "witness.observations",
            Self::Projections => "witness.projections",
            Self::Claims => "witness.claims",
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A record to append. The partition is named by the caller, computed from the key, so that partitions added to
/// a topic cannot re-key silently.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// Below the journal's partition count.
    pub partition: u32,
    /// The subject's key (observations).
    pub key: Bytes,
    /// Opaque to the journal.
    pub value: Bytes,
}

/// A record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rises along a partition; may have gaps (Kafka's transaction markers and compaction).
    pub offset: u64,
    /// As appended.
    pub key: Bytes,
    /// As appended.
    pub value: Bytes,
}

/// Where a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its partition.
    pub partition: u32,
    /// Its offset there.
    pub offset: u64,
}

/// Why an append was not acknowledged. Each means 503 at the door: the provider will try again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The bounded queue before the journal is full; nothing was written.
    #[error("the journal's queue is full")]
    QueueFull,
    /// The journal cannot write now. The record may still turn out to have been written.
    #[error("the journal is unavailable: {0}")]
    Unavailable(String),
    /// The record is larger than the journal can ever take.
    #[error("the record of {bytes} bytes is over the journal's limit of {bytes_max} bytes")]
    TooLarge {
        /// The record's size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
}

/// The writing half. Cheap to share; used from async code.
pub trait Appender: Send + Sync + 'static {
    /// Appends one record and resolves once it is durable. Dropping the future does not undo the append.
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>>;

    /// Partitions of every topic: part of the data, fixed when the journal was made.
    fn partitions(&self) -> NonZeroU32;

    /// `Err` with what is wrong when no append can succeed; readiness stands on it.
    fn health(&self) -> Result<(), String>;
}

/// What one [`Consumer::poll`] brought.
#[derive(Debug)]
pub enum Polled {
    /// Consecutive records of one partition, at least one.
    Records {
        /// The partition.
        partition: u32,
        /// In offset order.
        records: Vec<Record>,
    },
    /// Nothing within the time allowed.
    Nothing,
}

/// How far a group has published, as it committed it together with what it published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The next offset: all below it is published.
    pub offset: u64,
    /// As committed.
    pub metadata: String,
}

/// A partition that was just given to this consumer, and the log's bounds as measured then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The partition.
    pub partition: u32,
    /// The first offset still in the log.
    pub log_start: u64,
    /// One past the last durable offset.
    pub log_end: u64,
    /// What the group committed last, read after the partition became ours and with no publication of an
    /// earlier owner still undecided.
    pub committed: Option<Committed>,
}

/// What is published of one partition: see [`Consumer::publish`].
#[derive(Clone, Debug)]
pub struct Publication {
    /// The partition that was read; ours.
    pub partition: u32,
    /// The next offset to read, to be committed: all below it is published with this.
    pub offset: u64,
    /// Committed beside the offset.
    pub metadata: String,
    /// For [`Topic::Projections`].
    pub projections: Vec<NewRecord>,
    /// For [`Topic::Claims`].
    pub claims: Vec<NewRecord>,
}

/// Why a publication failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PublishError {
    /// We no longer own the partitions, or it cannot be known whether the publication took place. The next
    /// [`Consumer::poll`] revokes every partition and joins the group again; the committed offset of the
    /// next assignment tells what was published.
    #[error("fenced: {0}")]
    Fenced(String),
    /// Nothing was published. It may be tried again while the assignment holds.
    #[error("the publication was aborted: {0}")]
    Aborted(String),
    /// Nothing was published, and nothing will be until an operator acts.
    #[error("publishing is impossible: {0}")]
    Fatal(String),
}

/// The owner of a consumer's partitions: told of assignments from inside [`Consumer::poll`], on the
/// polling thread, because that is where Kafka's rebalances happen.
pub trait PartitionOwner {
    /// The partition is ours; answers the offset to read from, or why it must stand still (it is then
    /// not read, and the others go on).
    fn assigned(&mut self, assigned: Assigned) -> Result<u64, String>;

    /// The partition, accepted or refused before, is no longer ours. Whatever was read of it has been handled
    /// or must be forgotten.
    fn revoked(&mut self, partition: u32);
}

/// Why reading failed. The consumer can be polled again; a fatal error comes again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The log begins after the offset we wanted: records between were lost. Said once; the partition is not
    /// read, the others go on.
    #[error("partition {partition} begins at offset {log_start}, but reading stands at {wanted}: {} records are lost", log_start - wanted)]
    Lost {
        /// The partition.
        partition: u32,
        /// Where the log begins.
        log_start: u64,
        /// Where reading stood.
        wanted: u64,
    },
    /// This consumer reads no more, and neither will another one of this process.
    #[error("{0}")]
    Ended(String),
    /// Anything else.
    #[error("the journal cannot be read: {0}")]
    Unavailable(String),
}

impl ReadError {
    fn no_such_partition(partition: u32, partitions: NonZeroU32) -> Self {
        Self::Unavailable(format!("partition {partition} of {partitions} does not exist"))
    }
}

/// Reads a topic as it stands, outside any group: for copies of the log, and for a store that is derived anew
/// beside the living one. Blocking, and used from one thread. Cheapest where one partition is read to its end
/// before the next.
pub trait LogReader: Send {
    /// The first offset still in the log, and one past the last durable (Kafka: last stable) one.
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError>;

    /// The next records at or after `from`, in offset order: at least one where there is one, and no more than
    /// a bounded number of bytes. Offsets may be missing (transaction markers), also the last ones of the log:
    /// an empty answer says that the log was read to its end and has no record at or after `from`, so whoever
    /// measured the end before has everything below it. What cannot be told within `timeout` is an error, and
    /// can be tried again.
    fn read(&mut self, partition: u32, from: u64, timeout: Duration) -> Result<Vec<Record>, ReadError>;
}

/// The reading half: a member of a consumer group. Blocking, and used from one thread of its own.
pub trait Consumer: Send {
    /// The group, for those who answer from its partitions.
    fn group(&self) -> Arc<dyn Group>;

    /// Waits up to `timeout` for records. Never resumes by itself at an offset that `owner` did not name.
    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError>;

    /// Publishes all records and commits all offsets of `publications`, or nothing: in one transaction
    /// (Kafka) or one batch (embedded).
    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError>;
}
