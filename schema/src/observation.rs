//! Observations: deliveries whose signature held, as the journal keeps them. Must never be made from
//! anything unverified: the only ways to one are [`crate::Verified::observe`], our own words about others
//! ([`crate::Verdict::observe`], [`crate::operator::Acknowledged::observe`]) and reading the journal.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::subject::KIND_EVENT;
use crate::{Micros, Provider, Subject};

/// A delivery whose signature held, as written to the journal. Immutable. Outside
/// this crate its fields can be read, but no observation can be put together by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observation {
    /// UUIDv7, made when the delivery was received (of a verdict: made of what it judges).
    pub id: Uuid,
    /// The configured endpoint that received it.
    pub endpoint: String,
    /// The provider's id of the event.
    pub event_id: String,
    /// The provider's word for what happened.
    pub event_type: String,
    /// What it is about; carries tenant and provider.
    pub subject: Subject,
    /// How it came to us.
    pub source: Source,
    /// SHOC's operator replay flag; `false` for everyone else.
    pub replay: bool,
    /// Seconds since the Unix epoch, as the provider signed.
    pub signed_at: i64,
    /// When the whole request had been read.
    pub received_at: Micros,
    /// Which configured secret matched: its place or key id, never the secret.
    pub secret_label: String,
    /// SHA-256 of the 32 signature bytes.
    pub signature_digest: Digest,
    /// The exact bytes that were signed.
    pub body: Bytes,
    /// SHA-256 of `body`.
    pub body_digest: Digest,
    /// The request's `Content-Type`, where it had one.
    pub content_type: Option<String>,
    /// The request's `X-Webhook-Endpoint-ID`, where it had one; for correlation only.
    pub webhook_endpoint_id: Option<String>,
}

impl Observation {
    /// Who sent it.
    pub fn provider(&self) -> Provider {
        self.subject.provider
    }

    /// The same observation about the subject that this release reads in its body, where an earlier release kept
    /// it as its own event because it could not read it. What a delivery says of itself is left as it was
    /// written, and so is every observation that was not received from a provider.
    #[must_use]
    pub fn rekeyed(self) -> Self {
        let is_from_provider = match self.source {
            Source::Webhook | Source::ReadApi => true,
            Source::Verdict | Source::Operator => false,
        };
        if !is_from_provider || self.subject.kind != KIND_EVENT {
            return self;
        }
        // An envelope that no longer holds names nothing; the observation stays what it is.
        let Ok(identity) = self.provider().contract().identify(&self.body) else { return self };
        if identity.kind == KIND_EVENT {
            return self;
        }
        let subject = Subject { kind: identity.kind, id: identity.id, ..self.subject };
        Self { subject: subject.or_its_event(&self.event_id), ..self }
    }

    /// A digest of the part of the inbox key that the subject does not already fix (endpoint and event
    /// id): with the subject's tenant and provider, the deduplication identity of this observation.
    pub fn event_digest(&self) -> Digest {
        inbox_digest(&self.endpoint, &self.event_id)
    }
}

/// The digest of endpoint and event id under one provider. The length prefix keeps two different pairs
/// from being the same bytes.
pub fn inbox_digest(endpoint: &str, event_id: &str) -> Digest {
    let mut hash = Sha256::new();
    hash.update((endpoint.len() as u64).to_be_bytes());
    hash.update(endpoint.as_bytes());
    hash.update(event_id.as_bytes());
    Digest(hash.finalize().into())
}

/// How an observation came to us. The numbers are written to the journal: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Source {
    /// A provider posted it.
    Webhook = 0,
    /// We read it from a provider's API.
    ReadApi = 1,
    /// The owner of a claims partition judged another observation.
    Verdict = 2,
    /// A person did it.
    Operator = 3,
}

/// A SHA-256 digest; hexadecimal wherever a person sees it, 32 bytes wherever it is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            let mut bytes = [0; 32];
            hex::decode_to_slice(&text, &mut bytes).map_err(serde::de::Error::custom)?;
            Ok(Self(bytes))
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(subject: (&str, &str), source: Source, body: &'static str) -> Observation {
        let body = Bytes::from_static(body.as_bytes());
        Observation {
            id: Uuid::from_u128(7),
            endpoint: "main".to_owned(),
            event_id: "evt-1".to_owned(),
            event_type: "whatsapp.message.updated".to_owned(),
            subject: Subject {
                tenant: "acme".to_owned(),
                provider: Provider::YCloud,
                kind: subject.0.to_owned(),
                id: subject.1.to_owned(),
            },
            source,
            replay: false,
            signed_at: 1,
            received_at: Micros(2),
            secret_label: "label".to_owned(),
            signature_digest: Digest::of(b"signature"),
            body_digest: Digest::of(&body),
            body,
            content_type: None,
            webhook_endpoint_id: None,
        }
    }

    const READABLE: &str = r#"{"id":"evt-1","type":"whatsapp.message.updated","whatsappMessage":{"id":"msg-1","status":"sent"}}"#;

    #[test]
    fn what_has_become_readable_moves_to_its_subject_and_changes_in_nothing_else() {
        for source in [Source::Webhook, Source::ReadApi] {
            let kept = observation(("event", "evt-1"), source, READABLE);
            assert_eq!(kept.rekeyed(), observation(("message", "msg-1"), source, READABLE));
        }
    }

    #[test]
    fn everything_else_stays() {
        let unknown = r#"{"id":"evt-1","type":"of.another.release","x":{"id":"msg-1"}}"#;
        for (subject, source, body) in [
            (("event", "evt-1"), Source::Webhook, unknown),
            (("event", "evt-1"), Source::Webhook, "not an envelope"),
            (("event", "evt-1"), Source::Operator, READABLE),
            (("event", "evt-1"), Source::Verdict, READABLE),
            // Keys are data: what was written about a subject is not moved to another one.
            (("message", "msg-0"), Source::Webhook, READABLE),
        ] {
            let kept = observation(subject, source, body);
            assert_eq!(kept.clone().rekeyed(), kept);
        }
    }

    #[test]
    fn a_subject_with_too_long_a_key_stays_its_own_event() {
        let kept = observation(("event", "evt-1"), Source::Webhook, READABLE);
        let tenant = "t".repeat(crate::limits::SUBJECT_KEY_BYTES_MAX);
        let kept = Observation { subject: Subject { tenant, ..kept.subject.clone() }, ..kept };
        assert_eq!(kept.clone().rekeyed(), kept);
    }
}
