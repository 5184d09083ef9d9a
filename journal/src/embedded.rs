//! The journal on one machine: a sled tree a topic, one writer thread that commits in groups, readers
//! that see only what is synced. Must never answer an append before `fdatasync`, and never give an
//! offset twice.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schema::limits::RECORD_BYTES_MAX;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::disk::{self, Batch, Disk, Tree};
use crate::{
    AppendError, Appender, Assigned, Consumer, NewRecord, PartitionOwner, Polled, Position, ReadError,
    Record, Topic,
};

/// The layout of the folder. A folder of another layout is refused.
const LAYOUT_VERSION: u32 = 1;
/// Records one poll brings at most.
const POLL_RECORDS_MAX: usize = 1_000;
/// Bytes of records one poll brings at most, unless one record alone has more.
const POLL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Where the journal is, and its bounds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder.
    pub path: PathBuf,
    /// Partitions of every topic; fixed when the folder is made.
    pub partitions: NonZeroU32,
    /// Appends that may wait for the writer; one more is refused.
    pub queue_records_max: usize,
    /// Bytes of appends that may wait for the writer.
    pub queue_bytes_max: usize,
    /// Records one group commit takes.
    pub batch_records_max: usize,
}

impl Config {
    /// The usual bounds for a folder.
    pub fn new(path: impl Into<PathBuf>, partitions: NonZeroU32) -> Self {
        Self {
            path: path.into(),
            partitions,
            queue_records_max: 8_192,
            queue_bytes_max: 64 * 1024 * 1024,
            batch_records_max: 1_024,
        }
    }
}

/// Why the journal cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The disk, or what is on it.
    #[error(transparent)]
    Disk(#[from] disk::Error),
    /// The partition of a key depends on their number, so it is part of the data.
    #[error(
        "the journal in {path} has {found} partitions, but {wanted} are configured; set `journal.partitions = {found}`, or export the journal and import it into one of {wanted} partitions"
    )]
    Partitions {
        /// The folder.
        path: PathBuf,
        /// What the folder was made with.
        found: u32,
        /// What is configured.
        wanted: u32,
    },
    /// The folder was written by another release.
    #[error(
        "the journal in {path} has layout {found}, but this release writes layout {LAYOUT_VERSION}; export it with the release that wrote it"
    )]
    Layout {
        /// The folder.
        path: PathBuf,
        /// Its layout.
        found: u32,
    },
    /// The writer thread could not be started.
    #[error("cannot start the journal's writer: {0}")]
    Thread(std::io::Error),
}

/// The journal. Cheap to clone; all clones are one journal.
#[derive(Clone, Debug)]
pub struct EmbeddedJournal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    partitions: NonZeroU32,
    queue: mpsc::Sender<Command>,
    queue_bytes_max: usize,
    queued_bytes: AtomicUsize,
    failure: OnceLock<String>,
    log: Arc<Log>,
    writer: Mutex<Option<JoinHandle<()>>>,
    syncs: AtomicU64,
}

/// What the writer and the readers share.
#[derive(Debug)]
struct Log {
    disk: Disk,
    trees: [Tree; Topic::ALL.len()],
    /// One past the last synced offset, by topic and partition.
    ends: Mutex<Vec<Vec<u64>>>,
    grown: Condvar,
}

enum Command {
    Append(Append),
    Close,
}

struct Append {
    topic: Topic,
    record: NewRecord,
    answer: oneshot::Sender<Result<Position, AppendError>>,
}

impl EmbeddedJournal {
    /// Opens the journal in its folder, making it where it is missing, and starts its writer.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let disk = Disk::open(&config.path)?;
        check_meta(&disk, config)?;
        let [observations, projections, claims] = Topic::ALL.map(|topic| disk.tree(topic.name()));
        let trees = [observations?, projections?, claims?];
        // What a killed process had written but not synced is in the tree: it is made durable before
        // any reader can see it.
        disk.sync()?;
        let partitions = config.partitions.get();
        let ends = trees
            .iter()
            .map(|tree| (0..partitions).map(|partition| log_end(tree, partition)).collect())
            .collect::<Result<_, disk::Error>>()?;
        let log = Arc::new(Log { disk, trees, ends: Mutex::new(ends), grown: Condvar::new() });
        let (queue, commands) = mpsc::channel(config.queue_records_max.max(1));
        let shared = Arc::new(Shared {
            partitions: config.partitions,
            queue,
            queue_bytes_max: config.queue_bytes_max,
            queued_bytes: AtomicUsize::new(0),
            failure: OnceLock::new(),
            log,
            writer: Mutex::new(None),
            syncs: AtomicU64::new(0),
        });
        let writer =
            Writer { shared: shared.clone(), commands, batch_records_max: config.batch_records_max.max(1) };
        let thread = std::thread::Builder::new()
            .name("journal-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Thread)?;
        *lock(&shared.writer) = Some(thread);
        Ok(Self { shared })
    }

