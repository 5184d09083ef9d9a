//! One batch: records as read, folded in memory, handed to the store as one set of changes. Must never
//! write anything itself, and never pass over a record it cannot account for.

use std::collections::{BTreeMap, HashMap, btree_map};

use journal::Record;
use schema::avro::DecodeError;
use schema::operator::Acknowledged;
use schema::projection::{Acknowledgement, AttentionKind, Certainty, EvidenceList, Inbox, Outcome, Version};
use schema::{Claim, Digest, Micros, Observation, Reading, Source, Subject, Verdict};
use thiserror::Error;
use uuid::Uuid;

use crate::derive::{self, At, Entry, FactFold, History, Moment, SubjectFold, Voided};
use crate::metrics;
use crate::store::keys::{AttentionKey, AttentionRecord, FactRecord, Meta, PAGE_ENTRIES, SubjectRecord};
use crate::store::{self, Changes, Observations, View};

/// What a batch amounts to.
#[derive(Debug)]
pub struct Projected {
    /// For the store.
    pub changes: Changes,
    /// The claims of observations that were new to their subjects, with their offsets; for the journal.
    pub claims: Vec<(u64, Claim)>,
    /// Why the partition must stop, where it must. What was folded before the record that stops it stands.
    pub stop: Option<Stop>,
}

/// Why a partition cannot go on. What was folded before the record that stops it stands.
#[derive(Debug, Error)]
pub enum Stop {
    /// A newer writer's record: it must not be passed over.
    #[error("offset {offset}: {error}")]
    UnknownSchema {
        /// Where.
        offset: u64,
        /// What is known of the schema.
        error: DecodeError,
    },
    /// The log is not the one that the store was derived from.
    #[error(
        "the log was rewritten: at offset {offset} it holds observation {found}, the store had read {wanted}; the store must be deleted and derived anew"
    )]
    Rewritten {
        /// Where.
        offset: u64,
        /// What the log holds.
        found: String,
        /// What the store had read there.
        wanted: Uuid,
    },
}

/// Folds `records` on top of what the store holds.
pub fn project(view: &View<'_>, partition: u32, records: &[Record]) -> Result<Projected, store::Error> {
    let mut batch = Batch {
        view,
        partition,
        meta: view.meta(partition)?,
        subjects: BTreeMap::new(),
        facts: BTreeMap::new(),
        changes: Changes::default(),
        claims: Vec::new(),
    };
    let mut stop = None;
    for record in records {
        if let Err(reason) = batch.record(record)? {
            stop = Some(reason);
            break;
        }
    }
    let claims = std::mem::take(&mut batch.claims);
    Ok(Projected { changes: batch.changes(), claims, stop })
}

/// A subject in the batch's memory: loaded once, folded many times.
struct Loaded {
    record: SubjectRecord,
    /// First entries of pages sealed in this batch, which the store's index does not hold yet.
    sealed: HashMap<Digest, Entry>,
}

struct Batch<'a> {
    view: &'a View<'a>,
    partition: u32,
    meta: Meta,
    subjects: BTreeMap<String, Loaded>,
    facts: BTreeMap<String, FactRecord>,
    changes: Changes,
    claims: Vec<(u64, Claim)>,
}

