//! The rules of deriving, case by case, with literal expectations. Must never hold an expectation that
//! was read off a run instead of the contracts.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod support;

use std::path::Path;

use projector::derive::{Step, reason};
use schema::projection::{Inbox, Outcome};
use schema::{Observation, Provider, Subject};
use serde_json::{Value as Json, json};
use support::{World, comment, message, observe, work_order, yutai};

struct Story {
    world: World,
    number: u32,
    last: Option<Observation>,
}

impl Story {
    fn new() -> Self {
        Self { world: World::default(), number: 0, last: None }
    }

    fn take(&mut self, provider: Provider, body: &Json) -> (Inbox, Outcome) {
        let step = self.step(provider, body);
        (step.entry.inbox, step.entry.outcome)
    }

    fn step(&mut self, provider: Provider, body: &Json) -> Step {
        self.number += 1;
        let observation = observe(provider, "main", self.number, body.to_string().as_bytes());
        let step = self.world.take(&observation);
        self.last = Some(observation);
        step
    }

    fn subject(&self) -> Subject {
        self.last.as_ref().expect("something was taken").subject.clone()
    }

    fn state(&self) -> Json {
        self.world.state(&self.subject())
    }
}

const APPLIED: (Inbox, Outcome) = (Inbox::New, Outcome::Applied);
const NO_CHANGE: (Inbox, Outcome) = (Inbox::New, Outcome::NoChange);
const DUPLICATE: (Inbox, Outcome) = (Inbox::Duplicate, Outcome::NotRun);

fn run_lifecycle(path: &Path) -> usize {
    let file: Json = serde_json::from_slice(&std::fs::read(path).expect("the fixture")).expect("JSON");
    let mut story = Story::new();
    let deliveries = file["deliveries"].as_array().expect("deliveries");
    for delivery in deliveries.iter().filter(|delivery| delivery["signature"] == "valid") {
        let (inbox, outcome) = story.take(Provider::YCloud, &delivery["event"]);
        let found = json!({"inboxClassification": inbox, "projectionOutcome": outcome});
        assert_eq!(found, delivery["expected"], "{}", delivery["caseId"]);
    }
    deliveries.len()
}

#[test]
fn our_message_lifecycle_holds() {
    assert_eq!(
        run_lifecycle(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/message-lifecycle.json")),
        11
    );
}

#[test]
fn the_published_message_lifecycle_holds() {
    if let Some(folder) = std::env::var_os("WITNESS_VECTORS") {
        assert!(
            run_lifecycle(&Path::new(&folder).join("ycloud/webhook-message-lifecycle-fixtures.json")) >= 7
        );
    }
}

#[test]
fn a_comment_before_its_work_order_makes_a_skeleton() {
    let mut story = Story::new();
    assert_eq!(story.take(Provider::Shoc, &comment("d1", "7", "7#a", "on my way")), APPLIED);
    let nothing = json!({"total": 0, "items": []});
    assert_eq!(
        story.state(),
        json!({"certainty": "skeleton", "status": null, "value": null, "as_of": null, "basis": null, "contenders": nothing, "unplaced": nothing, "needs_refresh": false})
    );
    let created = work_order("d2", "7", "assigned", Some("2026-07-16T14:03:22+00:00"), false);
    assert_eq!(story.take(Provider::Shoc, &created), APPLIED);
    let state = story.state();
    assert_eq!(
        (&state["certainty"], &state["status"], &state["as_of"]),
        (&json!("settled"), &json!("assigned"), &json!("2026-07-16T14:03:22.000000Z"))
    );
    assert_eq!(state["value"], created["data"]);
    assert_eq!(state["basis"]["event_id"], "d2");
    assert_eq!(state["basis"]["ordered_by"], "object_time");
}

#[test]
fn a_stale_work_order_never_regresses_and_offsets_are_instants() {
    let mut story = Story::new();
    assert_eq!(
        story.take(
            Provider::Shoc,
            &work_order("d1", "7", "completed", Some("2026-07-16T16:00:00+02:00"), false)
        ),
        APPLIED
    );
    assert_eq!(
        story.take(
            Provider::Shoc,
            &work_order("d2", "7", "assigned", Some("2026-07-16T13:59:59.999999Z"), false)
        ),
        (Inbox::New, Outcome::OutOfOrder)
    );
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d3", "7", "completed", Some("2026-07-16T14:00:00Z"), false)),
        NO_CHANGE
    );
    assert_eq!(
        story.take(
            Provider::Shoc,
            &work_order("d4", "7", "completed", Some("2026-07-16T14:00:00.000000+00:00"), false)
        ),
        NO_CHANGE
    );
    assert_eq!(
        (&story.state()["status"], &story.state()["contenders"]["total"]),
        (&json!("completed"), &json!(0))
    );
}

