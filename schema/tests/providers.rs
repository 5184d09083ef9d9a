//! Envelopes, subjects and readings of the three providers, with literal expectations taken from the
//! contracts. Must never compute an expectation with the code it tests.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::path::Path;

use proptest::prelude::*;
use schema::provider::{EnvelopeError, Identity};
use schema::reading::{FactReading, OrderedBy, StateReading};
use schema::{Micros, Provider, Reading};
use serde_json::{Value as Json, json};

fn identify(provider: Provider, body: &Json) -> Result<Identity, EnvelopeError> {
    provider.contract().identify(body.to_string().as_bytes())
}

fn subject(provider: Provider, body: &Json) -> (String, String) {
    let identity = identify(provider, body).expect("the envelope holds");
    (identity.kind, identity.id)
}

fn pair(kind: &str, id: &str) -> (String, String) {
    (kind.to_owned(), id.to_owned())
}

fn state(provider: Provider, body: &Json) -> StateReading {
    match provider.contract().read(body.to_string().as_bytes()) {
        Ok(Reading::State(state)) => state,
        other => panic!("{other:?} is no state: {body}"),
    }
}

fn fact(provider: Provider, body: &Json) -> FactReading {
    match provider.contract().read(body.to_string().as_bytes()) {
        Ok(Reading::Fact(fact)) => fact,
        other => panic!("{other:?} is no fact: {body}"),
    }
}

fn failure(provider: Provider, body: &Json) -> String {
    provider.contract().read(body.to_string().as_bytes()).expect_err("unreadable").reason
}

fn ycloud(event_type: &str, payload: &str, object: Json) -> Json {
    json!({"id": "evt_1", "type": event_type, "createTime": "2026-01-02T03:04:05.000Z", payload: object})
}

const CREATED: Option<Micros> = Some(Micros(1_767_323_045_000_000));
const UPDATED: Option<Micros> = Some(Micros(1_767_326_645_000_000));
const UPDATE_TIME: &str = "2026-01-02T04:04:05.000Z";

