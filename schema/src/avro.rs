//! Observations as Avro, in single-object encoding. The `.avsc` files are the source. Must never read what
//! a body's digest does not vouch for.

use std::borrow::Cow;

use apache_avro::{serde_avro_bytes, serde_avro_fixed};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::single_object::Versions;
pub use crate::single_object::{DecodeError, UnknownSchema};
use crate::{Digest, Micros, Observation, Provider, Source, Subject};

/// Every version of the observation's schema that was ever written; the last one is the current.
pub(crate) static OBSERVATION: Versions =
    Versions::new(&[(include_str!("../avro/history/observation.1.avsc"), 0x87d0_c3c6_ae48_de86)]);

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
/// [`crate::limits::RECORD_BYTES_MAX`] bytes, which no reader would take.
pub fn encode(observation: &Observation) -> Result<Vec<u8>, DecodeError> {
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
    OBSERVATION.encode(&datum, observation.body.len() + 512)
}

/// Reads an observation that any release wrote whose schema is in the history.
pub fn decode(bytes: &[u8]) -> Result<Observation, DecodeError> {
    let malformed = |reason: &str| DecodeError::Malformed(reason.to_owned());
    let datum: Datum<'_> = OBSERVATION.decode(bytes)?;
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
    use proptest::prelude::*;

    use super::*;
    use crate::limits::RECORD_BYTES_MAX;
    use crate::single_object::MARKER;

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

    /// One record of every version kept, as it was written then.
    const RECORDS: [&str; 1] = [concat!(
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
