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

mod fold;

use schema::projection::{
    Certainty, Fact, Inbox, Meta, ObservationCounts, Outcome, OutcomeCounts, Projection, State, Version,
};
use schema::{Digest, Micros, Observation, Reading, Subject, Unreadable};
use serde::{Deserialize, Serialize};

use fold::{StateFold, ValueSet};

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
        self.states.state(subject)
    }

    /// How far the state can be relied on, without building it.
    pub fn certainty(&self, subject: &Subject) -> Certainty {
        self.states.certainty(subject)
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

    /// Observations counted so far; zero only before the first.
    pub fn observations_total(&self) -> u64 {
        self.observations.total
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

    /// `settled`, or `contested` where the id carries several values.
    pub fn certainty(&self) -> Certainty {
        if self.values.only().is_some() { Certainty::Settled } else { Certainty::Contested }
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
    let is_first = subject.observations.total == 0;
    let (outcome, state_changed, fact_changed) = match (inbox, reading) {
        (Inbox::Duplicate | Inbox::Conflict, _) => (Outcome::NotRun, false, false),
        (Inbox::New, Err(Unreadable { .. })) => (Outcome::Failed, false, false),
        (Inbox::New, Ok(Reading::Unsupported)) => (Outcome::Unsupported, false, false),
        (Inbox::New, Ok(Reading::State(reading))) => {
            let (outcome, changed) = subject.states.fold(reading, observation, at.offset);
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
    };
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
    };
    Step { entry, subject_changed, fact_changed }
}

/// Why an entry is what it is, where inbox and outcome do not say it all. Never shows content.
pub fn reason(entry: &Entry, reading: &Result<Reading, Unreadable>) -> Option<String> {
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
