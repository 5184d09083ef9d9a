//! Folding readings into what is known. Must never keep more than the answer can show (and the digests
//! that keep the answer exact), and never let the order of arrival decide, but among SHOC's ties.

use std::cmp::Reverse;

use schema::limits::EVIDENCE_SHOWN_MAX;
use schema::projection::{Basis, Certainty, Evidence, EvidenceList, Outcome, RawJson, State};
use schema::reading::{FactReading, OrderedBy, StateReading, Value};
use schema::{Digest, Micros, Observation, Subject};
use serde::{Deserialize, Serialize};

/// What is known of a subject's state: the distinct values at the greatest provider time, and the
/// distinct values without a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct StateFold {
    /// The greatest provider time of all.
    latest: Option<Micros>,
    /// The values at that time; empty without one.
    heads: ValueSet,
    /// The values without a time.
    untimed: ValueSet,
}

impl StateFold {
    /// Folds one accepted reading: what it did, and whether the state is another than before.
    pub(super) fn fold(
        &mut self,
        reading: &StateReading,
        observation: &Observation,
        offset: u64,
    ) -> (Outcome, bool) {
        let journal_order_decides = observation.provider().contract().journal_order_breaks_ties();
        let current = self.current(journal_order_decides).map(|candidate| candidate.value);
        let same = current == Some(reading.value.digest);
        let candidate =
            Candidate::new(&reading.value, reading.as_of, reading.ordered_by, observation, offset);
        let Some(time) = reading.as_of else {
            let is_first = self.heads.is_empty() && self.untimed.is_empty();
            let changed = self.untimed.add(candidate);
            let outcome = match (is_first, same) {
                (true, _) => Outcome::Applied,
                (false, true) => Outcome::NoChange,
                (false, false) => Outcome::Unordered,
            };
            return (outcome, changed);
        };
        if Some(time) > self.latest {
            self.latest = Some(time);
            self.heads = ValueSet::default();
            self.heads.add(candidate);
            return (if same { Outcome::NoChange } else { Outcome::Applied }, true);
        }
        if Some(time) < self.latest {
            return (Outcome::OutOfOrder, false);
        }
        let known = self.heads.contains(reading.value.digest);
        let changed = self.heads.add(candidate);
        let now = self.current(journal_order_decides).map(|candidate| candidate.value);
        let won = journal_order_decides && now == Some(reading.value.digest) && !same;
        let outcome = match (won, known) {
            (true, _) => Outcome::Applied,
            (false, true) => Outcome::NoChange,
            (false, false) => Outcome::Contested,
        };
        (outcome, changed || now != current)
    }

    pub(super) fn certainty(&self, subject: &Subject) -> Certainty {
        let contract = subject.provider.contract();
        let has_current = self.current(contract.journal_order_breaks_ties()).is_some();
        match (self.latest.is_some(), self.untimed.is_empty(), has_current) {
            (true, _, true) => Certainty::Settled,
            (false, false, true) => Certainty::Unordered,
            (true, _, false) | (false, false, false) => Certainty::Contested,
            (false, true, _) if contract.kind_has_states(&subject.kind) => Certainty::Skeleton,
            (false, true, _) => Certainty::Settled,
        }
    }

    pub(super) fn state(&self, subject: &Subject) -> State {
        let contract = subject.provider.contract();
        let current = self.current(contract.journal_order_breaks_ties());
        let certainty = self.certainty(subject);
        let timed = self.latest.is_some();
        let competing = if timed { &self.heads } else { &self.untimed };
        let tied = competing.len() > 1;
        State {
            certainty,
            status: current.and_then(Candidate::status),
            value: current.and_then(Candidate::json),
            as_of: self.latest,
            basis: current.and_then(|candidate| candidate.basis(tied)),
            contenders: if tied { competing.evidence() } else { EvidenceList::default() },
            unplaced: if timed { self.untimed.evidence() } else { EvidenceList::default() },
            needs_refresh: contract.needs_refresh_when_contested()
                && certainty == Certainty::Contested
                && !timed,
        }
    }

    /// The one value that can be named honestly, if there is one.
    fn current(&self, journal_order_decides: bool) -> Option<&Candidate> {
        match self.latest {
            Some(_) if journal_order_decides => self.heads.last_in_journal(),
            Some(_) => self.heads.only(),
            None => self.untimed.only(),
        }
    }
}

/// Distinct values that compete. Each is represented by the reading with the least body digest, so that
/// arrival plays no part; the first [`EVIDENCE_SHOWN_MAX`] by that digest (and the last in the journal's
/// order) carry what an answer shows of them, the others only their digests. A value can only move back
/// among the others, or forward by a reading that brings what is shown: so the first are always whole.
/// (Of more SHOC ties than are shown, a winner from behind the first is represented by the reading that
/// made it win.)
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ValueSet {
    /// Sorted by body digest.
    candidates: Vec<Candidate>,
}

/// One distinct value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Candidate {
    /// What makes it distinct.
    value: Digest,
    /// The least body digest among its readings.
    body: Digest,
    /// The best place among its readings in the journal's order.
    place: Place,
    shown: Option<Shown>,
}

