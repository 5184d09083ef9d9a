//! The owner of inbox keys: reads the claims, remembers the first of each key, and writes a verdict for every other
//! subject that claims the same key. Must never advance over a claim whose verdict is not acknowledged, and never
//! decide by anything but the claims' order in their log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use journal::{
    Appender, Assigned, Consumer, NewRecord, PartitionOwner, Polled, Publication, PublishError, ReadError,
    Record, Topic,
};
use schema::avro::DecodeError;
use schema::claim::Winner;
use schema::{Claim, Micros, Observation, Verdict};
use service::clock::Clock;
use tokio::runtime::Runtime;

use crate::project::Stop;
use crate::run::Progress;
use crate::store::keys::ClaimRecord;
use crate::store::{self, ClaimChanges, Store};
use crate::{Error, metrics};

/// Microseconds between two commits of the group's offset, and before what failed is tried again.
const PAUSE_MICROS: i64 = 1_000_000;

/// A verdict to be written, and whose partition it goes to.
type Verdicts = Vec<Observation>;

/// Judges the claims of the partitions that are this instance's.
pub(crate) struct Judge {
    consumer: Box<dyn Consumer>,
    appender: Arc<dyn Appender>,
    clock: Arc<dyn Clock>,
    /// Waits for acknowledgements on the projector's own thread.
    runtime: Runtime,
    held: BTreeMap<u32, Held>,
    /// Read and not yet judged.
    waiting: VecDeque<(u32, Vec<Record>)>,
    not_before: Option<Micros>,
    /// What kept the last try from succeeding.
    problem: Option<String>,
}

/// A partition of the claims that is this instance's.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// What the group committed: the verdicts of all claims below it are in the log.
    committed: u64,
    /// Whether the group knows that offset.
    is_known: bool,
    stopped: bool,
}

impl Judge {
    pub(crate) fn new(
        consumer: Box<dyn Consumer>,
        appender: Arc<dyn Appender>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (held, waiting) = (BTreeMap::new(), VecDeque::new());
        Ok(Self { consumer, appender, clock, runtime, held, waiting, not_before: None, problem: None })
    }

    /// Takes in what is there and judges it. Answers what keeps the claims from being judged, if it is for an
    /// operator.
    pub(crate) fn step(&mut self, store: &Store, progress: &Progress) -> Result<Option<String>, Error> {
        if let Some(tried) = self.try_step(store, progress)? {
            self.problem = tried.err();
        }
        Ok(self.problem.clone())
    }

    /// One step; `None` where nothing was tried, because it is too early to try again.
    fn try_step(&mut self, store: &Store, progress: &Progress) -> Result<Option<Result<(), String>>, Error> {
        let now = self.clock.now();
        // A clock that was put back must not hold anything up.
        let pauses =
            self.not_before.is_some_and(|time| now < time && time.0.saturating_sub(now.0) <= PAUSE_MICROS);
        if !self.waiting.is_empty() && pauses {
            return Ok(None);
        }
        if self.waiting.is_empty() {
            let mut owner = Owner { store, progress, held: &mut self.held, failure: None };
            let polled = self.consumer.poll(&mut owner, Duration::ZERO);
            if let Some(failure) = owner.failure {
                return Err(failure.into());
            }
            match polled {
                Ok(Polled::Records { partition, records }) => self.waiting.push_back((partition, records)),
                Ok(Polled::Nothing) => {}
                Err(error @ ReadError::Lost { partition, .. }) => {
                    self.stop(progress, partition, error.to_string());
                }
                Err(ReadError::Ended(why)) => return Err(Error::Ended(format!("claims: {why}"))),
                Err(error @ ReadError::Unavailable(_)) => return Ok(Some(Err(format!("claims: {error}")))),
            }
        }
        while let Some((partition, records)) = self.waiting.pop_front() {
            if let Some(problem) = self.batch(store, progress, partition, &records)? {
                self.waiting.push_front((partition, records));
                self.not_before = Some(Micros(now.0.saturating_add(PAUSE_MICROS)));
                return Ok(Some(Err(problem)));
            }
        }
        if pauses { Ok(None) } else { Ok(Some(self.commit(store, now)?)) }
    }

