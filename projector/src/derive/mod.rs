//! The pure derivation: inbox, fold, outcomes, certainty. Must never see a clock, the store, the journal
//! or the order of arrival (SHOC's ties excepted, where the contract lets the journal's order decide).
//!
//! What one accepted reading does, beside what was known before it:
//!
//! | reading | known before | outcome | what is known after |
//! | --- | --- | --- | --- |
//! | state, timed | nothing | applied | its value |
//! | state, newer (or the first timed one) | the same value | no_change | the value, as of the new time |
//! | state, newer (or the first timed one) | another value, or several | applied | its value |
//! | state, equal time | that value, or it among several | no_change | the same |
//! | state, equal time | another value | contested (SHOC: applied) | several values (SHOC: its value, the tie listed) |
//! | state, equal time, SHOC replay | another value | contested | the value before; a replay never wins a tie, the tie is listed |
//! | state, older | anything | out_of_order | the same |
//! | state, untimed | no state | applied | its value, unordered |
//! | state, untimed | the same value | no_change | the same; where a time is known it is kept as unplaced |
//! | state, untimed | another value, or several | unordered | contested, or kept as unplaced where a time is known |
//! | fact | no such fact id | applied | the fact |
//! | fact | the same value | no_change | the same |
//! | fact | another value | contested | several values |
//! | unsupported | anything | unsupported | the same |
//! | unreadable | anything | failed | the same |
//!
//! A verdict voids an inbox entry: the subject is folded again without it ([`History`]). Later copies stay
//! duplicates of the voided entry and other payloads stay conflicts with it; nothing is promoted.

mod fold;
mod history;

use schema::projection::{
    Certainty, Fact, Inbox, Meta, ObservationCounts, Outcome, OutcomeCounts, Projection, State, Version,
};
use schema::{Digest, Micros, Observation, Reading, Source, Subject, Unreadable};
use serde::{Deserialize, Serialize};

use fold::{StateFold, ValueSet};
pub use history::{History, Moment};

/// One observation in a subject's history, which is its inbox entry too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where the observation stands in its partition.
    pub offset: u64,
    /// Endpoint and event id: with the subject's provider, the inbox key.
    pub event: Digest,
    /// The payload digest.
    pub body: Digest,
    /// SHOC's operator replay flag.
    pub replay: bool,
    /// What the inbox said.
    pub inbox: Inbox,
    /// What the projector did.
    pub outcome: Outcome,
    /// A duplicate, because a copy is an operator replay, whose bytes are not those of the first copy.
    pub differs: bool,
    /// How the observation came to us: what we said ourselves is in the history, but never folded.
    pub source: Source,
    /// Journal time at its offset.
    pub journal_time: Micros,
    /// The verdict on it, if there is one: beside what the inbox said, not over it.
    pub verdict: Option<Voided>,
}

/// The verdict on an entry that was new to its subject, but whose inbox key another subject claimed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voided {
    /// Where the verdict stands in the partition.
    pub offset: u64,
    /// `duplicate` or `conflict`.
    pub inbox: Inbox,
}

impl Entry {
    /// What the inbox says of it, with the verdict on it.
    pub fn inbox(&self) -> Inbox {
        self.verdict.map_or(self.inbox, |verdict| verdict.inbox)
    }

    /// Whether a provider said it.
    pub fn is_providers(&self) -> bool {
        match self.source {
            Source::Webhook | Source::ReadApi => true,
            Source::Verdict | Source::Operator => false,
        }
    }
}

/// Where in the journal an observation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Its offset.
    pub offset: u64,
    /// The epoch of the derivation.
    pub epoch: u32,
    /// Journal time: the greatest `received_at` up to this offset.
    pub journal_time: Micros,
}

/// What one observation did, as data; someone else carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For the history and the inbox.
    pub entry: Entry,
    /// The published form of the subject is another than before.
    pub subject_changed: bool,
    /// The published form of the fact is another than before.
    pub fact_changed: bool,
}

/// What is known and seen of one subject: all that folding its next observation needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectFold {
    states: StateFold,
    observations: ObservationCounts,
    outcomes: OutcomeCounts,
    first_observed_at: Micros,
    last_observed_at: Micros,
    version: Version,
}

