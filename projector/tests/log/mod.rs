//! A log in memory, which a test can change under its reader. Must never answer what a real one could not.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a module of several test binaries, and a test stops at the first surprise"
)]

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use journal::{
    AppendError, Appender, Assigned, Committed, Consumer, Group, LogReader, NewRecord, Owner, PartitionOwner,
    Polled, Position, Publication, PublishError, ReadError, Record, Topic,
};

/// A log in memory, which a test can change under its reader.
#[derive(Clone)]
pub struct Log(pub Arc<(Mutex<State>, Condvar)>);

pub struct State {
    pub partitions: Vec<Partition>,
    pub claims: Vec<Partition>,
    pub problem: Option<ReadError>,
    /// What the group has published, in order, and how the next publications fail.
    pub published: Vec<NewRecord>,
    pub failures: VecDeque<PublishError>,
    /// How the next appends fail.
    pub append_failures: VecDeque<AppendError>,
    /// Why the group does not confirm the reader, where it does not.
    pub unconfirmed: Option<String>,
    /// Partitions that are given to nobody here, and whose they are.
    pub elsewhere: BTreeMap<u32, Owner>,
}

impl State {
    fn of(&mut self, topic: Topic) -> &mut Vec<Partition> {
        match topic {
            Topic::Observations => &mut self.partitions,
            Topic::Projections => panic!("nobody reads the projections"),
            Topic::Claims => &mut self.claims,
        }
    }
}

#[derive(Clone, Default)]
pub struct Partition {
    /// The log's bounds as an assignment reports them.
    pub start: u64,
    pub end: u64,
    pub records: Vec<Record>,
    pub committed: Option<Committed>,
}

impl Partition {
    /// The end as an assignment reports it: never before what is there.
    fn log_end(&self) -> u64 {
        self.records.last().map_or(self.end, |last| self.end.max(last.offset + 1))
    }

    fn push(&mut self, new: NewRecord) -> u64 {
        let offset = self.log_end();
        self.records.push(Record { offset, key: new.key, value: new.value });
        offset
    }
}

impl Log {
    pub fn new(partitions: &[Partition]) -> Self {
        Self(Arc::new((
            Mutex::new(State {
                partitions: partitions.to_vec(),
                claims: vec![Partition::default(); partitions.len()],
                append_failures: VecDeque::new(),
                unconfirmed: None,
                elsewhere: BTreeMap::new(),
                problem: None,
                published: Vec::new(),
                failures: VecDeque::new(),
            }),
            Condvar::new(),
        )))
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().expect("not poisoned"));
        self.0.1.notify_all();
    }

    /// The claims as they are now.
    pub fn claims(&self) -> Vec<Partition> {
        self.0.0.lock().expect("not poisoned").claims.clone()
    }

    pub fn append(&self, partition: usize, record: Record) {
        self.change(|state| state.partitions[partition].records.push(record));
    }
}

struct Reader {
    log: Log,
    topic: Topic,
    /// By partition; `None` where the owner refused. Empty before the assignment.
    positions: Vec<Option<u64>>,
    /// Whether the next poll must give everything up and join again.
    fenced: bool,
}

