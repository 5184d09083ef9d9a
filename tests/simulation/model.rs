//! What must be known of every subject after every record of the log, in the most obvious way: the whole history is
//! looked at again for each of them. Must never use anything of the projector's.

use std::collections::{BTreeMap, BTreeSet};

use journal::Record;
use schema::projection::Inbox;
use schema::{Claim, Digest, Observation, Reading, Source, Subject, Unreadable, Verdict};
use serde_json::{Value as Json, json};

use crate::naive;
use crate::troubles::{Trouble, Troubles};

/// The log's meaning, up to where it was told.
#[derive(Default)]
pub struct Model {
    /// By partition and key.
    pub subjects: BTreeMap<(u32, String), History>,
    /// Where each partition's records are, and whose they are; `None` for what is no observation.
    pub records: BTreeMap<u32, Vec<(u64, Option<String>)>>,
    /// The claims in the order of their log, by inbox key.
    pub claims: BTreeMap<Digest, Vec<Claim>>,
    pub claimed: BTreeSet<uuid::Uuid>,
    /// Observation ids of what the log holds, and their bodies.
    pub bodies: BTreeMap<uuid::Uuid, Digest>,
}

/// All that was said of a subject.
pub struct History {
    pub subject: Subject,
    pub entries: Vec<Entry>,
    /// What is known after each entry.
    pub known: Vec<Known>,
    fact_ids: BTreeSet<String>,
}

/// One record of a subject.
pub struct Entry {
    pub offset: u64,
    pub observation: Observation,
    reading: Result<Reading, Unreadable>,
    /// What its subject's inbox said when it came.
    pub inbox: Inbox,
    /// Where a verdict on it stands, and what it says.
    pub verdict: Option<(u64, Inbox)>,
}

/// What is known of a subject up to a place in the log.
#[derive(Clone, PartialEq)]
pub struct Known {
    pub offset: u64,
    pub state: Json,
    /// By fact id.
    pub facts: BTreeMap<String, Json>,
    /// Observations of the provider: new, duplicate, conflict.
    pub counts: [u64; 3],
    /// What the history says of each entry.
    pub inboxes: Vec<(u64, Inbox)>,
}

impl Entry {
    pub fn is_providers(&self) -> bool {
        matches!(self.observation.source, Source::Webhook | Source::ReadApi)
    }

    fn event(&self) -> (&str, &str) {
        (&self.observation.endpoint, &self.observation.event_id)
    }

    fn accepted(&self) -> Option<naive::Accepted<'_>> {
        let reading = self.reading.as_ref().ok()?;
        let counts = self.is_providers() && self.inbox == Inbox::New && self.verdict.is_none();
        counts.then(|| (&self.observation, reading.clone()))
    }
}

impl History {
    fn new(subject: Subject) -> Self {
        Self { subject, entries: Vec::new(), known: Vec::new(), fact_ids: BTreeSet::new() }
    }

    /// What is known of it from the records before `offset`.
    pub fn before(&self, offset: u64) -> Option<&Known> {
        let after = self.known.partition_point(|known| known.offset < offset);
        after.checked_sub(1).map(|last| &self.known[last])
    }

    fn take(&mut self, offset: u64, observation: Observation, troubles: &mut Troubles) {
        let first = self
            .entries
            .iter()
            .find(|entry| entry.event() == (observation.endpoint.as_str(), observation.event_id.as_str()));
        let inbox = match first {
            None => Inbox::New,
            Some(first) if first.observation.body == observation.body => Inbox::Duplicate,
            Some(first) if first.observation.replay || observation.replay => Inbox::Duplicate,
            Some(_) => Inbox::Conflict,
        };
        let reading = schema::provider::read(&observation);
        if observation.source == Source::Verdict && inbox == Inbox::New {
            let verdict = Verdict::read(&observation).expect("a verdict");
            let judged = self.entries.iter_mut().find(|entry| {
                entry.is_providers()
                    && entry.inbox == Inbox::New
                    && entry.event() == (verdict.judged.endpoint.as_str(), verdict.judged.event_id.as_str())
            });
            let judged = judged.expect("what is judged came before");
            assert_eq!(judged.verdict, None, "it was judged before");
            judged.verdict = Some((offset, verdict.verdict));
        }
        let entry = Entry { offset, observation, reading, inbox, verdict: None };
        if entry.is_providers() {
            self.count(&entry, troubles);
        }
        if let (Some(_), Ok(Reading::Fact(fact))) = (entry.accepted(), &entry.reading) {
            self.fact_ids.insert(fact.fact_id.clone());
        }
        self.entries.push(entry);
        self.known.push(self.look(offset));
    }

