//! Envelopes, bounds and agreement of the three providers, with literal expectations taken from the
//! contracts; what each type of event means stands in `events.rs`. Must never compute an expectation with
//! the code it tests.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use schema::provider::{EnvelopeError, Identity};
use schema::reading::{OrderedBy, StateReading};
use schema::signature::{Receipt, Secret};
use schema::{Digest, Micros, Observation, Provider, Reading, Unverified};
use serde_json::{Value as Json, json};
use uuid::Uuid;

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

fn failure(provider: Provider, body: &Json) -> String {
    provider.contract().read(body.to_string().as_bytes()).expect_err("unreadable").reason
}

fn ycloud(event_type: &str, payload: &str, object: Json) -> Json {
    json!({"id": "evt_1", "type": event_type, "createTime": "2026-01-02T03:04:05.000Z", payload: object})
}

const UPDATE_TIME: &str = "2026-01-02T04:04:05.000Z";

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
fn shoc_times_are_no_part_of_the_value() {
    let at = |time: &str| {
        let body =
            shoc("work_order.updated", json!({"work_order_id": "7", "wo_status": "new", "updated_at": time}));
        state(Provider::Shoc, &body).value.digest
    };
    assert_eq!(at("2026-07-16T14:03:22Z"), at("2027-07-16T14:03:22+00:00"));
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
    let newline = b"{\"id\":\"e\",\"type\":\"a.b\"}\n";
    assert!(Provider::YCloud.contract().identify(newline).is_ok());
}

