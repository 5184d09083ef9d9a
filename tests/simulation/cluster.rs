//! The journal of the simulation, with a group of readers and everything that a real one does on its bad days: lost
//! acknowledgements, late records, gaps, repeats, transactions that end either way, owners who do not know that they
//! lost their partitions. Must never lose what it acknowledged, nor half of a transaction, nor go back in time.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use journal::{
    Alone, AppendError, Appender, Assigned, Committed, Consumer, LogReader, NewRecord, PartitionOwner,
    Polled, Position, Publication, PublishError, ReadError, Record, Topic, disk,
};

use crate::random::Random;
use crate::troubles::{Trouble, Troubles};

/// Partitions of every topic.
pub const PARTITIONS: NonZeroU32 = NonZeroU32::new(3).expect("three");

/// Instances of the projector.
pub const INSTANCES: usize = 3;

/// The journal; clones are the same one.
#[derive(Clone)]
pub struct Cluster(Arc<Mutex<State>>);

pub struct State {
    random: Random,
    /// By topic and partition.
    logs: BTreeMap<(Topic, u32), Log>,
    groups: BTreeMap<Topic, Group>,
    /// Appends that were reported failed and may still arrive.
    late: Vec<(Topic, NewRecord)>,
    /// Nothing goes wrong any more.
    pub calm: bool,
    pub troubles: Troubles,
    /// What was published since it was last looked at: the group's topic, and what its offset was before.
    pub published: Vec<(Topic, Option<u64>, Publication)>,
    /// The projector ended once it had written a verdict, before it could write anything else.
    pub has_ended: bool,
    /// How the next publication of the observations' group ends.
    pub publication: Fate,
}

/// How a publication ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Committed,
    /// Nothing happened, and it is known.
    Aborted,
    /// Nothing happened, and it is not known.
    Lost,
    /// It happened, and it is not known.
    Unknown,
    /// Others have had the partitions since they were polled.
    Expelled,
}

#[derive(Default)]
struct Log {
    records: Vec<Record>,
    end: u64,
}

struct Group {
    generation: u64,
    /// The instance that should hold a partition, and the session that does.
    target: Vec<usize>,
    held: Vec<Option<u64>>,
    /// Sessions that lost their partitions and do not know it.
    expelled: BTreeSet<u64>,
    committed: Vec<Option<Committed>>,
}

impl Log {
    fn push(&mut self, random: &mut Random, new: NewRecord) -> u64 {
        if random.below(20) == 0 {
            self.end += 1 + random.below(3);
        }
        let offset = self.end;
        self.end += 1;
        self.records.push(Record { offset, key: new.key, value: new.value });
        offset
    }

    fn from(&self, offset: u64) -> &[Record] {
        let begin = self.records.partition_point(|record| record.offset < offset);
        &self.records[begin..]
    }
}

