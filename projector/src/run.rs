//! The projector's own thread: poll, fold, commit, judge, publish, again. Must never go on after the store failed, and
//! never let a stopped partition stop the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use journal::{Assigned, Consumer, Group, PartitionOwner, Polled, PublishError, ReadError, Record};
use service::clock::Clock;

use crate::claims::Judge;
use crate::metrics;
use crate::project::{Projected, project};
use crate::publish::{Mark, Publishing};
use crate::rebuild::Rebuild;
use crate::store::keys::Meta;
use crate::store::{self, Folder, Store};
use crate::{Config, Error, Journal};

/// How long one poll waits, and so how soon the thread notices that it should stop.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);

/// Where every partition of this instance stands; shared with the queries.
#[derive(Debug, Default)]
pub struct Progress {
    places: Mutex<BTreeMap<u32, Place>>,
    /// The partitions of the claims that are this instance's, and why one is stopped, if it is.
    claims: Mutex<BTreeMap<u32, Option<String>>>,
    /// Why the journal cannot be read, while it cannot.
    journal_problem: Mutex<Option<String>>,
}

/// Where one partition stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The log's end when the partition was assigned: below it, the store is still replaying.
    pub log_end: u64,
    /// The store's next offset.
    pub next_offset: u64,
    /// The last record that the store knows, until it was seen in the log again: before that, the log may
    /// be another one.
    pub to_recognize: Option<u64>,
    /// Why it does not go on, if it does not.
    pub stopped: Option<String>,
}

impl Progress {
    /// Where a partition stands; `None` while it is not this instance's.
    pub fn of(&self, partition: u32) -> Option<Place> {
        self.lock().get(&partition).cloned()
    }

    /// The partitions that are this instance's.
    pub fn held(&self) -> Vec<u32> {
        self.lock().keys().copied().collect()
    }

    /// Why the journal cannot be read, while it cannot.
    pub fn journal_problem(&self) -> Option<String> {
        lock(&self.journal_problem).clone()
    }

    /// Why partitions of the claims are stopped, where they are.
    pub fn claims_problems(&self) -> Vec<String> {
        let claims = lock(&self.claims);
        let stopped = claims.iter().filter_map(|(partition, reason)| Some((partition, reason.as_ref()?)));
        stopped.map(|(partition, reason)| format!("claims, partition {partition}: {reason}")).collect()
    }

    /// The partitions of the claims that are this instance's.
    pub(crate) fn claims_held_now(&self) -> Vec<u32> {
        lock(&self.claims).keys().copied().collect()
    }

    pub(crate) fn claims_held(&self, partition: u32) {
        lock(&self.claims).insert(partition, None);
    }

    pub(crate) fn claims_revoked(&self, partition: u32) {
        lock(&self.claims).remove(&partition);
    }

