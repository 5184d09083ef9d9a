//! The rules of folding in their most obvious form: a function of the whole list of accepted readings,
//! nothing remembered in between. Must never use anything of `derive`, or ask a provider's code for a
//! rule that it is here to check.

use std::collections::BTreeMap;

use schema::reading::{FactReading, StateReading, Value};
use schema::{Digest, Micros, Observation, Provider, Reading, Subject};
use serde_json::{Value as Json, json};

const KINDS_WITHOUT_STATES: [&str; 6] =
    ["event", "inbound_message", "inbound_sms", "group_participants", "benefit", "claim"];

/// One accepted observation and what it claims, in journal order.
pub type Accepted<'a> = (&'a Observation, Reading);

/// What an answer should say of a subject's state.
pub fn state(subject: &Subject, accepted: &[Accepted<'_>]) -> Json {
    let readings: Vec<(&Observation, &StateReading)> = accepted
        .iter()
        .filter_map(|(observation, reading)| match reading {
            Reading::State(reading) => Some((*observation, reading)),
            Reading::Fact(_) | Reading::Unsupported => None,
        })
        .collect();
    let latest = readings.iter().filter_map(|(_, reading)| reading.as_of).max();
    let timed = latest.is_some();
    let at = |time: Option<Micros>| -> Vec<(&Observation, &StateReading)> {
        readings.iter().filter(|(_, reading)| reading.as_of == time).copied().collect()
    };
    let distinct_at = |time| distinct(at(time).into_iter().map(|(by, reading)| (by, &reading.value, time)));
    let untimed = distinct_at(None);
    let competing = if timed { distinct_at(latest) } else { untimed.clone() };
    let tied = competing.len() > 1;
    let winner = if timed && subject.provider == Provider::Shoc {
        let at_latest = at(latest);
        let last_live = at_latest.iter().rev().find(|(observation, _)| !observation.replay);
        last_live.or(at_latest.first()).map(|(_, reading)| reading.value.digest)
    } else if tied {
        None
    } else {
        competing.first().map(|(value, _)| *value)
    };
    let current = competing.iter().find(|(value, _)| Some(*value) == winner).map(|(_, evidence)| evidence);
    let certainty = if readings.is_empty() {
        if KINDS_WITHOUT_STATES.contains(&subject.kind.as_str()) { "settled" } else { "skeleton" }
    } else if current.is_none() {
        "contested"
    } else if timed {
        "settled"
    } else {
        "unordered"
    };
    let ordered_by = if !timed {
        "nothing"
    } else if tied {
        "journal_order"
    } else if has_event_time(&subject.kind) {
        "event_time"
    } else {
        "object_time"
    };
    let basis = current.map(|evidence| {
        json!({"event_id": evidence["event_id"], "body_digest": evidence["body_digest"], "ordered_by": ordered_by})
    });
    json!({
        "certainty": certainty,
        "status": current.map(|evidence| &evidence["status"]),
        "value": current.map(|evidence| &evidence["value"]),
        "as_of": latest,
        "basis": basis,
        "contenders": list(if tied { &competing } else { &[] }),
        "unplaced": list(if timed { &untimed } else { &[] }),
        "needs_refresh": subject.provider == Provider::Yutai && certainty == "contested" && !timed,
    })
}

/// What answers should say of a subject's facts, by fact id.
pub fn facts(subject: &Subject, accepted: &[Accepted<'_>]) -> Vec<Json> {
    let mut by_id: BTreeMap<&str, Vec<(&Observation, &FactReading)>> = BTreeMap::new();
    for (observation, reading) in accepted {
        if let Reading::Fact(reading) = reading {
            by_id.entry(&reading.fact_id).or_default().push((observation, reading));
        }
    }
    let facts = by_id.into_iter().map(|(fact_id, readings)| {
        let values = distinct(readings.into_iter().map(|(by, reading)| (by, &reading.value, reading.as_of)));
        let only = if values.len() == 1 { values.first().map(|(_, evidence)| evidence) } else { None };
        json!({
            "subject": subject,
            "fact_id": fact_id,
            "certainty": if only.is_some() { "settled" } else { "contested" },
            "value": only.map(|evidence| &evidence["value"]),
            "as_of": only.map(|evidence| &evidence["as_of"]),
            "contenders": list(if only.is_some() { &[] } else { &values }),
        })
    });
    facts.collect()
}

/// The kinds whose objects carry no time field of their own.
fn has_event_time(kind: &str) -> bool {
    let by_aspect = ["whatsapp.phone_number.", "whatsapp.business_account."];
    ["email", "payment"].contains(&kind) || by_aspect.iter().any(|aspect| kind.starts_with(aspect))
}

/// The distinct values, each with the evidence of its least body, sorted by the digest of that body.
fn distinct<'a>(
    readings: impl Iterator<Item = (&'a Observation, &'a Value, Option<Micros>)>,
) -> Vec<(Digest, Json)> {
    let mut readings: Vec<_> = readings.collect();
    readings.sort_by_key(|(observation, _, _)| observation.body_digest);
    let mut values: Vec<(Digest, Json)> = Vec::new();
    for (observation, value, as_of) in readings {
        if values.iter().all(|(known, _)| *known != value.digest) {
            let object: Json = serde_json::from_str(&value.json).expect("JSON");
            let evidence = json!({
                "event_id": observation.event_id,
                "body_digest": observation.body_digest,
                "status": value.status,
                "value": object,
                "as_of": as_of,
            });
            values.push((value.digest, evidence));
        }
    }
    values
}

fn list(values: &[(Digest, Json)]) -> Json {
    let mut items: Vec<_> = values.iter().map(|(_, evidence)| evidence).collect();
    // RFC 3339 in UTC with a fixed number of digits sorts as its instants do, and null before all texts.
    items.sort_by_key(|item| (item["as_of"].as_str(), item["body_digest"].as_str()));
    json!({"total": items.len(), "items": items})
}