/// One row of the table: event type, payload, object, kind, id, status, time, what orders.
#[test]
fn ycloud_states() {
    use OrderedBy::{EventTime, ObjectTime};
    let template = json!({"wabaId": "1", "name": "a b", "language": "en", "status": "APPROVED", "updateTime": UPDATE_TIME});
    let group = json!({"groupId": "g", "requestId": "r", "webhookTime": UPDATE_TIME});
    for (event_type, payload, object, kind, id, status, as_of, ordered_by) in [
        (
            "whatsapp.message.updated",
            "whatsappMessage",
            json!({"id": "m", "status": "read", "updateTime": UPDATE_TIME}),
            "message",
            "m",
            "read",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.smb.message.echoes",
            "whatsappMessage",
            json!({"id": "m", "sendTime": UPDATE_TIME}),
            "message",
            "m",
            "whatsapp.smb.message.echoes",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.smb.history",
            "whatsappMessage",
            json!({"id": "m", "status": "sent", "sendTime": "2020-01-01T00:00:00Z", "updateTime": UPDATE_TIME}),
            "message",
            "m",
            "sent",
            UPDATED,
            ObjectTime,
        ),
        (
            "sms.message.updated",
            "sms",
            json!({"id": "s", "status": "sent", "updateTime": UPDATE_TIME}),
            "sms",
            "s",
            "sent",
            UPDATED,
            ObjectTime,
        ),
        (
            "voice.message.updated",
            "voice",
            json!({"id": "v", "status": "sent", "updateTime": UPDATE_TIME}),
            "voice",
            "v",
            "sent",
            UPDATED,
            ObjectTime,
        ),
        (
            "email.delivery.updated",
            "emailDelivery",
            json!({"emailId": "e/1", "recipientAddress": "a@b.test", "status": "bounced"}),
            "email",
            "e%2F1+a%40b.test",
            "bounced",
            CREATED,
            EventTime,
        ),
        (
            "whatsapp.template.reviewed",
            "whatsappTemplate",
            template.clone(),
            "whatsapp.template.reviewed",
            "1+a%20b+en",
            "APPROVED",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.template.quality_updated",
            "whatsappTemplate",
            template.clone(),
            "whatsapp.template.quality_updated",
            "1+a%20b+en",
            "APPROVED",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.template.category_updated",
            "whatsappTemplate",
            template,
            "whatsapp.template.category_updated",
            "1+a%20b+en",
            "APPROVED",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.phone_number.name_updated",
            "whatsappPhoneNumber",
            json!({"id": "p", "phoneNumber": "+1"}),
            "whatsapp.phone_number.name_updated",
            "p",
            "whatsapp.phone_number.name_updated",
            CREATED,
            EventTime,
        ),
        (
            "whatsapp.phone_number.deleted",
            "whatsappPhoneNumber",
            json!({"phoneNumber": "+1"}),
            "whatsapp.phone_number.deleted",
            "+1",
            "whatsapp.phone_number.deleted",
            CREATED,
            EventTime,
        ),
        (
            "whatsapp.business_account.reviewed",
            "whatsappBusinessAccount",
            json!({"id": "w"}),
            "whatsapp.business_account.reviewed",
            "w",
            "whatsapp.business_account.reviewed",
            CREATED,
            EventTime,
        ),
        (
            "whatsapp.payment.updated",
            "whatsappPayment",
            json!({"wabaId": "1", "referenceId": "ref", "status": "captured"}),
            "payment",
            "1+ref",
            "captured",
            CREATED,
            EventTime,
        ),
        (
            "whatsapp.group.lifecycle_update",
            "whatsappGroup",
            group.clone(),
            "whatsapp.group.lifecycle_update",
            "g",
            "whatsapp.group.lifecycle_update",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.group.settings_update",
            "whatsappGroup",
            group,
            "whatsapp.group.settings_update",
            "g",
            "whatsapp.group.settings_update",
            UPDATED,
            ObjectTime,
        ),
        (
            "whatsapp.group.status_update",
            "whatsappGroup",
            json!({"requestId": "r", "webhookTime": UPDATE_TIME}),
            "whatsapp.group.status_update",
            "r",
            "whatsapp.group.status_update",
            UPDATED,
            ObjectTime,
        ),
        (
            "contact.created",
            "contactCreated",
            json!({"id": "c", "createTime": UPDATE_TIME}),
            "contact",
            "c",
            "contact.created",
            UPDATED,
            ObjectTime,
        ),
        (
            "contact.deleted",
            "contactDeleted",
            json!({"id": "c", "createTime": "2020-01-01T00:00:00Z", "updateTime": UPDATE_TIME}),
            "contact",
            "c",
            "contact.deleted",
            UPDATED,
            ObjectTime,
        ),
        (
            "contact.unsubscribe.created",
            "contactUnsubscribeCreated",
            json!({"phoneNumber": "+1", "updateTime": UPDATE_TIME}),
            "unsubscription",
            "+1",
            "contact.unsubscribe.created",
            UPDATED,
            ObjectTime,
        ),
        (
            "contact.unsubscribe.deleted",
            "contactUnsubscribeDeleted",
            json!({"phoneNumber": "+1", "updateTime": UPDATE_TIME}),
            "unsubscription",
            "+1",
            "contact.unsubscribe.deleted",
            UPDATED,
            ObjectTime,
        ),
    ] {
        let body = ycloud(event_type, payload, object.clone());
        assert_eq!(subject(Provider::YCloud, &body), pair(kind, id), "{event_type}");
        let reading = state(Provider::YCloud, &body);
        assert_eq!(
            (reading.value.status.as_str(), reading.as_of, reading.ordered_by),
            (status, as_of, ordered_by),
            "{event_type}"
        );
        assert_eq!(reading.value.json, object.to_string(), "the provider's own object");
        assert!(Provider::YCloud.contract().kind_has_states(kind), "{kind}");
    }
}

