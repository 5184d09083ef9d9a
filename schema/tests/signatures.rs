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

/// Runs every row of a TSV of vectors; answers how many were valid and how many were not.
fn run_vectors(path: &Path) -> (usize, usize) {
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header line").split('\t').collect();
    let (mut valid, mut invalid) = (0, 0);
    for line in lines {
        let columns: Vec<&str> = line.split('\t').collect();
        let column = |name: &str| columns[names.iter().position(|found| *found == name).expect(name)];
        let body = STANDARD.decode(column("raw_body_base64")).expect("base64");
        let secrets: Vec<Secret> = column("verification_secrets_base64")
            .split(',')
            .map(|secret| {
                Secret::new("fixture", STANDARD.decode(secret).expect("base64")).expect("not empty")
            })
            .collect();
        let now = column("now_unix_seconds").parse().expect("seconds");
        let tolerance = column("tolerance_seconds").parse().expect("seconds");
        let verified =
            Provider::YCloud.contract().parse_signature(&[column("header").as_bytes()]).is_ok_and(|header| {
                Unverified::new(Provider::YCloud, header, Bytes::from(body))
                    .verify(&secrets, now, tolerance)
                    .is_ok()
            });
        assert_eq!(verified.to_string(), column("expected_valid"), "{}", column("id"));
        *(if verified { &mut valid } else { &mut invalid }) += 1;
    }
    (valid, invalid)
}

#[test]
fn our_vectors_hold() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ycloud/signatures.tsv");
    assert_eq!(run_vectors(&path), (7, 29));
}

#[test]
fn the_published_vectors_hold() {
    if let Some(folder) = std::env::var_os("WITNESS_VECTORS") {
        let (valid, invalid) = run_vectors(&Path::new(&folder).join("ycloud/webhook-signature-vectors.tsv"));
        assert!(valid >= 3 && invalid >= 7, "{valid} valid and {invalid} invalid vectors");
    }
}

/// The example of the Yutai contract: the shape is right, so it parses; its demo key is not published.
#[test]
fn yutai_headers() {
    let hex = "2fc9d3550390166c913528cae3e8469e437e5e9642d7f94f2a808dd72eda3c7a";
    let parse = |value: &str| Provider::Yutai.contract().parse_signature(&[value.as_bytes()]);
    let good = parse(&format!("t=1781000000,v1={hex}")).expect("the contract's example");
    assert_eq!(good.signed_at(), 1_781_000_000);
    let filler = "x=".to_owned() + &"y".repeat(1024 - "t=1781000000,v1=,x=".len() - 64);
    for same in [
        format!("v1={hex},t=1781000000"),
        format!("t=1781000000,v2=abc,v1={hex},v2=abc,empty="),
        format!("t=1781000000,v1={hex},{filler}"),
    ] {
        assert_eq!(parse(&same).as_ref(), Ok(&good), "{same}");
    }
    for bad in [
        String::new(),
        format!("v1={hex}"),
        "t=1781000000".to_owned(),
        format!("t=1781000000,t=1781000000,v1={hex}"),
        format!("t=1781000000,v1={hex},v1={hex}"),
        format!("t=1781000000,v1={}", hex.to_uppercase()),
        format!("t=1781000000,v1={hex},nothing"),
        format!("t=1781000000,v1={hex},"),
        format!("t=1781000000,v1={hex},=value"),
        format!("t=1781000000, v1={hex}"),
        format!("t=01781000000,v1={hex}"),
        format!("t=-1,v1={hex}"),
        format!("t=1781000000,v1={hex},{filler}z"),
        format!("t=1781000000,v1={hex},ü=1"),
    ] {
        assert!(parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn shoc_headers() {
    let hex = "ab".repeat(32);
    let parse = |timestamp: &str, key: &str, signature: &str| {
        let values = [timestamp.as_bytes(), key.as_bytes(), signature.as_bytes()];
        Provider::Shoc.contract().parse_signature(&values)
    };
    let good = parse("1784642602", "2026-07-20T00", &format!("v1={hex}")).expect("the contract's example");
    assert_eq!(good.key_id.as_deref(), Some("2026-07-20T00"));
    for (timestamp, key, signature) in [
        ("1784642602", "k", hex.clone()),
        ("1784642602", "k", format!("v2={hex}")),
        ("1784642602", "k", format!("v1={hex},v1={hex}")),
        ("1784642602", "k", format!("v1={}", hex.to_uppercase())),
        ("1784642602", "k", format!("v1={hex}0")),
        ("1784642602", "", format!("v1={hex}")),
        ("1784642602", "k k", format!("v1={hex}")),
        ("1784642602.5", "k", format!("v1={hex}")),
        ("+1784642602", "k", format!("v1={hex}")),
        ("", "k", format!("v1={hex}")),
    ] {
        assert!(parse(timestamp, key, &signature).is_err(), "{timestamp} {key} {signature}");
    }
}

fn secret(text: &str) -> Secret {
    Secret::new("label", text.as_bytes().to_vec()).expect("not empty")
}

fn signed(provider: Provider, secret: &Secret, signed_at: i64, body: &[u8]) -> SignatureHeader {
    let headers = provider.contract().sign(secret, signed_at, body);
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, provider.contract().signature_headers());
    let values: Vec<&[u8]> = headers.iter().map(|(_, value)| value.as_bytes()).collect();
    provider.contract().parse_signature(&values).expect("what we sign is of the contract's shape")
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

    #[test]
    fn any_header_bytes_are_answered(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..4)) {
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        for provider in Provider::ALL {
            let contract = provider.contract();
            drop(contract.parse_signature(&values));
        }
    }
}
