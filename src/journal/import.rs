//! Out of a file and into an empty journal, or one that holds the beginning of the same import. Must never append
//! before the whole file was found good and what is in the journal was found to be its beginning, and never call an
//! import done that was not read back.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use journal::{AppendError, Appender, NewRecord, Position, Topic};
use schema::subject::partition_of;
use schema::{Source, avro};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;

use super::file::Reader;
use super::progress::Progress;
use super::{READ_TIME_MAX, TOPICS};
use crate::opened::Opened;
use crate::wrong_use::WrongUse;

/// Appends that wait for their acknowledgement at once: fewer than any journal refuses.
const WAITING_RECORDS_MAX: usize = 1_000;
/// Bytes of them.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How often appending may fail before the import gives up, and is gone on with by hand.
const FAILURES_MAX: u32 = 5;

/// What is imported, and how.
pub(super) struct Import<'a> {
    pub(super) file: &'a Path,
    pub(super) rekey: bool,
    /// Of the target.
    pub(super) partitions: NonZeroU32,
}

/// What an import came to.
pub(super) struct Imported {
    /// Records that the target holds now.
    pub(super) records: u64,
    /// Of them, those that were there when this import began.
    pub(super) resumed: u64,
    /// Observations with another subject than in the file.
    pub(super) moved: u64,
    /// Claims and verdicts that were left out.
    pub(super) dropped: u64,
    /// Records that are no observations, and were left as they are.
    pub(super) unreadable: u64,
    /// The digest that ends the file.
    pub(super) file_digest: [u8; 32],
    pub(super) topics: Vec<Verified>,
}

/// One topic as it was read back.
pub(super) struct Verified {
    pub(super) topic: Topic,
    pub(super) records: u64,
    /// Over the number and the digest of every partition's records.
    pub(super) digest: [u8; 32],
}

/// Where a record belongs.
type Log = (Topic, u32);

/// Records, as their number and the digest over their keys and values in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    records: u64,
    digest: [u8; 32],
}

/// Grows to a [`Content`].
#[derive(Clone, Default)]
struct Contents {
    records: u64,
    hash: Sha256,
}

impl Contents {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.records += 1;
        for part in [key, value] {
            self.hash.update((part.len() as u64).to_be_bytes());
            self.hash.update(part);
        }
    }

    fn content(&self) -> Content {
        Content { records: self.records, digest: self.hash.clone().finalize().into() }
    }
}

/// What the file is to become, known once it was read to its end.
struct Expected {
    contents: BTreeMap<Log, Content>,
    counts: Counts,
    file_digest: [u8; 32],
}

#[derive(Clone, Copy, Default)]
struct Counts {
    moved: u64,
    dropped: u64,
    unreadable: u64,
}

