//! Observations as Avro: single-object encoding (`C3 01`, the schema's CRC-64-AVRO fingerprint in
//! little-endian, the datum). The `.avsc` files are the source; every version ever written is kept in
//! `avro/history/` and stays readable. Must never skip what a newer writer wrote, nor trust a length.

use std::borrow::Cow;
use std::sync::LazyLock;

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

/// The CRC-64-AVRO fingerprint of every version's canonical form, in the order of
/// [`OBSERVATION_HISTORY`]. Written down, not computed: records carry them for ever, and implementations do
/// not agree on a primitive with a logical type (apache-avro 0.21 keeps `{"type":"long"}`, apache/avro-rs#61;
/// Java, whom the others follow, writes `"long"`). These are Java's, and a test computes them.
const FINGERPRINTS: [u64; OBSERVATION_HISTORY.len()] = [0x87d0_c3c6_ae48_de86];

/// What every single-object header begins with; the fingerprint follows in little-endian.
const MARKER: [u8; 2] = [0xc3, 0x01];

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

/// A version of the schema and the fingerprint its records begin with.
struct Written {
    fingerprint: u64,
    schema: Schema,
}

/// The versions, oldest first. Kept as a `Result` so that a mistake in an `.avsc` is an error that every
/// encode and decode names, instead of a panic; a test shows that there is none.
static WRITTEN: LazyLock<Result<Vec<Written>, String>> = LazyLock::new(|| {
    apache_avro::util::max_allocation_bytes(RECORD_BYTES_MAX);
    let versions = OBSERVATION_HISTORY.iter().zip(FINGERPRINTS).map(|(text, fingerprint)| {
        let schema = Schema::parse_str(text).map_err(|error| error.to_string())?;
        Ok(Written { fingerprint, schema })
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
    bytes.extend_from_slice(&MARKER);
    bytes.extend_from_slice(&current.fingerprint.to_le_bytes());
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
    let Some((fingerprint, mut datum)) =
        bytes.strip_prefix(&MARKER).and_then(|rest| rest.split_first_chunk())
    else {
        return Err(malformed("it does not begin with the header of Avro's single-object encoding"));
    };
    let fingerprint = u64::from_le_bytes(*fingerprint);
    let Some(version) = written()?.iter().find(|version| version.fingerprint == fingerprint) else {
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
    use apache_avro::headers::{HeaderBuilder as _, RabinFingerprintHeader};
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
                provider: Provider::ALL[received_at.rem_euclid(3) as usize],
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
            webhook_endpoint_id: (received_at % 3 == 0).then(|| text.clone()),
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

    /// Without logical types all implementations agree.
    #[test]
    fn fingerprints_are_those_that_java_computes() {
        fn without_logical_types(schema: &mut serde_json::Value) {
            if let serde_json::Value::Object(map) = schema {
                map.remove("logicalType");
                map.values_mut().for_each(without_logical_types);
            } else if let serde_json::Value::Array(items) = schema {
                items.iter_mut().for_each(without_logical_types);
            }
        }
        for (text, fingerprint) in OBSERVATION_HISTORY.iter().zip(FINGERPRINTS) {
            let mut schema = serde_json::from_str(text).expect("JSON");
            without_logical_types(&mut schema);
            let header = RabinFingerprintHeader::from_schema(&Schema::parse(&schema).expect("a schema"));
            assert_eq!(header.build_header()[MARKER.len()..], fingerprint.to_le_bytes());
        }
    }

    /// One record of every version kept, as it was written then.
    const RECORDS: [&str; OBSERVATION_HISTORY.len()] = [concat!(
        "c30186de48aec6c3d0874830313932356264332d303030302d373030302d383030302d30303030303030",
        "30303030310c79636c6f7564086d61696e0861636d6502653077686174736170702e6d6573736167652e",
        "757064617465640e6d6573736167650265000080c49fd50c8280f2818389850614656e763a5345435245",
        "540202650202653f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea047b7d",
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    )];

    #[test]
    fn records_of_every_version_are_read() {
        let expected = observation(b"{}".to_vec(), "e".to_owned(), 1_700_000_000_000_001, Source::Webhook);
        for record in RECORDS {
            assert_eq!(decode(&hex::decode(record).expect("hexadecimal")), Ok(expected.clone()));
        }
        let current = hex::encode(encode(&expected).expect("encodes"));
        assert_eq!(
            Some(current.as_str()),
            RECORDS.last().copied(),
            "what is on disks already stays as it is"
        );
    }

    #[test]
    fn a_record_that_no_reader_would_take_is_not_written() {
        let written = |bytes| encode(&observation(vec![b' '; bytes], "e".to_owned(), 1, Source::Webhook));
        assert!(written(RECORD_BYTES_MAX - 1024).is_ok_and(|record| decode(&record).is_ok()));
        assert!(written(RECORD_BYTES_MAX).is_err());
    }

    #[test]
    fn a_body_that_is_not_its_digests_is_malformed() {
        let mut record =
            encode(&observation(b"{\"a\":1}".to_vec(), "e".to_owned(), 1, Source::Webhook)).expect("encodes");
        let at = record.windows(7).position(|bytes| bytes == b"{\"a\":1}").expect("the body stands in it");
        record[at + 5] = b'2';
        let reason = "`body_digest` is not the digest of `body`".to_owned();
        assert_eq!(decode(&record), Err(DecodeError::Malformed(reason)));
    }

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

        /// A known header and then anything, as from a length that lies.
        #[test]
        fn any_datum_is_answered(datum in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = encode(&observation(Vec::new(), String::new(), 1, Source::Webhook))?;
            bytes.truncate(MARKER.len() + size_of::<u64>());
            bytes.extend(datum);
            prop_assert!(matches!(decode(&bytes), Err(DecodeError::Malformed(_))));
        }
    }
}
