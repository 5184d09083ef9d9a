//! What is to be published, and how far it is. There are no marks in the store: what the group committed with its
//! last publication, its [`Mark`], is the only memory of it. A group that has committed nothing, or that committed
//! under an earlier epoch, publishes every subject and fact once. Must never publish while the store is behind
//! what was published before, never move a mark without every projection and claim that it covers, and never hold
//! a projection: what is published is read from the store in that moment.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

use bytes::Bytes;
use journal::{Assigned, Committed, NewRecord, Publication};
use schema::published::{PublishedFact, PublishedProjection};
use schema::subject::partition_of;
use schema::{Claim, Micros, Reading, Subject};
use uuid::Uuid;

use crate::store::{self, Store};

/// Microseconds that changes are gathered into one publication. A transaction costs a broker round trip or two,
/// whatever is in it.
const GATHER_MICROS: i64 = 100_000;

/// Microseconds to wait after a publication that failed.
const PAUSE_AFTER_FAILURE_MICROS: i64 = 1_000_000;

/// Subjects, facts and claims of one partition in one publication at most. It is also after how many a
/// publication does not wait any longer.
const RECORDS_MAX: usize = 2_000;

/// How far a group has published a partition, as it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Every version below this offset is published. The offset that is committed.
    pub(crate) offset: u64,
    /// No version at or above this offset was ever published. Above `offset` only after a part of what was to be
    /// published.
    pub(crate) reached: u64,
    /// Of the versions published.
    pub(crate) epoch: u32,
    /// The last observation before `reached`, if there is one: it tells this log from another.
    pub(crate) last: Option<Uuid>,
}

impl Mark {
    /// Reads what was committed; without metadata, as by hand, the offset alone counts.
    pub(crate) fn read(committed: &Committed) -> Option<Self> {
        let mut mark = Self { offset: committed.offset, reached: committed.offset, epoch: 1, last: None };
        for part in committed.metadata.split_ascii_whitespace() {
            match part.split_once('=') {
                Some(("reached", reached)) => mark.reached = reached.parse().ok()?,
                Some(("epoch", epoch)) => mark.epoch = epoch.parse().ok()?,
                Some(("last", last)) => mark.last = Some(Uuid::parse_str(last).ok()?),
                _ => return None,
            }
        }
        Some(mark)
    }
}

/// The metadata that is committed beside the offset.
impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch={} reached={}", self.epoch, self.reached)?;
        self.last.map_or(Ok(()), |last| write!(f, " last={last}"))
    }
}

/// Everything this instance has to publish.
#[derive(Debug)]
pub(crate) struct Publishing {
    /// Whether projections are published, or claims alone.
    projections: bool,
    partitions: BTreeMap<u32, Unpublished>,
    not_before: Option<Micros>,
}

/// What one partition has to publish.
#[derive(Debug, Default)]
struct Unpublished {
    /// Everything whose version is below it is published.
    from: u64,
    /// Nothing is published before the store has come so far.
    reached: u64,
    /// The store's offset at the last publication; `None` before the first, also where there is nothing new.
    done: Option<u64>,
    /// Keys of subjects that an observation at or after `from` may have changed.
    subjects: BTreeSet<String>,
    /// Fact keys, as for subjects, with the key of their subject.
    facts: BTreeMap<String, String>,
    /// Claims of observations at or after `from`.
    claims: Vec<Claim>,
}

/// A publication that was put together, and what is left to do once it is made.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) publication: Publication,
    reached: u64,
    subjects: Vec<String>,
    facts: Vec<String>,
    claims: usize,
    is_last: bool,
}

impl Publishing {
    pub(crate) fn new(projections: bool) -> Self {
        Self { projections, partitions: BTreeMap::new(), not_before: None }
    }

    /// A partition is ours, and `mark` is what its group committed last. What the store has read beyond it is
    /// found again from the store's own observations.
    pub(crate) fn assigned(
        &mut self,
        store: &Store,
        assigned: &Assigned,
        mark: Option<Mark>,
        next_offset: u64,
    ) -> Result<(), store::Error> {
        let current = mark.filter(|mark| mark.epoch == store.epoch());
        let (from, reached, done) = match (current, mark) {
            (Some(mark), _) => {
                (mark.offset, mark.reached, (mark.offset == mark.reached).then_some(mark.offset))
            }
            // An earlier release's store may have published as far as the log went.
            (None, mark) => (0, mark.map_or(0, |mark| mark.reached).max(assigned.log_end), None),
        };
        let mut unpublished = Unpublished { from, reached, done, ..Unpublished::default() };
        if next_offset > from {
            unpublished.find_again(store, assigned.partition)?;
        }
        self.partitions.insert(assigned.partition, unpublished);
        Ok(())
    }

