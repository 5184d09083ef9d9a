//! The one thread that writes: it takes what is queued, never waits for more, and syncs once for all of
//! it. Must never answer an append before `fdatasync`, and never give an offset twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};

use super::layout::{record_key, record_value};
use super::{Log, lock};
use crate::disk::{self, Batch};
use crate::{AppendError, NewRecord, Position, Topic};

/// What is sent to the writer.
pub(super) enum Command {
    /// Write this.
    Append(Append),
    /// Write what was queued before, and stop.
    Close,
}

/// A record to be written, and where the answer goes.
pub(super) struct Append {
    pub(super) topic: Topic,
    pub(super) record: NewRecord,
    pub(super) answer: oneshot::Sender<Result<Position, AppendError>>,
}

impl Append {
    fn bytes(&self) -> usize {
        self.record.key.len() + self.record.value.len()
    }
}

pub(super) struct Writer {
    pub(super) log: Arc<Log>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) batch_records_max: usize,
    pub(super) batch_bytes_max: usize,
}

impl Writer {
    /// Writes until it is told to stop, nobody is left who could append, or the disk fails.
    pub(super) fn run(mut self) {
        while let Some(first) = self.commands.blocking_recv() {
            let appends = self.group(first);
            if appends.is_empty() {
                continue;
            }
            match self.commit(&appends) {
                Ok(positions) => {
                    for (append, position) in appends.into_iter().zip(positions) {
                        // Whoever asked may have gone; the record is written all the same.
                        drop(append.answer.send(Ok(position)));
                    }
                }
                Err(error) => return self.fail(&error, appends),
            }
        }
    }

    /// What is queued now, from `first` on, up to the bounds of a group.
    fn group(&mut self, first: Command) -> Vec<Append> {
        let mut appends = Vec::new();
        let mut bytes = 0;
        let mut command = Some(first);
        while let Some(taken) = command {
            match taken {
                Command::Append(append) => {
                    bytes += append.bytes();
                    appends.push(append);
                }
                // What was queued before the close is still received, and written.
                Command::Close => self.commands.close(),
            }
            let full = appends.len() >= self.batch_records_max || bytes >= self.batch_bytes_max;
            command = if full { None } else { self.commands.try_recv().ok() };
        }
        self.log.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        appends
    }

    /// Applies a group, syncs it, and only then lets readers see it.
    fn commit(&self, appends: &[Append]) -> Result<Vec<Position>, disk::Error> {
        let log = &self.log;
        let mut grown = BTreeMap::new();
        let mut positions = Vec::with_capacity(appends.len());
        let ends = lock(&log.ends);
        for append in appends {
            let (topic, partition) = (append.topic, append.record.partition);
            let end = grown.entry((topic, partition)).or_insert_with(|| ends.of(topic, partition));
            positions.push(Position { partition, offset: *end });
            *end += 1;
        }
        drop(ends);
        for topic in Topic::ALL {
            let mut batch = Batch::default();
            let mut touched = false;
            for (append, position) in appends.iter().zip(&positions).filter(|(of, _)| of.topic == topic) {
                let key = record_key(position.partition, position.offset);
                batch.insert_new(&key, &record_value(&append.record));
                touched = true;
            }
            if touched {
                log.tree(topic).apply(batch)?;
            }
        }
        log.disk.sync()?;
        log.syncs.fetch_add(1, Ordering::Relaxed);
        lock(&log.ends).synced.extend(grown);
        log.grown.notify_all();
        Ok(positions)
    }

    /// Tells everyone who waits, now and until the queue is closed, why nothing more is written.
    fn fail(mut self, error: &disk::Error, appends: Vec<Append>) {
        let failure = self.log.failure.get_or_init(|| error.to_string()).clone();
        tracing::error!(%failure, "the journal cannot be written any more; it must be opened anew");
        self.commands.close();
        let refuse =
            |append: Append| drop(append.answer.send(Err(AppendError::Unavailable(failure.clone()))));
        appends.into_iter().for_each(&refuse);
        while let Some(command) = self.commands.blocking_recv() {
            match command {
                Command::Append(append) => refuse(append),
                Command::Close => {}
            }
        }
    }
}

impl Drop for Writer {
    /// However the writer ends, readers who wait for more are told that there will be none.
    fn drop(&mut self) {
        lock(&self.log.ends).closed = true;
        self.log.grown.notify_all();
    }
}
