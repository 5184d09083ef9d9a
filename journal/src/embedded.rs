//! The journal on one machine: a sled tree a topic, one writer thread that commits in groups, readers
//! that see only what is synced. Must never let an append wait for a lock or a disk on the caller's
//! thread: it is queued, or refused at once.

mod consumer;
mod layout;
mod reader;
mod writer;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schema::limits::RECORD_BYTES_MAX;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

pub use self::consumer::EmbeddedConsumer;
use self::layout::{LAYOUT_VERSION, bounds, check_meta};
pub use self::reader::EmbeddedLogReader;
use self::writer::{Append, Command, Writer};
use crate::disk::{self, Disk, Tree};
use crate::{AppendError, Appender, NewRecord, Position, Topic};

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
    /// Bytes after which a group commit takes no more records.
    pub batch_bytes_max: usize,
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
            batch_bytes_max: 8 * 1024 * 1024,
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

/// The journal. Cheap to clone; all clones are one journal. Dropping the last one closes it, which waits
/// for what is queued to be written: prefer [`EmbeddedJournal::close`], off the async threads.
#[derive(Clone, Debug)]
pub struct EmbeddedJournal {
    shared: Arc<Shared>,
}

/// What the clones share.
#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Command>,
    queue_bytes_max: usize,
    log: Arc<Log>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the clones, the writer and the readers share. It knows no queue, so that the writer, who has it,
/// does not keep its own queue open.
#[derive(Debug)]
struct Log {
    disk: Disk,
    trees: [Tree; Topic::ALL.len()],
    /// How far each topic's group is, by partition.
    committed: Tree,
    partitions: NonZeroU32,
    ends: Mutex<Ends>,
    /// Told of every change of `ends`.
    grown: Condvar,
    queued_bytes: AtomicUsize,
    failure: OnceLock<String>,
    syncs: AtomicU64,
}

/// How far readers may read.
#[derive(Debug, Default)]
struct Ends {
    /// One past the last synced offset, by topic and partition; none stands for zero.
    synced: BTreeMap<(Topic, u32), u64>,
    /// No more will come.
    closed: bool,
}

impl Ends {
    fn of(&self, topic: Topic, partition: u32) -> u64 {
        self.synced.get(&(topic, partition)).copied().unwrap_or_default()
    }
}

impl Log {
    fn tree(&self, topic: Topic) -> &Tree {
        let [observations, projections, claims] = &self.trees;
        match topic {
            Topic::Observations => observations,
            Topic::Projections => projections,
            Topic::Claims => claims,
        }
    }

    /// The first offset of a partition, and one past the last that readers may see.
    fn bounds(&self, topic: Topic, partition: u32) -> Result<(u64, u64), disk::Error> {
        let end = lock(&self.ends).of(topic, partition);
        let start = bounds(self.tree(topic), partition)?.map_or(end, |(start, _)| start);
        Ok((start.min(end), end))
    }

    fn why_closed(&self) -> String {
        self.failure.get().cloned().unwrap_or_else(|| "it is closed".to_owned())
    }
}

impl EmbeddedJournal {
    /// Opens the journal in its folder, making it where it is missing, and starts its writer.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let disk = Disk::open(&config.path)?;
        check_meta(&disk, config)?;
        let [observations, projections, claims] = Topic::ALL.map(|topic| disk.tree(topic.name()));
        let trees = [observations?, projections?, claims?];
        let committed = disk.tree("journal.committed")?;
        // What a killed process had written but not synced is in the tree: it is made durable before
        // any reader can see it.
        disk.sync()?;
        let mut ends = Ends::default();
        for (topic, tree) in Topic::ALL.into_iter().zip(&trees) {
            for partition in 0..config.partitions.get() {
                if let Some((_, end)) = bounds(tree, partition)? {
                    ends.synced.insert((topic, partition), end);
                }
            }
        }
        let log = Arc::new(Log {
            disk,
            trees,
            committed,
            partitions: config.partitions,
            ends: Mutex::new(ends),
            grown: Condvar::new(),
            queued_bytes: AtomicUsize::new(0),
            failure: OnceLock::new(),
            syncs: AtomicU64::new(0),
        });
        let (queue, commands) = mpsc::channel(config.queue_records_max.max(1));
        let writer = Writer {
            log: log.clone(),
            commands,
            batch_records_max: config.batch_records_max,
            batch_bytes_max: config.batch_bytes_max,
        };
        let thread = std::thread::Builder::new()
            .name("journal-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Thread)?;
        let (queue_bytes_max, writer) = (config.queue_bytes_max, Mutex::new(Some(thread)));
        Ok(Self { shared: Arc::new(Shared { queue, queue_bytes_max, log, writer }) })
    }

    /// A reader of all partitions of `topic`. It keeps the folder in use until it is dropped.
    pub fn consumer(&self, topic: Topic) -> EmbeddedConsumer {
        EmbeddedConsumer::new(self.shared.log.clone(), self.shared.queue.downgrade(), topic)
    }

    /// A reader of `topic` as it stands, which belongs to no group. It keeps the folder in use until it is dropped.
    pub fn log_reader(&self, topic: Topic) -> EmbeddedLogReader {
        EmbeddedLogReader::new(self.shared.log.clone(), topic)
    }

    /// Writes what is queued, and stops. Appends after this are refused; readers who have read everything
    /// are told that it is closed. Blocks.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Group commits so far.
    pub fn syncs(&self) -> u64 {
        self.shared.log.syncs.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn close(&self) {
        if let Some(writer) = lock(&self.writer).take() {
            while self.queue.try_send(Command::Close).is_err() && !writer.is_finished() {
                std::thread::sleep(Duration::from_millis(5)); // the queue is full: the writer is draining it
            }
            drop(writer.join());
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
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
        self.shared.log.partitions
    }

    fn health(&self) -> Result<(), String> {
        if self.shared.queue.is_closed() { Err(self.shared.log.why_closed()) } else { Ok(()) }
    }
}

impl EmbeddedJournal {
    fn enqueue(
        &self,
        topic: Topic,
        record: NewRecord,
    ) -> Result<oneshot::Receiver<Result<Position, AppendError>>, AppendError> {
        let Shared { queue, queue_bytes_max, log, .. } = &*self.shared;
        let bytes = record.key.len() + record.value.len();
        if bytes > RECORD_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes, bytes_max: RECORD_BYTES_MAX });
        }
        if record.partition >= log.partitions.get() {
            let problem = format!("partition {} of {} does not exist", record.partition, log.partitions);
            return Err(AppendError::Unavailable(problem));
        }
        let unqueue = || log.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if log.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > (*queue_bytes_max).max(bytes) {
            unqueue();
            return Err(AppendError::QueueFull);
        }
        let (answer, answered) = oneshot::channel();
        queue.try_send(Command::Append(Append { topic, record, answer })).map_err(|error| {
            unqueue();
            match error {
                mpsc::error::TrySendError::Full(_) => AppendError::QueueFull,
                mpsc::error::TrySendError::Closed(_) => AppendError::Unavailable(log.why_closed()),
            }
        })?;
        Ok(answered)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
