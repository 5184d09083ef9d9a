//! Answers about one subject: its projection, its history, its facts, now or at a moment. Must never read more
//! than the page that was asked for, but where a moment needs the subject's whole history.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use schema::projection::{HistoryEntry, Page, Projection};
use schema::{Micros, Observation, Reading, Subject, Unreadable};
use serde_json::value::RawValue;
use service::problem::Problem;

use super::page::{List, page};
use super::parameters::Parameters;
use super::{Answer, Source, internal};
use crate::derive::{self, Entry, History, Moment};
use crate::store::keys::SubjectRecord;
use crate::store::{Observations, Store, View};

/// The projection as it is now, or as it was at the moment that is asked about.
pub(super) fn projection(
    source: &Source,
    partition: u32,
    subject: &Subject,
    parameters: &Parameters,
) -> Result<Answer<Projection>, Problem> {
    let moment = parameters.moment()?;
    let store = source.store();
    if moment == Moment::default() {
        let view = store.read();
        let record = known(&view, partition, subject)?;
        let offset = view.meta(partition)?.next_offset;
        return Ok(Answer { value: record.fold.projection(subject), offset, has_passed: None });
    }
    let then = Then::new(&store, partition, subject, moment)?;
    let value = then.history.fold().ok_or_else(|| then.unknown(subject))?.projection(subject);
    Ok(Answer { value, offset: then.offset, has_passed: then.has_passed })
}

/// A page of the history, in journal order.
pub(super) fn history(
    source: &Source,
    partition: u32,
    subject: &Subject,
    parameters: &Parameters,
) -> Result<Answer<Page<Box<RawValue>>>, Problem> {
    let (limit, body, moment) = (parameters.limit()?, parameters.boolean("body")?, parameters.moment()?);
    let after = parameters.after(List::History, |place| place.try_into().ok().map(u64::from_be_bytes))?;
    let store = source.store();
    let (entries, offset, has_passed) = if moment == Moment::default() {
        let view = store.read();
        let record = known(&view, partition, subject)?;
        let entries = view.entries(partition, &subject.key(), &record, after, limit + 1)?;
        (entries, view.meta(partition)?.next_offset, None)
    } else {
        let then = Then::new(&store, partition, subject, moment)?;
        if then.history.fold().is_none() {
            return Err(then.unknown(subject));
        }
        let entries = then.history.entries().iter();
        let entries = entries.filter(|entry| after.is_none_or(|after| entry.offset > after));
        (entries.take(limit + 1).cloned().collect(), then.offset, then.has_passed)
    };
    // Unpacking blocks is the long part, and needs no view: no batch waits for it.
    let mut observations = store.observations(partition)?;
    let items = entries.iter().map(|entry| {
        let observation = observation(&mut observations, partition, entry.offset)?;
        Ok((entry.offset.to_be_bytes().to_vec(), history_entry(entry, &observation, partition, body)))
    });
    Ok(Answer { value: page(List::History, limit, items)?, offset, has_passed })
}

/// A kept observation.
pub(super) fn observation(
    observations: &mut Observations<'_>,
    partition: u32,
    offset: u64,
) -> Result<Observation, Problem> {
    schema::avro::decode(observations.at(offset)?).map_err(|error| {
        tracing::error!(partition, offset, %error, "a kept observation cannot be read");
        internal()
    })
}

/// A subject's history up to a moment.
struct Then {
    history: History,
    moment: Moment,
    offset: u64,
    /// Whether the partition has passed the journal time that is asked about, where one is.
    has_passed: Option<bool>,
    first_observed_at: Micros,
}

impl Then {
    fn new(store: &Store, partition: u32, subject: &Subject, moment: Moment) -> Result<Self, Problem> {
        let (entries, meta, first_observed_at) = {
            let view = store.read();
            let record = known(&view, partition, subject)?;
            let entries = view.entries(partition, &subject.key(), &record, None, usize::MAX)?;
            let first = record.fold.projection(subject).meta.first_observed_at;
            (entries, view.meta(partition)?, first)
        };
        let mut observations = store.observations(partition)?;
        let mut history = History::new(moment, store.epoch(), &entries);
        for entry in entries.iter().filter(|entry| moment.knows(entry)) {
            history.take(entry, &observation(&mut observations, partition, entry.offset)?);
        }
        let has_passed = moment.known_at.map(|time| meta.journal_time > time);
        Ok(Self { history, moment, offset: meta.next_offset, has_passed, first_observed_at })
    }

    fn unknown(&self, subject: &Subject) -> Problem {
        let detail = match (self.moment.known_at, self.moment.as_of) {
            (Some(time), _) if time < self.first_observed_at => format!(
                "the first observation about {subject} was written at {}, after `known_at` {time}",
                self.first_observed_at
            ),
            (_, Some(time)) => format!(
                "no observation about {subject} that was known then carries a provider time up to `as_of` {time}"
            ),
            (Some(_), None) | (None, None) => format!("nothing was accepted about {subject} by then"),
        };
        Problem::new(StatusCode::NOT_FOUND, "not_known_then", "Nothing was known of this subject then")
            .detail(detail)
    }
}

/// A page of the facts, in order of their keys.
pub(super) fn facts(
    source: &Source,
    partition: u32,
    subject: &Subject,
    parameters: &Parameters,
) -> Result<Answer<Page<Box<RawValue>>>, Problem> {
    let key = subject.key();
    let is_of_subject = |fact: &str| fact.strip_prefix(&key).is_some_and(|rest| rest.starts_with('/'));
    let after = parameters.after_text(List::Facts, is_of_subject)?;
    let store = source.store();
    let view = store.read();
    known(&view, partition, subject)?;
    let facts = view.facts(partition, &key, after.as_deref())?.map(|item| {
        let (fact_key, record) = item?;
        let encoded = fact_key.rsplit('/').next().unwrap_or_default();
        let fact = record.fold.fact(subject, &percent_decode_str(encoded).decode_utf8_lossy());
        Ok((fact_key.into_bytes(), fact))
    });
    let value = page(List::Facts, parameters.limit()?, facts)?;
    Ok(Answer { value, offset: view.meta(partition)?.next_offset, has_passed: None })
}

fn known(view: &View<'_>, partition: u32, subject: &Subject) -> Result<SubjectRecord, Problem> {
    view.subject(partition, &subject.key())?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "unknown_subject", "Nothing was ever observed of this subject")
            .detail(format!("no observation about {subject} is in the log"))
    })
}

pub(super) fn history_entry(
    entry: &Entry,
    observation: &Observation,
    partition: u32,
    body: bool,
) -> HistoryEntry {
    let reading = schema::provider::read(observation);
    HistoryEntry {
        observation_id: observation.id,
        event_id: observation.event_id.clone(),
        event_type: observation.event_type.clone(),
        endpoint: observation.endpoint.clone(),
        source: observation.source,
        inbox: entry.inbox(),
        outcome: entry.outcome,
        reason: derive::reason(entry, &reading),
        signed_at: Micros::from_seconds(observation.signed_at),
        received_at: observation.received_at,
        provider_time: match reading {
            Ok(Reading::State(state)) => state.as_of,
            Ok(Reading::Fact(fact)) => fact.as_of,
            Ok(Reading::Unsupported) | Err(Unreadable { .. }) => None,
        },
        body_digest: observation.body_digest,
        partition,
        offset: entry.offset,
        body: body.then(|| STANDARD.encode(&observation.body)),
    }
}
