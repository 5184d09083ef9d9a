//! What the projector's tests share: real observations (signed, verified, observed) of all providers,
//! and a small world that folds them in memory. Must never make an observation by another way than a
//! delivery takes.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a module of several test binaries, and a test stops at the first surprise"
)]

pub mod model;

use std::collections::BTreeMap;

use bytes::Bytes;
use projector::derive::{At, Entry, FactFold, Step, SubjectFold, derive};
use schema::signature::{Receipt, Secret};
use schema::{Micros, Observation, Provider, Reading, Subject, Unverified};
use serde_json::{Value as Json, json};
use uuid::Uuid;

/// The signed time of all observations here.
pub const SIGNED_AT: i64 = 1_760_000_000;

/// One delivery, through the path of a delivery. `number` makes its observation id and its receive time.
pub fn observe(provider: Provider, endpoint: &str, number: u32, body: &[u8]) -> Observation {
    let secret = Secret::new("env:SECRET", b"secret".to_vec()).expect("not empty");
    let headers = provider.contract().sign(&secret, SIGNED_AT, body);
    let values: Vec<&[u8]> = headers.iter().map(|(_, value)| value.as_bytes()).collect();
    let header = provider.contract().parse_signature(&values).expect("the contract's shape");
    let unverified = Unverified::new(provider, header, Bytes::copy_from_slice(body));
    let verified = unverified.verify(&[secret], SIGNED_AT, 300).expect("our own signature");
    let millis = u128::from(SIGNED_AT as u64 * 1_000 + u64::from(number));
    verified
        .observe(Receipt {
            observation_id: Uuid::from_u128(millis << 80 | 0x7 << 76 | 0x8 << 60 | u128::from(number)),
            endpoint: endpoint.to_owned(),
            tenant: "acme".to_owned(),
            received_at: Micros(SIGNED_AT * 1_000_000 + i64::from(number)),
            content_type: Some("application/json".to_owned()),
            webhook_endpoint_id: None,
        })
        .expect("the envelope holds")
}

/// A YCloud message event.
pub fn message(event_id: &str, message_id: &str, status: &str, update_time: Option<&str>) -> Json {
    json!({"id": event_id, "type": "whatsapp.message.updated", "apiVersion": "v2",
        "whatsappMessage": {"id": message_id, "status": status, "updateTime": update_time}})
}

/// A SHOC work order event.
pub fn work_order(delivery_id: &str, id: &str, status: &str, updated_at: Option<&str>, replay: bool) -> Json {
    json!({"schema_version": 1, "delivery_id": delivery_id, "event_type": "work_order.updated", "replay": replay,
        "data": {"work_order_id": id, "wo_status": status, "updated_at": updated_at}})
}

/// A SHOC comment event.
pub fn comment(delivery_id: &str, work_order_id: &str, comment_id: &str, text: &str) -> Json {
    json!({"schema_version": 1, "delivery_id": delivery_id, "event_type": "work_order.comment_added",
        "data": {"work_order_id": work_order_id, "comment_id": comment_id, "text": text, "created_at": "2026-04-27T23:51:48"}})
}

/// A Yutai event.
pub fn yutai(event_id: &str, kind: &str, payload: Json) -> Json {
    json!({"eventId": event_id, "kind": kind, "payload": payload})
}

/// Folds observations in memory, in the order given, as one partition.
#[derive(Default)]
pub struct World {
    pub subjects: BTreeMap<Subject, (SubjectFold, Vec<Entry>)>,
    pub facts: BTreeMap<(Subject, String), FactFold>,
    offset: u64,
    journal_time: i64,
}

impl World {
    pub fn take(&mut self, observation: &Observation) -> Step {
        self.journal_time = self.journal_time.max(observation.received_at.0);
        let at = At { offset: self.offset, epoch: 1, journal_time: Micros(self.journal_time) };
        self.offset += 1;
        let reading = schema::provider::read(observation);
        let subject = observation.subject.clone();
        let (fold, entries) =
            self.subjects.entry(subject.clone()).or_insert_with(|| (SubjectFold::new(at), Vec::new()));
        let first = entries.iter().find(|entry| entry.event == observation.event_digest()).cloned();
        let fact = match &reading {
            Ok(Reading::Fact(fact)) if first.is_none() => {
                Some(self.facts.entry((subject, fact.fact_id.clone())).or_insert_with(|| FactFold::new(at)))
            }
            _ => None,
        };
        let step = derive(fold, fact, first.as_ref(), observation, &reading, at);
        // What a store keeps between two batches must be all there is.
        let stored = postcard::to_stdvec(fold).expect("storable");
        *fold = postcard::from_bytes(&stored).expect("what was stored");
        entries.push(step.entry.clone());
        step
    }

    /// The state of a subject, as an answer shows it.
    pub fn state(&self, subject: &Subject) -> Json {
        serde_json::to_value(self.subjects[subject].0.state(subject)).expect("JSON")
    }

    /// The facts of a subject, as an answer shows them.
    pub fn facts(&self, subject: &Subject) -> Vec<Json> {
        let facts = self.facts.iter().filter(|((of, _), _)| of == subject);
        facts.map(|((_, id), fold)| serde_json::to_value(fold.fact(subject, id)).expect("JSON")).collect()
    }

    /// Every state, and every list of facts, as the bytes of an answer.
    pub fn answers(&self) -> BTreeMap<Subject, (String, String)> {
        let texts = self.subjects.iter().map(|(subject, (fold, _))| {
            let facts = self.facts.iter().filter(|((of, _), _)| of == subject);
            let facts: Vec<_> = facts.map(|((_, id), fold)| fold.fact(subject, id)).collect();
            let state = serde_json::to_string(&fold.state(subject)).expect("JSON");
            (subject.clone(), (state, serde_json::to_string(&facts).expect("JSON")))
        });
        texts.collect()
    }
}
