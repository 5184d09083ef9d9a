//! A store derived anew beside the live one: replayed from the log, compared with the live one, and put in its place
//! between two batches. Must never touch the live store, never put a store in its place that stands before it, and
//! never keep queries from being answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use journal::{LogReader, Record, Topic};
use schema::{Digest, Micros};
use serde::Serialize;

use crate::claims::judge;
use crate::project::{Projected, project};
use crate::run::{Live, Progress};
use crate::store::{self, Folder, Store};

/// How long one read of the log waits.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads in a row that may bring nothing although the log has more, before that is an error.
const EMPTY_READS_MAX: u32 = 3;

/// Records of one batch.
const BATCH_RECORDS_MAX: usize = 5_000;

/// Opens readers of the log.
pub type Readers = Arc<dyn Fn(Topic) -> Result<Box<dyn LogReader>, String> + Send + Sync>;

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// None was asked for since the process began.
    Idle,
    /// The log is replayed into the new store.
    Replaying,
    /// The digests of both stores are computed.
    Comparing,
    /// The new store takes the old one's place with the next batch.
    Swapping,
    /// The new store is live.
    Done,
    /// It did not come to its end; started again, it goes on where it was.
    Failed,
}

/// How far a rebuild is, as an answer.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Where it is.
    pub phase: Phase,
    /// Offsets replayed so far, of all partitions that this instance holds.
    pub records: u64,
    /// Offsets to replay.
    pub records_total: u64,
    /// Since it was started.
    pub records_per_second: f64,
    /// At that rate; null while there is none.
    pub seconds_left: Option<f64>,
    /// Why it failed.
    pub problem: Option<String>,
    /// What was compared.
    pub partitions: Vec<Compared>,
    /// Folders of stores that are kept until they are discarded.
    pub old: Vec<String>,
}

/// One partition's digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// The partition.
    pub partition: u32,
    /// Up to which offset both were derived.
    pub offset: u64,
    /// Of the live store.
    pub live: Digest,
    /// Of the new one.
    pub rebuilt: Digest,
}

/// The rebuild of this instance.
pub struct Rebuild {
    folder: Folder,
    readers: Readers,
    state: Mutex<State>,
    /// That a new store is ready, without a lock.
    is_ready: AtomicBool,
    stop: Arc<AtomicBool>,
}

struct State {
    phase: Phase,
    problem: Option<String>,
    fresh: Option<Arc<Store>>,
    records: u64,
    records_total: u64,
    replayed: u64,
    started: Instant,
    compared: Vec<Compared>,
}

