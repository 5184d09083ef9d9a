//! Signature vectors: our own fixtures, and the provider's published ones where `WITNESS_VECTORS` names
//! their folder. Must never verify a vector by anything but the path a delivery takes.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use proptest::prelude::*;
use schema::signature::{Rejection, Secret, SignatureHeader};
use schema::{Provider, Unverified};

/// Runs every row of a TSV of vectors; answers how many were valid and how many were not. A secret may be
/// named: `key id:base64`; then only the one that the header names is a candidate.
fn run_vectors(provider: Provider, path: &Path) -> (usize, usize) {
    let header_columns: &[&str] = match provider {
        Provider::YCloud | Provider::Yutai => &["header"],
        Provider::Shoc => &["timestamp", "key_id", "signature"],
    };
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header line").split('\t').collect();
    let (mut valid, mut invalid) = (0, 0);
    for line in lines {
        let columns: Vec<&str> = line.split('\t').collect();
        let column = |name: &str| columns[names.iter().position(|found| *found == name).expect(name)];
        let decoded = |text: &str| STANDARD.decode(text).expect("base64");
        let header: Vec<&[u8]> = header_columns.iter().map(|name| column(name).as_bytes()).collect();
        let secrets = column("verification_secrets_base64").split(',').map(|secret| {
            let (label, secret) = secret.split_once(':').unwrap_or(("unnamed", secret));
            Secret::new(label, decoded(secret)).expect("not empty")
        });
        let now = column("now_unix_seconds").parse().expect("seconds");
        let tolerance = column("tolerance_seconds").parse().expect("seconds");
        let parsed = provider.contract().parse_signature(&header);
        if column("failure_kind") == "malformed-header" {
            assert!(parsed.is_err(), "{}", column("id"));
        }
        let verified = parsed.is_ok_and(|header| {
            let named = |secret: &Secret| header.key_id.as_ref().is_none_or(|id| id == secret.label());
            let candidates: Vec<Secret> = secrets.filter(named).collect();
            let body = Bytes::from(decoded(column("raw_body_base64")));
            Unverified::new(provider, header, body).verify(&candidates, now, tolerance).is_ok()
        });
        assert_eq!(verified.to_string(), column("expected_valid"), "{}", column("id"));
        *(if verified { &mut valid } else { &mut invalid }) += 1;
    }
    (valid, invalid)
}

#[test]
fn our_vectors_hold() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (provider, expected) in
        [(Provider::YCloud, (7, 29)), (Provider::Shoc, (6, 38)), (Provider::Yutai, (8, 36))]
    {
        let path = fixtures.join(provider.as_str()).join("signatures.tsv");
        assert_eq!(run_vectors(provider, &path), expected, "{}", provider.as_str());
    }
}

#[test]
fn the_published_vectors_hold() {
    if let Some(folder) = std::env::var_os("WITNESS_VECTORS") {
        let path = Path::new(&folder).join("ycloud/webhook-signature-vectors.tsv");
        let (valid, invalid) = run_vectors(Provider::YCloud, &path);
        assert!(valid >= 3 && invalid >= 7, "{valid} valid and {invalid} invalid vectors");
    }
}

/// The examples of the contracts: they parse; their keys are not published.
#[test]
fn the_contracts_examples_parse() {
    let parse = |provider: Provider, values: &[&str]| {
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
        provider.contract().parse_signature(&values)
    };
    let hex = "2fc9d3550390166c913528cae3e8469e437e5e9642d7f94f2a808dd72eda3c7a";
    let yutai = parse(Provider::Yutai, &[&format!("t=1781000000,v1={hex}")]).expect("of its shape");
    assert_eq!((yutai.signed_at(), yutai.key_id), (1_781_000_000, None));
    let shoc = parse(Provider::Shoc, &["1784642602", "2026-07-20T00", &format!("v1={hex}")]);
    let shoc = shoc.expect("of its shape");
    assert_eq!((shoc.signed_at(), shoc.key_id.as_deref()), (1_784_642_602, Some("2026-07-20T00")));
    let ycloud = parse(Provider::YCloud, &[&format!("t=1762224357,s={hex}")]).expect("of its shape");
    assert_eq!(ycloud.signed_at(), 1_762_224_357);
    assert_eq!(hex::encode(ycloud.signature), hex);
    for provider in Provider::ALL {
        assert!(parse(provider, &[]).is_err(), "the headers are missing");
        assert!(parse(provider, &["1", "2", "3", "4"]).is_err(), "there are more headers than it has");
    }
}

fn secret(text: &str) -> Secret {
    Secret::new("label", text.as_bytes().to_vec()).expect("not empty")
}

fn header_values(provider: Provider, secret: &Secret, signed_at: i64, body: &[u8]) -> Vec<Vec<u8>> {
    let headers = provider.contract().sign(secret, signed_at, body);
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, provider.contract().signature_headers());
    headers.into_iter().map(|(_, value)| value.into_bytes()).collect()
}

fn parsed(provider: Provider, values: &[Vec<u8>]) -> Option<SignatureHeader> {
    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    provider.contract().parse_signature(&values).ok()
}

fn signed(provider: Provider, secret: &Secret, signed_at: i64, body: &[u8]) -> SignatureHeader {
    let values = header_values(provider, secret, signed_at, body);
    parsed(provider, &values).expect("what we sign is of the contract's shape")
}