    /// A partition is no longer ours.
    pub(crate) fn revoked(&mut self, partition: u32) {
        self.partitions.remove(&partition);
    }

    /// A batch that brought the store to `next_offset` has touched these subjects and facts, and these claims are
    /// to be made.
    pub(crate) fn changed<'a>(
        &mut self,
        partition: u32,
        next_offset: u64,
        subjects: impl Iterator<Item = &'a String>,
        facts: impl Iterator<Item = &'a String>,
        claims: Vec<(u64, Claim)>,
    ) {
        if let Some(unpublished) = self.partitions.get_mut(&partition)
            && next_offset > unpublished.from
        {
            let from = unpublished.from;
            unpublished
                .claims
                .extend(claims.into_iter().filter(|(at, _)| *at >= from).map(|(_, claim)| claim));
            if self.projections {
                unpublished.subjects.extend(subjects.cloned());
                unpublished.facts.extend(facts.filter_map(|key| {
                    let (subject, _) = key.rsplit_once('/')?;
                    Some((key.clone(), subject.to_owned()))
                }));
            }
        }
    }

    /// What to publish now; empty while it is too early, or there is nothing.
    pub(crate) fn due(&mut self, store: &Store, now: Micros) -> Result<Vec<Due>, store::Error> {
        let gathered: usize = self.partitions.values().map(Unpublished::len).sum();
        // A clock that was put back must not hold anything up.
        let is_early = self
            .not_before
            .is_some_and(|time| now < time && time.0.saturating_sub(now.0) <= PAUSE_AFTER_FAILURE_MICROS);
        if is_early && gathered < RECORDS_MAX {
            return Ok(Vec::new());
        }
        let due = self
            .partitions
            .iter()
            .map(|(partition, unpublished)| unpublished.due(store, *partition, self.projections));
        let due: Vec<_> = due.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        self.not_before = Some(Micros(now.0.saturating_add(GATHER_MICROS)));
        Ok(due)
    }

    /// These were published.
    pub(crate) fn published(&mut self, published: Vec<Due>) {
        for of in published {
            let Some(unpublished) = self.partitions.get_mut(&of.publication.partition) else { continue };
            for key in &of.subjects {
                unpublished.subjects.remove(key);
            }
            for key in &of.facts {
                unpublished.facts.remove(key);
            }
            unpublished.claims.drain(..of.claims.min(unpublished.claims.len()));
            unpublished.reached = of.reached;
            if of.is_last {
                unpublished.from = of.reached;
                unpublished.done = Some(of.reached);
            } else {
                // There is more: without a pause.
                self.not_before = None;
            }
        }
    }

    /// They were not, and are tried again a little later.
    pub(crate) fn failed(&mut self, now: Micros) {
        self.not_before = Some(Micros(now.0.saturating_add(PAUSE_AFTER_FAILURE_MICROS)));
    }

    /// The group does not know us any more: the next assignment says anew how far it is.
    pub(crate) fn forget(&mut self) {
        self.partitions.clear();
    }
}

impl Unpublished {
    fn len(&self) -> usize {
        self.subjects.len() + self.facts.len() + self.claims.len()
    }

    /// What the observations from `from` on may have changed, and their claims. Not all of these were new, which
    /// does no harm: whoever judges claims takes a repeated one for what it is.
    fn find_again(&mut self, store: &Store, partition: u32) -> Result<(), store::Error> {
        let mut claimed = HashSet::new();
        for item in store.observations_from(partition, self.from)? {
            let (_, value) = item?;
            // Malformed records changed no subject.
            let Ok(observation) = schema::avro::decode(&value) else { continue };
            let subject = observation.subject.key();
            // A verdict may have changed the fact that it voids.
            let voided =
                schema::Verdict::read(&observation).ok().map(|verdict| verdict.judged.observation_id);
            if let Some(voided) = voided {
                for fact in facts_of(store, partition, &subject, voided)? {
                    self.facts.insert(fact, subject.clone());
                }
            }
            if let Ok(Reading::Fact(fact)) = schema::provider::read(&observation) {
                let fact_key = observation.subject.fact_key(&fact.fact_id);
                self.facts.insert(fact_key, subject.clone());
            }
            let claim = Claim::of(&observation);
            self.claims.extend(claim.filter(|claim| claimed.insert((claim.inbox_digest(), subject.clone()))));
            self.subjects.insert(subject);
        }
        Ok(())
    }

