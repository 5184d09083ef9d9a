//! Observations as Avro: single-object encoding (`C3 01`, the schema's CRC-64-AVRO fingerprint in
//! little-endian, the datum). The `.avsc` files are the source; every version ever written is kept in
//! `avro/history/` and stays readable. Must never skip what a newer writer wrote, nor trust a length.

use std::borrow::Cow;
use std::sync::LazyLock;

use apache_avro::headers::{HeaderBuilder, RabinFingerprintHeader};
use apache_avro::{
    Schema, from_avro_datum, from_value, serde_avro_bytes, serde_avro_fixed, write_avro_datum_ref,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::limits::RECORD_BYTES_MAX;
use crate::{Digest, Micros, Observation, Provider, Source, Subject};

/// The current schema of an observation, as text.
pub const OBSERVATION_SCHEMA: &str = include_str!("../avro/observation.avsc");

/// Every version of the observation's schema that was ever written, oldest first; the last one is
/// [`OBSERVATION_SCHEMA`].
pub const OBSERVATION_HISTORY: [&str; 1] = [include_str!("../avro/history/observation.1.avsc")];

/// Bytes of a single-object header.
const HEADER_BYTES: usize = 10;

/// Bytes that are no observation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A schema this build knows, or no schema at all, but not what it promises: poison, to be kept aside.
    #[error("the record is no observation: {0}")]
    Malformed(String),
    /// A schema this build does not know: perhaps a newer writer's good data, never to be skipped.
    #[error(
        "the record has a schema this release does not know (fingerprint {fingerprint:016x}); run a release that does"
    )]
    UnknownSchema {
        /// The fingerprint in the record's header.
        fingerprint: u64,
    },
}

/// A version of the schema and the header its records begin with.
struct Written {
    header: Vec<u8>,
    schema: Schema,
}

/// The versions, oldest first. Kept as a `Result` so that a mistake in an `.avsc` is an error that every
/// encode and decode names, instead of a panic; a test shows that there is none.
static WRITTEN: LazyLock<Result<Vec<Written>, String>> = LazyLock::new(|| {
    apache_avro::util::max_allocation_bytes(RECORD_BYTES_MAX);
    let versions = OBSERVATION_HISTORY.iter().map(|text| {
        let schema = Schema::parse_str(text).map_err(|error| error.to_string())?;
        Ok(Written { header: RabinFingerprintHeader::from_schema(&schema).build_header(), schema })
    });
    versions.collect()
});

fn written() -> Result<&'static [Written], DecodeError> {
    WRITTEN.as_deref().map_err(|error| DecodeError::Malformed(error.clone()))
}

/// The datum, in the order of the schema's fields. No nullable field comes last: the library reads a
/// missing end there as null, and a cut record must not pass for a whole one.
#[derive(Serialize, Deserialize)]
struct Datum<'a> {
    observation_id: Cow<'a, str>,
    provider: Cow<'a, str>,
    endpoint: Cow<'a, str>,
    tenant: Cow<'a, str>,
    event_id: Cow<'a, str>,
    event_type: Cow<'a, str>,
    subject_kind: Cow<'a, str>,
    subject_id: Cow<'a, str>,
    source: Symbol,
    replay: bool,
    signed_at: i64,
    received_at: i64,
    secret_label: Cow<'a, str>,
    content_type: Option<Cow<'a, str>>,
    webhook_endpoint_id: Option<Cow<'a, str>>,
    #[serde(with = "serde_avro_fixed")]
    signature_digest: [u8; 32],
    #[serde(with = "serde_avro_bytes")]
    body: Vec<u8>,
    #[serde(with = "serde_avro_fixed")]
    body_digest: [u8; 32],
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Symbol {
    Webhook,
    ReadApi,
    Verdict,
    Operator,
}

