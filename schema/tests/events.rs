//! What each type of event means: samples of every provider with their literal subjects and readings
//! (`fixtures/<provider>/events.json`), and the life of one message. Must never compute an expectation
//! with the code it tests.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::collections::BTreeSet;
use std::path::Path;

use schema::{Provider, Reading};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

/// A sample; `body` keeps its exact text.
#[derive(Deserialize)]
struct Sample {
    case: String,
    body: Box<RawValue>,
    expected: Json,
}

fn fixture(provider: Provider, name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::fs::read_to_string(fixtures.join(provider.as_str()).join(name)).expect("the fixture can be read")
}

fn samples(provider: Provider) -> Vec<Sample> {
    serde_json::from_str(&fixture(provider, "events.json")).expect("an array of samples")
}

/// Subject and reading of a body, in the words of the samples.
fn described(provider: Provider, body: &str) -> Json {
    let contract = provider.contract();
    let identity = contract.identify(body.as_bytes()).expect("the envelope holds");
    let mut described = match contract.read(body.as_bytes()) {
        Ok(Reading::State(state)) => json!({
            "reading": "state",
            "status": state.value.status,
            "as_of": state.as_of,
            "ordered_by": state.ordered_by,
        }),
        Ok(Reading::Fact(fact)) => json!({
            "reading": "fact",
            "fact_id": fact.fact_id,
            "status": fact.value.status,
            "as_of": fact.as_of,
        }),
        Ok(Reading::Unsupported) => json!({"reading": "unsupported"}),
        Err(unreadable) => json!({"reading": "unreadable", "reason": unreadable.reason}),
    };
    described["kind"] = identity.kind.into();
    described["id"] = identity.id.into();
    described
}

#[test]
fn every_sample_is_read_as_the_contract_says() {
    for provider in Provider::ALL {
        for Sample { case, body, expected } in samples(provider) {
            assert_eq!(described(provider, body.get()), expected, "{}: {case}", provider.as_str());
        }
    }
}

/// A kind has states if and only if some sample is a state of it, or (`event`) it never has any.
#[test]
fn kinds_with_states_are_those_that_samples_give_states_to() {
    for provider in Provider::ALL {
        let kinds = |reading: &str| -> BTreeSet<String> {
            let samples =
                samples(provider).into_iter().filter(|sample| sample.expected["reading"] == reading);
            samples.map(|sample| sample.expected["kind"].as_str().expect("a kind").to_owned()).collect()
        };
        let (states, facts) = (kinds("state"), kinds("fact"));
        assert!(states.iter().all(|kind| provider.contract().kind_has_states(kind)), "{states:?}");
        assert!(
            facts.difference(&states).all(|kind| !provider.contract().kind_has_states(kind)),
            "{facts:?}"
        );
        assert!(!provider.contract().kind_has_states("event"));
    }
}

#[test]
fn every_type_of_the_catalog_has_a_sample() {
    let catalog = fixture(Provider::YCloud, "event-types.txt");
    if let Some(folder) = std::env::var_os("WITNESS_VECTORS") {
        let published = Path::new(&folder).join("ycloud/webhook-event-types.txt");
        assert_eq!(std::fs::read_to_string(published).expect("the published catalog"), catalog);
    }
    let sampled: BTreeSet<String> = samples(Provider::YCloud)
        .iter()
        .map(|sample| serde_json::from_str::<Json>(sample.body.get()).expect("JSON")["type"].clone())
        .map(|event_type| event_type.as_str().expect("a type").to_owned())
        .collect();
    let missing: Vec<&str> = catalog.lines().filter(|event_type| !sampled.contains(*event_type)).collect();
    assert_eq!(missing, [""; 0]);
    assert_eq!(catalog.lines().count(), 38);
}

/// Every delivery of one message's life has the one subject, its own event id, and the status and time
/// that stand in it. (What becomes of them together is the projector's.)
fn check_lifecycle(deliveries: &[Json]) {
    let id = &deliveries[0]["event"]["whatsappMessage"]["id"];
    for delivery in deliveries {
        let event = &delivery["event"];
        let body = event.to_string();
        let identity = Provider::YCloud.contract().identify(body.as_bytes()).expect("the envelope holds");
        assert_eq!(event["id"], json!(identity.event_id));
        assert_eq!(json!(["message", id]), json!([identity.kind, identity.id]));
        let Ok(Reading::State(state)) = Provider::YCloud.contract().read(body.as_bytes()) else {
            panic!("no state: {body}")
        };
        let message = &event["whatsappMessage"];
        assert_eq!(message["status"], json!(state.value.status));
        // The samples write milliseconds, an instant is written in microseconds.
        let as_of = json!(state.as_of).as_str().expect("a time").replace("000Z", "Z");
        assert_eq!(message["updateTime"], json!(as_of));
        assert_eq!(state.value.json, message.to_string());
    }
}

#[test]
fn lifecycles_keep_message_and_event_apart() {
    let ours: Vec<Json> = serde_json::from_str(&fixture(Provider::YCloud, "lifecycle.json")).expect("JSON");
    assert_eq!(ours.len(), 9);
    check_lifecycle(&ours);
    if let Some(folder) = std::env::var_os("WITNESS_VECTORS") {
        let path = Path::new(&folder).join("ycloud/webhook-message-lifecycle-fixtures.json");
        let text = std::fs::read_to_string(path).expect("the published lifecycle");
        let published: Json = serde_json::from_str(&text).expect("JSON");
        check_lifecycle(published["deliveries"].as_array().expect("deliveries"));
    }
}
