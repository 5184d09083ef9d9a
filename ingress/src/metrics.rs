//! Every metric of the door: names, descriptions, and the only functions that touch them. Must never
//! take a label from a request: endpoints are configured ones, outcomes are our own words.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// Answered requests to webhook paths, by endpoint (empty for an unknown one) and outcome.
const DELIVERIES: &str = "witness_ingress_deliveries_total";
/// Deliveries outside the time window whose signature held.
const STALE_SIGNED: &str = "witness_ingress_stale_signed_total";
/// Fetches of a key document, by endpoint and outcome.
const KEY_FETCHES: &str = "witness_ingress_key_fetches_total";
/// How long appends took until the journal answered, or we stopped waiting.
const APPEND_SECONDS: &str = "witness_ingress_append_seconds";
/// Deliveries in flight.
const IN_FLIGHT: &str = "witness_ingress_in_flight";
/// Transport claims held.
const CLAIMS: &str = "witness_ingress_claims";

/// How a fetch of a key document ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fetched {
    Succeeded,
    Failed,
}

/// Gives every metric its description.
pub(crate) fn describe() {
    describe_counter!(
        DELIVERIES,
        "Requests to webhook paths, by outcome: accepted, repeated, or the class of the refusal"
    );
    describe_counter!(
        STALE_SIGNED,
        "Deliveries outside the time window whose signature held: a provider that retries without signing again, or a wrong clock"
    );
    describe_counter!(KEY_FETCHES, "Fetches of a key document");
    describe_histogram!(APPEND_SECONDS, Unit::Seconds, "Time until the journal answered an append");
    describe_gauge!(IN_FLIGHT, "Deliveries in flight");
    describe_gauge!(CLAIMS, "Transport claims held in memory");
}

/// Makes the alarms of an endpoint visible before they first go off.
pub(crate) fn announce(endpoint: &Arc<str>) {
    counter!(STALE_SIGNED, "endpoint" => endpoint.clone()).increment(0);
}

/// Counts an answered request. `endpoint` is `None` where the path named none of ours.
pub(crate) fn delivery(endpoint: Option<&Arc<str>>, outcome: &'static str) {
    let endpoint = endpoint.cloned().unwrap_or_else(|| Arc::from(""));
    counter!(DELIVERIES, "endpoint" => endpoint, "outcome" => outcome).increment(1);
}

/// Counts a delivery outside the window whose signature held.
pub(crate) fn stale_signed(endpoint: &Arc<str>) {
    counter!(STALE_SIGNED, "endpoint" => endpoint.clone()).increment(1);
}

/// Counts a fetch of a key document.
pub(crate) fn key_fetch(endpoint: &Arc<str>, fetched: Fetched) {
    let outcome = match fetched {
        Fetched::Succeeded => "succeeded",
        Fetched::Failed => "failed",
    };
    counter!(KEY_FETCHES, "endpoint" => endpoint.clone(), "outcome" => outcome).increment(1);
}

/// Records how long an append took.
pub(crate) fn append(took: Duration) {
    histogram!(APPEND_SECONDS).record(took);
}

/// Adds one delivery in flight, or takes one away.
pub(crate) fn in_flight(change: f64) {
    gauge!(IN_FLIGHT).increment(change);
}

/// Says how many claims are held.
pub(crate) fn claims(held: usize) {
    gauge!(CLAIMS).set(held as f64);
}
