//! A subject folded again from its history: without what a verdict voided, or as it was known at a moment. Must
//! never classify anew: what the inbox said when an observation came depends only on what came before it.

use std::collections::BTreeMap;

use schema::projection::{Inbox, Outcome};
use schema::{Micros, Observation, Reading, Unreadable};

use super::{At, Entry, FactFold, SubjectFold};

/// From when an answer is wanted: both times are inclusive, and may stand alone or together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Only readings with a provider time up to this one; what has none is left out.
    pub as_of: Option<Micros>,
    /// Only observations whose journal time is up to this one.
    pub known_at: Option<Micros>,
}

impl Moment {
    /// Whether an entry was in the log by then.
    pub fn knows(self, entry: &Entry) -> bool {
        self.known_at.is_none_or(|time| entry.journal_time <= time)
    }

    /// Whether what an observation claims is of that time.
    fn includes(self, reading: &Result<Reading, Unreadable>) -> bool {
        let Some(wanted) = self.as_of else { return true };
        let time = match reading {
            Ok(Reading::State(state)) => state.as_of,
            Ok(Reading::Fact(fact)) => fact.as_of,
            Ok(Reading::Unsupported) | Err(Unreadable { .. }) => None,
        };
        time.is_some_and(|time| time <= wanted)
    }
}

/// What a subject's history amounts to.
#[derive(Debug)]
pub struct History {
    moment: Moment,
    epoch: u32,
    fold: Option<SubjectFold>,
    /// By fact id.
    facts: BTreeMap<String, FactFold>,
    entries: Vec<Entry>,
    /// Whether any entry was accepted when it came.
    has_new: bool,
    /// Where the last entry known at the moment stands: a verdict after it was not known.
    known_until: u64,
}

impl History {
    /// Begins a history of which `entries` are all, in order. Epoch is the store's.
    pub fn new(moment: Moment, epoch: u32, entries: &[Entry]) -> Self {
        let known = entries.iter().rev().find(|entry| moment.knows(entry));
        let known_until = known.map_or(0, |entry| entry.offset);
        let (facts, entries) = (BTreeMap::new(), Vec::new());
        Self { moment, epoch, fold: None, facts, entries, has_new: false, known_until }
    }

    /// The next entry and its observation. Answers whether it belongs to the moment.
    pub fn take(&mut self, entry: &Entry, observation: &Observation) -> bool {
        let reading = schema::provider::read(observation);
        if !self.moment.knows(entry) || !self.moment.includes(&reading) {
            return false;
        }
        let at = At { offset: entry.offset, epoch: self.epoch, journal_time: entry.journal_time };
        let verdict = entry.verdict.filter(|verdict| verdict.offset <= self.known_until);
        let mut entry = Entry { verdict, ..entry.clone() };
        let fold = self.fold.get_or_insert_with(|| SubjectFold::new(at));
        if entry.is_providers() {
            let inbox = entry.inbox();
            let fact = match (&reading, inbox) {
                (Ok(Reading::Fact(fact)), Inbox::New) => {
                    Some(self.facts.entry(fact.fact_id.clone()).or_insert_with(|| FactFold::new(at)))
                }
                (Ok(Reading::Fact(_) | Reading::State(_) | Reading::Unsupported) | Err(_), _) => None,
            };
            let (outcome, changed, _) = fold.fold(fact, inbox, observation, &reading, at);
            if changed || (fold.observations.new == 0 && inbox == Inbox::New) {
                fold.version.offset = at.offset;
            }
            self.has_new |= entry.inbox == Inbox::New;
            fold.count(inbox, outcome);
            fold.last_observed_at = at.journal_time;
            entry.outcome = if entry.verdict.is_some() { Outcome::NotRun } else { outcome };
        }
        self.entries.push(entry);
        true
    }

    /// What is known of the subject; `None` where nothing that was ever accepted belongs to the moment.
    pub fn fold(&self) -> Option<&SubjectFold> {
        self.fold.as_ref().filter(|_| self.has_new)
    }

    /// What is known of one of its facts.
    pub fn fact(&self, fact_id: &str) -> Option<&FactFold> {
        self.facts.get(fact_id)
    }

    /// The entries that belong to the moment, with the outcomes they have in it.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}