#[test]
fn ycloud_facts() {
    let inbound = json!({"id": "m", "sendTime": UPDATE_TIME});
    for (event_type, payload, object, kind, id, fact_id, as_of) in [
        (
            "whatsapp.inbound_message.received",
            "whatsappInboundMessage",
            inbound.clone(),
            "inbound_message",
            "m",
            "m",
            UPDATED,
        ),
        (
            "whatsapp.smb.history",
            "whatsappInboundMessage",
            inbound.clone(),
            "inbound_message",
            "m",
            "m",
            UPDATED,
        ),
        ("sms.inbound.received", "smsInbound", inbound, "inbound_sms", "m", "m", UPDATED),
        (
            "whatsapp.group.participants_update",
            "whatsappGroup",
            json!({"groupId": "g"}),
            "group_participants",
            "g",
            "evt_1",
            None,
        ),
    ] {
        let body = ycloud(event_type, payload, object);
        assert_eq!(subject(Provider::YCloud, &body), pair(kind, id), "{event_type}");
        let reading = fact(Provider::YCloud, &body);
        assert_eq!((reading.fact_id.as_str(), reading.as_of), (fact_id, as_of), "{event_type}");
        assert!(!Provider::YCloud.contract().kind_has_states(kind), "{kind}");
    }
}

#[test]
fn ycloud_times_that_name_no_instant_leave_a_message_untimed() {
    for time in [json!(null), json!("2026-01-02T04:04:05"), json!("soon"), json!(1_767_326_645), json!({})] {
        let body = ycloud(
            "whatsapp.message.updated",
            "whatsappMessage",
            json!({"id": "m", "status": "read", "updateTime": time}),
        );
        let reading = state(Provider::YCloud, &body);
        assert_eq!((reading.as_of, reading.ordered_by), (None, OrderedBy::Nothing), "{time}");
    }
    // An unreadable `updateTime` is not replaced by the next field, which is another time.
    let body = ycloud(
        "whatsapp.smb.history",
        "whatsappMessage",
        json!({"id": "m", "updateTime": "soon", "sendTime": UPDATE_TIME}),
    );
    assert_eq!(state(Provider::YCloud, &body).as_of, None);
}

#[test]
fn every_type_of_the_catalog_is_read_or_kept() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ycloud/event-types.txt");
    let ours = std::fs::read_to_string(path).expect("the fixture");
    if let Some(folder) = std::env::var_os("WITNESS_VECTORS") {
        let published = Path::new(&folder).join("ycloud/webhook-event-types.txt");
        assert_eq!(std::fs::read_to_string(published).expect("the published catalog"), ours);
    }
    let mut unsupported = Vec::new();
    for event_type in
        ours.lines().chain(["whatsapp.new_thing.happened", "whatsapp_message_updated", "message"])
    {
        let body = json!({"id": "evt_1", "type": event_type});
        assert_eq!(
            subject(Provider::YCloud, &body),
            pair("event", "evt_1"),
            "{event_type} without a payload"
        );
        match Provider::YCloud.contract().read(body.to_string().as_bytes()) {
            Ok(Reading::Unsupported) => unsupported.push(event_type),
            Err(error) => assert!(error.reason.ends_with("is missing"), "{error}"),
            Ok(reading) => panic!("{event_type}: {reading:?}"),
        }
    }
    assert_eq!(
        unsupported,
        [
            "whatsapp.call.connect",
            "whatsapp.call.terminate",
            "whatsapp.call.status.updated",
            "whatsapp.call.recording.updated",
            "whatsapp.call.transcription.updated",
            "whatsapp.flow.status_change",
            "contact.attributes_changed",
            "contact.note.created",
            "contact.note.updated",
            "contact.note.deleted",
            "whatsapp.user.preferences",
            "whatsapp.new_thing.happened",
            "whatsapp_message_updated",
            "message",
        ]
    );
}