    /// One partition's part of a transaction; `None` while there is nothing new, or the store has not come as far
    /// as what was published before.
    fn due(&self, store: &Store, partition: u32, projections: bool) -> Result<Option<Due>, store::Error> {
        let view = store.read();
        let meta = view.meta(partition)?;
        let next_offset = meta.next_offset;
        // Claims have no versions, and are many: they need not wait until the store has come far enough.
        let is_behind = next_offset < self.reached;
        if (is_behind && self.claims.len() < RECORDS_MAX) || self.done.is_some_and(|done| next_offset <= done)
        {
            return Ok(None);
        }
        let mut records = Vec::new();
        let allowed = if is_behind { 0 } else { RECORDS_MAX };
        let subjects: Vec<_> = self.subjects.iter().take(allowed).cloned().collect();
        for key in subjects.iter().filter(|_| projections) {
            let (Some(subject), Some(record)) = (Subject::from_key(key), view.subject(partition, key)?)
            else {
                continue;
            };
            let projection = record.fold.projection(&subject);
            let version = projection.meta.version;
            if version.offset >= self.from {
                let published = PublishedProjection::new(&subject, &projection.state, version);
                records.push(new_record(partition, key, published.encode())?);
            }
        }
        let left = allowed.saturating_sub(subjects.len());
        let facts: Vec<_> = self.facts.iter().take(left).map(|(key, of)| (key.clone(), of.clone())).collect();
        for (key, subject) in facts.iter().filter(|_| projections) {
            let (Some(subject), Some(record)) = (Subject::from_key(subject), view.fact(partition, key)?)
            else {
                continue;
            };
            let version = record.fold.version();
            if version.offset >= self.from {
                let fact_id = schema::subject::fact_id_of(key).unwrap_or_default();
                let published = PublishedFact::new(&record.fold.fact(&subject, &fact_id), version);
                records.push(new_record(partition, key, published.encode())?);
            }
        }
        let claims_max = RECORDS_MAX.saturating_sub(subjects.len() + facts.len());
        let claims = self.claims.iter().take(claims_max).map(|claim| {
            let key = claim.key();
            let partitions =
                std::num::NonZeroU32::new(store.partitions()).unwrap_or(std::num::NonZeroU32::MIN);
            new_record(partition_of(key.as_bytes(), partitions), &key, claim.encode())
        });
        let claims: Vec<_> = claims.collect::<Result<_, _>>()?;
        let is_last = !is_behind && self.len() == subjects.len() + facts.len() + claims.len();
        let reached = next_offset.max(self.reached);
        let last = meta.last_observation.filter(|_| !is_behind).map(|(_, id)| id);
        let offset = if is_last { next_offset } else { self.from };
        let mark = Mark { offset, reached, epoch: meta.epoch, last };
        Ok(Some(Due {
            reached,
            subjects,
            facts: facts.into_iter().map(|(key, _)| key).collect(),
            claims: claims.len(),
            is_last,
            publication: Publication {
                partition,
                offset: mark.offset,
                metadata: mark.to_string(),
                projections: records,
                claims,
            },
        }))
    }
}

/// The fact keys that the observation with that id, one of the subject's, may have changed.
fn facts_of(
    store: &Store,
    partition: u32,
    subject_key: &str,
    observation: Uuid,
) -> Result<Vec<String>, store::Error> {
    let view = store.read();
    let Some(record) = view.subject(partition, subject_key)? else { return Ok(Vec::new()) };
    let mut kept = store.observations(partition)?;
    for entry in view.entries(partition, subject_key, &record, None, usize::MAX)? {
        if entry.verdict.is_none() {
            continue;
        }
        if let Ok(told) = schema::avro::decode(kept.at(entry.offset)?)
            && told.id == observation
            && let Ok(Reading::Fact(fact)) = schema::provider::read(&told)
        {
            return Ok(vec![told.subject.fact_key(&fact.fact_id)]);
        }
    }
    Ok(Vec::new())
}

fn new_record(
    partition: u32,
    key: &str,
    value: Result<Vec<u8>, schema::avro::DecodeError>,
) -> Result<NewRecord, store::Error> {
    let value = value.map_err(|error| store::Error::Packing(error.to_string()))?;
    Ok(NewRecord { partition, key: Bytes::copy_from_slice(key.as_bytes()), value: value.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back() {
        let mark = Mark { offset: 5, reached: 9, epoch: 3, last: Some(Uuid::from_u128(7)) };
        let committed = Committed { offset: 5, metadata: mark.to_string() };
        assert_eq!(Mark::read(&committed), Some(mark));
        let nothing = Mark { last: None, ..mark };
        assert_eq!(Mark::read(&Committed { offset: 5, metadata: nothing.to_string() }), Some(nothing));
        let empty = Mark::read(&Committed { offset: 4, metadata: String::new() }).expect("an early one");
        assert_eq!((empty.offset, empty.reached, empty.epoch), (4, 4, 1));
        assert_eq!(Mark::read(&Committed { offset: 4, metadata: "who knows".to_owned() }), None);
    }
}