impl Import<'_> {
    /// Does it; the target comes back to be closed.
    pub(super) fn run(&self, mut target: Opened, runtime: &Runtime) -> (Opened, anyhow::Result<Imported>) {
        let imported = self.import(&mut target, runtime);
        (target, imported)
    }

    fn import(&self, target: &mut Opened, runtime: &Runtime) -> anyhow::Result<Imported> {
        let mut present = self.read(target)?;
        let expected = self.compare(&present)?.map_err(WrongUse)?;
        let total: u64 = expected.contents.values().map(|content| content.records).sum();
        let resumed: u64 = present.values().map(|content| content.records).sum();
        let mut failures = 0;
        while present != expected.contents {
            let appended = self.append(target.appender()?, &present, total, runtime);
            // Whatever was answered: what counts is what is there.
            present = self.read(target)?;
            let Err(error) = appended else {
                if present != expected.contents {
                    bail!(
                        "what was read back is not what was imported; was something else writing to this journal? It must be emptied, and the import begun anew"
                    );
                }
                break;
            };
            failures += 1;
            let is_final = match error.downcast_ref() {
                Some(AppendError::TooLarge { .. }) | None => true,
                // What an embedded journal's disk refused once it refuses until it is opened anew.
                Some(AppendError::Unavailable(_) | AppendError::QueueFull) => {
                    matches!(target, Opened::Embedded(_))
                }
            };
            if is_final || failures == FAILURES_MAX {
                return Err(error.context("run the import again to go on with it"));
            }
            tracing::warn!("{error:#}; looking at what was written, and going on");
            // An append that was reported failed can have been written, and a later one without it.
            if let Err(why) = self.compare(&present)? {
                bail!(
                    "{why}; appends that failed were written out of order or twice: the journal must be emptied, and the import begun anew"
                );
            }
        }
        let Expected { counts: Counts { moved, dropped, unreadable }, file_digest, .. } = expected;
        let topics = TOPICS.into_iter().map(|topic| verified(topic, &present)).collect();
        Ok(Imported { records: total, resumed, moved, dropped, unreadable, file_digest, topics })
    }

    /// What the target holds.
    fn read(&self, target: &Opened) -> anyhow::Result<BTreeMap<Log, Content>> {
        let mut present = BTreeMap::new();
        for topic in TOPICS {
            let mut reader = target.log_reader(topic)?;
            let partitions = 0..self.partitions.get();
            let bounds = partitions
                .map(|partition| Ok((partition, reader.bounds(partition)?)))
                .collect::<anyhow::Result<Vec<_>>>()
                .with_context(|| topic.to_string())?;
            let progress = Progress::begin(
                "reading the journal",
                bounds.iter().map(|(_, (start, end))| end - start).sum(),
            );
            for (partition, (start, end)) in bounds {
                let mut contents = Contents::default();
                let mut next = start;
                while next < end {
                    let records = reader
                        .read(partition, next, READ_TIME_MAX)
                        .with_context(|| format!("partition {partition} of {topic}"))?;
                    let before = next;
                    next = records.last().map_or(end, |record| record.offset + 1);
                    records.iter().for_each(|record| contents.add(&record.key, &record.value));
                    progress.advance(next - before);
                }
                present.insert((topic, partition), contents.content());
            }
            progress.end();
        }
        Ok(present)
    }

    /// Reads the whole file, and finds what the target is to hold in the end, or why what it holds is not the
    /// beginning of that.
    fn compare(&self, present: &BTreeMap<Log, Content>) -> anyhow::Result<Result<Expected, String>> {
        let mut growing: BTreeMap<Log, Contents> =
            present.keys().map(|log| (*log, Contents::default())).collect();
        let is_begun = |log: &Log, contents: &Contents| {
            let there = present.get(log).copied().unwrap_or_default();
            there.records != contents.records || there.digest == contents.content().digest
        };
        let mut other = growing.iter().find(|(log, contents)| !is_begun(log, contents)).map(|(log, _)| *log);
        let (counts, file_digest) = self.each(|topic, record| {
            let log = (topic, record.partition);
            let contents = growing.entry(log).or_default();
            contents.add(&record.key, &record.value);
            if !is_begun(&log, contents) {
                other = Some(log);
            }
            Ok(())
        })?;
        let contents: BTreeMap<Log, Content> =
            growing.into_iter().map(|(log, contents)| (log, contents.content())).collect();
        let records = |of: &BTreeMap<Log, Content>, log| of.get(log).map_or(0, |content| content.records);
        let too_many = present.keys().find(|log| records(present, log) > records(&contents, log)).copied();
        Ok(match other.or(too_many) {
            Some((topic, partition)) => Err(format!(
                "partition {partition} of {topic} holds {} records that are not the beginning of this import; import into an empty journal",
                records(present, &(topic, partition)),
            )),
            None => Ok(Expected { contents, counts, file_digest }),
        })
    }

    /// Appends what is missing, many at a time and each partition in order, and stops at the first failure.
    fn append(
        &self,
        appender: Arc<dyn Appender>,
        present: &BTreeMap<Log, Content>,
        total: u64,
        runtime: &Runtime,
    ) -> anyhow::Result<()> {
        let progress = Progress::begin("importing", total);
        let mut skip: BTreeMap<Log, u64> =
            present.iter().map(|(log, content)| (*log, content.records)).collect();
        let mut waiting: VecDeque<(usize, BoxFuture<'_, Result<Position, AppendError>>)> = VecDeque::new();
        let mut bytes = 0;
        let answered = self.each(|topic, record| {
            let left = skip.entry((topic, record.partition)).or_default();
            if *left > 0 {
                *left -= 1;
                progress.advance(1);
                return Ok(());
            }
            let size = record.key.len() + record.value.len();
            while waiting.len() >= WAITING_RECORDS_MAX || (bytes + size > WAITING_BYTES_MAX && bytes > 0) {
                let Some((size, append)) = waiting.pop_front() else { break };
                bytes -= size;
                runtime.block_on(append)?;
                progress.advance(1);
            }
            bytes += size;
            waiting.push_back((size, appender.append(topic, record)));
            Ok(())
        });
        // Also after a failure: what comes of the others is decided before anybody looks.
        let mut failure = answered.err();
        for (_, append) in waiting {
            match runtime.block_on(append) {
                Ok(_) => progress.advance(1),
                Err(error) => failure = failure.or(Some(error.into())),
            }
        }
        progress.end();
        failure.map_or(Ok(()), Err)
    }

    /// Every record of the file as it is to be in the target, in order; and the digest that ends the file.
    fn each(
        &self,
        mut take: impl FnMut(Topic, NewRecord) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Counts, [u8; 32])> {
        let name = || self.file.display().to_string();
        let mut reader = Reader::open(self.file).with_context(name)?;
        let mut counts = Counts::default();
        while let Some(chunk) = reader.next().with_context(name)? {
            for record in chunk.records {
                if let Some((key, value)) = self.converted(chunk.topic, record.key, record.value, &mut counts)
                {
                    let partition = partition_of(&key, self.partitions);
                    take(chunk.topic, NewRecord { partition, key, value })?;
                }
            }
        }
        let digest = reader.digest().context("the file has no end")?;
        Ok((counts, digest))
    }

    /// A record as it is to be imported; `None` where it is left out.
    fn converted(
        &self,
        topic: Topic,
        key: Bytes,
        value: Bytes,
        counts: &mut Counts,
    ) -> Option<(Bytes, Bytes)> {
        if !self.rekey {
            return Some((key, value));
        }
        match topic {
            Topic::Observations => {}
            Topic::Claims | Topic::Projections => {
                counts.dropped += 1;
                return None;
            }
        }
        let Ok(observation) = avro::decode(&value) else {
            counts.unreadable += 1;
            return Some((key, value));
        };
        match observation.source {
            Source::Verdict => {
                counts.dropped += 1;
                return None;
            }
            Source::Webhook | Source::ReadApi | Source::Operator => {}
        }
        let before = observation.subject.clone();
        let observation = observation.rekeyed();
        if observation.subject == before {
            return Some((key, value));
        }
        // A longer subject can make a record that is too large; it then stays what it was.
        let Ok(rewritten) = avro::encode(&observation) else { return Some((key, value)) };
        counts.moved += 1;
        Some((observation.subject.key().into(), rewritten.into()))
    }
}

fn verified(topic: Topic, contents: &BTreeMap<Log, Content>) -> Verified {
    let mut hash = Sha256::new();
    let mut records = 0;
    for (_, content) in contents.iter().filter(|((of, _), _)| *of == topic) {
        records += content.records;
        hash.update(content.records.to_be_bytes());
        hash.update(content.digest);
    }
    Verified { topic, records, digest: hash.finalize().into() }
}