#[test]
fn ycloud_unreadable_insides_are_their_own_subject() {
    for (object, reason) in [
        (json!({}), "`whatsappMessage.id` is missing"),
        (json!({"id": 7}), "`whatsappMessage.id` is not a string of 1 to 512 characters"),
        (json!({"id": ""}), "`whatsappMessage.id` is not a string of 1 to 512 characters"),
        (json!({"id": "x".repeat(513)}), "`whatsappMessage.id` is not a string of 1 to 512 characters"),
        (json!([]), "`whatsappMessage` is not an object"),
        (json!(null), "`whatsappMessage` is missing"),
    ] {
        let body = ycloud("whatsapp.message.updated", "whatsappMessage", object);
        assert_eq!(subject(Provider::YCloud, &body), pair("event", "evt_1"));
        assert_eq!(failure(Provider::YCloud, &body), reason);
    }
}

#[test]
fn ycloud_envelopes() {
    let field = |field, problem| Err(EnvelopeError::Field { field, problem });
    for (body, expected) in [
        (json!({"type": "a.b"}), field("id", "is missing")),
        (json!({"id": null, "type": "a.b"}), field("id", "is missing")),
        (json!({"id": 1, "type": "a.b"}), field("id", "is not a string of text")),
        (json!({"id": "", "type": "a.b"}), field("id", "is empty")),
        (json!({"id": "é".repeat(256), "type": "a.b"}), field("id", "is longer than the contract allows")),
        (json!({"id": "e"}), field("type", "is missing")),
        (json!({"id": "e", "type": ["a.b"]}), field("type", "is not a string of text")),
        (json!({"id": "é".repeat(255), "type": "a.b"}), Ok(())),
    ] {
        assert_eq!(identify(Provider::YCloud, &body).map(|_| ()), expected, "{body}");
    }
}

fn shoc(event_type: &str, data: Json) -> Json {
    json!({"schema_version": 1, "delivery_id": "d1", "event_type": event_type, "occurred_at": "2026-07-16T14:03:22.114208+00:00",
        "source": "procurement-ingest/workorder-shoc-emitter", "replay": false, "data": data})
}

#[test]
fn shoc_states() {
    for (word, status) in [
        ("new", "new"),
        ("assigned", "assigned"),
        ("in_progress", "in_progress"),
        ("on_hold", "on_hold"),
        ("completed", "completed"),
        ("cancelled", "cancelled"),
        ("unknown", "unknown"),
        ("Assigned", "unrecognized"),
        ("reopened", "unrecognized"),
    ] {
        let body = shoc(
            "work_order.updated",
            json!({"work_order_id": "7", "wo_status": word, "updated_at": "2026-07-16T16:03:22.114208+02:00", "write_origin": "shoc-write-api"}),
        );
        assert_eq!(subject(Provider::Shoc, &body), pair("work_order", "7"));
        let reading = state(Provider::Shoc, &body);
        assert_eq!(
            (reading.value.status.as_str(), reading.as_of),
            (status, Some(Micros(1_784_210_602_114_208)))
        );
        assert!(reading.value.json.contains(word), "the raw word is kept");
    }
    for status in [json!(null), json!(7)] {
        let body = shoc(
            "work_order.created",
            json!({"work_order_id": "7", "wo_status": status, "updated_at": "2026-07-16T14:03:22"}),
        );
        let reading = state(Provider::Shoc, &body);
        assert_eq!(
            (reading.value.status.as_str(), reading.as_of),
            ("unrecognized", None),
            "and no offset is no instant"
        );
    }
}

#[test]
fn shoc_times_are_no_part_of_the_value() {
    let at = |time: &str| {
        let body =
            shoc("work_order.updated", json!({"work_order_id": "7", "wo_status": "new", "updated_at": time}));
        state(Provider::Shoc, &body).value.digest
    };
    assert_eq!(at("2026-07-16T14:03:22Z"), at("2027-07-16T14:03:22+00:00"));
}