    fn stop(&mut self, progress: &Progress, partition: u32, reason: String) {
        if let Some(held) = self.held.get_mut(&partition) {
            held.stopped = true;
        }
        progress.claims_stop(partition, reason);
    }

    /// Judges one batch, whole. Answers why its verdicts could not be written, if they could not.
    fn batch(
        &mut self,
        store: &Store,
        progress: &Progress,
        partition: u32,
        records: &[Record],
    ) -> Result<Option<String>, store::Error> {
        let Some(held) = self.held.get(&partition).filter(|held| !held.stopped) else { return Ok(None) };
        let (changes, verdicts, stop) = judge(store, partition, records, held.committed, self.clock.now())?;
        if let Err(problem) = self.append(&verdicts) {
            return Ok(Some(format!("a verdict cannot be written, and is tried again: {problem}")));
        }
        if let Some(meta) = &changes.meta {
            metrics::claims_progress(partition, meta.next_offset);
        }
        store.commit_claims(partition, &changes)?;
        if let Some(stop) = stop {
            self.stop(progress, partition, stop.to_string());
        }
        Ok(None)
    }

    /// Writes verdicts to the observations and waits until they are durable.
    fn append(&self, verdicts: &Verdicts) -> Result<(), String> {
        let appends = verdicts.iter().map(|verdict| {
            let value = schema::avro::encode(verdict).map_err(|error| error.to_string())?;
            let key = Bytes::from(verdict.subject.key());
            let partition = verdict.subject.partition(self.appender.partitions());
            let record = NewRecord { partition, key, value: value.into() };
            Ok(self.appender.append(Topic::Observations, record))
        });
        let appends = appends.collect::<Result<Vec<_>, String>>()?;
        match self.runtime.block_on(try_join_all(appends)) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Tells the group how far the claims are judged.
    fn commit(&mut self, store: &Store, now: Micros) -> Result<Result<(), String>, store::Error> {
        let mut publications = Vec::new();
        for (partition, held) in self.held.iter().filter(|(_, held)| !held.stopped) {
            let meta = store.claims_meta(*partition)?;
            if meta.next_offset > held.committed || !held.is_known {
                publications.push(Publication {
                    partition: *partition,
                    offset: meta.next_offset.max(held.committed),
                    metadata: String::new(),
                    projections: Vec::new(),
                    claims: Vec::new(),
                });
            }
        }
        if publications.is_empty() {
            return Ok(Ok(()));
        }
        self.not_before = Some(Micros(now.0.saturating_add(PAUSE_MICROS)));
        let offsets: Vec<_> = publications.iter().map(|of| (of.partition, of.offset)).collect();
        match self.consumer.publish(publications) {
            Ok(()) => {
                for (partition, offset) in offsets {
                    if let Some(held) = self.held.get_mut(&partition) {
                        *held = Held { committed: offset, is_known: true, ..*held };
                    }
                }
                Ok(Ok(()))
            }
            Err(error @ (PublishError::Fenced(_) | PublishError::Aborted(_))) => {
                tracing::warn!(%error, "the claims' offsets are committed later");
                Ok(Ok(()))
            }
            Err(error @ PublishError::Fatal(_)) => Ok(Err(format!("claims: {error}"))),
        }
    }
}

/// Judges claims in their order. Verdicts are made of those at or after `verdicts_from` alone: those of earlier
/// ones are in the log. Answers why the partition must stop, where it must.
pub(crate) fn judge(
    store: &Store,
    partition: u32,
    records: &[Record],
    verdicts_from: u64,
    now: Micros,
) -> Result<(ClaimChanges, Verdicts, Option<Stop>), store::Error> {
    let mut meta = store.claims_meta(partition)?;
    let mut changes = ClaimChanges::default();
    let mut verdicts = Vec::new();
    let mut stop = None;
    for record in records {
        let decoded = Claim::decode(&record.value);
        if record.offset < meta.next_offset {
            match meta.last_observation {
                Some((last, wanted)) if last == record.offset => {
                    let found = decoded.map(|claim| claim.observation_id).ok();
                    if found != Some(wanted) {
                        let found = found.map_or_else(|| "none".to_owned(), |id| id.to_string());
                        stop = Some(Stop::Rewritten { offset: record.offset, found, wanted });
                        break;
                    }
                }
                Some(_) | None => {}
            }
            continue;
        }
        match decoded {
            Ok(claim) => {
                let inbox = claim.inbox_digest();
                let known = match changes.claims.get(&inbox) {
                    Some(known) => Some(known.clone()),
                    None => store.claim(partition, inbox)?,
                };
                let mut known =
                    known.unwrap_or_else(|| ClaimRecord { winner: Winner::of(&claim), judged: Vec::new() });
                let subject = claim.subject.key();
                if let Some(verdict) = Verdict::on(&claim, &known.winner)
                    && !known.judged.contains(&subject)
                {
                    known.judged.push(subject);
                    if record.offset >= verdicts_from {
                        let observation = verdict.observe(claim.subject.clone(), now);
                        let observation =
                            observation.map_err(|error| store::Error::Packing(error.to_string()));
                        verdicts.push(observation?);
                    }
                }
                changes.claims.insert(inbox, known);
                meta.last_observation = Some((record.offset, claim.observation_id));
            }
            Err(error @ DecodeError::UnknownSchema { .. }) => {
                stop = Some(Stop::UnknownSchema { offset: record.offset, error });
                break;
            }
            Err(error @ DecodeError::Malformed(_)) => {
                // Our own releases wrote it; the observation it was made of is in the log.
                tracing::error!(partition, offset = record.offset, %error, "a claim is passed over");
            }
        }
        meta.next_offset = record.offset + 1;
    }
    changes.meta = Some(meta);
    Ok((changes, verdicts, stop))
}

/// Says where reading resumes: at the store's own offset.
struct Owner<'a> {
    store: &'a Store,
    progress: &'a Progress,
    held: &'a mut BTreeMap<u32, Held>,
    failure: Option<store::Error>,
}

