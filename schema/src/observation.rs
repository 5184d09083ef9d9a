//! Observations: deliveries whose signature held, as the journal keeps them. Must never be made from
//! anything unverified: the only ways to one are [`crate::Verified::observe`], our own words about others
//! ([`crate::Verdict::observe`], [`crate::operator::Acknowledged::observe`]) and reading the journal.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

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