    /// A reader of all partitions of `topic`.
    pub fn consumer(&self, topic: Topic) -> EmbeddedConsumer {
        EmbeddedConsumer { log: self.shared.log.clone(), topic, positions: Vec::new(), turn: 0 }
    }

    /// Writes what is queued, and stops. Appends after this are refused.
    pub fn close(&self) {
        if let Some(writer) = lock(&self.shared.writer).take() {
            while self.shared.queue.try_send(Command::Close).is_err() && !writer.is_finished() {
                std::thread::sleep(Duration::from_millis(5)); // the queue is full: the writer is draining it
            }
            drop(writer.join());
        }
    }

    /// Group commits so far.
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }
}

impl Appender for EmbeddedJournal {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        match self.enqueue(topic, record) {
            Ok(answer) => async move {
                answer
                    .await
                    .unwrap_or_else(|_| Err(AppendError::Unavailable("its writer stopped".to_owned())))
            }
            .boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }

    fn partitions(&self) -> NonZeroU32 {
        self.shared.partitions
    }

    fn health(&self) -> Result<(), String> {
        match self.shared.failure.get() {
            Some(failure) => Err(failure.clone()),
            None if self.shared.queue.is_closed() => Err("the journal is closed".to_owned()),
            None => Ok(()),
        }
    }
}

impl EmbeddedJournal {
    fn enqueue(
        &self,
        topic: Topic,
        record: NewRecord,
    ) -> Result<oneshot::Receiver<Result<Position, AppendError>>, AppendError> {
        let shared = &self.shared;
        let bytes = record.key.len() + record.value.len();
        if bytes > RECORD_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes, bytes_max: RECORD_BYTES_MAX });
        }
        if record.partition >= shared.partitions.get() {
            let problem = format!("partition {} of {} does not exist", record.partition, shared.partitions);
            return Err(AppendError::Unavailable(problem));
        }
        if shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > shared.queue_bytes_max.max(bytes)
        {
            shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(AppendError::QueueFull);
        }
        let (answer, answered) = oneshot::channel();
        shared.queue.try_send(Command::Append(Append { topic, record, answer })).map_err(|error| {
            shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match error {
                mpsc::error::TrySendError::Full(_) => AppendError::QueueFull,
                mpsc::error::TrySendError::Closed(_) => AppendError::Unavailable(
                    shared.failure.get().cloned().unwrap_or_else(|| "it is closed".to_owned()),
                ),
            }
        })?;
        Ok(answered)
    }
}

/// The one thread that writes. It takes what is there, never waits for more, and syncs once for all.
struct Writer {
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    batch_records_max: usize,
}