impl Batch<'_> {
    fn record(&mut self, record: &Record) -> Result<Result<(), Stop>, store::Error> {
        let decoded = schema::avro::decode(&record.value);
        if record.offset < self.meta.next_offset {
            return Ok(self.check_known(record.offset, decoded.as_ref().ok()));
        }
        match decoded {
            Ok(observation) => {
                self.meta.journal_time = self.meta.journal_time.max(observation.received_at);
                self.meta.last_observation = Some((record.offset, observation.id));
                let epoch = self.view.epoch();
                let at = At { offset: record.offset, epoch, journal_time: self.meta.journal_time };
                match observation.source {
                    Source::Webhook | Source::ReadApi => self.delivery(at, &observation)?,
                    Source::Verdict => self.verdict(at, &observation, &record.value)?,
                    Source::Operator => self.operator(at, &observation)?,
                }
            }
            Err(DecodeError::Malformed(reason)) => self.malformed(record.offset, reason),
            Err(error @ DecodeError::UnknownSchema { .. }) => {
                return Ok(Err(Stop::UnknownSchema { offset: record.offset, error }));
            }
        }
        self.changes.observations.push((record.offset, record.value.clone()));
        self.meta.next_offset = record.offset + 1;
        Ok(Ok(()))
    }

    /// A record that was read before: the last of them shows whether the log is still the same one.
    fn check_known(&self, offset: u64, observation: Option<&Observation>) -> Result<(), Stop> {
        match self.meta.last_observation {
            Some((last, wanted)) if last == offset && observation.is_none_or(|found| found.id != wanted) => {
                let found = observation.map_or_else(|| "none".to_owned(), |found| found.id.to_string());
                Err(Stop::Rewritten { offset, found, wanted })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What a provider told us.
    fn delivery(&mut self, at: At, observation: &Observation) -> Result<(), store::Error> {
        let key = observation.subject.key();
        let reading = schema::provider::read(observation);
        let first = self.first(&key, observation, at)?;
        let fact_id = match (&reading, derive::classify(first.as_ref(), observation).0) {
            (Ok(Reading::Fact(fact)), Inbox::New) => Some(fact.fact_id.as_str()),
            (Ok(Reading::Fact(_) | Reading::State(_) | Reading::Unsupported) | Err(_), _) => None,
        };
        let fact_key = fact_id.map(|id| observation.subject.fact_key(id));
        if let Some(fact_key) = &fact_key {
            self.load_fact(fact_key, at)?;
        }
        let fact = fact_key.as_ref().and_then(|key| self.facts.get_mut(key)).map(|record| &mut record.fold);
        let Some(loaded) = self.subjects.get_mut(&key) else { return Ok(()) };
        let step = derive::derive(&mut loaded.record.fold, fact, first.as_ref(), observation, &reading, at);
        loaded.record.recent.push(step.entry.clone());
        metrics::observation(observation.provider(), step.entry.inbox, step.entry.outcome);
        self.seal_page(&key);
        if step.entry.inbox == Inbox::New {
            self.claims.extend(Claim::of(observation).map(|claim| (at.offset, claim)));
        }

        let raised = Raised { at, observation };
        let kind = match (step.entry.inbox, step.entry.outcome) {
            (Inbox::Conflict, _) => Some(AttentionKind::Conflict),
            (Inbox::New, Outcome::Failed) => Some(AttentionKind::Failed),
            (Inbox::New | Inbox::Duplicate, _) => None,
        };
        if let Some(kind) = kind {
            let reason = derive::reason(&step.entry, &reading).unwrap_or_default();
            let (reason, offsets) = match (kind, first) {
                (AttentionKind::Conflict, Some(first)) => {
                    let reason = format!(
                        "{reason}: body {} came first, at offset {}; this body is {}",
                        first.body, first.offset, observation.body_digest
                    );
                    (reason, vec![first.offset, at.offset])
                }
                _ => (reason, vec![at.offset]),
            };
            let record = AttentionRecord { offsets, ..raised.record(reason) };
            self.changes.attention.insert(raised.key(kind), Some(record));
            metrics::attention(kind);
        }
        if step.subject_changed {
            self.subject_attention(&key, &raised)?;
        }
        if let (true, Some(id), Some(fact_key)) = (step.fact_changed, fact_id, fact_key) {
            self.fact_attention(&fact_key, id, &raised)?;
        }
        Ok(())
    }

    /// What the owner of an inbox key decided of one of the subject's observations: the subject is folded again
    /// without it.
    fn verdict(&mut self, at: At, observation: &Observation, value: &[u8]) -> Result<(), store::Error> {
        let key = observation.subject.key();
        let first = self.first(&key, observation, at)?;
        let verdict = Verdict::read(observation).ok().filter(|_| first.is_none());
        let mut entries = self.entries(&key, at)?;
        let judged = verdict.and_then(|verdict| {
            let event = verdict.judged.event_digest();
            let is_judged = |entry: &&mut Entry| {
                entry.event == event && entry.inbox == Inbox::New && entry.is_providers()
            };
            let entry = entries.iter_mut().find(is_judged).filter(|entry| entry.verdict.is_none())?;
            entry.verdict = Some(Voided { offset: at.offset, inbox: verdict.verdict });
            Some((entry.offset, verdict))
        });
        let outcome = if judged.is_some() { Outcome::Applied } else { Outcome::NoChange };
        entries.push(derive::our_entry(first.as_ref(), observation, outcome, at));
        let Some((offset, verdict)) = judged else {
            let entry = entries.pop();
            self.load(&key, at)?.record.recent.extend(entry);
            self.seal_page(&key);
            return Ok(());
        };
        metrics::verdict(verdict.verdict);

        let mut history = History::new(Moment::default(), at.epoch, &entries);
        let mut kept = self.view.observations(self.partition)?;
        let mut voided = None;
        for entry in &entries {
            let bytes = self.record_at(&mut kept, entry.offset, at.offset, value)?;
            let told = schema::avro::decode(&bytes).map_err(|error| {
                store::Error::Packing(format!("the kept observation at offset {}: {error}", entry.offset))
            })?;
            history.take(entry, &told);
            if entry.offset == offset {
                voided = Some(told);
            }
        }
        self.keep_entries(&key, history.entries());
        let raised = Raised { at, observation: voided.as_ref().unwrap_or(observation) };
        if verdict.verdict == Inbox::Conflict {
            let reason = format!(
                "its event id was told of {} before, with body {}; this body is {}",
                verdict.winner.subject, verdict.winner.body_digest, verdict.judged.body_digest
            );
            let record = AttentionRecord { offsets: vec![offset, at.offset], ..raised.record(reason) };
            self.changes.attention.insert(raised.key(AttentionKind::Conflict), Some(record));
            metrics::attention(AttentionKind::Conflict);
        }
        let fold = history.fold().cloned().unwrap_or_else(|| SubjectFold::new(at));
        let Some(loaded) = self.subjects.get_mut(&key) else { return Ok(()) };
        let before = loaded.record.fold.state(&observation.subject);
        let version = if fold.state(&observation.subject) == before {
            loaded.record.fold.version()
        } else {
            Version { epoch: at.epoch, offset: at.offset }
        };
        loaded.record.fold = fold.with_version(version);
        self.subject_attention(&key, &raised)?;
        if let Some(Ok(Reading::Fact(fact))) = voided.as_ref().map(schema::provider::read) {
            self.refold_fact(&fact.fact_id, &history, &raised)?;
        }
        Ok(())
    }

    /// A fact without what a verdict voided.
    fn refold_fact(
        &mut self,
        fact_id: &str,
        history: &History,
        raised: &Raised<'_>,
    ) -> Result<(), store::Error> {
        let (at, subject) = (raised.at, &raised.observation.subject);
        let fact_key = subject.fact_key(fact_id);
        self.load_fact(&fact_key, at)?;
        let fold = history.fact(fact_id).cloned().unwrap_or_else(|| FactFold::new(at));
        if let Some(record) = self.facts.get_mut(&fact_key) {
            let version = if fold.fact(subject, fact_id) == record.fold.fact(subject, fact_id) {
                record.fold.version()
            } else {
                Version { epoch: at.epoch, offset: at.offset }
            };
            record.fold = fold.with_version(version);
        }
        self.fact_attention(&fact_key, fact_id, raised)
    }

    /// What an operator said of an attention entry in this partition.
    fn operator(&mut self, at: At, observation: &Observation) -> Result<(), store::Error> {
        let key = observation.subject.key();
        let first = self.first(&key, observation, at)?;
        let mut outcome = Outcome::NoChange;
        if let (None, Ok(said)) = (&first, Acknowledged::read(observation))
            && let Some(entry) = AttentionKey::from_id(&said.attention)
        {
            let known = match self.changes.attention.get(&entry) {
                Some(pending) => pending.clone(),
                None => self.view.attention_record(self.partition, entry)?,
            };
            if let Some(record) = known.filter(|record| record.acknowledged.is_none()) {
                let Acknowledged { by, reason, attention: _ } = said;
                let acknowledged = Some(Acknowledgement { by, reason, at: at.journal_time });
                let record = AttentionRecord { acknowledged, ..record };
                self.changes.attention.insert(entry, Some(record));
                outcome = Outcome::Applied;
            }
        }
        let entry = derive::our_entry(first.as_ref(), observation, outcome, at);
        self.load(&key, at)?.record.recent.push(entry);
        self.seal_page(&key);
        Ok(())
    }

    /// The first entry under the observation's inbox key, if there is one.
    fn first(&mut self, key: &str, observation: &Observation, at: At) -> Result<Option<Entry>, store::Error> {
        let event = observation.event_digest();
        let loaded = self.load(key, at)?;
        if let Some(first) = loaded.first_entry(event) {
            return Ok(Some(first.clone()));
        }
        if loaded.record.pages == 0 { Ok(None) } else { self.view.indexed(self.partition, key, event) }
    }

    /// The whole history of a subject, in the store and in the batch's memory.
    fn entries(&mut self, key: &str, at: At) -> Result<Vec<Entry>, store::Error> {
        let record = &self.load(key, at)?.record;
        let (pages, recent) = (record.pages, record.recent.clone());
        let mut entries = Vec::new();
        for number in 0..pages {
            match self.changes.pages.get(&(key.to_owned(), number)) {
                Some(page) => entries.extend_from_slice(page),
                None => entries.extend(self.view.page(self.partition, key, number)?),
            }
        }
        entries.extend(recent);
        Ok(entries)
    }

    /// Writes a subject's history anew.
    fn keep_entries(&mut self, key: &str, entries: &[Entry]) {
        let Some(loaded) = self.subjects.get_mut(key) else { return };
        let (sealed, recent) =
            entries.split_at((loaded.record.pages as usize * PAGE_ENTRIES).min(entries.len()));
        for (number, page) in (0..).zip(sealed.chunks(PAGE_ENTRIES)) {
            self.changes.pages.insert((key.to_owned(), number), page.to_vec());
        }
        loaded.record.recent = recent.to_vec();
        self.seal_page(key);
    }

    /// A record as it was read: in the store, in this batch, or the one in hand.
    fn record_at(
        &self,
        kept: &mut Observations<'_>,
        offset: u64,
        in_hand: u64,
        value: &[u8],
    ) -> Result<Vec<u8>, store::Error> {
        if offset == in_hand {
            return Ok(value.to_vec());
        }
        let pending = &self.changes.observations;
        match pending.binary_search_by_key(&offset, |(pending, _)| *pending) {
            Ok(index) => Ok(pending.get(index).map(|(_, value)| value.to_vec()).unwrap_or_default()),
            Err(_) => Ok(kept.at(offset)?.to_vec()),
        }
    }

    fn load(&mut self, key: &str, at: At) -> Result<&mut Loaded, store::Error> {
        match self.subjects.entry(key.to_owned()) {
            btree_map::Entry::Occupied(loaded) => Ok(loaded.into_mut()),
            btree_map::Entry::Vacant(vacant) => {
                let record = self.view.subject(self.partition, key)?.unwrap_or_else(|| SubjectRecord {
                    fold: SubjectFold::new(at),
                    recent: Vec::new(),
                    pages: 0,
                    attention: None,
                });
                Ok(vacant.insert(Loaded { record, sealed: HashMap::new() }))
            }
        }
    }

    fn load_fact(&mut self, fact_key: &str, at: At) -> Result<(), store::Error> {
        if !self.facts.contains_key(fact_key) {
            let record = self.view.fact(self.partition, fact_key)?;
            let record = record.unwrap_or_else(|| FactRecord { fold: FactFold::new(at), attention: None });
            self.facts.insert(fact_key.to_owned(), record);
        }
        Ok(())
    }

    fn seal_page(&mut self, key: &str) {
        let Some(loaded) = self.subjects.get_mut(key) else { return };
        if loaded.record.recent.len() > PAGE_ENTRIES {
            let rest = loaded.record.recent.split_off(PAGE_ENTRIES);
            let page = std::mem::replace(&mut loaded.record.recent, rest);
            let firsts = page.iter().filter(|entry| entry.inbox == Inbox::New);
            loaded.sealed.extend(firsts.map(|entry| (entry.event, entry.clone())));
            self.changes.pages.insert((key.to_owned(), loaded.record.pages), page);
            loaded.record.pages += 1;
        }
    }

    /// Opens, rewrites or removes the attention entry that a subject's certainty asks for.
    fn subject_attention(&mut self, key: &str, raised: &Raised<'_>) -> Result<(), store::Error> {
        let subject = &raised.observation.subject;
        let Some(loaded) = self.subjects.get_mut(key) else { return Ok(()) };
        let (kind, reason) = match loaded.record.fold.certainty(subject) {
            Certainty::Contested => (Some(AttentionKind::Contested), contested(&loaded.record.fold, subject)),
            Certainty::Unordered => (
                Some(AttentionKind::Unordered),
                "it is known only through claims without a provider time; a newer claim could not be told from an older one".to_owned(),
            ),
            Certainty::Settled | Certainty::Skeleton | Certainty::Withdrawn => (None, String::new()),
        };
        let open = &mut loaded.record.attention;
        set_attention(
            &mut self.changes,
            self.view,
            self.partition,
            open,
            kind.map(|kind| (kind, reason)),
            raised,
        )
    }

    fn fact_attention(
        &mut self,
        fact_key: &str,
        fact_id: &str,
        raised: &Raised<'_>,
    ) -> Result<(), store::Error> {
        let Some(record) = self.facts.get_mut(fact_key) else { return Ok(()) };
        let contested = (record.fold.certainty() == Certainty::Contested).then(|| {
            let fact = record.fold.fact(&raised.observation.subject, fact_id);
            let reason = format!(
                "fact `{fact_id}` was told with different content by events {}",
                told_by(&fact.contenders)
            );
            (AttentionKind::Contested, reason)
        });
        set_attention(&mut self.changes, self.view, self.partition, &mut record.attention, contested, raised)
    }

    fn malformed(&mut self, offset: u64, reason: String) {
        metrics::attention(AttentionKind::Malformed);
        let reason = format!(
            "{}, partition {}, offset {offset}: {reason}",
            journal::Topic::Observations,
            self.partition
        );
        let since = Micros(self.meta.journal_time.0.max(0));
        let (offsets, acknowledged) = (vec![offset], None);
        let record = AttentionRecord { subject: None, event_id: None, reason, since, offsets, acknowledged };
        let key = AttentionKey::malformed(self.meta.journal_time, self.partition, offset);
        self.changes.attention.insert(key, Some(record));
    }

    fn changes(mut self) -> Changes {
        self.changes.subjects = self.subjects.into_iter().map(|(key, loaded)| (key, loaded.record)).collect();
        // A subject or fact that was loaded is one that an observation was folded into.
        self.changes.facts = self.facts;
        self.changes.meta = Some(self.meta);
        self.changes
    }
}

impl Loaded {
    /// The first entry under an inbox key, as far as memory knows: the one that was new. What came after
    /// it may be in memory without it.
    fn first_entry(&self, event: Digest) -> Option<&Entry> {
        let is_first = |entry: &&Entry| entry.event == event && entry.inbox == Inbox::New;
        self.sealed.get(&event).or_else(|| self.record.recent.iter().find(is_first))
    }
}

/// The observation that raises an attention entry.
struct Raised<'a> {
    at: At,
    observation: &'a Observation,
}

impl Raised<'_> {
    fn key(&self, kind: AttentionKind) -> AttentionKey {
        AttentionKey { observation: self.observation.id, kind }
    }

    fn record(&self, reason: String) -> AttentionRecord {
        AttentionRecord {
            subject: Some(self.observation.subject.key()),
            event_id: Some(self.observation.event_id.clone()),
            reason,
            since: self.at.journal_time,
            offsets: Vec::new(),
            acknowledged: None,
        }
    }
}

