//! What must hold after every step, and what must hold at rest. Must never believe a store, a publication or a
//! claim: each is held against the model of the log.

use std::collections::{BTreeMap, BTreeSet};

use journal::{Publication, Topic};
use projector::store::Store;
use schema::projection::{AttentionKind, Inbox, Version};
use schema::published::{PublishedFact, PublishedProjection};
use schema::{Micros, Verdict};
use serde_json::{Value as Json, json};

use crate::cluster::{Cluster, PARTITIONS};
use crate::model::{History, Known, Model};
use crate::troubles::Troubles;

/// What was published last of each key.
#[derive(Default)]
pub struct Published(BTreeMap<String, (Version, Vec<u8>, Json)>);

/// Store = fold of the log up to its offset: for the subjects of which something stands in `from..` that offset.
/// Answers the offset.
pub fn store(store: &Store, model: &Model, partition: u32, from: u64) -> u64 {
    let view = store.read();
    let next_offset = view.meta(partition).expect("readable").next_offset;
    for key in model.touched(partition, from, next_offset) {
        let history = model.history(partition, key);
        let known = history.before(next_offset).expect("it was touched");
        let record = view.subject(partition, key).expect("readable");
        let record = record.unwrap_or_else(|| panic!("{key} is not in the store at {next_offset}"));
        let projection = record.fold.projection(&history.subject);
        let at = format!("{key}, partition {partition}, at {next_offset}");
        assert_eq!(serde_json::to_value(&projection.state).expect("JSON"), known.state, "the state of {at}");
        let counts = projection.meta.observations;
        assert_eq!([counts.new, counts.duplicate, counts.conflict], known.counts, "the counts of {at}");
        let facts = view.facts(partition, key, None).expect("readable").map(|item| {
            let (fact_key, record) = item.expect("readable");
            let fact_id = schema::subject::fact_id_of(&fact_key).expect("a fact's key");
            let fact = record.fold.fact(&history.subject, &fact_id);
            (fact_id, serde_json::to_value(fact).expect("JSON"))
        });
        assert_eq!(facts.collect::<BTreeMap<_, _>>(), known.facts, "the facts of {at}");
        let entries = view.entries(partition, key, &record, None, usize::MAX).expect("readable");
        let inboxes: Vec<_> = entries.iter().map(|entry| (entry.offset, entry.inbox())).collect();
        assert_eq!(inboxes, known.inboxes, "the history of {at}");
    }
    next_offset
}

impl Published {
    /// A publication is what the log says, nothing that its offset covers is missing, and versions only rise.
    pub fn take(&mut self, model: &Model, before: Option<u64>, publication: &Publication) {
        let Publication { partition, offset, .. } = *publication;
        for record in &publication.projections {
            let key = String::from_utf8(record.key.to_vec()).expect("a key");
            let (version, value, history, known) = read(model, partition, offset, &key, &record.value);
            assert!(version.offset < offset, "{key}: version {version:?} is not below the offset {offset}");
            assert_shows(&value, known, &format!("{key} as of {offset}"));
            let at_version = part(history, &key, version.offset + 1).expect("known at its version");
            assert_shows(&value, at_version, &format!("{key} as of its version {version:?}"));
            if let Some((known, bytes, _)) = self.0.get(&key) {
                assert!(*known <= version, "{key}: version {version:?} after {known:?}");
                assert!(*known < version || **bytes == *record.value, "{key}: two contents of {version:?}");
            }
            self.0.insert(key, (version, record.value.to_vec(), value));
        }
        let from = before.unwrap_or(0);
        for key in model.touched(partition, from, offset) {
            let history = model.history(partition, key);
            self.covers(key, history, offset);
            for entry in history.entries.iter().filter(|entry| (from..offset).contains(&entry.offset)) {
                let is_claimed = model.claimed.contains(&entry.observation.id);
                let must_be = entry.is_providers() && entry.inbox == Inbox::New;
                assert!(is_claimed || !must_be, "no claim of offset {} of {key}", entry.offset);
            }
        }
    }

    /// What was published of a subject and its facts is what is known below the offset.
    pub fn covers(&self, key: &str, history: &History, offset: u64) {
        let Some(known) = history.before(offset) else { return };
        let shown = |key: &str| {
            let shown = self.0.get(key).map(|(_, _, value)| value);
            shown.unwrap_or_else(|| panic!("{offset} is committed, and {key} was never published"))
        };
        assert_shows(shown(key), &known.state, &format!("{key}, committed up to {offset}"));
        for (fact_id, fact) in &known.facts {
            let key = history.subject.fact_key(fact_id);
            assert_shows(shown(&key), fact, &format!("{key}, committed up to {offset}"));
        }
    }
}

/// A published record: its version, its content, whose it is, and what is known of that below the offset.
fn read<'a>(
    model: &'a Model,
    partition: u32,
    offset: u64,
    key: &str,
    bytes: &[u8],
) -> (Version, Json, &'a History, &'a Json) {
    let (version, value, subject) = match PublishedProjection::decode(bytes) {
        Ok(projection) => (projection.version(), serde_json::to_value(&projection).expect("JSON"), key),
        Err(_) => {
            let fact = PublishedFact::decode(bytes).expect("a projection or a fact");
            let (subject, _) = key.rsplit_once('/').expect("a fact's key");
            (fact.version(), serde_json::to_value(&fact).expect("JSON"), subject)
        }
    };
    let history = model.history(partition, subject);
    let known = part(history, key, offset);
    (version, value, history, known.unwrap_or_else(|| panic!("{key} is not known at {offset}")))
}