#[test]
fn the_window_is_inclusive_and_a_stale_true_signature_is_told_apart() {
    for provider in Provider::ALL {
        let verify = |now: i64, key: &str| {
            let header = signed(provider, &secret("right"), 1_760_000_000, b"{}");
            Unverified::new(provider, header, Bytes::from_static(b"{}"))
                .verify(&[secret(key)], now, 300)
                .map(|_| ())
        };
        assert_eq!(verify(1_760_000_300, "right"), Ok(()));
        assert_eq!(verify(1_759_999_700, "right"), Ok(()));
        assert_eq!(verify(1_760_000_301, "right"), Err(Rejection::StaleSigned));
        assert_eq!(verify(1_759_999_699, "right"), Err(Rejection::StaleSigned));
        assert_eq!(verify(1_760_000_000, "wrong"), Err(Rejection::WrongSignature));
        assert_eq!(verify(1_760_000_301, "wrong"), Err(Rejection::OutsideWindow));
    }
}

#[test]
fn secrets_are_not_shown() {
    assert_eq!(format!("{:?}", secret("hunter2")), "Secret(label, ******)");
}

#[test]
fn shoc_key_documents() {
    use schema::provider::{KeyDocumentError, parse_key_document};
    let two =
        r#"{"keys":[{"kid":"2026-07-20T00","secret":"aa"},{"kid":"2026-06-20T00","secret":"bb"}],"more":1}"#;
    let keys = parse_key_document(two).expect("the contract's shape");
    assert_eq!(keys.iter().map(Secret::label).collect::<Vec<_>>(), ["2026-07-20T00", "2026-06-20T00"]);
    assert_eq!(
        keys[0].sign("1", b""),
        secret("aa").sign("1", b""),
        "the characters are the key, not their bytes as hex"
    );
    for (text, expected) in [
        ("", KeyDocumentError::Malformed),
        ("{}", KeyDocumentError::Malformed),
        (r#"{"keys":[{"kid":"a"}]}"#, KeyDocumentError::Malformed),
        (r#"{"keys":[]}"#, KeyDocumentError::Empty),
        (r#"{"keys":[{"kid":"a","secret":"s"},{"kid":"b","secret":""}]}"#, KeyDocumentError::EmptySecret(2)),
        (r#"{"keys":[{"kid":"a b","secret":"s"}]}"#, KeyDocumentError::KeyId(1)),
        (r#"{"keys":[{"kid":"a","secret":"s"},{"kid":"a","secret":"t"}]}"#, KeyDocumentError::SameKeyId(2)),
    ] {
        assert_eq!(parse_key_document(text).map(|_| ()), Err(expected), "{text}");
    }
}

proptest! {
    #[test]
    fn a_signature_holds_for_its_own_bytes_only(
        provider in prop::sample::select(&Provider::ALL[..]),
        signed_at in 1_i64..4_000_000_000,
        body in prop::collection::vec(any::<u8>(), 0..300),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let header = signed(provider, &secret("right"), signed_at, &body);
        let verify = |header: &SignatureHeader, body: &[u8]| {
            Unverified::new(provider, header.clone(), Bytes::copy_from_slice(body)).verify(&[secret("other"), secret("right")], signed_at, 300).is_ok()
        };
        prop_assert!(verify(&header, &body));
        let mut other = header.clone();
        other.signature[at.index(32)] ^= 1 << bit;
        prop_assert!(!verify(&other, &body));
        if !body.is_empty() {
            let mut tampered = body.clone();
            tampered[at.index(body.len())] ^= 1 << bit;
            prop_assert!(!verify(&header, &tampered));
        }
    }

    /// No byte of a header can be another one. (SHOC's key id is not signed; it only chooses the key.)
    #[test]
    fn a_header_with_one_byte_changed_does_not_verify(
        provider in prop::sample::select(&Provider::ALL[..]),
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut values = header_values(provider, &secret("right"), 1_760_000_000, b"{}");
        let which = [0, 2][which.index(2)].min(values.len() - 1);
        let at = at.index(values[which].len());
        prop_assume!(values[which][at] != byte);
        values[which][at] = byte;
        if let Some(header) = parsed(provider, &values) {
            let delivery = Unverified::new(provider, header, Bytes::from_static(b"{}"));
            prop_assert!(delivery.verify(&[secret("right")], 1_760_000_000, 300).is_err());
        }
    }

    #[test]
    fn any_header_bytes_are_answered(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..4)) {
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        for provider in Provider::ALL {
            let contract = provider.contract();
            drop(contract.parse_signature(&values));
        }
    }
}

/// A subject whose key would be too long for the store is not taken: the delivery is kept as its own event.
#[test]
fn a_subject_with_too_long_a_key_is_the_event() {
    use schema::signature::Receipt;
    for (id, kind) in [("ü".repeat(500), "message"), ("\u{1f600}".repeat(500), "event")] {
        let body =
            serde_json::json!({"id": "e", "type": "whatsapp.message.updated", "whatsappMessage": {"id": id}})
                .to_string();
        let header = signed(Provider::YCloud, &secret("right"), 1_760_000_000, body.as_bytes());
        let unverified = Unverified::new(Provider::YCloud, header, Bytes::from(body));
        let receipt = Receipt {
            observation_id: uuid::Uuid::nil(),
            endpoint: "main".to_owned(),
            tenant: "acme".to_owned(),
            received_at: schema::Micros(0),
            content_type: None,
            webhook_endpoint_id: None,
        };
        let observation = unverified
            .verify(&[secret("right")], 1_760_000_000, 300)
            .expect("ours")
            .observe(receipt)
            .expect("kept");
        assert_eq!(observation.subject.kind, kind);
        assert!(observation.subject.key().len() <= schema::limits::SUBJECT_KEY_BYTES_MAX);
    }
}