/// Why a rebuild did not come to its end.
enum Failure {
    Store(store::Error),
    Other(String),
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl Rebuild {
    pub(crate) fn new(folder: Folder, readers: Readers, stop: Arc<AtomicBool>) -> Self {
        let state = State {
            phase: Phase::Idle,
            problem: None,
            fresh: None,
            records: 0,
            records_total: 0,
            replayed: 0,
            started: Instant::now(),
            compared: Vec::new(),
        };
        Self { folder, readers, state: Mutex::new(state), is_ready: AtomicBool::new(false), stop }
    }

    /// How far it is.
    pub(crate) fn status(&self) -> Result<Status, store::Error> {
        let old = self.folder.old()?.iter().map(|path| path.display().to_string()).collect();
        let state = self.state();
        let seconds = state.started.elapsed().as_secs_f64();
        let rate =
            if state.phase == Phase::Idle || seconds <= 0.0 { 0.0 } else { state.replayed as f64 / seconds };
        let left = state.records_total.saturating_sub(state.records) as f64;
        Ok(Status {
            phase: state.phase,
            records: state.records,
            records_total: state.records_total,
            records_per_second: rate,
            seconds_left: (rate > 0.0).then(|| left / rate),
            problem: state.problem.clone(),
            partitions: state.compared.clone(),
            old,
        })
    }

    /// Deletes the stores that are neither live nor being derived.
    pub(crate) fn discard_old(&self) -> Result<(), store::Error> {
        self.folder.discard_old().map(drop)
    }

    /// Starts it, or goes on with one that was begun; `false` where one is under way. With `accept` a new store
    /// takes the live one's place although their digests differ.
    pub(crate) fn start(
        self: &Arc<Self>,
        live: &Live,
        progress: &Arc<Progress>,
        accept: bool,
    ) -> std::io::Result<bool> {
        {
            let mut state = self.state();
            match state.phase {
                Phase::Replaying | Phase::Comparing | Phase::Swapping => return Ok(false),
                Phase::Idle | Phase::Done | Phase::Failed => {}
            }
            state.phase = Phase::Replaying;
            state.problem = None;
            state.compared.clear();
            state.replayed = 0;
            state.started = Instant::now();
        }
        let (this, live, progress) = (self.clone(), live.clone(), progress.clone());
        let run = move || {
            if let Err(failure) = this.run(&live, &progress, accept) {
                let problem = match failure {
                    Failure::Store(error) => error.to_string(),
                    Failure::Other(problem) => problem,
                };
                tracing::error!(problem, "the store was not derived anew; the live one stays");
                this.fail(problem);
            }
        };
        let spawned = std::thread::Builder::new().name("rebuild".to_owned()).spawn(run);
        if let Err(error) = spawned {
            self.fail(error.to_string());
            return Err(error);
        }
        Ok(true)
    }

    fn run(&self, live: &Live, progress: &Progress, accept: bool) -> Result<(), Failure> {
        let fresh = Arc::new(self.folder.rebuilding()?);
        let store = live.load_full();
        // Twice: the second time only what came meanwhile.
        for _ in 0..2 {
            let mut reader = (self.readers)(Topic::Observations).map_err(Failure::Other)?;
            for partition in progress.held() {
                self.replay(&store, &fresh, progress, &mut *reader, partition)?;
            }
            let mut reader = (self.readers)(Topic::Claims).map_err(Failure::Other)?;
            for partition in progress.claims_held_now() {
                self.replay_claims(&store, &fresh, &mut *reader, partition)?;
            }
        }
        self.state().phase = Phase::Comparing;
        let mut differing = Vec::new();
        for partition in progress.held() {
            self.check_stop()?;
            // The live store stands still while it is compared; queries are answered meanwhile.
            let view = store.read();
            catch_up(&store, &fresh, partition)?;
            let (of_live, rebuilt) = (view.digest(partition)?, fresh.read().digest(partition)?);
            drop(view);
            let (offset, of_live, rebuilt) = (of_live.offset, of_live.digest, rebuilt.digest);
            if of_live != rebuilt {
                differing.push(partition.to_string());
            }
            self.state().compared.push(Compared { partition, offset, live: of_live, rebuilt });
        }
        if !differing.is_empty() && !accept {
            return Err(Failure::Other(format!(
                "the digests of partition {} differ: the live store is not what this release derives from the log; see `witness rebuild --accept`",
                differing.join(", ")
            )));
        }
        let mut state = self.state();
        state.phase = Phase::Swapping;
        state.fresh = Some(fresh);
        drop(state);
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    fn replay(
        &self,
        live: &Store,
        fresh: &Store,
        progress: &Progress,
        reader: &mut dyn LogReader,
        partition: u32,
    ) -> Result<(), Failure> {
        let mut empty = 0;
        loop {
            self.check_stop()?;
            let target = live.read().meta(partition)?.next_offset;
            let next = fresh.read().meta(partition)?.next_offset;
            self.count(live, fresh, progress, 0)?;
            if next >= target {
                return Ok(());
            }
            let records = match read(reader, partition, next, target) {
                // A log that did not answer in time may do so the next time.
                Err(Failure::Other(_)) if empty < EMPTY_READS_MAX => Vec::new(),
                read => read?,
            };
            empty = if records.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_READS_MAX {
                return Err(Failure::Other(format!(
                    "partition {partition} of the log brings nothing at offset {next}, but the live store stands at {target}"
                )));
            }
            for batch in records.chunks(BATCH_RECORDS_MAX) {
                fold(fresh, partition, batch)?;
                self.count(live, fresh, progress, batch.len() as u64)?;
                self.check_stop()?;
            }
        }
    }

    fn replay_claims(
        &self,
        live: &Store,
        fresh: &Store,
        reader: &mut dyn LogReader,
        partition: u32,
    ) -> Result<(), Failure> {
        let mut empty = 0;
        loop {
            self.check_stop()?;
            let (target, next) =
                (live.claims_meta(partition)?.next_offset, fresh.claims_meta(partition)?.next_offset);
            if next >= target {
                return Ok(());
            }
            let records = match read(reader, partition, next, target) {
                // A log that did not answer in time may do so the next time.
                Err(Failure::Other(_)) if empty < EMPTY_READS_MAX => Vec::new(),
                read => read?,
            };
            empty = if records.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_READS_MAX {
                return Err(Failure::Other(format!(
                    "partition {partition} of the claims brings nothing at offset {next}, but the live store stands at {target}"
                )));
            }
            // Their verdicts are in the log: none is made.
            let (changes, _, stop) = judge(fresh, partition, &records, u64::MAX, Micros(0))?;
            fresh.commit_claims(partition, &changes)?;
            if let Some(stop) = stop {
                return Err(Failure::Other(format!("claims, partition {partition}: {stop}")));
            }
        }
    }

    /// Puts a new store in the live one's place, if one is ready. For the thread that writes to the live store,
    /// between two batches.
    pub(crate) fn swap(&self, live: &Live, progress: &Progress) -> Result<(), store::Error> {
        if !self.is_ready.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(fresh) = self.state().fresh.take() else { return Ok(()) };
        match self.complete(&live.load_full(), &fresh, progress) {
            Ok(()) => {
                self.folder.swap()?;
                live.store(fresh);
                self.state().phase = Phase::Done;
                tracing::info!("the store that was derived anew is live");
                Ok(())
            }
            Err(Failure::Store(error)) => Err(error),
            Err(Failure::Other(problem)) => {
                self.fail(problem);
                Ok(())
            }
        }
    }

    /// Brings the new store to where the live one stands.
    fn complete(&self, live: &Store, fresh: &Store, progress: &Progress) -> Result<(), Failure> {
        for partition in progress.held() {
            catch_up(live, fresh, partition)?;
        }
        let mut reader = (self.readers)(Topic::Claims).map_err(Failure::Other)?;
        for partition in progress.claims_held_now() {
            self.replay_claims(live, fresh, &mut *reader, partition)?;
        }
        Ok(())
    }

    fn count(
        &self,
        live: &Store,
        fresh: &Store,
        progress: &Progress,
        replayed: u64,
    ) -> Result<(), store::Error> {
        let (mut records, mut total) = (0, 0);
        for partition in progress.held() {
            records += fresh.read().meta(partition)?.next_offset;
            total += live.read().meta(partition)?.next_offset;
        }
        let mut state = self.state();
        state.records = records;
        state.records_total = total;
        state.replayed += replayed;
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Failure> {
        let stops = self.stop.load(Ordering::Relaxed);
        if stops { Err(Failure::Other("the service is stopping".to_owned())) } else { Ok(()) }
    }

    fn fail(&self, problem: String) {
        let mut state = self.state();
        state.phase = Phase::Failed;
        state.problem = Some(problem);
        state.fresh = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records from `from` on, below `target`.
fn read(reader: &mut dyn LogReader, partition: u32, from: u64, target: u64) -> Result<Vec<Record>, Failure> {
    let read = reader.read(partition, from, READ_TIMEOUT);
    let mut records = read.map_err(|error| Failure::Other(error.to_string()))?;
    records.retain(|record| record.offset < target);
    Ok(records)
}

fn fold(fresh: &Store, partition: u32, records: &[Record]) -> Result<(), Failure> {
    let Projected { changes, stop, claims: _ } = project(&fresh.read(), partition, records)?;
    if !changes.observations.is_empty() {
        fresh.commit(partition, changes)?;
    }
    stop.map_or(Ok(()), |stop| Err(Failure::Other(format!("partition {partition}: {stop}"))))
}

/// Brings a partition of the new store to where the live one stands, out of the records that the live one keeps
/// exactly as they were read.
fn catch_up(live: &Store, fresh: &Store, partition: u32) -> Result<(), Failure> {
    let from = fresh.read().meta(partition)?.next_offset;
    let mut records = Vec::new();
    for item in live.observations_from(partition, from)? {
        let (offset, value) = item?;
        records.push(Record { offset, key: bytes::Bytes::new(), value: value.into() });
        if records.len() == BATCH_RECORDS_MAX {
            fold(fresh, partition, &records)?;
            records.clear();
        }
    }
    fold(fresh, partition, &records)
}
