//! The main job: three providers, everything their contracts allow them to do, through two doors, and what must
//! be known afterwards. Must never take an expectation from the program: they follow from the contracts.

use std::time::Instant;

use schema::Digest;
use serde_json::{Value as Json, json};

use crate::checks::{Outcome, check, outcome};
use crate::common::{Delivery, PATIENCE};
use crate::finder::Cluster;
use crate::fleet::{Fleet, LOOK_AGAIN};
use crate::load::Ledger;
use crate::registry::Mock;

const YCLOUD: usize = 0;
const SHOC: usize = 1;
const YUTAI: usize = 2;

/// Delivered alternately to the two ingresses, each after the other's acknowledgement.
pub(crate) fn the_main_job(cluster: &Cluster) {
    do_it(Fleet::start(cluster));
}

/// The same, and no record but in the Confluent wire format.
pub(crate) fn the_main_job_with_a_registry(cluster: &Cluster) {
    let (registry, url) = Mock::start();
    do_it(Fleet::start_with_registry(cluster, registry, url));
}

fn do_it(mut fleet: Fleet) {
    let (doors, mut ledger) = (fleet.doors(), Ledger::default());
    let deliveries = deliveries();
    for (number, (endpoint, body)) in deliveries.iter().enumerate() {
        let body = body.to_string().into_bytes();
        let delivery = Delivery { endpoint: *endpoint, event_id: String::new(), body };
        let answer = doors[number % doors.len()].post(&delivery).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let digest = Digest::of(&delivery.body);
        ledger.sent.insert(digest);
        ledger.acknowledge(&answer, digest);
    }
    assert_eq!(ledger.acknowledged.len(), deliveries.len(), "two deliveries share an observation");
    let forged = Delivery { endpoint: YCLOUD, event_id: String::new(), body: b"{}".to_vec() };
    assert_eq!(doors[0].post_forged(&forged).expect("an answer").status, 401);

    let withdrawn = until_judged(&fleet);
    check(&mut fleet, &ledger);
    let judged = Outcome {
        certainty: "withdrawn".to_owned(),
        status: None,
        needs_refresh: false,
        facts: 0,
        history: vec![
            ("conflict".to_owned(), "not_run".to_owned()),
            ("new".to_owned(), "applied".to_owned()),
        ],
    };
    assert_eq!(outcome(&fleet, withdrawn), judged);
    for (key, expected) in expected() {
        assert_eq!(outcome(&fleet, key), expected, "{key}");
        let path = format!("/v1/subjects/{key}");
        let (_, answer) = fleet.owner(&path).unwrap_or_else(|| panic!("nobody answers {path}"));
        fleet.everybody_answers(&path, &answer.text);
    }
    fleet.stop_all();
}

/// Two messages of one event id: whichever claims it first stays, and the other is withdrawn.
const OF_ONE_EVENT: [&str; 2] = ["acme/ycloud/message/claimed-1", "acme/ycloud/message/claimed-2"];