/// Writes an observation with the current schema. Fails when the record would have more than
/// [`RECORD_BYTES_MAX`] bytes, which no reader would take, or if the build's own schema does not fit.
pub fn encode(observation: &Observation) -> Result<Vec<u8>, DecodeError> {
    let Some(current) = written()?.last() else {
        return Err(DecodeError::Malformed("there is no schema".to_owned()));
    };
    let datum = Datum {
        observation_id: observation.id.to_string().into(),
        provider: observation.provider().as_str().into(),
        endpoint: observation.endpoint.as_str().into(),
        tenant: observation.subject.tenant.as_str().into(),
        event_id: observation.event_id.as_str().into(),
        event_type: observation.event_type.as_str().into(),
        subject_kind: observation.subject.kind.as_str().into(),
        subject_id: observation.subject.id.as_str().into(),
        source: match observation.source {
            Source::Webhook => Symbol::Webhook,
            Source::ReadApi => Symbol::ReadApi,
            Source::Verdict => Symbol::Verdict,
            Source::Operator => Symbol::Operator,
        },
        replay: observation.replay,
        signed_at: observation.signed_at,
        received_at: observation.received_at.0,
        secret_label: observation.secret_label.as_str().into(),
        signature_digest: observation.signature_digest.0,
        body: observation.body.to_vec(),
        body_digest: observation.body_digest.0,
        content_type: observation.content_type.as_deref().map(Cow::Borrowed),
        webhook_endpoint_id: observation.webhook_endpoint_id.as_deref().map(Cow::Borrowed),
    };
    let mut bytes = Vec::with_capacity(observation.body.len() + 512);
    bytes.extend_from_slice(&current.header);
    write_avro_datum_ref(&current.schema, &datum, &mut bytes)
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(DecodeError::Malformed(format!("it has more than {RECORD_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Reads an observation that any release wrote whose schema is in the history.
pub fn decode(bytes: &[u8]) -> Result<Observation, DecodeError> {
    let malformed = |reason: &str| DecodeError::Malformed(reason.to_owned());
    let (header, mut datum) =
        bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| malformed("shorter than a header"))?;
    let Some(fingerprint) = header.strip_prefix(&[0xc3, 0x01]) else {
        return Err(malformed("it does not begin with the marker of Avro's single-object encoding"));
    };
    let Some(version) = written()?.iter().find(|version| version.header == header) else {
        let fingerprint = fingerprint.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        return Err(DecodeError::UnknownSchema { fingerprint });
    };
    let reader = written()?.last().map(|current| &current.schema);
    // The library's own messages may quote the value, and a body must not get into a reason.
    let value = from_avro_datum(&version.schema, &mut datum, reader)
        .map_err(|_| malformed("its datum does not decode under its schema"))?;
    if !datum.is_empty() {
        return Err(malformed("bytes follow the datum"));
    }
    let datum: Datum<'_> =
        from_value(&value).map_err(|_| malformed("its datum does not hold the fields of an observation"))?;
    let observation = Observation {
        id: Uuid::parse_str(&datum.observation_id).map_err(|_| malformed("`observation_id` is no UUID"))?,
        endpoint: datum.endpoint.into_owned(),
        event_id: datum.event_id.into_owned(),
        event_type: datum.event_type.into_owned(),
        subject: Subject {
            tenant: datum.tenant.into_owned(),
            provider: Provider::from_name(&datum.provider)
                .ok_or_else(|| malformed("`provider` is none of ours"))?,
            kind: datum.subject_kind.into_owned(),
            id: datum.subject_id.into_owned(),
        },
        source: match datum.source {
            Symbol::Webhook => Source::Webhook,
            Symbol::ReadApi => Source::ReadApi,
            Symbol::Verdict => Source::Verdict,
            Symbol::Operator => Source::Operator,
        },
        replay: datum.replay,
        signed_at: datum.signed_at,
        received_at: Micros(datum.received_at),
        secret_label: datum.secret_label.into_owned(),
        signature_digest: Digest(datum.signature_digest),
        body: Bytes::from(datum.body),
        body_digest: Digest(datum.body_digest),
        content_type: datum.content_type.map(Cow::into_owned),
        webhook_endpoint_id: datum.webhook_endpoint_id.map(Cow::into_owned),
    };
    if Digest::of(&observation.body) != observation.body_digest {
        return Err(malformed("`body_digest` is not the digest of `body`"));
    }
    Ok(observation)
}

#[cfg(test)]
mod tests {
    use apache_avro::schema_compatibility::SchemaCompatibility;
    use proptest::prelude::*;

    use super::*;

    fn observation(body: Vec<u8>, text: String, received_at: i64, source: Source) -> Observation {
        Observation {
            id: Uuid::from_u128(0x0192_5bd3_0000_7000_8000_0000_0000_0001),
            endpoint: "main".to_owned(),
            event_id: text.clone(),
            event_type: "whatsapp.message.updated".to_owned(),
            subject: Subject {
                tenant: "acme".to_owned(),
                provider: Provider::YCloud,
                kind: "message".to_owned(),
                id: text.clone(),
            },
            source,
            replay: received_at % 2 == 0,
            signed_at: received_at / 1_000_000,
            received_at: Micros(received_at),
            secret_label: "env:SECRET".to_owned(),
            signature_digest: Digest::of(text.as_bytes()),
            body_digest: Digest::of(&body),
            body: body.into(),
            content_type: (!text.is_empty()).then(|| text.clone()),
            webhook_endpoint_id: None,
        }
    }

    #[test]
    fn the_current_schema_is_the_last_of_the_history() {
        assert_eq!(OBSERVATION_HISTORY.last(), Some(&OBSERVATION_SCHEMA));
    }

    #[test]
    fn the_current_schema_reads_every_version_kept() {
        let current = Schema::parse_str(OBSERVATION_SCHEMA).expect("a schema");
        for version in OBSERVATION_HISTORY {
            let version = Schema::parse_str(version).expect("a schema");
            SchemaCompatibility::can_read(&version, &current).expect("backward compatible");
        }
    }

    /// The bytes of one record, pinned: a change here is a change of what is on disks already.
    #[test]
    fn the_encoding_is_pinned() {
        let bytes =
            encode(&observation(b"{}".to_vec(), "e".to_owned(), 1_700_000_000_000_001, Source::Webhook));
        let bytes = bytes.expect("encodes");
        assert_eq!(hex::encode(&bytes[..HEADER_BYTES]), PINNED_HEADER);
        assert_eq!(Digest::of(&bytes).to_string(), PINNED_DIGEST);
    }
    const PINNED_HEADER: &str = "c3019498f389f9bf3a85";
    const PINNED_DIGEST: &str = "5af989e7c52bcabe5c85d5fe0224fb0a3724a2659dec8b0bc0fbfe87c4f4788a";

    #[test]
    fn what_is_no_observation_is_told_apart() {
        let good = encode(&observation(b"{}".to_vec(), "e".to_owned(), 1, Source::Webhook)).expect("encodes");
        let mut newer = good.clone();
        newer[2] ^= 1;
        assert!(matches!(decode(&newer), Err(DecodeError::UnknownSchema { .. })));
        let mut longer = good.clone();
        longer.push(0);
        for malformed in [&b""[..], b"\xc3\x01", b"hello, this is text", &longer, &good[..good.len() - 1]] {
            assert!(matches!(decode(malformed), Err(DecodeError::Malformed(_))), "{malformed:?}");
        }
    }

    proptest! {
        #[test]
        fn decoding_gives_what_was_encoded(
            body in prop::collection::vec(any::<u8>(), 0..2000),
            text in any::<String>(),
            received_at in any::<i64>(),
            source in prop::sample::select(&[Source::Webhook, Source::ReadApi, Source::Verdict, Source::Operator][..]),
        ) {
            let observation = observation(body, text, received_at, source);
            prop_assert_eq!(decode(&encode(&observation)?)?, observation);
        }

        #[test]
        fn damaged_bytes_are_answered(at in 0_usize..400, byte in any::<u8>(), cut in 0_usize..400) {
            let mut bytes = encode(&observation(b"{\"a\":1}".to_vec(), "event".to_owned(), 5, Source::Webhook))?;
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(cut.max(1));
            drop(decode(&bytes));
        }
    }
}