/// What is known of a subject, or of a fact of it, below an offset.
fn part<'a>(history: &'a History, key: &str, offset: u64) -> Option<&'a Json> {
    let known: &Known = history.before(offset)?;
    if history.subject.key() == key {
        return Some(&known.state);
    }
    known.facts.get(&schema::subject::fact_id_of(key)?)
}

fn assert_shows(published: &Json, known: &Json, what: &str) {
    let value = published["value"].as_str().map(|json| serde_json::from_str(json).expect("JSON"));
    let shown = json!({
        "certainty": published["certainty"],
        "status": published["status"],
        "value": value.unwrap_or(Json::Null),
        "as_of": published["as_of"].as_i64().map(Micros),
        "contenders": published["contenders"]["total"],
        "unplaced": published["unplaced"]["total"],
        "basis": published["basis"],
    });
    let wanted = json!({
        "certainty": known["certainty"],
        "status": known["status"],
        "value": known["value"],
        "as_of": known["as_of"],
        "contenders": known["contenders"]["total"],
        "unplaced": known["unplaced"]["total"],
        "basis": known["basis"],
    });
    assert_eq!(shown, wanted, "what is published of {what}");
}

/// Of all subjects that an event id was told of, the one that came first in the claims stands, and every other has its
/// verdict.
pub fn verdicts(model: &Model) {
    let mut told: BTreeMap<_, Vec<(&History, usize)>> = BTreeMap::new();
    for history in model.subjects.values() {
        for (number, entry) in history.entries.iter().enumerate() {
            if entry.is_providers() && entry.inbox == Inbox::New {
                let observation = &entry.observation;
                let key = (history.subject.provider, &observation.endpoint, &observation.event_id);
                told.entry(key).or_default().push((history, number));
            }
        }
    }
    for (event, told) in told {
        let claim = schema::Claim::of(&told[0].0.entries[told[0].1].observation).expect("a provider's");
        let claims = &model.claims[&claim.inbox_digest()];
        let first = &claims[0];
        let winner = schema::claim::Winner::of(first);
        for (history, number) in told {
            let entry = &history.entries[number];
            let found = entry.verdict.map(|(_, inbox)| inbox);
            let claim = claims.iter().find(|claim| claim.subject == history.subject).expect("claimed");
            let wanted = Verdict::on(claim, &winner).map(|verdict| verdict.verdict);
            assert_eq!(found, wanted, "{event:?} of {}, first told of {}", history.subject, first.subject);
        }
    }
}

/// Everything that was published last is what the whole log says.
pub fn published(model: &Model, published: &Published, cluster: &Cluster) {
    for ((partition, key), history) in &model.subjects {
        let end = cluster.state().end(Topic::Observations, *partition);
        published.covers(key, history, end);
    }
}

/// All that a store can be asked about a partition.
pub fn everything(store: &Store, partition: u32) -> (Vec<String>, Vec<String>) {
    let view = store.read();
    let digest = view.digest(partition).expect("readable");
    let mut attention = Vec::new();
    for kind in [
        AttentionKind::Conflict,
        AttentionKind::Contested,
        AttentionKind::Unordered,
        AttentionKind::Failed,
        AttentionKind::Malformed,
    ] {
        for item in view.attention(partition, kind, None).expect("readable") {
            attention.push(format!("{:?}", item.expect("readable")));
        }
    }
    (vec![format!("{digest:?}")], attention)
}

/// The winners and judged subjects that a store has of every claim.
pub fn claims(store: &Store, model: &Model) -> Vec<String> {
    let of = |claims: &Vec<schema::Claim>| {
        let claim = &claims[0];
        let partition = schema::subject::partition_of(claim.key().as_bytes(), PARTITIONS);
        let found = store.claim(partition, claim.inbox_digest()).expect("readable");
        let found = found.unwrap_or_else(|| panic!("{} has no winner in the store", claim.key()));
        let judged: BTreeSet<_> = found.judged.iter().collect();
        let wanted: BTreeSet<_> = claims.iter().map(|claim| claim.subject.key()).collect();
        let others: BTreeSet<_> = wanted.iter().filter(|key| **key != claim.subject.key()).collect();
        assert_eq!(judged, others, "the subjects judged of {}", claim.key());
        assert_eq!(found.winner, schema::claim::Winner::of(claim), "the winner of {}", claim.key());
        format!("{found:?}")
    };
    model.claims.values().map(of).collect()
}

/// Counts what verdicts show: conflicts told of two partitions.
pub fn count_cross_partition(model: &Model, troubles: &mut Troubles) {
    let mut told: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for ((partition, _), history) in &model.subjects {
        for entry in history.entries.iter().filter(|entry| entry.is_providers() && entry.inbox == Inbox::New)
        {
            let observation = &entry.observation;
            let key = (history.subject.provider, &observation.endpoint, &observation.event_id);
            told.entry(key).or_default().insert(*partition);
        }
    }
    for _ in told.values().filter(|partitions| partitions.len() > 1) {
        troubles.count(crate::troubles::Trouble::CrossPartitionConflict);
    }
}