fn until_judged(fleet: &Fleet) -> &'static str {
    let started = Instant::now();
    loop {
        let certainties = OF_ONE_EVENT.map(|key| {
            let answer = fleet.owner(&format!("/v1/subjects/{key}")).map(|(_, answer)| answer);
            answer.and_then(|answer| answer.json()["certainty"].as_str().map(str::to_owned))
        });
        let is = |index: usize, word: &str| certainties[index].as_deref() == Some(word);
        for (one, other) in [(0, 1), (1, 0)] {
            if is(one, "settled") && is(other, "withdrawn") {
                return OF_ONE_EVENT[other];
            }
        }
        assert!(started.elapsed() < PATIENCE, "no verdict: {certainties:?}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn whatsapp(event_id: &str, message: Json) -> (usize, Json) {
    (YCLOUD, json!({"id": event_id, "type": "whatsapp.message.updated", "whatsappMessage": message}))
}

fn message(id: &str, status: &str, time: &str) -> Json {
    json!({"id": id, "status": status, "updateTime": format!("2026-05-04T{time}.000Z")})
}

fn work_order(delivery_id: &str, replay: bool, data: Json) -> (usize, Json) {
    let event_type =
        if data.get("comment_id").is_some() { "work_order.comment_added" } else { "work_order.updated" };
    let envelope = json!({
        "schema_version": 1, "delivery_id": delivery_id, "event_type": event_type, "replay": replay, "data": data,
    });
    (SHOC, envelope)
}

fn snapshot(id: &str, status: &str, time: &str) -> Json {
    json!({"work_order_id": id, "wo_status": status, "updated_at": format!("2026-05-04T{time}.000000+00:00")})
}

fn yutai(event_id: &str, kind: &str, payload: Json) -> (usize, Json) {
    (YUTAI, json!({"eventId": event_id, "kind": kind, "payload": payload}))
}

fn tier(before: &str, now: &str, as_of: &str) -> Json {
    json!({"credentialId": "c-1", "holderId": "h-1", "previousTier": before, "tier": now, "asOf": as_of})
}

/// What is sent, in this order. Equal bytes stand at an odd distance, so that they come to different doors.
fn deliveries() -> Vec<(usize, Json)> {
    vec![
        whatsapp("y-1", message("told-in-disorder", "sent", "10:00:02")),
        whatsapp("y-2", message("told-in-disorder", "delivered", "10:00:05")),
        whatsapp("y-2", message("told-in-disorder", "delivered", "10:00:05")),
        whatsapp("y-2", message("told-in-disorder", "failed", "10:00:09")),
        whatsapp("y-3", message("told-in-disorder", "accepted", "10:00:01")),
        whatsapp("y-4", message("told-in-disorder", "delivered", "10:00:07")),
        whatsapp("y-5", message("contradicted", "read", "11:00:00")),
        whatsapp("y-6", message("contradicted", "failed", "11:00:00")),
        whatsapp("y-7", json!({"id": "without-a-time", "status": "sent"})),
        whatsapp("y-8", json!({"id": "without-a-time", "status": "sent"})),
        whatsapp("y-9", json!({"status": "sent"})),
        whatsapp("y-claimed", message("claimed-1", "sent", "12:00:00")),
        whatsapp("y-claimed", message("claimed-2", "read", "12:00:00")),
        (YCLOUD, json!({"id": "y-10", "type": "whatsapp.hologram.projected"})),
        work_order(
            "s-1",
            false,
            json!({"work_order_id": "700", "comment_id": "700#1", "text": "On my way."}),
        ),
        work_order("s-2", false, json!({"work_order_id": "700", "comment_id": "700#1", "text": "Not yet."})),
        work_order("s-3", false, json!({"work_order_id": "700", "comment_id": "700#2", "text": "There."})),
        work_order("s-4", false, snapshot("800", "assigned", "12:00:00")),
        work_order("s-5", false, snapshot("800", "in_progress", "12:30:00")),
        work_order("s-6", false, snapshot("800", "on_hold", "12:30:00")),
        work_order("s-4", true, snapshot("800", "assigned", "12:00:00")),
        work_order("s-7", false, snapshot("800", "new", "11:00:00")),
        work_order("s-8", false, snapshot("800", "waiting_for_parts", "13:00:00")),
        yutai("u-1", "tier_changed", tier("Silver", "Gold", "2026-05-04T09:00:00Z")),
        yutai("u-2", "tier_changed", tier("Blue", "Silver", "2026-05-03T09:00:00Z")),
        yutai("u-3", "connect_linked", json!({"external_ref": "customer-1"})),
        yutai("u-4", "connect_revoked", json!({"external_ref": "customer-1"})),
        yutai("u-5", "benefit_unlocked", json!({"benefitId": "b-1", "tier": "Gold"})),
        yutai("u-5", "benefit_unlocked", json!({"benefitId": "b-1", "tier": "Gold"})),
        yutai("u-7", "redemption_recorded", json!({"redemptionId": "r-1", "claimId": "k-1"})),
        yutai("u-8", "claim_confirmed", json!({"claimId": "k-1", "benefitId": "b-1"})),
        yutai("u-6", "moon_reached", json!({})),
    ]
}

/// What the contracts make of it.
fn expected() -> Vec<(&'static str, Outcome)> {
    let known =
        |certainty: &str, status: Option<&str>, needs_refresh, facts, history: &[(&str, &str)]| Outcome {
            certainty: certainty.to_owned(),
            status: status.map(str::to_owned),
            needs_refresh,
            facts,
            history: history
                .iter()
                .map(|(inbox, outcome)| ((*inbox).to_owned(), (*outcome).to_owned()))
                .collect(),
        };
    const APPLIED: (&str, &str) = ("new", "applied");
    const CONTESTED: (&str, &str) = ("new", "contested");
    const OUT_OF_ORDER: (&str, &str) = ("new", "out_of_order");
    const NO_CHANGE: (&str, &str) = ("new", "no_change");
    const UNORDERED: (&str, &str) = ("new", "unordered");
    const UNSUPPORTED: (&str, &str) = ("new", "unsupported");
    const FAILED: (&str, &str) = ("new", "failed");
    const DUPLICATE: (&str, &str) = ("duplicate", "not_run");
    const CONFLICT: (&str, &str) = ("conflict", "not_run");
    vec![
        (
            "acme/ycloud/message/told-in-disorder",
            known(
                "settled",
                Some("delivered"),
                false,
                0,
                &[APPLIED, APPLIED, DUPLICATE, CONFLICT, OUT_OF_ORDER, NO_CHANGE],
            ),
        ),
        ("acme/ycloud/message/contradicted", known("contested", None, false, 0, &[APPLIED, CONTESTED])),
        (
            "acme/ycloud/message/without-a-time",
            known("unordered", Some("sent"), false, 0, &[APPLIED, NO_CHANGE]),
        ),
        ("acme/ycloud/event/y-9", known("settled", None, false, 0, &[FAILED])),
        ("acme/ycloud/event/y-10", known("settled", None, false, 0, &[UNSUPPORTED])),
        ("acme/shoc/work_order/700", known("skeleton", None, false, 2, &[APPLIED, CONTESTED, APPLIED])),
        (
            "acme/shoc/work_order/800",
            known(
                "settled",
                Some("unrecognized"),
                false,
                0,
                &[APPLIED, APPLIED, APPLIED, DUPLICATE, OUT_OF_ORDER, APPLIED],
            ),
        ),
        (
            "acme/yutai/credential/c-1",
            known("settled", Some("tier_changed"), false, 0, &[APPLIED, OUT_OF_ORDER]),
        ),
        ("acme/yutai/bank_link/customer-1", known("contested", None, true, 0, &[APPLIED, UNORDERED])),
        ("acme/yutai/benefit/b-1", known("settled", None, false, 1, &[APPLIED, DUPLICATE])),
        ("acme/yutai/claim/k-1", known("settled", None, false, 2, &[APPLIED, APPLIED])),
        ("acme/yutai/event/u-6", known("settled", None, false, 0, &[UNSUPPORTED])),
    ]
}