#[test]
fn shoc_comments_and_unknown_types() {
    let comment = json!({"work_order_id": "7", "comment_id": "7#2026-04-27T23:51:48#a1", "text": "on my way", "created_at": "2026-04-27T23:51:48", "ingested_at": "2026-07-16T14:03:22.114208+00:00"});
    let body = shoc("work_order.comment_added", comment);
    assert_eq!(subject(Provider::Shoc, &body), pair("work_order", "7"));
    let reading = fact(Provider::Shoc, &body);
    assert_eq!((reading.fact_id.as_str(), reading.as_of), ("7#2026-04-27T23:51:48#a1", None));

    for (event_type, data, expected) in [
        ("work_order.merged", json!({"work_order_id": "7"}), pair("work_order", "7")),
        ("work_order.merged", json!({}), pair("event", "d1")),
        ("vendor_reply.added", json!({"work_order_id": "7"}), pair("event", "d1")),
    ] {
        let body = shoc(event_type, data);
        assert_eq!(subject(Provider::Shoc, &body), expected);
        assert_eq!(Provider::Shoc.contract().read(body.to_string().as_bytes()), Ok(Reading::Unsupported));
    }
    for (event_type, data, reason) in [
        (
            "work_order.comment_added",
            json!({"work_order_id": "7"}),
            "`data.comment_id` is not a string of 1 to 255 characters",
        ),
        (
            "work_order.comment_added",
            json!({"comment_id": "c"}),
            "`data.work_order_id` is not a string of 1 to 255 characters",
        ),
        (
            "work_order.updated",
            json!({"work_order_id": 7}),
            "`data.work_order_id` is not a string of 1 to 255 characters",
        ),
        ("work_order.updated", json!(null), "`data` is missing"),
        ("work_order.updated", json!("x"), "`data` is not an object"),
    ] {
        let body = shoc(event_type, data);
        assert_eq!(subject(Provider::Shoc, &body), pair("event", "d1"));
        assert_eq!(failure(Provider::Shoc, &body), reason);
    }
}