    fn count(&self, entry: &Entry, troubles: &mut Troubles) {
        match entry.inbox {
            Inbox::Duplicate => troubles.count(Trouble::Duplicate),
            Inbox::Conflict => troubles.count(Trouble::Conflict),
            Inbox::New => {}
        }
        if entry.observation.replay {
            troubles.count(Trouble::Replay);
        }
        let (Inbox::New, Ok(Reading::State(new))) = (entry.inbox, &entry.reading) else { return };
        let states =
            self.entries.iter().filter_map(Entry::accepted).filter_map(|(_, reading)| match reading {
                Reading::State(state) => Some(state),
                Reading::Fact(_) | Reading::Unsupported => None,
            });
        let states: Vec<_> = states.collect();
        let latest = states.iter().filter_map(|state| state.as_of).max();
        match (new.as_of, latest) {
            (None, _) => troubles.count(Trouble::Untimed),
            (Some(time), Some(latest)) if time < latest => troubles.count(Trouble::Stale),
            (Some(_), Some(_)) => {
                if states
                    .iter()
                    .any(|state| state.as_of == new.as_of && state.value.digest != new.value.digest)
                {
                    troubles.count(Trouble::Tie);
                }
            }
            (Some(_), None) => {}
        }
    }

    fn look(&self, offset: u64) -> Known {
        let accepted: Vec<_> = self.entries.iter().filter_map(Entry::accepted).collect();
        let mut state = naive::state(&self.subject, &accepted);
        let mut counts = [0; 3];
        let inbox = |entry: &Entry| entry.verdict.map_or(entry.inbox, |(_, inbox)| inbox);
        for entry in self.entries.iter().filter(|entry| entry.is_providers()) {
            counts[inbox(entry) as usize] += 1;
        }
        if counts[0] == 0 && counts.iter().sum::<u64>() > 0 {
            state["certainty"] = json!("withdrawn");
        }
        let facts = naive::facts(&self.subject, &accepted).into_iter();
        let mut facts: BTreeMap<String, Json> =
            facts.map(|fact| (fact["fact_id"].as_str().expect("an id").to_owned(), fact)).collect();
        for fact_id in &self.fact_ids {
            facts.entry(fact_id.clone()).or_insert_with(|| {
                json!({
                    "subject": self.subject,
                    "fact_id": fact_id,
                    "certainty": "withdrawn",
                    "value": null,
                    "as_of": null,
                    "contenders": {"total": 0, "items": []},
                })
            });
        }
        let inboxes = self.entries.iter().map(|entry| (entry.offset, inbox(entry))).collect();
        Known { offset, state, facts, counts, inboxes }
    }
}

impl Model {
    /// The next record of the observations.
    pub fn observation(&mut self, partition: u32, record: &Record, troubles: &mut Troubles) {
        let records = self.records.entry(partition).or_default();
        let Ok(observation) = schema::avro::decode(&record.value) else {
            troubles.count(Trouble::Malformed);
            records.push((record.offset, None));
            return;
        };
        let key = observation.subject.key();
        records.push((record.offset, Some(key.clone())));
        if observation.source == Source::Webhook {
            self.bodies.insert(observation.id, observation.body_digest);
        }
        let history = self.subjects.entry((partition, key));
        let history = history.or_insert_with(|| History::new(observation.subject.clone()));
        history.take(record.offset, observation, troubles);
    }

    /// The next record of the claims.
    pub fn claim(&mut self, record: &Record) {
        let claim = Claim::decode(&record.value).expect("a claim");
        self.claimed.insert(claim.observation_id);
        self.claims.entry(claim.inbox_digest()).or_default().push(claim);
    }

    /// Keys of the subjects of which something stands in `from..to`.
    pub fn touched(&self, partition: u32, from: u64, to: u64) -> BTreeSet<&str> {
        let Some(records) = self.records.get(&partition) else { return BTreeSet::new() };
        let begin = records.partition_point(|(offset, _)| *offset < from);
        let end = records.partition_point(|(offset, _)| *offset < to);
        records[begin..end.max(begin)].iter().filter_map(|(_, key)| key.as_deref()).collect()
    }

    pub fn history(&self, partition: u32, key: &str) -> &History {
        &self.subjects[&(partition, key.to_owned())]
    }
}
