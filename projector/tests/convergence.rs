//! The convergence of `state`: the same accepted observations give the same bytes in every order and
//! with any number of repeats, and what they give is what a naive model of the rules gives. Must never
//! pass on an input without the troubles it is about: their numbers are demanded at the end.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use schema::projection::{Inbox, Outcome};
use schema::{Digest, Observation, Provider, Reading, Subject};
use serde_json::{Value as Json, json};
use support::model::{self, Accepted};
use support::{World, comment, message, observe, work_order, yutai};

/// Provider times that meet: none, three instants in different spellings, and one that names no instant.
const TIMES: [Option<&str>; 5] = [
    None,
    Some("2026-01-01T00:00:01Z"),
    Some("2026-01-01T02:00:02+02:00"),
    Some("2026-01-01T00:00:03.000Z"),
    Some("2026-01-01T00:00:09"),
];
const WORDS: [&str; 3] = ["delivered", "read", "failed"];

/// One type of event. YCloud's name the envelope field of the object, and the object's time field.
#[derive(Clone, Copy, Debug)]
enum Form {
    YCloud(&'static str, &'static str, &'static str),
    Shoc(&'static str),
    Yutai(&'static str),
}
use Form::{Shoc, YCloud, Yutai};

/// Every kind of subject, with the types of events that speak about it.
const KINDS: [&[Form]; 33] = [
    &[
        YCloud("whatsapp.message.updated", "whatsappMessage", "updateTime"),
        YCloud("whatsapp.smb.message.echoes", "whatsappMessage", "updateTime"),
        YCloud("whatsapp.smb.history", "whatsappMessage", "updateTime"),
    ],
    &[
        YCloud("whatsapp.inbound_message.received", "whatsappInboundMessage", "sendTime"),
        YCloud("whatsapp.smb.history", "whatsappInboundMessage", "sendTime"),
    ],
    &[YCloud("sms.message.updated", "sms", "updateTime")],
    &[YCloud("voice.message.updated", "voice", "updateTime")],
    &[YCloud("sms.inbound.received", "smsInbound", "sendTime")],
    &[YCloud("email.delivery.updated", "emailDelivery", "")],
    &[YCloud("whatsapp.template.category_updated", "whatsappTemplate", "updateTime")],
    &[YCloud("whatsapp.template.quality_updated", "whatsappTemplate", "updateTime")],
    &[YCloud("whatsapp.template.reviewed", "whatsappTemplate", "updateTime")],
    &[YCloud("whatsapp.phone_number.quality_updated", "whatsappPhoneNumber", "")],
    &[YCloud("whatsapp.business_account.updated", "whatsappBusinessAccount", "")],
    &[YCloud("whatsapp.payment.updated", "whatsappPayment", "")],
    &[YCloud("whatsapp.group.lifecycle_update", "whatsappGroup", "webhookTime")],
    &[YCloud("whatsapp.group.settings_update", "whatsappGroup", "webhookTime")],
    &[YCloud("whatsapp.group.status_update", "whatsappGroup", "webhookTime")],
    &[YCloud("whatsapp.group.participants_update", "whatsappGroup", "webhookTime")],
    &[
        YCloud("contact.created", "contactCreated", "updateTime"),
        YCloud("contact.deleted", "contactDeleted", "createTime"),
    ],
    &[
        YCloud("contact.unsubscribe.created", "contactUnsubscribeCreated", "updateTime"),
        YCloud("contact.unsubscribe.deleted", "contactUnsubscribeDeleted", "updateTime"),
    ],
    // Subjects that are only their own event: a type without a reading, and an object that is not there.
    &[
        YCloud("whatsapp.message.starred", "whatsappMessage", "updateTime"),
        YCloud("sms.message.updated", "voice", "updateTime"),
    ],
    // Work orders stand here several times, because only they have replays and ties that are decided.
    &[Shoc("work_order.created"), Shoc("work_order.updated"), Shoc("work_order.cancelled")],
    &[Shoc("work_order.updated")],
    &[Shoc("work_order.updated")],
    &[Shoc("work_order.updated")],
    &[Shoc("work_order.created"), Shoc("work_order.updated")],
    &[Shoc("work_order.updated"), Shoc("work_order.comment_added"), Shoc("work_order.merged")],
    &[Shoc("customer.merged")],
    &[Yutai("tier_changed")],
    &[Yutai("benefit_unlocked")],
    &[Yutai("claim_confirmed"), Yutai("redemption_recorded")],
    &[Yutai("redemption_recorded")],
    &[Yutai("connect_linked"), Yutai("connect_revoked")],
    &[Yutai("owner_customer_changed")],
    &[Yutai("holder_moved")],
];

/// One delivery to be: small numbers, so that ids, values and times meet often.
#[derive(Clone, Debug)]
struct Plan {
    kind: Index,
    form: Index,
    endpoint: usize,
    event: usize,
    subject: usize,
    word: usize,
    time: usize,
    replay: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let replay = prop::bool::weighted(0.35);
    let places = (any::<Index>(), any::<Index>(), 0_usize..2, 0_usize..8, 0_usize..2);
    (places, 0..WORDS.len(), 0..TIMES.len(), replay).prop_map(
        |((kind, form, endpoint, event, subject), word, time, replay)| Plan {
            kind,
            form,
            endpoint,
            event,
            subject,
            word,
            time,
            replay,
        },
    )
}

impl Plan {
    /// `kinds` are the few kinds of subjects of one case, so that its deliveries meet.
    fn observation(&self, kinds: &[usize], number: u32) -> Observation {
        let kind = kinds[self.kind.index(kinds.len())];
        let form = self.form.index(KINDS[kind].len());
        let (word, time) = (WORDS[self.word], TIMES[self.time]);
        // The event id names kind and subject, so that its meetings stay within one subject: the same
        // inbox key with another subject is judged across partitions, which is not this property's.
        let (event_id, subject_id) =
            (format!("e{kind}-{}-{}", self.subject, self.event), format!("s{}", self.subject));
        let (provider, body) = match KINDS[kind][form] {
            YCloud(event_type, payload, time_field) => {
                let mut object = json!({"status": word});
                for id in [
                    "id",
                    "wabaId",
                    "referenceId",
                    "emailId",
                    "recipientAddress",
                    "name",
                    "language",
                    "groupId",
                    "phoneNumber",
                ] {
                    object[id] = json!(subject_id);
                }
                if !time_field.is_empty() {
                    object[time_field] = json!(time);
                }
                let created = time.filter(|_| time_field.is_empty());
                (
                    Provider::YCloud,
                    json!({"id": event_id, "type": event_type, "createTime": created, payload: object}),
                )
            }
            Shoc("work_order.comment_added") => {
                (Provider::Shoc, comment(&event_id, &subject_id, &format!("c{}", self.time), word))
            }
            Shoc(event_type) => {
                let status = ["new", "assigned", "teleported"][self.word];
                let mut body = work_order(&event_id, &subject_id, status, time, self.replay);
                body["event_type"] = json!(event_type);
                (Provider::Shoc, body)
            }
            Yutai(kind @ ("connect_linked" | "connect_revoked")) => {
                (Provider::Yutai, yutai(&event_id, kind, json!({"external_ref": subject_id})))
            }
            Yutai(kind) => {
                let payload = json!({"credentialId": subject_id, "benefitId": subject_id, "claimId": subject_id,
                    "external_ref": subject_id, "company_id": "c", "owner_customer": self.word == 0,
                    "redemptionId": "r", "holderId": "h", "previousTier": null, "tier": word, "asOf": time.unwrap_or("")});
                (Provider::Yutai, yutai(&event_id, kind, payload))
            }
        };
        observe(provider, ["one", "two"][self.endpoint], number, body.to_string().as_bytes())
    }
}

type InboxKey = (Provider, String, String);

fn inbox_key(observation: &Observation) -> InboxKey {
    (observation.provider(), observation.endpoint.clone(), observation.event_id.clone())
}

/// Another order of the same observations in which the first of each inbox key is the same as before.
fn reordered(order: &[Observation], picks: &[Index]) -> Vec<Observation> {
    let mut left: Vec<Observation> = order.to_vec();
    let mut shuffled: Vec<Observation> = picks
        .iter()
        .map_while(|pick| (!left.is_empty()).then(|| left.swap_remove(pick.index(left.len()))))
        .collect();
    shuffled.append(&mut left);
    let winners: BTreeMap<_, _> =
        order.iter().rev().map(|observation| (inbox_key(observation), observation)).collect();
    let mut seen = BTreeSet::new();
    for index in 0..shuffled.len() {
        let key = inbox_key(&shuffled[index]);
        let winner = winners[&key];
        if seen.insert(key) && shuffled[index].body_digest != winner.body_digest {
            let place = shuffled.iter().position(|other| other.id == winner.id).expect("all are there");
            shuffled.swap(index, place);
        }
    }
    shuffled
}

/// The troubles a run has met, by name.
#[derive(Debug, Default)]
struct Met {
    troubles: BTreeMap<&'static str, usize>,
    kinds: BTreeMap<String, usize>,
}

impl Met {
    fn count(&mut self, trouble: &'static str, met: bool) {
        *self.troubles.entry(trouble).or_default() += usize::from(met);
    }
}

/// Folds observations in the order given; after each, inbox, state, facts and versions must be what the
/// obvious form of the rules says.
fn folded(order: &[Observation], met: &mut Met) -> World {
    let mut world = World::default();
    let mut accepted: BTreeMap<&Subject, Vec<Accepted<'_>>> = BTreeMap::new();
    let mut firsts: BTreeMap<InboxKey, (Digest, bool)> = BTreeMap::new();
    let mut endpoints: BTreeMap<(Provider, &str), &str> = BTreeMap::new();
    let mut known: BTreeMap<&Subject, (Json, Vec<Json>)> = BTreeMap::new();
    for observation in order {
        let subject = &observation.subject;
        let step = world.take(observation);
        let (body, replay) = (observation.body_digest, observation.replay);
        let inbox = match firsts.get(&inbox_key(observation)) {
            None => Inbox::New,
            Some((first, _)) if *first == body => Inbox::Duplicate,
            Some((_, first_is_replay)) if *first_is_replay || replay => Inbox::Duplicate,
            Some(_) => Inbox::Conflict,
        };
        firsts.entry(inbox_key(observation)).or_insert((body, replay));
        assert_eq!(step.entry.inbox, inbox, "{observation:?}");
        assert_eq!(step.entry.outcome == Outcome::NotRun, inbox != Inbox::New);

        let readings = accepted.entry(subject).or_default();
        if let (Inbox::New, Ok(reading)) = (inbox, schema::provider::read(observation)) {
            if let Reading::State(state) = &reading {
                met.count("untimed", state.as_of.is_none());
                let ties = |other: &Reading| matches!(other, Reading::State(other) if other.as_of == state.as_of && other.value.digest != state.value.digest);
                let tie = state.as_of.is_some() && readings.iter().any(|(_, other)| ties(other));
                met.count("tie", tie);
                met.count("tie of a replay", tie && replay);
            }
            readings.push((observation, reading));
        }
        let expected = (model::state(subject, readings), model::facts(subject, readings));
        let found = (world.state(subject), world.facts(subject));
        assert_eq!(found, expected, "{subject} after {step:?}");
        let before = known.insert(subject, expected.clone());
        let changed = before.as_ref().is_none_or(|(state, _)| *state != expected.0);
        assert_eq!(step.subject_changed, changed, "{subject} after {step:?}");
        assert_eq!(step.fact_changed, before.map(|(_, facts)| facts).unwrap_or_default() != expected.1);
        let version = world.subjects[subject].0.projection(subject).meta.version;
        assert_eq!(version.offset == step.entry.offset, changed, "{subject} after {step:?}");

        *met.kinds.entry(subject.kind.clone()).or_default() += 1;
        met.count("duplicate", inbox == Inbox::Duplicate);
        met.count("duplicate that differs", step.entry.differs);
        met.count("conflict", inbox == Inbox::Conflict);
        met.count("stale", step.entry.outcome == Outcome::OutOfOrder);
        met.count("no change", step.entry.outcome == Outcome::NoChange);
        met.count("contested", step.entry.outcome == Outcome::Contested);
        met.count("unordered", step.entry.outcome == Outcome::Unordered);
        met.count("unsupported", step.entry.outcome == Outcome::Unsupported);
        met.count("failed", step.entry.outcome == Outcome::Failed);
        let other = endpoints.insert((observation.provider(), &observation.event_id), &observation.endpoint);
        met.count("event id at another endpoint", other.is_some_and(|other| other != observation.endpoint));
    }
    world
}

/// A state without what the journal's order decides among SHOC's ties.
fn without_winner(state: &str) -> Json {
    let mut state: Json = serde_json::from_str(state).expect("JSON");
    for field in ["status", "value", "basis"] {
        state[field] = Json::Null;
    }
    state
}

#[test]
fn state_converges() {
    let met = RefCell::new(Met::default());
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let deliveries = (
        prop::collection::vec(0..KINDS.len(), 1..4),
        prop::collection::vec(plan(), 1..40),
        prop::collection::vec(any::<Index>(), 60),
        prop::collection::vec(any::<Index>(), 0..20),
    );
    let run = |(kinds, plans, picks, repeats): (Vec<usize>, Vec<Plan>, Vec<Index>, Vec<Index>)| {
        let numbered = (0..).zip(&plans);
        let mut observations: Vec<_> =
            numbered.map(|(number, plan)| plan.observation(&kinds, number)).collect();
        for (number, pick) in (1_000..).zip(repeats) {
            // A provider's repeat: the same bytes, another delivery.
            let again = &observations[pick.index(observations.len())];
            observations.push(observe(again.provider(), &again.endpoint, number, &again.body));
        }
        let mut met = met.borrow_mut();
        let one = folded(&observations, &mut met).answers();
        let other = folded(&reordered(&observations, &picks), &mut met).answers();
        prop_assert_eq!(one.len(), other.len());
        for (subject, (state, facts)) in &one {
            let (other_state, other_facts) = &other[subject];
            prop_assert_eq!(facts, other_facts, "{}", subject);
            if subject.provider == Provider::Shoc && state.contains("\"journal_order\"") {
                // The winner follows the journal: the model, which is given the order, has checked it.
                prop_assert_eq!(without_winner(state), without_winner(other_state), "{}", subject);
            } else {
                prop_assert_eq!(state, other_state, "{}", subject);
            }
        }
        Ok(())
    };
    runner.run(&deliveries, run).unwrap_or_else(|failure| panic!("{failure}"));
    let Met { troubles, kinds } = met.into_inner();
    for (trouble, count) in troubles {
        assert!(count >= 10, "only {count} times \"{trouble}\" in the whole run");
    }
    assert_eq!(kinds.len(), 25, "kinds of subjects: {kinds:?}");
}

/// More distinct values than an answer shows: the total is exact, the first sixteen are the same ones.
#[test]
fn more_contenders_than_are_shown_converge() {
    let observations: Vec<_> = (0..40_u32)
        .map(|number| {
            let body =
                message(&format!("e{number}"), "m", &format!("status {}", number % 25), TIMES[1]).to_string();
            observe(Provider::YCloud, "one", number, body.as_bytes())
        })
        .collect();
    let subject = &observations[0].subject;
    let accepted = |observation| (observation, schema::provider::read(observation).expect("readable"));
    let mut expected = model::state(subject, &observations.iter().map(accepted).collect::<Vec<_>>());
    let items = expected["contenders"]["items"].as_array_mut().expect("a list");
    assert_eq!(items.len(), 25);
    items.truncate(16);
    let orders: [Vec<&Observation>; 3] = [
        observations.iter().collect(),
        observations.iter().rev().collect(),
        observations.iter().skip(20).chain(observations.iter().take(20).rev()).collect(),
    ];
    for order in orders {
        let mut world = World::default();
        for observation in order {
            world.take(observation);
        }
        assert_eq!(world.state(subject), expected);
    }
    assert_eq!(
        (&expected["certainty"], &expected["value"], &expected["contenders"]["total"]),
        (&json!("contested"), &json!(null), &json!(25))
    );
}
