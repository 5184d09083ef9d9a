//! The one thread that writes: it takes what is queued, never waits for more, and syncs once for all of
//! it. Must never answer an append before `fdatasync`, and never give an offset twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};

use super::layout::{committed_key, committed_value, record_key, record_value};
use super::{Log, lock};
use crate::disk::{self, Batch};
use crate::{AppendError, NewRecord, Position, Publication, PublishError, Topic};

/// What is sent to the writer.
pub(super) enum Command {
    /// Write this.
    Append(Append),
    /// Write all of this, and then how far its group is.
    Publish(Publish),
    /// Write what was queued before, and stop.
    Close,
}

/// A record to be written, and where the answer goes.
pub(super) struct Append {
    pub(super) topic: Topic,
    pub(super) record: NewRecord,
    pub(super) answer: oneshot::Sender<Result<Position, AppendError>>,
}

/// What a reader publishes, and where the answer goes.
pub(super) struct Publish {
    pub(super) reads: Topic,
    pub(super) publications: Vec<Publication>,
    pub(super) answer: oneshot::Sender<Result<(), PublishError>>,
}

impl Publish {
    fn records(&self) -> impl Iterator<Item = (Topic, &NewRecord)> {
        self.publications.iter().flat_map(|publication| {
            let projections = publication.projections.iter().map(|record| (Topic::Projections, record));
            projections.chain(publication.claims.iter().map(|record| (Topic::Claims, record)))
        })
    }
}

/// What one commit takes.
#[derive(Default)]
struct Group {
    appends: Vec<Append>,
    publishes: Vec<Publish>,
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
            let group = self.group(first);
            let appended = group.appends.iter().map(|append| (append.topic, &append.record));
            let records: Vec<_> = appended.chain(group.publishes.iter().flat_map(Publish::records)).collect();
            if records.is_empty() && group.publishes.is_empty() {
                continue;
            }
            // What was published is durable before the offset that says so: a kill in between makes it be
            // published again, never forgotten.
            let committed = self.commit(&records);
            match committed.and_then(|positions| self.commit_offsets(&group.publishes).map(|()| positions)) {
                Ok(positions) => {
                    for (append, position) in group.appends.into_iter().zip(positions) {
                        // Whoever asked may have gone; the record is written all the same.
                        drop(append.answer.send(Ok(position)));
                    }
                    for publish in group.publishes {
                        drop(publish.answer.send(Ok(())));
                    }
                }
                Err(error) => return self.fail(&error, group),
            }
        }
    }

    /// What is queued now, from `first` on, up to the bounds of a group.
    fn group(&mut self, first: Command) -> Group {
        let mut group = Group::default();
        let mut bytes = 0;
        let mut command = Some(first);
        while let Some(taken) = command {
            match taken {
                Command::Append(append) => {
                    bytes += append.bytes();
                    group.appends.push(append);
                }
                Command::Publish(publish) => group.publishes.push(publish),
                // What was queued before the close is still received, and written.
                Command::Close => self.commands.close(),
            }
            let full = group.appends.len() >= self.batch_records_max || bytes >= self.batch_bytes_max;
            command = if full { None } else { self.commands.try_recv().ok() };
        }
        self.log.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        group
    }

    /// Applies a group, syncs it, and only then lets readers see it.
    fn commit(&self, records: &[(Topic, &NewRecord)]) -> Result<Vec<Position>, disk::Error> {
        let log = &self.log;
        let mut grown = BTreeMap::new();
        let mut positions = Vec::with_capacity(records.len());
        let ends = lock(&log.ends);
        for (topic, record) in records {
            let (topic, partition) = (*topic, record.partition);
            let end = grown.entry((topic, partition)).or_insert_with(|| ends.of(topic, partition));
            positions.push(Position { partition, offset: *end });
            *end += 1;
        }
        drop(ends);
        for topic in Topic::ALL {
            let mut batch = Batch::default();
            let mut touched = false;
            for ((_, record), position) in records.iter().zip(&positions).filter(|((of, _), _)| *of == topic)
            {
                let key = record_key(position.partition, position.offset);
                batch.insert_new(&key, &record_value(record));
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

    /// Keeps how far each group is, the latest of several.
    fn commit_offsets(&self, publishes: &[Publish]) -> Result<(), disk::Error> {
        let mut latest = BTreeMap::new();
        for publish in publishes {
            let publications = publish.publications.iter();
            latest.extend(publications.map(|of| (committed_key(publish.reads, of.partition), of)));
        }
        if latest.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for (key, publication) in latest {
            let value = committed_value(publication.offset, &publication.metadata);
            batch.replace(&self.log.committed, &key, &value)?;
        }
        self.log.committed.apply(batch)?;
        self.log.disk.sync()
    }

    /// Tells everyone who waits, now and until the queue is closed, why nothing more is written.
    fn fail(mut self, error: &disk::Error, group: Group) {
        let failure = self.log.failure.get_or_init(|| error.to_string()).clone();
        tracing::error!(%failure, "the journal cannot be written any more; it must be opened anew");
        self.commands.close();
        let refuse = |command| match command {
            Command::Append(append) => {
                drop(append.answer.send(Err(AppendError::Unavailable(failure.clone()))));
            }
            Command::Publish(publish) => drop(publish.answer.send(Err(PublishError::Fatal(failure.clone())))),
            Command::Close => {}
        };
        group.appends.into_iter().map(Command::Append).for_each(&refuse);
        group.publishes.into_iter().map(Command::Publish).for_each(&refuse);
        while let Some(command) = self.commands.blocking_recv() {
            refuse(command);
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