#[test]
fn shoc_envelopes() {
    for version in ["2", "0", "1.0", "\"1\"", "true", "null", "[1]", "1e0"] {
        let body =
            format!(r#"{{"schema_version":{version},"delivery_id":"d","event_type":"work_order.created"}}"#);
        assert_eq!(
            Provider::Shoc.contract().identify(body.as_bytes()),
            Err(EnvelopeError::UnknownSchemaVersion),
            "{version}"
        );
    }
    let without = |name: &str, value: Json| {
        let mut body = shoc("work_order.created", json!({"work_order_id": "7"}));
        body[name] = value;
        identify(Provider::Shoc, &body)
    };
    assert!(!without("schema_version", json!(1)).expect("whole").replay);
    assert!(without("replay", json!(true)).expect("whole").replay);
    assert!(!without("replay", json!(null)).expect("whole").replay);
    assert_eq!(
        without("replay", json!("true")),
        Err(EnvelopeError::Field { field: "replay", problem: "is not a boolean" })
    );
    assert_eq!(
        without("delivery_id", json!(null)),
        Err(EnvelopeError::Field { field: "delivery_id", problem: "is missing" })
    );
    assert_eq!(
        without("event_type", json!("")),
        Err(EnvelopeError::Field { field: "event_type", problem: "is empty" })
    );
}

fn yutai(kind: &str, payload: Json) -> Json {
    json!({"eventId": "ev-1", "kind": kind, "payload": payload})
}

#[test]
fn yutai_kinds() {
    let tier = json!({"asOf": "2026-10-08T12:00:00.000Z", "credentialId": "crd_1", "holderId": "hld_1", "previousTier": "Tier 1", "tier": "Tier 2"});
    let body = yutai("tier_changed", tier.clone());
    assert_eq!(subject(Provider::Yutai, &body), pair("credential", "crd_1"));
    let reading = state(Provider::Yutai, &body);
    assert_eq!(
        (reading.value.status.as_str(), reading.as_of),
        ("tier_changed", Some(Micros(1_791_460_800_000_000)))
    );
    let mut first = tier;
    first["previousTier"] = json!(null);
    assert_eq!(subject(Provider::Yutai, &yutai("tier_changed", first)), pair("credential", "crd_1"));

    for (kind, payload, subject_kind, id, fact_id) in [
        (
            "benefit_unlocked",
            json!({"benefitId": "b", "tier": "Tier 2"}),
            "benefit",
            "b",
            "benefit_unlocked+Tier%202",
        ),
        ("claim_confirmed", json!({"claimId": "c", "benefitId": "b"}), "claim", "c", "claim_confirmed"),
        ("redemption_recorded", json!({"redemptionId": "r", "claimId": "c"}), "claim", "c", "r"),
    ] {
        let body = yutai(kind, payload);
        assert_eq!(subject(Provider::Yutai, &body), pair(subject_kind, id));
        let reading = fact(Provider::Yutai, &body);
        assert_eq!((reading.fact_id.as_str(), reading.as_of), (fact_id, None));
    }
    for (kind, payload, subject_kind, id) in [
        ("connect_linked", json!({"external_ref": "customer-4471"}), "bank_link", "customer-4471"),
        ("connect_revoked", json!({"external_ref": "customer-4471"}), "bank_link", "customer-4471"),
        (
            "owner_customer_changed",
            json!({"external_ref": "a+b", "company_id": "cmp", "owner_customer": true}),
            "owner_customer",
            "a%2Bb+cmp",
        ),
    ] {
        let body = yutai(kind, payload);
        assert_eq!(subject(Provider::Yutai, &body), pair(subject_kind, id));
        let reading = state(Provider::Yutai, &body);
        assert_eq!(
            (reading.value.status.as_str(), reading.as_of, reading.ordered_by),
            (kind, None, OrderedBy::Nothing)
        );
    }
    let body = yutai("holder_merged", json!({"anything": [1]}));
    assert_eq!(subject(Provider::Yutai, &body), pair("event", "ev-1"));
    assert_eq!(Provider::Yutai.contract().read(body.to_string().as_bytes()), Ok(Reading::Unsupported));
}

#[test]
fn yutai_payload_bounds() {
    let with = |name: &str, value: Json| {
        let mut payload = json!({"external_ref": "c"});
        payload[name] = value;
        yutai("connect_linked", payload)
    };
    let many = |count: usize| {
        let fields = (1..count).map(|index| (format!("k{index}"), json!(index)));
        yutai(
            "connect_linked",
            fields.chain([("external_ref".to_owned(), json!("c"))]).collect::<serde_json::Map<_, _>>().into(),
        )
    };
    for good in [
        with("k".repeat(64).as_str(), json!("é".repeat(512))),
        with("a-._9", json!(1.5)),
        with("n", json!(null)),
        with("b", json!(false)),
        many(32),
    ] {
        assert_eq!(subject(Provider::Yutai, &good), pair("bank_link", "c"));
    }
    let odd_number = r#"{"eventId":"ev-1","kind":"connect_linked","payload":{"external_ref":"c","n":1e999}}"#;
    let odd_number: Box<serde_json::value::RawValue> = serde_json::from_str(odd_number).expect("JSON");
    assert!(Provider::Yutai.contract().read(odd_number.get().as_bytes()).is_err(), "not finite");
    for bad in [
        with(&"k".repeat(65), json!(1)),
        with("", json!(1)),
        with("a b", json!(1)),
        with("ü", json!(1)),
        with("x", json!("é".repeat(513))),
        with("x", json!([])),
        with("x", json!({})),
        with("external_ref", json!(7)),
        with("external_ref", json!("")),
        many(33),
        json!({"eventId": "ev-1", "kind": "connect_linked"}),
        yutai("connect_linked", json!([])),
        yutai(
            "owner_customer_changed",
            json!({"external_ref": "c", "company_id": "x", "owner_customer": "true"}),
        ),
    ] {
        assert_eq!(subject(Provider::Yutai, &bad), pair("event", "ev-1"), "{bad}");
        assert!(failure(Provider::Yutai, &bad).contains("payload"), "{bad}");
    }
}

#[test]
fn yutai_envelopes() {
    for event_id in ["a".repeat(256), "A:z_0.-".to_owned()] {
        assert!(identify(Provider::Yutai, &json!({"eventId": event_id, "kind": "k"})).is_ok());
    }
    for event_id in
        [json!("a".repeat(257)), json!("a b"), json!("a/b"), json!("é"), json!(""), json!(7), json!(null)]
    {
        assert!(identify(Provider::Yutai, &json!({"eventId": event_id, "kind": "k"})).is_err(), "{event_id}");
    }
    for kind in [json!(null), json!(1), json!("")] {
        assert!(identify(Provider::Yutai, &json!({"eventId": "e", "kind": kind})).is_err(), "{kind}");
    }
}

#[test]
fn odd_insides_are_kept() {
    let body = br#"{"id":"e","type":"whatsapp.message.updated","big":9007199254740993,"odd":1e999,"s":"\ud800","whatsappMessage":{"id":"m","status":"sent","n":9007199254740993,"text":"\udc00"}}"#;
    let reading = Provider::YCloud.contract().read(body).expect("readable");
    let Reading::State(reading) = reading else { panic!("a state") };
    assert_eq!(reading.value.json, r#"{"id":"m","status":"sent","n":9007199254740993,"text":"\udc00"}"#);
    let twice = br#"{"id":"e","type":"whatsapp.message.updated","whatsappMessage":{"id":"m","id":"n"}}"#;
    assert_eq!(Provider::YCloud.contract().identify(twice).expect("authentic").kind, "event");
    let newline = b"{\"id\":\"e\",\"type\":\"a.b\"}\n";
    assert!(Provider::YCloud.contract().identify(newline).is_ok());
}

proptest! {
    /// Identity and reading agree: who has a subject of its own can be read, unless a key inside stands twice.
    #[test]
    fn mutated_bodies_are_answered(seed in 0_usize..5, at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let bodies = [
            (Provider::YCloud, ycloud("whatsapp.message.updated", "whatsappMessage", json!({"id": "m", "status": "read", "updateTime": UPDATE_TIME}))),
            (Provider::YCloud, ycloud("email.delivery.updated", "emailDelivery", json!({"emailId": "e", "recipientAddress": "r"}))),
            (Provider::Shoc, shoc("work_order.updated", json!({"work_order_id": "7", "updated_at": UPDATE_TIME}))),
            (Provider::Shoc, shoc("work_order.comment_added", json!({"work_order_id": "7", "comment_id": "c"}))),
            (Provider::Yutai, yutai("owner_customer_changed", json!({"external_ref": "a", "company_id": "b", "owner_customer": true}))),
        ];
        let (provider, body) = &bodies[seed];
        let mut body = body.to_string().into_bytes();
        let length = body.len();
        body[at.index(length)] = byte;
        if cut.index(4) == 0 {
            body.truncate(cut.index(length));
        }
        let contract = provider.contract();
        let (identity, reading) = (contract.identify(&body), contract.read(&body));
        match identity {
            Err(_) => prop_assert!(reading.is_err()),
            Ok(identity) if identity.kind == "event" => prop_assert!(!matches!(reading, Ok(Reading::State(_) | Reading::Fact(_)))),
            Ok(_) => prop_assert!(reading.is_ok() || reading.is_err_and(|error| error.reason.contains("twice"))),
        }
    }
}
