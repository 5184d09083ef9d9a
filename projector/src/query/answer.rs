//! Answers about one subject: its projection, its history, its facts. Must never read more than the page
//! that was asked for.

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
use super::{Source, internal};
use crate::derive::{self, Entry};
use crate::store::View;
use crate::store::keys::SubjectRecord;

/// The current projection, and the offset it is derived up to.
pub(super) fn projection(
    source: &Source,
    partition: u32,
    subject: &Subject,
) -> Result<(Projection, u64), Problem> {
    let view = source.store.read();
    let record = known(&view, partition, subject)?;
    Ok((record.fold.projection(subject), view.meta(partition)?.next_offset))
}

/// A page of the history, in journal order.
pub(super) fn history(
    source: &Source,
    partition: u32,
    subject: &Subject,
    parameters: &Parameters,
) -> Result<(Page<Box<RawValue>>, u64), Problem> {
    let (limit, body) = (parameters.limit()?, parameters.boolean("body")?);
    let after = parameters.after(List::History, |place| place.try_into().ok().map(u64::from_be_bytes))?;
    let (entries, offset) = {
        let view = source.store.read();
        let record = known(&view, partition, subject)?;
        let entries = view.entries(partition, &subject.key(), &record, after, limit + 1)?;
        (entries, view.meta(partition)?.next_offset)
    };
    // Unpacking blocks is the long part, and needs no view: no batch waits for it.
    let mut observations = source.store.observations(partition)?;
    let items = entries.iter().map(|entry| {
        let observation = schema::avro::decode(observations.at(entry.offset)?).map_err(|error| {
            tracing::error!(partition, offset = entry.offset, %error, "a kept observation cannot be read");
            internal()
        })?;
        Ok((entry.offset.to_be_bytes().to_vec(), history_entry(entry, &observation, partition, body)))
    });
    Ok((page(List::History, limit, items)?, offset))
}

/// A page of the facts, in order of their keys.
pub(super) fn facts(
    source: &Source,
    partition: u32,
    subject: &Subject,
    parameters: &Parameters,
) -> Result<(Page<Box<RawValue>>, u64), Problem> {
    let key = subject.key();
    let is_of_subject = |fact: &str| fact.strip_prefix(&key).is_some_and(|rest| rest.starts_with('/'));
    let after = parameters.after_text(List::Facts, is_of_subject)?;
    let view = source.store.read();
    known(&view, partition, subject)?;
    let facts = view.facts(partition, &key, after.as_deref())?.map(|item| {
        let (fact_key, record) = item?;
        let encoded = fact_key.rsplit('/').next().unwrap_or_default();
        let fact = record.fold.fact(subject, &percent_decode_str(encoded).decode_utf8_lossy());
        Ok((fact_key.into_bytes(), fact))
    });
    Ok((page(List::Facts, parameters.limit()?, facts)?, view.meta(partition)?.next_offset))
}

fn known(view: &View<'_>, partition: u32, subject: &Subject) -> Result<SubjectRecord, Problem> {
    view.subject(partition, &subject.key())?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "unknown_subject", "Nothing was ever observed of this subject")
            .detail(format!("no observation about {subject} is in the log"))
    })
}

fn history_entry(entry: &Entry, observation: &Observation, partition: u32, body: bool) -> HistoryEntry {
    let reading = schema::provider::read(observation);
    HistoryEntry {
        observation_id: observation.id,
        event_id: observation.event_id.clone(),
        event_type: observation.event_type.clone(),
        endpoint: observation.endpoint.clone(),
        source: observation.source,
        inbox: entry.inbox,
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