/// What is known of one fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactFold {
    values: ValueSet,
    version: Version,
}

impl SubjectFold {
    /// A subject that was never seen before `at`.
    pub fn new(at: At) -> Self {
        Self {
            states: StateFold::default(),
            observations: ObservationCounts::default(),
            outcomes: OutcomeCounts::default(),
            first_observed_at: at.journal_time,
            last_observed_at: at.journal_time,
            version: Version { epoch: at.epoch, offset: at.offset },
        }
    }

    /// The part that converges.
    pub fn state(&self, subject: &Subject) -> State {
        State { certainty: self.certainty(subject), ..self.states.state(subject) }
    }

    /// How far the state can be relied on, without building it.
    pub fn certainty(&self, subject: &Subject) -> Certainty {
        let ObservationCounts { total, new, .. } = self.observations;
        if total > 0 && new == 0 { Certainty::Withdrawn } else { self.states.certainty(subject) }
    }

    /// The last observation that changed what is published of it.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The same knowledge under another version.
    pub fn with_version(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// The whole answer.
    pub fn projection(&self, subject: &Subject) -> Projection {
        Projection {
            subject: subject.clone(),
            state: self.state(subject),
            meta: Meta {
                version: self.version,
                observations: self.observations,
                outcomes: self.outcomes,
                first_observed_at: self.first_observed_at,
                last_observed_at: self.last_observed_at,
            },
        }
    }
}

impl FactFold {
    /// A fact that was never seen before `at`.
    pub fn new(at: At) -> Self {
        Self { values: ValueSet::default(), version: Version { epoch: at.epoch, offset: at.offset } }
    }

    /// The answer about it.
    pub fn fact(&self, subject: &Subject, fact_id: &str) -> Fact {
        let only = self.values.only();
        Fact {
            subject: subject.clone(),
            fact_id: fact_id.to_owned(),
            certainty: self.certainty(),
            value: only.and_then(fold::Candidate::json),
            as_of: only.and_then(fold::Candidate::as_of),
            contenders: if only.is_some() { Default::default() } else { self.values.evidence() },
        }
    }

    /// `settled`, `contested` where the id carries several values, or `withdrawn` where verdicts left none.
    pub fn certainty(&self) -> Certainty {
        match (self.values.only().is_some(), self.values.is_empty()) {
            (true, _) => Certainty::Settled,
            (false, true) => Certainty::Withdrawn,
            (false, false) => Certainty::Contested,
        }
    }

