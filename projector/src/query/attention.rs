//! One attention entry with its evidence, and what an operator says of it. Must never change an entry itself: an
//! acknowledgement is an observation in the log, and the entry follows when it is derived.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use journal::{NewRecord, Topic};
use schema::operator::{Acknowledged, KIND_ATTENTION};
use schema::projection::{Attention, HistoryEntry};
use schema::{Provider, Subject};
use serde::{Deserialize, Serialize};
use service::problem::Problem;

use super::parameters::invalid;
use super::{RawParameters, Source, answer, answered, internal, json, list};
use crate::store::keys::{AttentionKey, AttentionRecord};

/// How long an acknowledgement may take to be durable.
const APPEND_TIME_MAX: Duration = Duration::from_secs(5);

/// Characters that a name or a reason may have.
const TEXT_CHARACTERS_MAX: usize = 1_000;

/// An entry and the observations that it is about.
#[derive(Serialize)]
struct Detailed {
    #[serde(flatten)]
    entry: Attention,
    /// In journal order; with their bodies where these are asked for.
    evidence: Vec<HistoryEntry>,
}

/// What an operator says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Said {
    by: String,
    reason: String,
}

/// One entry.
pub(super) async fn entry(State(source): State<Source>, id: Path<String>, query: RawParameters) -> Response {
    answered(source, query, &["body"], move |source, parameters| {
        let (partition, key, record) = find(source, &id)?;
        let body = parameters.boolean("body")?;
        let store = source.store();
        let mut kept = store.observations(partition)?;
        let mut evidence = Vec::new();
        for offset in &record.offsets {
            // Malformed bytes are shown by their place and reason alone.
            let Ok(observation) = answer::observation(&mut kept, partition, *offset) else { continue };
            let view = store.read();
            let subject_key = observation.subject.key();
            let Some(subject) = view.subject(partition, &subject_key)? else { continue };
            let after = offset.checked_sub(1);
            let entries = view.entries(partition, &subject_key, &subject, after, 1)?;
            let entry = entries.first().filter(|entry| entry.offset == *offset);
            evidence.extend(entry.map(|entry| answer::history_entry(entry, &observation, partition, body)));
        }
        Ok(json(&Detailed { entry: list::entry(key, record), evidence }))
    })
    .await
}

/// Writes down that an entry was looked at; answers once that is durable, with the observation's id.
pub(super) async fn acknowledge(
    State(source): State<Source>,
    id: Path<String>,
    said: Result<Json<Said>, JsonRejection>,
) -> Response {
    match acknowledged(source, id.0, said).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn acknowledged(
    source: Source,
    id: String,
    said: Result<Json<Said>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(Said { by, reason }) = said.map_err(|rejection| {
        invalid("the body", &format!("must be {{\"by\": \"…\", \"reason\": \"…\"}}: {rejection}"))
    })?;
    for (name, text) in [("`by`", &by), ("`reason`", &reason)] {
        if text.trim().is_empty() || text.chars().count() > TEXT_CHARACTERS_MAX {
            return Err(invalid(name, &format!("must have 1 to {TEXT_CHARACTERS_MAX} characters")));
        }
    }
    let (asked, from) = (id.clone(), source.clone());
    let found = tokio::task::spawn_blocking(move || find(&from, &asked)).await;
    let (partition, _, record) = found.map_err(|_| internal())??;
    if let Some(known) = record.acknowledged {
        return Err(Problem::new(StatusCode::CONFLICT, "acknowledged", "The entry was acknowledged before")
            .detail(format!("by {} at {}", known.by, known.at)));
    }
    let subject = record.subject.as_deref().and_then(Subject::from_key);
    let subject = subject.unwrap_or_else(|| attention_subject(&id, partition, source.partitions()));
    let now = source.ids.clock.now();
    let observation_id = source.ids.ids.uuid_v7(now);
    let observation = Acknowledged { attention: id, by, reason }.observe(observation_id, subject, now);
    let observation = observation.map_err(|_| internal())?;
    let value = schema::avro::encode(&observation).map_err(|_| internal())?;
    let key = Bytes::from(observation.subject.key());
    let append =
        source.appender.append(Topic::Observations, NewRecord { partition, key, value: value.into() });
    let unavailable = |detail: String| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "journal_unavailable", "The journal cannot be written")
            .detail(detail)
            .retry_after(1)
    };
    match tokio::time::timeout(APPEND_TIME_MAX, append).await {
        Ok(Ok(_)) => {
            let answer = serde_json::json!({ "observation_id": observation_id });
            Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
        }
        Ok(Err(error)) => Err(unavailable(error.to_string())),
        Err(_) => Err(unavailable("it does not answer".to_owned())),
    }
}

/// The subject of an acknowledgement of an entry that has none: one that belongs to the entry's partition.
fn attention_subject(id: &str, partition: u32, partitions: std::num::NonZeroU32) -> Subject {
    let named = |number: u64| Subject {
        tenant: "witness".to_owned(),
        provider: Provider::YCloud,
        kind: KIND_ATTENTION.to_owned(),
        id: if number == 0 { id.to_owned() } else { format!("{id}.{number}") },
    };
    let mut numbers = 0_u64..;
    // One of a few is in the right partition.
    let found = numbers.by_ref().take(1_000_000).map(named).find(|of| of.partition(partitions) == partition);
    found.unwrap_or_else(|| named(0))
}

/// An entry by its id, in whichever partition it is.
fn find(source: &Source, id: &str) -> Result<(u32, AttentionKey, AttentionRecord), Problem> {
    let unknown = || {
        Problem::new(StatusCode::NOT_FOUND, "unknown_attention", "There is no such attention entry")
            .detail(format!("no entry {id:?} is open; it may have been settled since"))
    };
    let key = AttentionKey::from_id(id).ok_or_else(unknown)?;
    let store = source.store();
    let view = store.read();
    for partition in source.progress.held() {
        if source.usable(partition).is_ok()
            && let Some(record) = view.attention_record(partition, key)?
        {
            return Ok((partition, key, record));
        }
    }
    drop(view);
    // It may be in a partition that cannot be looked into now.
    source.all_usable()?;
    Err(unknown())
}