#[test]
fn an_operator_replay_is_a_duplicate_whatever_its_bytes() {
    let mut story = Story::new();
    let live = work_order("d1", "7", "assigned", Some("2026-07-16T14:00:00Z"), false);
    let replay = work_order("d1", "7", "assigned", Some("2026-07-16T14:00:00Z"), true);
    assert_eq!(story.take(Provider::Shoc, &live), APPLIED);
    let step = story.step(Provider::Shoc, &replay);
    assert_eq!(
        (step.entry.inbox, step.entry.outcome, step.entry.differs),
        (Inbox::Duplicate, Outcome::NotRun, true)
    );
    // The other way round, and the same replay twice.
    let mut story = Story::new();
    assert_eq!(story.take(Provider::Shoc, &replay), APPLIED);
    assert_eq!(story.take(Provider::Shoc, &live), DUPLICATE);
    assert!(!story.step(Provider::Shoc, &replay).entry.differs);
    // Without a replay on either side, other bytes are a conflict.
    let other = work_order("d2", "7", "new", Some("2026-07-16T15:00:00Z"), false);
    assert_eq!(story.take(Provider::Shoc, &other), APPLIED);
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d2", "7", "new", Some("2026-07-16T15:00:01Z"), false)),
        (Inbox::Conflict, Outcome::NotRun)
    );
}

#[test]
fn the_journals_order_decides_a_work_orders_ties_but_a_replay_never_wins() {
    let at = Some("2026-07-16T14:00:00Z");
    let mut story = Story::new();
    assert_eq!(story.take(Provider::Shoc, &work_order("d1", "7", "new", at, true)), APPLIED);
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d2", "7", "on_hold", at, true)),
        (Inbox::New, Outcome::Contested)
    );
    assert_eq!(story.state()["status"], "new", "an arriving replay does not displace");
    assert_eq!(story.take(Provider::Shoc, &work_order("d3", "7", "assigned", at, false)), APPLIED);
    assert_eq!(story.take(Provider::Shoc, &work_order("d4", "7", "completed", at, false)), APPLIED);
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d5", "7", "cancelled", at, true)),
        (Inbox::New, Outcome::Contested)
    );
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d6", "7", "assigned", at, false)),
        APPLIED,
        "the last in the journal"
    );
    let state = story.state();
    assert_eq!(
        (&state["certainty"], &state["status"], &state["contenders"]["total"]),
        (&json!("settled"), &json!("assigned"), &json!(5))
    );
    assert_eq!(state["basis"]["ordered_by"], "journal_order");
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d7", "7", "new", Some("2026-07-16T14:00:01Z"), true)),
        APPLIED,
        "a newer replay is news"
    );
    assert_eq!(story.state()["contenders"]["total"], 0);
}

#[test]
fn unknown_and_unrecognised_work_order_statuses() {
    let mut story = Story::new();
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d1", "7", "unknown", Some("2026-07-16T14:00:00Z"), false)),
        APPLIED
    );
    assert_eq!(story.state()["status"], "unknown");
    assert_eq!(
        story.take(Provider::Shoc, &work_order("d2", "7", "teleported", Some("2026-07-16T14:00:01Z"), false)),
        APPLIED
    );
    assert_eq!(
        (&story.state()["status"], &story.state()["value"]["wo_status"]),
        (&json!("unrecognized"), &json!("teleported"))
    );
    let merged = json!({"schema_version": 1, "delivery_id": "d3", "event_type": "work_order.merged", "data": {"work_order_id": "8"}});
    assert_eq!(story.take(Provider::Shoc, &merged), (Inbox::New, Outcome::Unsupported));
    assert_eq!(story.state()["certainty"], "skeleton");
}