    /// The same knowledge under another version.
    pub fn with_version(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// The last observation that changed what is published of it.
    pub fn version(&self) -> Version {
        self.version
    }
}

/// What the inbox says of an observation, given the *first* entry under its inbox key, and whether it is
/// a duplicate by replay whose bytes differ.
pub fn classify(first: Option<&Entry>, observation: &Observation) -> (Inbox, bool) {
    match first {
        None => (Inbox::New, false),
        Some(first) if first.body == observation.body_digest => (Inbox::Duplicate, false),
        // The producer rebuilds a replay, so its bytes are not the first delivery's (SHOC contract §8),
        // and the contract's word is to ignore any id already processed.
        Some(first) if first.replay || observation.replay => (Inbox::Duplicate, true),
        Some(_) => (Inbox::Conflict, false),
    }
}

/// Folds one observation. `first` is the first entry under its inbox key, if any; `fact` is the fold of
/// the reading's fact id, wanted where the reading is a fact and the inbox says `new`.
pub fn derive(
    subject: &mut SubjectFold,
    fact: Option<&mut FactFold>,
    first: Option<&Entry>,
    observation: &Observation,
    reading: &Result<Reading, Unreadable>,
    at: At,
) -> Step {
    let (inbox, differs) = classify(first, observation);
    // Also after verdicts have left nothing: what comes then is known again, whatever it says.
    let is_first = subject.observations.new == 0 && inbox == Inbox::New;
    let (outcome, state_changed, fact_changed) = subject.fold(fact, inbox, observation, reading, at);
    subject.count(inbox, outcome);
    subject.last_observed_at = at.journal_time;
    let subject_changed = is_first || state_changed;
    if subject_changed {
        subject.version = Version { epoch: at.epoch, offset: at.offset };
    }
    let entry = Entry {
        offset: at.offset,
        event: observation.event_digest(),
        body: observation.body_digest,
        replay: observation.replay,
        inbox,
        outcome,
        differs,
        source: observation.source,
        journal_time: at.journal_time,
        verdict: None,
    };
    Step { entry, subject_changed, fact_changed }
}

/// The entry of what we said ourselves: it stands in the history, and is neither folded nor counted.
pub fn our_entry(first: Option<&Entry>, observation: &Observation, outcome: Outcome, at: At) -> Entry {
    let (inbox, differs) = classify(first, observation);
    Entry {
        offset: at.offset,
        event: observation.event_digest(),
        body: observation.body_digest,
        replay: false,
        inbox,
        outcome: if inbox == Inbox::New { outcome } else { Outcome::NotRun },
        differs,
        source: observation.source,
        journal_time: at.journal_time,
        verdict: None,
    }
}

/// Why an entry is what it is, where inbox and outcome do not say it all. Never shows content.
pub fn reason(entry: &Entry, reading: &Result<Reading, Unreadable>) -> Option<String> {
    if let Some(verdict) = entry.verdict {
        let word = match verdict.inbox {
            Inbox::Conflict => ", with another body",
            Inbox::New | Inbox::Duplicate => "",
        };
        return Some(format!(
            "its event id was told of another subject before{word}: see the verdict at offset {}",
            verdict.offset
        ));
    }
    match (entry.inbox, entry.outcome, reading) {
        (Inbox::Conflict, _, _) => {
            Some("its event id came before with another body; this one is kept aside".to_owned())
        }
        (Inbox::Duplicate, _, _) if entry.differs => {
            Some("one of the copies is an operator replay; their bodies differ".to_owned())
        }
        (Inbox::New, Outcome::Failed, Err(Unreadable { reason })) => Some(reason.clone()),
        (Inbox::New | Inbox::Duplicate, _, _) => None,
    }
}

impl SubjectFold {
    /// Folds an observation's reading where the inbox lets it in: its outcome, and whether the subject's state
    /// and the fact are others than before.
    fn fold(
        &mut self,
        fact: Option<&mut FactFold>,
        inbox: Inbox,
        observation: &Observation,
        reading: &Result<Reading, Unreadable>,
        at: At,
    ) -> (Outcome, bool, bool) {
        match (inbox, reading) {
            (Inbox::Duplicate | Inbox::Conflict, _) => (Outcome::NotRun, false, false),
            (Inbox::New, Err(Unreadable { .. })) => (Outcome::Failed, false, false),
            (Inbox::New, Ok(Reading::Unsupported)) => (Outcome::Unsupported, false, false),
            (Inbox::New, Ok(Reading::State(reading))) => {
                let (outcome, changed) = self.states.fold(reading, observation, at.offset);
                (outcome, changed, false)
            }
            (Inbox::New, Ok(Reading::Fact(reading))) => {
                let known = fact.map(|fact| (fact.values.fold_fact(reading, observation), fact));
                let (outcome, changed) = match known {
                    Some(((outcome, changed), fact)) => {
                        if changed {
                            fact.version = Version { epoch: at.epoch, offset: at.offset };
                        }
                        (outcome, changed)
                    }
                    None => (Outcome::Applied, false),
                };
                (outcome, false, changed)
            }
        }
    }

    fn count(&mut self, inbox: Inbox, outcome: Outcome) {
        let (observations, outcomes) = (&mut self.observations, &mut self.outcomes);
        observations.total += 1;
        *match inbox {
            Inbox::New => &mut observations.new,
            Inbox::Duplicate => &mut observations.duplicate,
            Inbox::Conflict => &mut observations.conflict,
        } += 1;
        *match outcome {
            Outcome::Applied => &mut outcomes.applied,
            Outcome::NoChange => &mut outcomes.no_change,
            Outcome::OutOfOrder => &mut outcomes.out_of_order,
            Outcome::Contested => &mut outcomes.contested,
            Outcome::Unordered => &mut outcomes.unordered,
            Outcome::Unsupported => &mut outcomes.unsupported,
            Outcome::Failed => &mut outcomes.failed,
            Outcome::NotRun => &mut outcomes.not_run,
        } += 1;
    }
}