impl Consumer for Reader {
    fn group(&self) -> Arc<dyn Group> {
        Arc::new(self.log.clone())
    }

    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError> {
        let (state, changed) = &*self.log.0;
        let mut state = state.lock().expect("not poisoned");
        if let Some(problem) = &state.problem {
            return Err(problem.clone());
        }
        let topic = self.topic;
        if std::mem::take(&mut self.fenced) {
            for partition in 0..self.positions.len() {
                owner.revoked(partition as u32);
            }
            self.positions.clear();
        }
        if self.positions.is_empty() {
            let elsewhere = state.elsewhere.clone();
            for (partition, of) in (0..).zip(state.of(topic).iter()) {
                if topic == Topic::Observations && elsewhere.contains_key(&partition) {
                    self.positions.push(None);
                    continue;
                }
                let committed = of.committed.clone();
                let assigned = Assigned { partition, log_start: of.start, log_end: of.log_end(), committed };
                self.positions.push(owner.assigned(assigned).ok());
            }
        }
        for attempt in 0..2 {
            for (partition, position) in self.positions.iter_mut().enumerate() {
                let Some(position) = position else { continue };
                let records = state.of(topic)[partition].records.iter();
                let records: Vec<_> = records.filter(|record| record.offset >= *position).cloned().collect();
                if let Some(last) = records.last() {
                    *position = last.offset + 1;
                    return Ok(Polled::Records { partition: partition as u32, records });
                }
            }
            if attempt == 0 && !timeout.is_zero() {
                state = changed.wait_timeout(state, timeout).expect("not poisoned").0;
            }
        }
        Ok(Polled::Nothing)
    }

    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        let mut state = self.log.0.0.lock().expect("not poisoned");
        if self.topic == Topic::Observations
            && let Some(failure) = state.failures.pop_front()
        {
            self.fenced = matches!(failure, PublishError::Fenced(_));
            return Err(failure);
        }
        for Publication { partition, offset, metadata, projections, claims } in publications {
            let committed = &mut state.of(self.topic)[partition as usize].committed;
            assert!(
                committed.as_ref().is_none_or(|before| before.offset <= offset),
                "the committed offset never falls"
            );
            *committed = Some(Committed { offset, metadata });
            assert!(projections.iter().all(|record| record.partition == partition));
            state.published.extend(projections);
            for claim in claims {
                let partition = claim.partition as usize;
                state.claims[partition].push(claim);
            }
        }
        drop(state);
        self.log.0.1.notify_all();
        Ok(())
    }
}

impl Group for Log {
    fn confirmed(&self) -> Result<(), String> {
        self.0.0.lock().expect("not poisoned").unconfirmed.clone().map_or(Ok(()), Err)
    }

    fn owner(&self, partition: u32) -> Result<Owner, String> {
        let state = self.0.0.lock().expect("not poisoned");
        Ok(state.elsewhere.get(&partition).cloned().unwrap_or(Owner::Ourselves))
    }
}

impl Appender for Log {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        let mut appended = Err(AppendError::QueueFull);
        self.change(|state| {
            let partition = record.partition;
            appended = match state.append_failures.pop_front() {
                Some(failure) => Err(failure),
                None => Ok(Position { partition, offset: state.of(topic)[partition as usize].push(record) }),
            };
        });
        Box::pin(std::future::ready(appended))
    }

    fn partitions(&self) -> NonZeroU32 {
        let state = self.0.0.lock().expect("not poisoned");
        NonZeroU32::new(state.partitions.len() as u32).expect("at least one")
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

struct Lines {
    log: Log,
    topic: Topic,
}

impl LogReader for Lines {
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError> {
        let mut state = self.log.0.0.lock().expect("not poisoned");
        let of = &state.of(self.topic)[partition as usize];
        Ok((of.start, of.log_end()))
    }

    fn read(&mut self, partition: u32, from: u64, _: Duration) -> Result<Vec<Record>, ReadError> {
        let mut state = self.log.0.0.lock().expect("not poisoned");
        let records = state.of(self.topic)[partition as usize].records.iter();
        Ok(records.filter(|record| record.offset >= from).take(7).cloned().collect())
    }
}

impl Log {
    /// The log as a projector uses it.
    pub fn journal(&self) -> projector::Journal {
        let reader = |topic| Reader { log: self.clone(), topic, positions: Vec::new(), fenced: false };
        let log = self.clone();
        projector::Journal {
            observations: Box::new(reader(Topic::Observations)),
            claims: Box::new(reader(Topic::Claims)),
            appender: Arc::new(self.clone()),
            readers: Arc::new(move |topic| Ok(Box::new(Lines { log: log.clone(), topic }))),
        }
    }
}

impl Log {
    /// The records of the first partition.
    pub fn records(&self) -> Vec<Record> {
        self.0.0.lock().expect("not poisoned").partitions[0].records.clone()
    }
}
