//! Answers about one subject: its projection, its history, its facts. Must never read more than the page
//! that was asked for.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use schema::projection::{Fact, HistoryEntry, Page, Projection};
use schema::{Micros, Observation, Reading, Subject, Unreadable};
use service::problem::Problem;

use super::Source;
use super::parameters::cursor;
use crate::derive::{self, Entry};
use crate::store::keys::SubjectRecord;
use crate::store::{self, View};

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
    after: Option<u64>,
    limit: usize,
    body: bool,
) -> Result<(Page<HistoryEntry>, u64), Problem> {
    let view = source.store.read();
    let record = known(&view, partition, subject)?;
    let mut entries = view.entries(partition, &subject.key(), &record, after, limit + 1)?;
    let next = next_cursor(&mut entries, limit, |entry| entry.offset.to_be_bytes().to_vec());
    let offsets: Vec<u64> = entries.iter().map(|entry| entry.offset).collect();
    let observations = view.observations(partition, &offsets)?;
    let items = entries.iter().map(|entry| {
        let bytes = observations.get(&entry.offset).map(Vec::as_slice).unwrap_or_default();
        let observation = schema::avro::decode(bytes).map_err(|error| {
            tracing::error!(partition, offset = entry.offset, %error, "a kept observation cannot be read");
            super::internal()
        })?;
        Ok(history_entry(entry, &observation, partition, body))
    });
    let items = items.collect::<Result<_, Problem>>()?;
    Ok((Page { items, next }, view.meta(partition)?.next_offset))
}

/// A page of the facts, in order of their keys.
pub(super) fn facts(
    source: &Source,
    partition: u32,
    subject: &Subject,
    after: Option<String>,
    limit: usize,
) -> Result<(Page<Fact>, u64), Problem> {
    let view = source.store.read();
    known(&view, partition, subject)?;
    let key = subject.key();
    let records = view.facts(partition, &key, after.as_deref())?;
    let mut records = records.take(limit + 1).collect::<Result<Vec<_>, store::Error>>()?;
    let next = next_cursor(&mut records, limit, |(key, _)| key.as_bytes().to_vec());
    let items = records.iter().map(|(fact_key, record)| {
        let encoded = fact_key.rsplit('/').next().unwrap_or_default();
        let fact_id = percent_decode_str(encoded).decode_utf8_lossy();
        record.fold.fact(subject, &fact_id)
    });
    let items = items.collect();
    Ok((Page { items, next }, view.meta(partition)?.next_offset))
}

/// Cuts a page that was read one item too far, and answers the cursor of its last item if there is more.
pub(super) fn next_cursor<T>(
    items: &mut Vec<T>,
    limit: usize,
    place: impl Fn(&T) -> Vec<u8>,
) -> Option<String> {
    let more = items.len() > limit;
    items.truncate(limit);
    items.last().filter(|_| more).map(|last| cursor(&place(last)))
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