impl PartitionOwner for Owner<'_> {
    fn assigned(&mut self, assigned: Assigned) -> Result<u64, String> {
        let Assigned { partition, log_start, log_end, committed } = assigned;
        let meta = match self.store.claims_meta(partition) {
            Ok(meta) => meta,
            Err(error) => {
                let reason = error.to_string();
                self.failure = Some(error);
                return Err(reason);
            }
        };
        let offset = committed.as_ref().map_or(0, |committed| committed.offset);
        self.held
            .insert(partition, Held { committed: offset, is_known: committed.is_some(), stopped: false });
        self.progress.claims_held(partition);
        metrics::claims_progress(partition, meta.next_offset);
        let next_offset = meta.next_offset.max(offset);
        let problem = if next_offset > log_end {
            Some(format!(
                "claims were judged up to offset {next_offset}, but their log ends at {log_end}: it was cut or is another one"
            ))
        } else if meta.next_offset < log_start {
            Some(format!(
                "the claims' log begins at offset {log_start}, but the store has read only up to {}: the claims between are lost",
                meta.next_offset
            ))
        } else {
            None
        };
        if let Some(reason) = problem {
            if let Some(held) = self.held.get_mut(&partition) {
                held.stopped = true;
            }
            self.progress.claims_stop(partition, reason.clone());
            return Err(reason);
        }
        // Read once more, to see that the log is still the same one; unless it begins after it by now.
        let to_recognize = meta.last_observation.map(|(offset, _)| offset).filter(|last| *last >= log_start);
        Ok(to_recognize.unwrap_or(meta.next_offset))
    }

    fn revoked(&mut self, partition: u32) {
        self.held.remove(&partition);
        self.progress.claims_revoked(partition);
    }
}