impl Writer {
    fn run(mut self) {
        while let Some(first) = self.commands.blocking_recv() {
            let mut appends = Vec::new();
            let mut command = Some(first);
            loop {
                match command {
                    Some(Command::Append(append)) => appends.push(append),
                    // What was queued before the close is still received, and written, below.
                    Some(Command::Close) => self.commands.close(),
                    None => break,
                }
                command =
                    if appends.len() < self.batch_records_max { self.commands.try_recv().ok() } else { None };
            }
            if appends.is_empty() {
                continue;
            }
            let bytes =
                appends.iter().map(|append| append.record.key.len() + append.record.value.len()).sum();
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match self.commit(&appends) {
                Ok(positions) => {
                    for (append, position) in appends.into_iter().zip(positions) {
                        // Whoever asked may have gone; the record is written all the same.
                        drop(append.answer.send(Ok(position)));
                    }
                }
                Err(error) => {
                    let failure = self.shared.failure.get_or_init(|| error.to_string()).clone();
                    tracing::error!(%failure, "the journal cannot be written any more; it must be opened anew");
                    self.commands.close();
                    for append in appends {
                        drop(append.answer.send(Err(AppendError::Unavailable(failure.clone()))));
                    }
                    while let Some(command) = self.commands.blocking_recv() {
                        if let Command::Append(append) = command {
                            drop(append.answer.send(Err(AppendError::Unavailable(failure.clone()))));
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Applies a group, syncs it, and only then lets readers see it.
    fn commit(&self, appends: &[Append]) -> Result<Vec<Position>, disk::Error> {
        let log = &self.shared.log;
        let mut ends = lock(&log.ends).clone();
        let mut positions = Vec::with_capacity(appends.len());
        for (topic, tree) in Topic::ALL.into_iter().zip(&log.trees) {
            let mut batch = Batch::default();
            let mut touched = false;
            for append in appends.iter().filter(|append| append.topic == topic) {
                let partition = append.record.partition;
                let Some(end) = end_of(&mut ends, topic, partition) else { continue };
                batch.insert_new(&record_key(partition, *end), &record_value(&append.record));
                *end += 1;
                touched = true;
            }
            if touched {
                tree.apply(batch)?;
            }
        }
        log.disk.sync()?;
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        let mut synced = lock(&log.ends);
        for append in appends {
            let partition = append.record.partition;
            if let Some(end) = end_of(&mut synced, append.topic, partition) {
                positions.push(Position { partition, offset: *end });
                *end += 1;
            }
        }
        drop(synced);
        log.grown.notify_all();
        Ok(positions)
    }
}

fn end_of(ends: &mut [Vec<u64>], topic: Topic, partition: u32) -> Option<&mut u64> {
    ends.get_mut(topic as usize)?.get_mut(partition as usize)
}

/// Reads all partitions of one topic, in turn.
#[derive(Debug)]
pub struct EmbeddedConsumer {
    log: Arc<Log>,
    topic: Topic,
    /// The next offset of each partition; `None` where the owner refused it. Empty until the first poll.
    positions: Vec<Option<u64>>,
    turn: usize,
}

impl Consumer for EmbeddedConsumer {
    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError> {
        if self.positions.is_empty() {
            self.assign(owner)?;
        }
        let deadline = Instant::now() + timeout;
        let log = self.log.clone();
        let mut ends = lock(&log.ends);
        loop {
            if let Some((partition, from, to)) = self.next_readable(&ends) {
                drop(ends);
                return self.read(partition, from, to);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Polled::Nothing);
            }
            ends = log.grown.wait_timeout(ends, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl EmbeddedConsumer {
    fn assign(&mut self, owner: &mut dyn PartitionOwner) -> Result<(), ReadError> {
        let ends = lock(&self.log.ends).get(self.topic as usize).cloned().unwrap_or_default();
        for (partition, log_end) in (0..).zip(ends) {
            let log_start = self.log_start(partition, log_end)?;
            let position = match owner.assigned(Assigned { partition, log_start, log_end }) {
                Ok(wanted) if wanted < log_start => {
                    return Err(ReadError::Lost { partition, log_start, wanted });
                }
                Ok(wanted) => Some(wanted),
                Err(reason) => {
                    tracing::error!(partition, reason, "the partition is not read");
                    None
                }
            };
            self.positions.push(position);
        }
        Ok(())
    }

    fn log_start(&self, partition: u32, log_end: u64) -> Result<u64, ReadError> {
        let tree = self.tree();
        let first = tree.range(&record_key(partition, 0), &record_key(partition, u64::MAX)).next();
        match first.transpose().map_err(unavailable)? {
            Some((key, _)) => offset_of(tree, &key).map_err(unavailable),
            None => Ok(log_end),
        }
    }

    /// The next partition, in turn, that has something to read: it, and from where to where.
    fn next_readable(&mut self, ends: &[Vec<u64>]) -> Option<(u32, u64, u64)> {
        let ends = ends.get(self.topic as usize)?;
        let count = self.positions.len();
        (0..count).find_map(|step| {
            let partition = (self.turn + step) % count;
            let (from, to) = ((*self.positions.get(partition)?)?, *ends.get(partition)?);
            (from < to).then(|| {
                self.turn = partition + 1;
                (partition as u32, from, to)
            })
        })
    }

    fn read(&mut self, partition: u32, from: u64, to: u64) -> Result<Polled, ReadError> {
        let tree = self.tree();
        let mut records = Vec::new();
        let mut bytes = 0;
        for item in tree.range(&record_key(partition, from), &record_key(partition, to)) {
            let (key, value) = item.map_err(unavailable)?;
            let offset = offset_of(tree, &key).map_err(unavailable)?;
            let (record_key, value) =
                split_value(value).ok_or_else(|| unavailable(tree.damaged(&key, "its key is cut")))?;
            bytes += record_key.len() + value.len();
            records.push(Record { offset, key: record_key, value });
            if records.len() >= POLL_RECORDS_MAX || bytes >= POLL_BYTES_MAX {
                break;
            }
        }
        let next = records.last().map_or(to, |record| record.offset + 1);
        if let Some(position) = self.positions.get_mut(partition as usize) {
            *position = Some(next);
        }
        if records.is_empty() { Ok(Polled::Nothing) } else { Ok(Polled::Records { partition, records }) }
    }

    fn tree(&self) -> &Tree {
        let [observations, projections, claims] = &self.log.trees;
        match self.topic {
            Topic::Observations => observations,
            Topic::Projections => projections,
            Topic::Claims => claims,
        }
    }
}

fn unavailable(error: disk::Error) -> ReadError {
    ReadError::Unavailable(error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Key of a record: partition (`u32`) and offset (`u64`), both big-endian, so that a partition's records
/// stand together and in order.
fn record_key(partition: u32, offset: u64) -> [u8; 12] {
    let mut key = [0; 12];
    let (first, rest) = key.split_at_mut(4);
    first.copy_from_slice(&partition.to_be_bytes());
    rest.copy_from_slice(&offset.to_be_bytes());
    key
}

fn offset_of(tree: &Tree, key: &[u8]) -> Result<u64, disk::Error> {
    match key.last_chunk() {
        Some(offset) if key.len() == 12 => Ok(u64::from_be_bytes(*offset)),
        Some(_) | None => Err(tree.damaged(key, "its key is not a partition and an offset")),
    }
}

/// Value of a record: length of its key (`u32` big-endian), its key, its value.
fn record_value(record: &NewRecord) -> Vec<u8> {
    let mut value = Vec::with_capacity(4 + record.key.len() + record.value.len());
    value.extend_from_slice(&(record.key.len() as u32).to_be_bytes());
    value.extend_from_slice(&record.key);
    value.extend_from_slice(&record.value);
    value
}

fn split_value(value: Vec<u8>) -> Option<(Bytes, Bytes)> {
    let mut rest = Bytes::from(value);
    let length = u32::from_be_bytes(*rest.first_chunk()?) as usize;
    if rest.len() < 4 + length {
        return None;
    }
    let mut key = rest.split_to(4 + length);
    Some((key.split_off(4), rest))
}

fn log_end(tree: &Tree, partition: u32) -> Result<u64, disk::Error> {
    let last = tree.range(&record_key(partition, 0), &record_key(partition, u64::MAX)).next_back();
    match last.transpose()? {
        Some((key, _)) => Ok(offset_of(tree, &key)? + 1),
        None => Ok(0),
    }
}

/// Compares what the folder was made with, or writes it into a new one.
fn check_meta(disk: &Disk, config: &Config) -> Result<(), OpenError> {
    let tree = disk.tree("journal.meta")?;
    let path = || config.path.clone();
    let wanted = config.partitions.get();
    let numbers = [(&b"layout"[..], LAYOUT_VERSION), (&b"partitions"[..], wanted)];
    let mut batch = Batch::default();
    for (name, ours) in numbers {
        let found = match tree.get(name)? {
            Some(value) => {
                let bytes =
                    value.as_slice().try_into().map_err(|_| tree.damaged(name, "it is not a number"))?;
                u32::from_be_bytes(bytes)
            }
            None => {
                batch.insert_new(name, &ours.to_be_bytes());
                ours
            }
        };
        if found != ours {
            return Err(match name {
                b"layout" => OpenError::Layout { path: path(), found },
                _ => OpenError::Partitions { path: path(), found, wanted },
            });
        }
    }
    tree.apply(batch)?;
    Ok(())
}