/// Makes the open entry what it should be: kept (with its beginning) while the kind is the same.
fn set_attention(
    changes: &mut Changes,
    view: &View<'_>,
    partition: u32,
    open: &mut Option<AttentionKey>,
    wanted: Option<(AttentionKind, String)>,
    raised: &Raised<'_>,
) -> Result<(), store::Error> {
    match (*open, wanted) {
        (Some(key), Some((kind, reason))) if key.kind == kind => {
            let known = match changes.attention.get(&key).cloned().flatten() {
                Some(pending) => Some(pending),
                None => view.attention_record(partition, key)?,
            };
            let record = known.unwrap_or_else(|| raised.record(String::new()));
            changes.attention.insert(key, Some(AttentionRecord { reason, ..record }));
        }
        (closing, wanted) => {
            if let Some(key) = closing {
                changes.attention.insert(key, None);
            }
            *open = wanted.map(|(kind, reason)| {
                let key = raised.key(kind);
                changes.attention.insert(key, Some(raised.record(reason)));
                metrics::attention(kind);
                key
            });
        }
    }
    Ok(())
}

fn contested(fold: &SubjectFold, subject: &Subject) -> String {
    let state = fold.state(subject);
    let when = match state.as_of {
        Some(time) => format!("at the same provider time {time}"),
        None => "without a provider time".to_owned(),
    };
    let advice = if state.needs_refresh { "; ask the provider for the current state" } else { "" };
    format!(
        "{} different values {when}, by events {}{advice}",
        state.contenders.total,
        told_by(&state.contenders)
    )
}

/// The events by their ids and times, and no more: status words are content, of any length.
fn told_by(contenders: &EvidenceList) -> String {
    let events = contenders.items.iter().map(|item| match item.as_of {
        Some(time) => format!("{} ({time})", item.event_id),
        None => item.event_id.clone(),
    });
    events.collect::<Vec<_>>().join(", ")
}