    pub(crate) fn claims_stop(&self, partition: u32, reason: String) {
        tracing::error!(partition, reason, "the partition of the claims is stopped; the others go on");
        lock(&self.claims).insert(partition, Some(reason));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Place>> {
        lock(&self.places)
    }

    fn journal_is(&self, problem: Option<String>) {
        let mut known = lock(&self.journal_problem);
        if *known != problem {
            match &problem {
                Some(problem) => tracing::error!(problem, "the journal is tried again until it can be read"),
                None => tracing::info!("the journal can be read again"),
            }
            *known = problem;
        }
    }

    /// The log goes on from where the store stood, which is now at `next_offset`.
    fn advance(&self, partition: u32, next_offset: u64) {
        if let Some(place) = self.lock().get_mut(&partition) {
            place.next_offset = next_offset;
            place.to_recognize = None;
            metrics::progress(partition, next_offset, place.log_end);
        }
    }

    fn stop(&self, partition: u32, reason: String) {
        tracing::error!(partition, reason, "the partition is stopped; the others go on");
        metrics::stopped(partition);
        if let Some(place) = self.lock().get_mut(&partition) {
            place.stopped = Some(reason);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store that is live. It is replaced when another was derived anew.
pub(crate) type Live = Arc<ArcSwap<Store>>;

/// The projector without a thread of its own: one step at a time, for whoever owns time.
pub struct Runner {
    pub(crate) store: Live,
    pub(crate) progress: Arc<Progress>,
    pub(crate) rebuild: Arc<Rebuild>,
    consumer: Box<dyn Consumer>,
    judge: Judge,
    publishing: Publishing,
    publishing_problem: Option<String>,
    clock: Arc<dyn Clock>,
    batch_records_max: usize,
    stop: Arc<AtomicBool>,
}

impl Runner {
    /// Opens the store in its folder. Blocking; not from async code, nor are its steps.
    pub fn open(
        config: &Config,
        journal: Journal,
        clock: Arc<dyn Clock>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let (folder, store) = Folder::open(&config.store, config.partitions, config.epoch())?;
        let Journal { observations, claims, appender, readers } = journal;
        let judge = Judge::new(claims, appender, clock.clone());
        Ok(Self {
            store: Arc::new(ArcSwap::from_pointee(store)),
            progress: Arc::new(Progress::default()),
            consumer: observations,
            judge: judge.map_err(|error| Error::Thread(error.to_string()))?,
            publishing: Publishing::new(config.publish),
            publishing_problem: None,
            rebuild: Arc::new(Rebuild::new(folder, readers, stop.clone())),
            clock,
            batch_records_max: config.batch_records_max,
            stop,
        })
    }

    /// The group that the partitions are shared in.
    pub(crate) fn group(&self) -> Arc<dyn Group> {
        self.consumer.group()
    }

    /// The store that is live.
    pub fn store(&self) -> Arc<Store> {
        self.store.load_full()
    }

    /// Where every partition stands.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Runs until asked to stop; fails only when the store does, or the journal's readers have ended for good.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        while !self.stop.load(Ordering::Relaxed) {
            if self.step(POLL_TIMEOUT)? {
                std::thread::sleep(POLL_TIMEOUT);
            }
        }
        Ok(())
    }

    /// Polls once, folds what came, judges claims, publishes what is due. Answers whether the journal could not
    /// be read, and the next step should wait a little.
    pub fn step(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.rebuild.swap(&self.store, &self.progress)?;
        let store = self.store.load_full();
        let (progress, publishing) = (&self.progress, &mut self.publishing);
        let mut owner = Owner { store: &store, progress, publishing, failure: None };
        let polled = self.consumer.poll(&mut owner, timeout);
        if let Some(error) = owner.failure {
            return Err(error.into());
        }
        let mut journal_problem = None;
        match polled {
            Ok(Polled::Records { partition, records }) => {
                for batch in records.chunks(self.batch_records_max.max(1)) {
                    self.batch(&store, partition, batch)?;
                }
            }
            Ok(Polled::Nothing) => {}
            Err(error @ ReadError::Lost { partition, .. }) => {
                self.progress.stop(partition, error.to_string())
            }
            Err(ReadError::Ended(why)) => return Err(Error::Ended(why)),
            Err(error @ ReadError::Unavailable(_)) => journal_problem = Some(error.to_string()),
        }
        let is_unreadable = journal_problem.is_some();
        let claims_problem = self.judge.step(&store, &self.progress)?;
        let publishing_problem = self.publish(&store)?;
        self.progress.journal_is(journal_problem.or(claims_problem).or(publishing_problem));
        Ok(is_unreadable)
    }

    /// Publishes what is due. What keeps it from being published, if it is for an operator, stays known until a
    /// later try succeeds.
    fn publish(&mut self, store: &Store) -> Result<Option<String>, store::Error> {
        let due = self.publishing.due(store, self.clock.now())?;
        if due.is_empty() {
            return Ok(self.publishing_problem.clone());
        }
        let records: usize = due.iter().map(|of| of.publication.projections.len()).sum();
        let published = self.consumer.publish(due.iter().map(|of| of.publication.clone()).collect());
        self.publishing_problem = match published {
            Ok(()) => {
                self.publishing.published(due);
                metrics::published(records);
                None
            }
            Err(error @ PublishError::Fenced(_)) => {
                tracing::warn!(%error, "the partitions are given up and asked for again");
                self.publishing.forget();
                None
            }
            Err(error @ PublishError::Aborted(_)) => {
                tracing::warn!(%error, "trying again");
                self.publishing.failed(self.clock.now());
                None
            }
            Err(error @ PublishError::Fatal(_)) => {
                self.publishing.failed(self.clock.now());
                Some(error.to_string())
            }
        };
        Ok(self.publishing_problem.clone())
    }

    fn batch(&mut self, store: &Store, partition: u32, records: &[Record]) -> Result<(), store::Error> {
        let Some(place) = self.progress.of(partition).filter(|place| place.stopped.is_none()) else {
            return Ok(());
        };
        // The record read last comes first; that it is the same one, `project` sees.
        if let (Some(wanted), Some(first)) = (place.to_recognize, records.first())
            && first.offset != wanted
        {
            let found = first.offset;
            self.progress.stop(
                partition,
                format!(
                    "the log was rewritten: offset {wanted}, which the store had read, is gone, and {found} comes next; the store must be deleted and derived anew"
                ),
            );
            return Ok(());
        }
        let started = Instant::now();
        let Projected { changes, claims, stop } = project(&store.read(), partition, records)?;
        let next_offset = changes.meta.as_ref().map_or(0, |meta| meta.next_offset);
        // A poll after a restart brings the last known record once more, and may bring nothing else.
        if !changes.observations.is_empty() {
            let (subjects, facts) = (changes.subjects.keys(), changes.facts.keys());
            self.publishing.changed(partition, next_offset, subjects, facts, claims);
            store.commit(partition, changes)?;
            metrics::batch(records.len(), started.elapsed().as_secs_f64(), store.size_bytes()?);
        }
        self.progress.advance(partition, next_offset);
        if let Some(reason) = stop {
            self.progress.stop(partition, reason.to_string());
        }
        Ok(())
    }
}

/// Says where reading resumes: at the store's own offset.
struct Owner<'a> {
    store: &'a Store,
    progress: &'a Progress,
    publishing: &'a mut Publishing,
    failure: Option<store::Error>,
}

impl PartitionOwner for Owner<'_> {
    fn assigned(&mut self, assigned: Assigned) -> Result<u64, String> {
        let Assigned { partition, log_start, log_end, .. } = assigned;
        let meta = match self.store.read().meta(partition) {
            Ok(meta) => meta,
            Err(error) => {
                let reason = error.to_string();
                self.failure = Some(error);
                return Err(reason);
            }
        };
        let next_offset = meta.next_offset;
        // Read once more, to see that the log is still the same one; unless it begins after it by now.
        let to_recognize = meta.last_observation.map(|(offset, _)| offset).filter(|last| *last >= log_start);
        self.progress.lock().insert(partition, Place { log_end, next_offset, to_recognize, stopped: None });
        metrics::progress(partition, next_offset, log_end);
        if next_offset > log_end {
            let reason = format!(
                "the store has read up to offset {next_offset}, but the log ends at {log_end}: the log was cut or is another one; delete the store to derive it anew from this log"
            );
            self.progress.stop(partition, reason.clone());
            return Err(reason);
        }
        if next_offset < log_start {
            let reason = format!(
                "the log begins at offset {log_start}, but the store has read only up to {next_offset}: the records between are lost"
            );
            self.progress.stop(partition, reason.clone());
            return Err(reason);
        }
        let mark = assigned.committed.as_ref().map(|committed| {
            let mark = Mark::read(committed).ok_or_else(|| {
                format!(
                    "what the group committed cannot be read: {:?}; use another group",
                    committed.metadata
                )
            })?;
            not_ours(&mark, &meta, log_end).map_or(Ok(mark), Err)
        });
        let mark = match mark.transpose() {
            Ok(mark) => mark,
            Err(reason) => {
                self.progress.stop(partition, reason.clone());
                return Err(reason);
            }
        };
        if let Err(error) = self.publishing.assigned(self.store, &assigned, mark, next_offset) {
            let reason = error.to_string();
            self.failure = Some(error);
            return Err(reason);
        }
        Ok(to_recognize.unwrap_or(next_offset))
    }

    fn revoked(&mut self, partition: u32) {
        self.publishing.revoked(partition);
        self.progress.lock().remove(&partition);
    }
}

/// Why the group's mark cannot be one of this log and this store, if it cannot.
fn not_ours(mark: &Mark, meta: &Meta, log_end: u64) -> Option<String> {
    let Mark { reached, epoch, last, .. } = *mark;
    if epoch > meta.epoch {
        return Some(format!(
            "the group has published under epoch {epoch}, but this instance derives epoch {}: run the newer release, or raise `projector.epoch`",
            meta.epoch
        ));
    }
    if epoch < meta.epoch {
        // Published by an earlier derivation, of perhaps another log: everything is published anew.
        return None;
    }
    if reached > log_end {
        return Some(format!(
            "the group has published up to offset {reached}, but the log ends at {log_end}: the log was cut or is another one; raise `projector.epoch` to derive and publish everything anew"
        ));
    }
    let (_, known) = meta.last_observation.filter(|_| meta.next_offset == reached)?;
    last.filter(|last| *last != known).map(|last| {
        format!(
            "the group has published up to offset {reached} of a log whose last observation there is {last}, but the store has read {known}: they are of different logs; raise `projector.epoch` to derive and publish everything anew"
        )
    })
}
