//! What is to be published, and how far it is. There are no marks: the group's committed offset `c` is the
//! only memory of what was published, and `s` is the store's own offset. A group that has none yet commits
//! the log's end at once, before anything else: measured again after a crash, the end would be a later one,
//! and what lies between would never be published. Must never publish while `s < c` (the store is being
//! derived anew), never commit an offset without every projection whose version lies
//! in `[c, s)`, and never hold a projection: what is published is read from the store in that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use journal::{Assigned, NewRecord, Publication};
use schema::published::{PublishedFact, PublishedProjection};
use schema::{Reading, Subject};

use crate::store::{self, Store};

/// How long changes are gathered into one publication. A transaction costs a broker round trip or two,
/// whatever is in it.
const GATHER: Duration = Duration::from_millis(100);

/// How long to wait after a publication that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Subjects and facts gathered after which a publication does not wait any longer.
const GATHERED_MAX: usize = 2_000;

/// Everything this instance has to publish.
#[derive(Debug, Default)]
pub(crate) struct Publishing {
    partitions: BTreeMap<u32, Unpublished>,
    not_before: Option<Instant>,
}

/// What one partition has to publish.
#[derive(Debug, Default)]
struct Unpublished {
    /// The group's committed offset: everything whose version is below it is published.
    committed: u64,
    /// Whether the group knows that offset, or it is only where publishing is to begin.
    begun: bool,
    /// Keys of subjects that an observation at or after `committed` may have changed.
    subjects: BTreeSet<String>,
    /// Fact keys, as for subjects, with the key of their subject.
    facts: BTreeMap<String, String>,
}

impl Publishing {
    /// A partition is ours. Without a committed offset publishing begins at the log's end as it is now;
    /// what the store has read beyond the committed offset is found again from its own observations.
    pub(crate) fn assigned(
        &mut self,
        store: &Store,
        assigned: &Assigned,
        next_offset: u64,
    ) -> Result<(), store::Error> {
        let committed = assigned.committed.as_ref().map_or(assigned.log_end, |committed| committed.offset);
        let begun = assigned.committed.is_some();
        let mut unpublished = Unpublished { committed, begun, ..Unpublished::default() };
        if next_offset > committed {
            for item in store.observations_from(assigned.partition, committed)? {
                let (_, value) = item?;
                // Malformed records changed no subject.
                if let Ok(observation) = schema::avro::decode(&value) {
                    let subject = observation.subject.key();
                    if let Ok(Reading::Fact(fact)) = schema::provider::read(&observation) {
                        let fact_key = observation.subject.fact_key(&fact.fact_id);
                        unpublished.facts.insert(fact_key, subject.clone());
                    }
                    unpublished.subjects.insert(subject);
                }
            }
        }
        self.partitions.insert(assigned.partition, unpublished);
        Ok(())
    }

    /// A partition is no longer ours.
    pub(crate) fn revoked(&mut self, partition: u32) {
        self.partitions.remove(&partition);
    }

    /// A batch that brought the store to `next_offset` has touched these subjects and facts.
    pub(crate) fn changed<'a>(
        &mut self,
        partition: u32,
        next_offset: u64,
        subjects: impl Iterator<Item = &'a String>,
        facts: impl Iterator<Item = &'a String>,
    ) {
        if let Some(unpublished) = self.partitions.get_mut(&partition)
            && next_offset > unpublished.committed
        {
            unpublished.subjects.extend(subjects.cloned());
            unpublished.facts.extend(facts.filter_map(|key| {
                let (subject, _) = key.rsplit_once('/')?;
                Some((key.clone(), subject.to_owned()))
            }));
        }
    }

    /// What to publish now; empty while it is too early, or there is nothing.
    pub(crate) fn due(&mut self, store: &Store) -> Result<Vec<Publication>, store::Error> {
        let gathered: usize =
            self.partitions.values().map(|partition| partition.subjects.len() + partition.facts.len()).sum();
        let now = Instant::now();
        if gathered < GATHERED_MAX && self.not_before.is_some_and(|time| now < time) {
            return Ok(Vec::new());
        }
        let publications =
            self.partitions.iter().map(|(partition, unpublished)| unpublished.publication(store, *partition));
        let publications: Vec<_> =
            publications.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        self.not_before = Some(now + GATHER);
        Ok(publications)
    }

    /// These were published, with these offsets.
    pub(crate) fn published(&mut self, offsets: &[(u32, u64)]) {
        for (partition, offset) in offsets {
            let now = Unpublished { committed: *offset, begun: true, ..Unpublished::default() };
            self.partitions.insert(*partition, now);
        }
    }

    /// They were not, and are tried again a little later.
    pub(crate) fn failed(&mut self) {
        self.not_before = Some(Instant::now() + PAUSE_AFTER_FAILURE);
    }

    /// The group does not know us any more: the next assignment says anew how far it is.
    pub(crate) fn forget(&mut self) {
        self.partitions.clear();
    }
}

impl Unpublished {
    /// One partition's part of a transaction; `None` while the store has nothing beyond the committed offset.
    fn publication(&self, store: &Store, partition: u32) -> Result<Option<Publication>, store::Error> {
        let view = store.read();
        let meta = view.meta(partition)?;
        if meta.next_offset <= self.committed {
            let (offset, metadata) = (self.committed, String::new());
            let begin =
                Publication { partition, offset, metadata, projections: Vec::new(), claims: Vec::new() };
            return Ok((!self.begun).then_some(begin));
        }
        let mut projections = Vec::new();
        for key in &self.subjects {
            let (Some(subject), Some(record)) = (Subject::from_key(key), view.subject(partition, key)?)
            else {
                continue;
            };
            let projection = record.fold.projection(&subject);
            let version = projection.meta.version;
            if version.offset >= self.committed {
                let published = PublishedProjection::new(&subject, &projection.state, version);
                projections.push(new_record(partition, key, published.encode())?);
            }
        }
        for (key, subject) in &self.facts {
            let (Some(subject), Some(record)) = (Subject::from_key(subject), view.fact(partition, key)?)
            else {
                continue;
            };
            let version = record.fold.version();
            if version.offset >= self.committed {
                let fact_id = schema::subject::fact_id_of(key).unwrap_or_default();
                let published = PublishedFact::new(&record.fold.fact(&subject, &fact_id), version);
                projections.push(new_record(partition, key, published.encode())?);
            }
        }
        let metadata = meta.last_observation.map_or_else(String::new, |(_, id)| id.to_string());
        Ok(Some(Publication {
            partition,
            offset: meta.next_offset,
            metadata,
            projections,
            claims: Vec::new(),
        }))
    }
}

fn new_record(
    partition: u32,
    key: &str,
    value: Result<Vec<u8>, schema::avro::DecodeError>,
) -> Result<NewRecord, store::Error> {
    let value = value.map_err(|error| store::Error::Packing(error.to_string()))?;
    Ok(NewRecord { partition, key: Bytes::copy_from_slice(key.as_bytes()), value: value.into() })
}