#[test]
fn linked_and_revoked_without_a_time_are_contested() {
    let mut story = Story::new();
    let of = |event: &str, kind: &str| yutai(event, kind, json!({"external_ref": "customer-1"}));
    assert_eq!(story.take(Provider::Yutai, &of("e1", "connect_linked")), APPLIED);
    assert_eq!(
        (&story.state()["certainty"], &story.state()["status"], &story.state()["needs_refresh"]),
        (&json!("unordered"), &json!("connect_linked"), &json!(false))
    );
    assert_eq!(story.take(Provider::Yutai, &of("e2", "connect_linked")), NO_CHANGE);
    assert_eq!(story.take(Provider::Yutai, &of("e3", "connect_revoked")), (Inbox::New, Outcome::Unordered));
    let state = story.state();
    assert_eq!(
        (
            &state["certainty"],
            &state["status"],
            &state["value"],
            &state["as_of"],
            &state["basis"],
            &state["needs_refresh"]
        ),
        (&json!("contested"), &json!(null), &json!(null), &json!(null), &json!(null), &json!(true))
    );
    let statuses: Vec<_> = state["contenders"]["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| item["status"].clone())
        .collect();
    assert_eq!(state["contenders"]["total"], 2);
    assert!(statuses.contains(&json!("connect_linked")) && statuses.contains(&json!("connect_revoked")));
    assert_eq!(
        story.take(Provider::Yutai, &of("e4", "connect_linked")),
        (Inbox::New, Outcome::Unordered),
        "still nothing to tell by"
    );
}

#[test]
fn a_time_settles_what_was_unordered() {
    let mut story = Story::new();
    let at = |event: &str, status: &str, time| message(event, "m", status, time);
    assert_eq!(story.take(Provider::YCloud, &at("e1", "sent", None)), APPLIED);
    assert_eq!(
        story.take(Provider::YCloud, &at("e2", "sent", Some("2026-01-01T00:00:00Z"))),
        NO_CHANGE,
        "the same, now with a time"
    );
    assert_eq!(
        (&story.state()["certainty"], &story.state()["as_of"]),
        (&json!("settled"), &json!("2026-01-01T00:00:00.000000Z"))
    );
    assert_eq!(story.state()["unplaced"]["total"], 1);
    assert_eq!(story.take(Provider::YCloud, &at("e3", "read", None)), (Inbox::New, Outcome::Unordered));
    assert_eq!((&story.state()["status"], &story.state()["unplaced"]["total"]), (&json!("sent"), &json!(2)));
    assert_eq!(
        story.take(Provider::YCloud, &at("e4", "failed", Some("2026-01-01T00:00:00Z"))),
        (Inbox::New, Outcome::Contested)
    );
    assert_eq!(
        (&story.state()["certainty"], &story.state()["value"], &story.state()["needs_refresh"]),
        (&json!("contested"), &json!(null), &json!(false))
    );
    assert_eq!(
        story.take(Provider::YCloud, &at("e5", "sent", Some("2026-01-01T00:00:00.000+00:00"))),
        NO_CHANGE,
        "equal to one of several"
    );
    assert_eq!(
        story.take(Provider::YCloud, &at("e6", "failed", Some("2026-01-01T00:00:01Z"))),
        APPLIED,
        "a newer one decides"
    );
    assert_eq!(
        (&story.state()["certainty"], &story.state()["status"]),
        (&json!("settled"), &json!("failed"))
    );
}

#[test]
fn facts_are_a_set() {
    let mut story = Story::new();
    assert_eq!(story.take(Provider::Shoc, &comment("d1", "7", "c1", "hello")), APPLIED);
    assert_eq!(story.take(Provider::Shoc, &comment("d2", "7", "c1", "hello")), NO_CHANGE);
    assert_eq!(story.take(Provider::Shoc, &comment("d3", "7", "c2", "hello")), APPLIED);
    assert_eq!(
        story.take(Provider::Shoc, &comment("d4", "7", "c1", "goodbye")),
        (Inbox::New, Outcome::Contested)
    );
    let subject = story.subject();
    let fact = |id: &str| {
        serde_json::to_value(story.world.facts[&(subject.clone(), id.to_owned())].fact(&subject, id))
            .expect("JSON")
    };
    assert_eq!(
        (&fact("c1")["certainty"], &fact("c1")["value"], &fact("c1")["contenders"]["total"]),
        (&json!("contested"), &json!(null), &json!(2))
    );
    assert_eq!(
        (&fact("c2")["certainty"], &fact("c2")["value"]["text"], &fact("c2")["as_of"]),
        (&json!("settled"), &json!("hello"), &json!(null))
    );
    // A kind that never has states is settled without a value.
    assert_eq!(
        story.take(
            Provider::Yutai,
            &yutai("e1", "claim_confirmed", json!({"claimId": "c", "benefitId": "b"}))
        ),
        APPLIED
    );
    assert_eq!((&story.state()["certainty"], &story.state()["value"]), (&json!("settled"), &json!(null)));
}

#[test]
fn a_version_rises_with_the_state_and_with_nothing_else() {
    let mut story = Story::new();
    let versions: Vec<_> = [
        message("e1", "m", "sent", Some("2026-01-01T00:00:00Z")),
        message("e1", "m", "sent", Some("2026-01-01T00:00:00Z")),
        message("e2", "m", "sent", Some("2025-01-01T00:00:00Z")),
        message("e3", "m", "sent", Some("2026-01-01T00:00:01Z")),
        message("e3", "m", "read", Some("2026-01-01T00:00:01Z")),
        message("e4", "m", "read", Some("2026-01-01T00:00:01Z")),
    ]
    .iter()
    .map(|body| {
        let changed = story.step(Provider::YCloud, body).subject_changed;
        let projection = story.world.subjects[&story.subject()].0.projection(&story.subject());
        (changed, projection.meta.version.offset, projection.meta.observations.total)
    })
    .collect();
    assert_eq!(
        versions,
        [(true, 0, 1), (false, 0, 2), (false, 0, 3), (true, 3, 4), (false, 3, 5), (true, 5, 6)]
    );
}

#[test]
fn a_facts_version_rises_with_what_is_published_of_it() {
    let mut story = Story::new();
    let changed: Vec<_> = [
        comment("d1", "7", "c1", "hello"),
        comment("d2", "7", "c1", "hello"),
        comment("d3", "7", "c1", "goodbye"),
        comment("d3", "7", "c1", "goodbye"),
        comment("d4", "7", "c1", "later"),
    ]
    .iter()
    .map(|body| {
        let step = story.step(Provider::Shoc, body);
        let version = story.world.facts[&(story.subject(), "c1".to_owned())].version();
        (step.subject_changed, step.fact_changed, version.offset)
    })
    .collect();
    assert_eq!(
        changed,
        [(true, true, 0), (false, false, 0), (false, true, 2), (false, false, 2), (false, true, 4)]
    );
}

#[test]
fn reasons_say_what_outcomes_do_not() {
    let mut story = Story::new();
    let mut reason_of = |provider, body: &Json| {
        let step = story.step(provider, body);
        let observation = story.last.as_ref().expect("just taken");
        reason(&step.entry, &schema::provider::read(observation))
    };
    let sent = message("e1", "m", "sent", Some("2026-01-01T00:00:00Z"));
    assert_eq!(reason_of(Provider::YCloud, &sent), None);
    assert_eq!(reason_of(Provider::YCloud, &sent), None, "a plain duplicate says it all");
    assert_eq!(
        reason_of(Provider::YCloud, &message("e1", "m", "read", None)).as_deref(),
        Some("its event id came before with another body; this one is kept aside")
    );
    let unreadable =
        json!({"id": "e2", "type": "whatsapp.message.updated", "whatsappMessage": {"status": "sent"}});
    assert_eq!(reason_of(Provider::YCloud, &unreadable).as_deref(), Some("`whatsappMessage.id` is missing"));
    assert_eq!(reason_of(Provider::Shoc, &work_order("d1", "7", "new", None, false)), None);
    assert_eq!(
        reason_of(Provider::Shoc, &work_order("d1", "7", "new", None, true)).as_deref(),
        Some("one of the copies is an operator replay; their bodies differ")
    );
}