/// An id that holds a lone surrogate is no text; where the envelope needs it, that is an error.
#[test]
fn lone_surrogates_are_no_ids() {
    let envelope = Provider::YCloud.contract().identify(br#"{"id":"\ud800","type":"a.b"}"#);
    let problem = "is not a string of text";
    assert_eq!(envelope, Err(EnvelopeError::Field { field: "id", problem }));
    let inside = br#"{"id":"e","type":"whatsapp.message.updated","whatsappMessage":{"id":"\ud800"}}"#;
    let identity = Provider::YCloud.contract().identify(inside).expect("authentic");
    assert_eq!((identity.kind.as_str(), identity.id.as_str()), ("event", "e"));
}

#[test]
fn a_key_twice_inside_has_no_one_meaning() {
    for inside in [r#"{"id":"m","id":"n"}"#, r#"{"id":"m","a":[{"b":1,"\u0062":2}]}"#] {
        let body = format!(r#"{{"id":"e","type":"whatsapp.message.updated","whatsappMessage":{inside}}}"#);
        let contract = Provider::YCloud.contract();
        assert_eq!(contract.identify(body.as_bytes()).expect("authentic").kind, "event");
        let reason = "`whatsappMessage` holds a key that stands twice";
        assert_eq!(contract.read(body.as_bytes()).expect_err("unreadable").reason, reason);
    }
    let elsewhere =
        br#"{"id":"e","type":"whatsapp.message.updated","whatsappMessage":{"id":"m"},"other":{"a":1,"a":2}}"#;
    assert_eq!(Provider::YCloud.contract().identify(elsewhere).expect("authentic").kind, "message");
}

/// The envelope's errors are those of one reader, so one provider shows them for all.
#[test]
fn broken_bodies_are_refused_alike() {
    for provider in Provider::ALL {
        let identify = |body: &[u8]| provider.contract().identify(body).map(|_| ());
        for (body, expected) in [
            (&b""[..], EnvelopeError::InvalidJson),
            (b"\xc3\x28", EnvelopeError::InvalidUtf8),
            (b"\xef\xbb\xbf{}", EnvelopeError::ByteOrderMark),
            (b"{\"id\":\"a\"} {}", EnvelopeError::InvalidJson),
            (b"[]", EnvelopeError::NotAnObject),
            (b"{\"id\":1,\"id\":2}", EnvelopeError::DuplicateKey),
        ] {
            assert_eq!(identify(body), Err(expected), "{body:?}");
        }
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert_eq!(identify(deep.as_bytes()), Err(EnvelopeError::NestedTooDeeply));
    }
}

/// What [`schema::provider::read`] says of an observation follows the subject it was written under.
#[test]
fn an_observation_written_as_its_own_subject_stays_one() {
    let body = ycloud("whatsapp.message.updated", "whatsappMessage", json!({"id": "m", "status": "read"}));
    let mut observation = observed(Provider::YCloud, body.to_string().as_bytes()).expect("authentic");
    assert_eq!(observation.subject.key(), "acme/ycloud/message/m");
    assert_eq!(&observation.body[..], body.to_string().as_bytes(), "byte for byte");
    assert_eq!(observation.body_digest, Digest::of(body.to_string().as_bytes()));
    assert_eq!((observation.signed_at, observation.secret_label.as_str()), (1_760_000_000, "label"));
    assert!(matches!(schema::provider::read(&observation), Ok(Reading::State(_))));
    observation.subject.kind = "event".to_owned();
    assert_eq!(schema::provider::read(&observation), Ok(Reading::Unsupported));
}

fn observed(provider: Provider, body: &[u8]) -> Result<Observation, EnvelopeError> {
    let secret = Secret::new("label", b"right".to_vec()).expect("not empty");
    let headers = provider.contract().sign(&secret, 1_760_000_000, body);
    let values: Vec<&[u8]> = headers.iter().map(|(_, value)| value.as_bytes()).collect();
    let header = provider.contract().parse_signature(&values).expect("of its shape");
    let delivery = Unverified::new(provider, header, Bytes::copy_from_slice(body));
    delivery.verify(&[secret], 1_760_000_000, 300).expect("it holds").observe(Receipt {
        observation_id: Uuid::from_u128(7),
        endpoint: "main".to_owned(),
        tenant: "acme".to_owned(),
        received_at: Micros(1_760_000_000_000_001),
        content_type: None,
        webhook_endpoint_id: None,
    })
}

/// Identity and reading agree: who has a subject of its own can be read, and who has a reading has one.
fn check_agreement(provider: Provider, body: &[u8]) -> Result<(), TestCaseError> {
    let contract = provider.contract();
    match (contract.identify(body), contract.read(body)) {
        (Err(error), reading) => prop_assert_eq!(reading, Err(error.into())),
        (Ok(identity), reading) if identity.kind == "event" => {
            prop_assert!(matches!(reading, Ok(Reading::Unsupported) | Err(_)));
        }
        (Ok(_), reading) => prop_assert!(reading.is_ok(), "{:?}", reading),
    }
    Ok(())
}

proptest! {
    #[test]
    fn mutated_bodies_are_answered(
        seed in 0_usize..6,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let bodies = [
            (Provider::YCloud, ycloud("whatsapp.message.updated", "whatsappMessage", json!({"id": "m", "status": "read", "updateTime": UPDATE_TIME}))),
            (Provider::YCloud, ycloud("email.delivery.updated", "emailDelivery", json!({"emailId": "e", "recipientAddress": "r", "a": {"b": 1, "c": 2}}))),
            (Provider::Shoc, shoc("work_order.updated", json!({"work_order_id": "7", "updated_at": UPDATE_TIME}))),
            (Provider::Shoc, shoc("work_order.comment_added", json!({"work_order_id": "7", "comment_id": "c", "a": 1, "b": 2}))),
            (Provider::Shoc, shoc("work_order.merged", json!({"work_order_id": "7", "a": 1, "b": 2}))),
            (Provider::Yutai, yutai("owner_customer_changed", json!({"external_ref": "a", "company_id": "b", "owner_customer": true}))),
        ];
        let (provider, body) = &bodies[seed];
        let mut body = body.to_string().into_bytes();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        check_agreement(*provider, &body)?;
    }

    #[test]
    fn any_payload_is_answered(
        seed in 0_usize..7,
        keys in prop::collection::vec(prop::sample::select(vec!["id", "emailId", "wabaId", "referenceId", "data", "work_order_id", "comment_id", "benefitId", "claimId", "external_ref", "x"]), 0..6),
        values in prop::collection::vec(prop::sample::select(vec!["\"a\"", "\"\"", "\"\\ud800\"", "null", "true", "7", "1e999", "{}", "[{\"k\":1,\"k\":2}]"]), 6),
    ) {
        let fields: Vec<String> = keys.iter().zip(&values).map(|(key, value)| format!("\"{key}\":{value}")).collect();
        let payload = format!("{{{}}}", fields.join(","));
        let (provider, body) = match seed {
            0 => (Provider::YCloud, format!(r#"{{"id":"e","type":"whatsapp.message.updated","whatsappMessage":{payload}}}"#)),
            1 => (Provider::YCloud, format!(r#"{{"id":"e","type":"whatsapp.payment.updated","whatsappPayment":{payload}}}"#)),
            2 => (Provider::Shoc, format!(r#"{{"schema_version":1,"delivery_id":"e","event_type":"work_order.updated","data":{payload}}}"#)),
            3 => (Provider::Shoc, format!(r#"{{"schema_version":1,"delivery_id":"e","event_type":"work_order.comment_added","data":{payload}}}"#)),
            4 => (Provider::Shoc, format!(r#"{{"schema_version":1,"delivery_id":"e","event_type":"work_order.merged","data":{payload}}}"#)),
            5 => (Provider::Yutai, format!(r#"{{"eventId":"e","kind":"claim_confirmed","payload":{payload}}}"#)),
            _ => (Provider::Yutai, format!(r#"{{"eventId":"e","kind":"connect_linked","payload":{payload}}}"#)),
        };
        check_agreement(provider, body.as_bytes())?;
        let identity = provider.contract().identify(body.as_bytes()).expect("the envelope holds");
        if identity.kind == "event" && identity.event_type != "work_order.merged" {
            prop_assert!(provider.contract().read(body.as_bytes()).is_err());
        }
    }

    #[test]
    fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for provider in Provider::ALL {
            check_agreement(provider, &body)?;
        }
    }
}