/// What an answer shows of a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Shown {
    body: Digest,
    event_id: String,
    status: String,
    json: String,
    as_of: Option<Micros>,
    ordered_by: OrderedBy,
}

/// Where a reading stands among equal times: live ones after every replay, the later the better; replays
/// the earlier the better, because an arriving replay never wins a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Place {
    Replay(Reverse<u64>),
    Live(u64),
}

impl ValueSet {
    /// Adds a reading of a value; answers whether what is shown of the values is another than before.
    fn add(&mut self, new: Candidate) -> bool {
        let (value, total) = (new.value, self.candidates.len());
        let better = match self.candidates.iter_mut().find(|known| known.value == value) {
            None => {
                self.candidates.push(new);
                true
            }
            Some(known) => {
                let better = new.body < known.body;
                // A value known by its digests alone can be shown again only by what a new reading brings.
                if better || known.shown.is_none() {
                    known.shown = new.shown;
                }
                known.body = known.body.min(new.body);
                known.place = known.place.max(new.place);
                better
            }
        };
        self.candidates.sort_by_key(|candidate| candidate.body);
        let last = self.last_in_journal().map(|candidate| candidate.value);
        let mut shown_better = false;
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            if index < EVIDENCE_SHOWN_MAX || Some(candidate.value) == last {
                shown_better |= better && candidate.value == value;
            } else {
                candidate.shown = None;
            }
        }
        shown_better || self.candidates.len() > total
    }

    /// Adds a fact's reading: what it did, and whether the fact is another than before.
    pub(super) fn fold_fact(&mut self, reading: &FactReading, observation: &Observation) -> (Outcome, bool) {
        let outcome = if self.is_empty() {
            Outcome::Applied
        } else if self.contains(reading.value.digest) {
            Outcome::NoChange
        } else {
            Outcome::Contested
        };
        // A settled fact does not name its evidence, so another reading in the same words changes nothing.
        let in_the_same_words = self.only().is_some_and(|only| {
            let shown = only.shown.as_ref();
            only.value == reading.value.digest
                && shown.is_some_and(|shown| shown.json == reading.value.json && shown.as_of == reading.as_of)
        });
        let place_plays_no_part = 0;
        let candidate = Candidate::new(
            &reading.value,
            reading.as_of,
            OrderedBy::Nothing,
            observation,
            place_plays_no_part,
        );
        (outcome, self.add(candidate) && !in_the_same_words)
    }

    pub(super) fn only(&self) -> Option<&Candidate> {
        match self.candidates.as_slice() {
            [only] => Some(only),
            [] | [_, _, ..] => None,
        }
    }

    /// How many values there are, and the first by body digest, sorted by (as of, body digest).
    pub(super) fn evidence(&self) -> EvidenceList {
        let first = self.candidates.iter().take(EVIDENCE_SHOWN_MAX);
        let mut items: Vec<Evidence> = first.filter_map(Candidate::evidence).collect();
        items.sort_by_key(|evidence| (evidence.as_of, evidence.body_digest));
        EvidenceList { total: self.candidates.len() as u64, items }
    }

    fn last_in_journal(&self) -> Option<&Candidate> {
        self.candidates.iter().max_by_key(|candidate| candidate.place)
    }

    fn contains(&self, value: Digest) -> bool {
        self.candidates.iter().any(|candidate| candidate.value == value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    fn len(&self) -> usize {
        self.candidates.len()
    }
}

impl Candidate {
    fn new(
        value: &Value,
        as_of: Option<Micros>,
        ordered_by: OrderedBy,
        observation: &Observation,
        offset: u64,
    ) -> Self {
        Self {
            value: value.digest,
            body: observation.body_digest,
            place: if observation.replay { Place::Replay(Reverse(offset)) } else { Place::Live(offset) },
            shown: Some(Shown {
                body: observation.body_digest,
                event_id: observation.event_id.clone(),
                status: value.status.clone(),
                json: value.json.clone(),
                as_of,
                ordered_by,
            }),
        }
    }

    pub(super) fn json(&self) -> Option<RawJson> {
        self.shown.as_ref().and_then(|shown| RawJson::new(shown.json.clone()))
    }

    pub(super) fn as_of(&self) -> Option<Micros> {
        self.shown.as_ref().and_then(|shown| shown.as_of)
    }

    fn status(&self) -> Option<String> {
        self.shown.as_ref().map(|shown| shown.status.clone())
    }

    fn basis(&self, tied: bool) -> Option<Basis> {
        self.shown.as_ref().map(|shown| Basis {
            event_id: shown.event_id.clone(),
            body_digest: shown.body,
            ordered_by: if tied { OrderedBy::JournalOrder } else { shown.ordered_by },
        })
    }

    fn evidence(&self) -> Option<Evidence> {
        self.shown.as_ref().map(|shown| Evidence {
            event_id: shown.event_id.clone(),
            body_digest: shown.body,
            status: self.status(),
            value: self.json(),
            as_of: shown.as_of,
        })
    }
}
