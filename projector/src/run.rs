//! The projector's own thread: poll, fold, commit, again. Must never go on after the store failed, and
//! never let a stopped partition stop the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use journal::{Assigned, Committed, Consumer, PartitionOwner, Polled, PublishError, ReadError, Record};

use crate::metrics;
use crate::project::project;
use crate::publish::Publishing;
use crate::store::keys::Meta;
use crate::store::{self, Store};

/// How long one poll waits, and so how soon the thread notices that it should stop.
const POLL_TIMEOUT: Duration = Duration::from_millis(200);

/// Where every partition of this instance stands; shared with the queries.
#[derive(Debug, Default)]
pub struct Progress {
    places: Mutex<BTreeMap<u32, Place>>,
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

/// Everything the thread works with.
pub(crate) struct Runner {
    pub(crate) store: Arc<Store>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) consumer: Box<dyn Consumer>,
    /// What is to be published; `None` where nobody else could read it.
    pub(crate) publishing: Option<Publishing>,
    pub(crate) batch_records_max: usize,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Runner {
    /// Runs until asked to stop; fails only when the store does.
    pub(crate) fn run(mut self) -> Result<(), store::Error> {
        while !self.stop.load(Ordering::Relaxed) {
            let (store, progress, publishing) = (&self.store, &self.progress, self.publishing.as_mut());
            let mut owner = Owner { store, progress, publishing, failure: None };
            let polled = self.consumer.poll(&mut owner, POLL_TIMEOUT);
            if let Some(error) = owner.failure {
                return Err(error);
            }
            let mut journal_problem = None;
            match polled {
                Ok(Polled::Records { partition, records }) => {
                    for batch in records.chunks(self.batch_records_max.max(1)) {
                        self.batch(partition, batch)?;
                    }
                }
                Ok(Polled::Nothing) => {}
                Err(error @ ReadError::Lost { partition, .. }) => {
                    self.progress.stop(partition, error.to_string())
                }
                Err(error @ ReadError::Unavailable(_)) => {
                    std::thread::sleep(POLL_TIMEOUT);
                    journal_problem = Some(error.to_string());
                }
            }
            let publishing_problem = self.publish()?;
            self.progress.journal_is(journal_problem.or(publishing_problem));
        }
        Ok(())
    }

    /// Publishes what is due; answers what keeps it from being published, if it is for an operator.
    fn publish(&mut self) -> Result<Option<String>, store::Error> {
        let Some(publishing) = &mut self.publishing else { return Ok(None) };
        let due = publishing.due(&self.store)?;
        if due.is_empty() {
            return Ok(None);
        }
        let offsets: Vec<_> = due.iter().map(|of| (of.partition, of.offset)).collect();
        let records: usize = due.iter().map(|of| of.projections.len()).sum();
        match self.consumer.publish(due) {
            Ok(()) => {
                publishing.published(&offsets);
                metrics::published(records);
                Ok(None)
            }
            Err(error @ PublishError::Fenced(_)) => {
                tracing::warn!(%error, "the partitions are given up and asked for again");
                publishing.forget();
                Ok(None)
            }
            Err(error @ PublishError::Aborted(_)) => {
                tracing::warn!(%error, "trying again");
                publishing.failed();
                Ok(None)
            }
            Err(error @ PublishError::Fatal(_)) => {
                publishing.failed();
                Ok(Some(error.to_string()))
            }
        }
    }

    fn batch(&mut self, partition: u32, records: &[Record]) -> Result<(), store::Error> {
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
        let (changes, stop) = project(&self.store.read(), partition, records)?;
        let next_offset = changes.meta.as_ref().map_or(0, |meta| meta.next_offset);
        // A poll after a restart brings the last known record once more, and may bring nothing else.
        if !changes.observations.is_empty() {
            if let Some(publishing) = &mut self.publishing {
                publishing.changed(partition, next_offset, changes.subjects.keys(), changes.facts.keys());
            }
            self.store.commit(partition, changes)?;
            metrics::batch(records.len(), started.elapsed().as_secs_f64(), self.store.size_bytes()?);
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
    publishing: Option<&'a mut Publishing>,
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
        if let Some(committed) = &assigned.committed
            && let Some(reason) = not_ours(committed, &meta, log_end)
        {
            self.progress.stop(partition, reason.clone());
            return Err(reason);
        }
        if let Some(publishing) = &mut self.publishing
            && let Err(error) = publishing.assigned(self.store, &assigned, next_offset)
        {
            let reason = error.to_string();
            self.failure = Some(error);
            return Err(reason);
        }
        Ok(to_recognize.unwrap_or(next_offset))
    }

    fn revoked(&mut self, partition: u32) {
        if let Some(publishing) = &mut self.publishing {
            publishing.revoked(partition);
        }
        self.progress.lock().remove(&partition);
    }
}

/// Why the group's committed offset cannot be one of this log and this store, if it cannot.
fn not_ours(committed: &Committed, meta: &Meta, log_end: u64) -> Option<String> {
    if committed.offset > log_end {
        return Some(format!(
            "the group has published up to offset {}, but the log ends at {log_end}: the log was cut or is another one; use another group, and delete the store to derive it anew from this log",
            committed.offset
        ));
    }
    let (_, last) = meta.last_observation.filter(|_| meta.next_offset == committed.offset)?;
    (!committed.metadata.is_empty() && committed.metadata != last.to_string()).then(|| {
        format!(
            "the group has published up to offset {} of a log whose last observation there is {}, but the store has read {last}: they are of different logs; delete the store to derive it anew",
            committed.offset, committed.metadata
        )
    })
}