impl Cluster {
    pub fn new(seed: u64) -> Self {
        let group = || Group {
            generation: 0,
            target: vec![0; PARTITIONS.get() as usize],
            held: vec![None; PARTITIONS.get() as usize],
            expelled: BTreeSet::new(),
            committed: vec![None; PARTITIONS.get() as usize],
        };
        let logs =
            Topic::ALL.into_iter().flat_map(|topic| (0..PARTITIONS.get()).map(move |number| (topic, number)));
        Self(Arc::new(Mutex::new(State {
            random: Random(seed),
            logs: logs.map(|place| (place, Log::default())).collect(),
            groups: [Topic::Observations, Topic::Claims].map(|topic| (topic, group())).into(),
            late: Vec::new(),
            calm: false,
            troubles: Troubles::default(),
            published: Vec::new(),
            has_ended: false,
            publication: Fate::Committed,
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panicked")
    }

    /// What an instance of the projector is given.
    pub fn journal(&self, instance: usize, session: u64) -> projector::Journal {
        let member = |topic| Member {
            cluster: self.clone(),
            topic,
            instance,
            session,
            positions: BTreeMap::new(),
            generation: 0,
            is_fenced: false,
        };
        let cluster = self.clone();
        projector::Journal {
            observations: Box::new(member(Topic::Observations)),
            claims: Box::new(member(Topic::Claims)),
            appender: Arc::new(Judges(self.clone())),
            readers: Arc::new(move |topic| Ok(Box::new(Lines { cluster: cluster.clone(), topic }))),
        }
    }

    /// What the door is given.
    pub fn door(&self) -> Arc<dyn Appender> {
        Arc::new(Door(self.clone()))
    }
}

impl State {
    /// All records of a partition at or after an offset.
    pub fn records(&self, topic: Topic, partition: u32, from: u64) -> &[Record] {
        self.logs[&(topic, partition)].from(from)
    }

    pub fn end(&self, topic: Topic, partition: u32) -> u64 {
        self.logs[&(topic, partition)].end
    }

    pub fn committed(&self, topic: Topic, partition: u32) -> Option<u64> {
        self.groups[&topic].committed[partition as usize].as_ref().map(|committed| committed.offset)
    }

    /// How something ends, of so many ways; the first one once nothing goes wrong any more.
    fn fate(&mut self, ways: u64) -> u64 {
        self.random.below(if self.calm { 1 } else { ways })
    }

    fn push(&mut self, topic: Topic, record: NewRecord) -> Position {
        let partition = record.partition;
        let log = self.logs.get_mut(&(topic, partition)).expect("a partition");
        Position { partition, offset: log.push(&mut self.random, record) }
    }

    /// Bytes that nobody wrote for us.
    pub fn scribble(&mut self, partition: u32) {
        let record = NewRecord { partition, key: "k".into(), value: "no observation".into() };
        self.push(Topic::Observations, record);
    }

    /// One of the late appends arrives, or never will.
    pub fn late_append(&mut self, arrives: bool) {
        if self.late.is_empty() {
            return;
        }
        let at = self.random.below(self.late.len() as u64) as usize;
        let (topic, record) = self.late.swap_remove(at);
        if arrives {
            self.troubles.count(Trouble::LateAppend);
            self.push(topic, record);
        }
    }

    pub fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// A partition is to be read by that instance, once its owner has given it up.
    pub fn assign(&mut self, topic: Topic, partition: u32, instance: usize) {
        let group = self.groups.get_mut(&topic).expect("a group");
        if group.target[partition as usize] != instance {
            group.target[partition as usize] = instance;
            group.generation += 1;
        }
    }

    pub fn target(&self, topic: Topic, partition: u32) -> usize {
        self.groups[&topic].target[partition as usize]
    }

    /// The session has ended, or is taken for ended: others may have its partitions.
    pub fn leave(&mut self, session: u64, does_not_know: bool) {
        for group in self.groups.values_mut() {
            for held in group.held.iter_mut().filter(|held| **held == Some(session)) {
                *held = None;
            }
            if does_not_know {
                group.expelled.insert(session);
            }
            group.generation += 1;
        }
    }
}

/// A member of one of the groups.
struct Member {
    cluster: Cluster,
    topic: Topic,
    instance: usize,
    session: u64,
    /// `None` where the owner refused.
    positions: BTreeMap<u32, Option<u64>>,
    generation: u64,
    is_fenced: bool,
}

impl Consumer for Member {
    /// Who reads the simulated answers asks the stores, and not through a group.
    fn group(&self) -> Arc<dyn journal::Group> {
        Arc::new(Alone)
    }

    fn poll(&mut self, owner: &mut dyn PartitionOwner, _: Duration) -> Result<Polled, ReadError> {
        let mut state = self.cluster.state();
        let State { random, logs, groups, calm, .. } = &mut *state;
        let group = groups.get_mut(&self.topic).expect("a group");
        if !*calm && random.below(60) == 0 {
            return Err(ReadError::Unavailable("nobody answers".to_owned()));
        }
        let is_lost = group.expelled.remove(&self.session) | std::mem::take(&mut self.is_fenced);
        let (instance, session) = (self.instance, self.session);
        self.positions.retain(|partition, _| {
            let (target, held) = (group.target[*partition as usize], &mut group.held[*partition as usize]);
            let stays = !is_lost && target == instance && *held == Some(session);
            if !stays {
                owner.revoked(*partition);
                if *held == Some(session) {
                    *held = None;
                }
            }
            stays
        });
        self.generation = group.generation;
        for partition in 0..PARTITIONS.get() {
            let held = &mut group.held[partition as usize];
            if group.target[partition as usize] == instance && held.is_none() {
                *held = Some(session);
                let committed = group.committed[partition as usize].clone();
                let log_end = logs[&(self.topic, partition)].end;
                let assigned = Assigned { partition, log_start: 0, log_end, committed };
                self.positions.insert(partition, owner.assigned(assigned).ok());
            }
        }
        let waiting: Vec<(u32, u64)> = self
            .positions
            .iter()
            .filter_map(|(partition, position)| Some((*partition, (*position)?)))
            .filter(|(partition, position)| !logs[&(self.topic, *partition)].from(*position).is_empty())
            .collect();
        if waiting.is_empty() {
            return Ok(Polled::Nothing);
        }
        let (partition, position) = waiting[random.below(waiting.len() as u64) as usize];
        let records = logs[&(self.topic, partition)].from(position);
        let records_max = if *calm { usize::MAX } else { 1 + random.below(80) as usize };
        let records = records[..records.len().min(records_max)].to_vec();
        let next = records.last().map_or(position, |last| last.offset + 1);
        self.positions.insert(partition, Some(next));
        Ok(Polled::Records { partition, records })
    }

    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        let mut state = self.cluster.state();
        let fate = match (self.topic, state.calm) {
            (_, true) => Fate::Committed,
            (Topic::Observations, false) => std::mem::replace(&mut state.publication, Fate::Committed),
            (Topic::Projections | Topic::Claims, false) => match state.random.below(12) {
                0 => Fate::Aborted,
                1 => Fate::Lost,
                2 => Fate::Unknown,
                3 => Fate::Expelled,
                _ => Fate::Committed,
            },
        };
        let group = &state.groups[&self.topic];
        let is_ours = |of: &Publication| {
            assert!(self.positions.contains_key(&of.partition), "published for a partition it gave up");
            group.held[of.partition as usize] == Some(self.session)
        };
        if group.expelled.contains(&self.session) || !publications.iter().all(is_ours) {
            state.troubles.count(Trouble::Fenced);
            self.is_fenced = true;
            return Err(PublishError::Fenced("the partitions are another's".to_owned()));
        }
        if group.generation != self.generation {
            return Err(PublishError::Aborted("the group has another generation".to_owned()));
        }
        match fate {
            Fate::Aborted => {
                // The transaction's marker takes a place all the same.
                for of in publications.iter().flat_map(|of| &of.claims) {
                    state.logs.get_mut(&(Topic::Claims, of.partition)).expect("a partition").end += 1;
                }
                return Err(PublishError::Aborted("the coordinator moved".to_owned()));
            }
            Fate::Lost => {
                self.is_fenced = true;
                return Err(PublishError::Fenced("nobody answered".to_owned()));
            }
            Fate::Expelled => {
                let State { random, groups, troubles, .. } = &mut *state;
                let group = groups.get_mut(&self.topic).expect("a group");
                group.generation += 1;
                for (held, target) in group.held.iter_mut().zip(&mut group.target) {
                    if *held == Some(self.session) {
                        *held = None;
                        *target = random.below(INSTANCES as u64) as usize;
                    }
                }
                troubles.count(Trouble::Fenced);
                self.is_fenced = true;
                return Err(PublishError::Fenced("the partitions are another's".to_owned()));
            }
            Fate::Committed | Fate::Unknown => {}
        }
        for publication in publications {
            let mut touched = BTreeSet::new();
            let records = publication.projections.iter().map(|record| (Topic::Projections, record));
            let records = records.chain(publication.claims.iter().map(|record| (Topic::Claims, record)));
            for (topic, record) in records {
                touched.insert((topic, record.partition));
                state.push(topic, record.clone());
            }
            for place in touched {
                state.logs.get_mut(&place).expect("a partition").end += 1;
            }
            let group = state.groups.get_mut(&self.topic).expect("a group");
            let committed = &mut group.committed[publication.partition as usize];
            let before = committed.as_ref().map(|committed| committed.offset);
            assert!(before.is_none_or(|before| before <= publication.offset), "a committed offset fell");
            *committed =
                Some(Committed { offset: publication.offset, metadata: publication.metadata.clone() });
            state.published.push((self.topic, before, publication));
        }
        if fate == Fate::Unknown {
            self.is_fenced = true;
            return Err(PublishError::Fenced("nobody answered".to_owned()));
        }
        Ok(())
    }
}

/// How an append ends.
enum Append {
    /// Written, and acknowledged after so long.
    Written(Duration),
    /// Written, and never acknowledged.
    Unheard,
    /// Written, and reported failed.
    LostAcknowledgement,
    /// Not written, and reported failed.
    Refused,
    /// Reported failed; it may arrive later.
    Late,
}

/// The door's way to write.
struct Door(Cluster);

impl Appender for Door {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        let mut state = self.0.state();
        let fate = match state.fate(100) {
            0..80 => Append::Written(Duration::ZERO),
            80..84 => Append::Written(Duration::from_millis(500 + state.random.below(6_000))),
            84..87 => Append::Unheard,
            87..91 => Append::LostAcknowledgement,
            91..95 => Append::Refused,
            _ => Append::Late,
        };
        appended(&mut state, topic, record, fate)
    }

    fn partitions(&self) -> NonZeroU32 {
        PARTITIONS
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The projector's way to write verdicts: it waits until the journal has decided.
struct Judges(Cluster);

impl Appender for Judges {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        let mut state = self.0.state();
        let fate = match state.fate(20) {
            0..14 => Append::Written(Duration::ZERO),
            14..16 => Append::LostAcknowledgement,
            16..18 => Append::Refused,
            _ => Append::Late,
        };
        if state.fate(6) == 5 {
            disk::simulation::writes_left(Some(0));
            state.has_ended = true;
        }
        appended(&mut state, topic, record, fate)
    }

    fn partitions(&self) -> NonZeroU32 {
        PARTITIONS
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

fn appended(
    state: &mut State,
    topic: Topic,
    record: NewRecord,
    fate: Append,
) -> BoxFuture<'static, Result<Position, AppendError>> {
    let failed = || Box::pin(std::future::ready(Err(AppendError::Unavailable("nobody answered".to_owned()))));
    match fate {
        Append::Written(Duration::ZERO) => {
            let position = state.push(topic, record);
            Box::pin(std::future::ready(Ok(position)))
        }
        Append::Written(after) => {
            let position = state.push(topic, record);
            Box::pin(async move {
                tokio::time::sleep(after).await;
                Ok(position)
            })
        }
        Append::Unheard => {
            state.troubles.count(Trouble::LostAcknowledgement);
            state.push(topic, record);
            Box::pin(std::future::pending())
        }
        Append::LostAcknowledgement => {
            state.troubles.count(Trouble::LostAcknowledgement);
            state.push(topic, record);
            failed()
        }
        Append::Refused => Box::pin(std::future::ready(Err(AppendError::QueueFull))),
        Append::Late => {
            state.late.push((topic, record));
            failed()
        }
    }
}

/// Reads beside the groups.
struct Lines {
    cluster: Cluster,
    topic: Topic,
}

impl LogReader for Lines {
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError> {
        Ok((0, self.cluster.state().end(self.topic, partition)))
    }

    fn read(&mut self, partition: u32, from: u64, _: Duration) -> Result<Vec<Record>, ReadError> {
        let state = self.cluster.state();
        Ok(state.records(self.topic, partition, from).iter().take(100).cloned().collect())
    }
}
