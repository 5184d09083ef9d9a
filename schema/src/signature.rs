//! From bytes on a wire to a proven sender: [`Unverified`] → [`Verified`] → [`Observation`]. Must never
//! let the body of an unverified delivery be read, never compare digests in variable time, and never put
//! a secret into a message, a `Debug` or an error.

use std::fmt;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::limits::TIMESTAMP_DIGITS_MAX;
use crate::provider::EnvelopeError;
use crate::{Digest, Micros, Observation, Provider, Source, Subject};

/// A key that a provider signs with, and the name that is safe to show for it.
#[derive(Clone)]
pub struct Secret {
    label: String,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// `label` says where the secret came from (a place, a key id) and is written to the journal.
    /// `None` for an empty secret: an HMAC under an empty key proves nothing.
    pub fn new(label: impl Into<String>, bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self { label: label.into(), bytes: Zeroizing::new(bytes) })
    }

    /// The name that is safe to show.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// HMAC-SHA256 over `timestamp "." body`, as all three contracts sign.
    pub fn sign(&self, timestamp: &str, body: &[u8]) -> [u8; 32] {
        match Hmac::<Sha256>::new_from_slice(&self.bytes) {
            Ok(mut mac) => {
                mac.update(timestamp.as_bytes());
                mac.update(b".");
                mac.update(body);
                mac.finalize().into_bytes().into()
            }
            Err(_) => unreachable!("HMAC takes a key of any length"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, ******)", self.label)
    }
}

/// A provider's signature headers, strictly read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureHeader {
    /// The timestamp's digits as sent; they are part of what is signed.
    pub timestamp: String,
    /// The 32 bytes the hexadecimal text stands for.
    pub signature: [u8; 32],
    /// Which key the sender says it signed with (SHOC only).
    pub key_id: Option<String>,
}

impl SignatureHeader {
    /// The timestamp in seconds since the Unix epoch.
    pub fn signed_at(&self) -> i64 {
        // `parse_timestamp` admits at most 18 digits, which always fit.
        self.timestamp.parse().unwrap_or(i64::MAX)
    }
}

/// Signature headers that are missing, repeated or not of the contract's exact shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the signature headers are not of the shape the provider's contract gives")]
pub struct MalformedSignature;

/// Reads a positive decimal number of seconds: digits alone, no sign, no space, no leading zero.
pub fn parse_timestamp(text: &str) -> Result<String, MalformedSignature> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits && !text.starts_with('0') && text.len() <= TIMESTAMP_DIGITS_MAX {
        Ok(text.to_owned())
    } else {
        Err(MalformedSignature)
    }
}

/// Reads 64 lower-case hexadecimal characters.
pub fn parse_hex_signature(text: &str) -> Result<[u8; 32], MalformedSignature> {
    let mut bytes = [0; 32];
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(MalformedSignature);
    }
    hex::decode_to_slice(text, &mut bytes).map_err(|_| MalformedSignature)?;
    Ok(bytes)
}

/// A header value as text, where it is visible ASCII alone: no space, no control, nothing beyond.
pub fn visible_ascii(value: &[u8]) -> Result<&str, MalformedSignature> {
    if !value.iter().all(u8::is_ascii_graphic) {
        return Err(MalformedSignature);
    }
    std::str::from_utf8(value).map_err(|_| MalformedSignature)
}

/// A delivery as it arrived. Its body cannot be read: there is nothing true to read in it yet.
#[derive(Debug)]
pub struct Unverified {
    provider: Provider,
    header: SignatureHeader,
    body: Bytes,
}

/// Why a delivery was not verified. For metrics and redacted log lines only: every caller gets the same
/// answer, whichever it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Rejection {
    /// The timestamp is outside the window and the signature does not hold either.
    #[error("the timestamp is outside the window")]
    OutsideWindow,
    /// The timestamp is outside the window although the signature holds: a provider that retries without
    /// signing again, or a wrong clock.
    #[error("the signature holds, but its timestamp is outside the window")]
    StaleSigned,
    /// No candidate secret gives this signature.
    #[error("no configured secret gives this signature")]
    WrongSignature,
}

impl Unverified {
    /// A delivery of `provider` with its exact raw body.
    pub fn new(provider: Provider, header: SignatureHeader, body: Bytes) -> Self {
        Self { provider, header, body }
    }

    /// The signature headers.
    pub fn header(&self) -> &SignatureHeader {
        &self.header
    }

    /// Whether the timestamp is within `tolerance_seconds` of `now_seconds`, both directions, inclusive.
    pub fn is_inside_window(&self, now_seconds: i64, tolerance_seconds: u64) -> bool {
        now_seconds.abs_diff(self.header.signed_at()) <= tolerance_seconds
    }

    /// Verifies under every candidate secret without stopping at the first, so that the time taken does
    /// not tell which one matched.
    pub fn verify(
        self,
        candidates: &[Secret],
        now_seconds: i64,
        tolerance_seconds: u64,
    ) -> Result<Verified, Rejection> {
        let mut held = Choice::from(0);
        let mut matched = None;
        for (index, secret) in candidates.iter().enumerate() {
            let expected = secret.sign(&self.header.timestamp, &self.body);
            let equal = expected.ct_eq(&self.header.signature);
            held |= equal;
            if bool::from(equal) {
                matched = Some(index);
            }
        }
        match (bool::from(held), self.is_inside_window(now_seconds, tolerance_seconds)) {
            (false, true) => Err(Rejection::WrongSignature),
            (false, false) => Err(Rejection::OutsideWindow),
            (true, false) => Err(Rejection::StaleSigned),
            (true, true) => Ok(Verified {
                provider: self.provider,
                signed_at: self.header.signed_at(),
                secret_label: matched
                    .and_then(|index| candidates.get(index))
                    .map_or_else(String::new, |secret| secret.label.clone()),
                signature_digest: Digest::of(&self.header.signature),
                body: self.body,
            }),
        }
    }
}

/// A delivery whose sender is proven. Made by [`Unverified::verify`] alone.
#[derive(Debug)]
pub struct Verified {
    provider: Provider,
    signed_at: i64,
    secret_label: String,
    signature_digest: Digest,
    body: Bytes,
}

/// What the receiver knows of a delivery from its own configuration and clock.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// A new UUIDv7 for the observation.
    pub observation_id: Uuid,
    /// The configured endpoint's id.
    pub endpoint: String,
    /// The configured endpoint's tenant.
    pub tenant: String,
    /// When the whole request had been read.
    pub received_at: Micros,
    /// The request's `Content-Type`.
    pub content_type: Option<String>,
    /// The request's `X-Webhook-Endpoint-ID`.
    pub webhook_endpoint_id: Option<String>,
}

impl Verified {
    /// When the provider signed it, in seconds since the Unix epoch.
    pub fn signed_at(&self) -> i64 {
        self.signed_at
    }

    /// Reads the envelope and names the subject. This is the first time the body is looked at.
    pub fn observe(self, receipt: Receipt) -> Result<Observation, EnvelopeError> {
        let identity = self.provider.contract().identify(&self.body)?;
        let named =
            Subject { tenant: receipt.tenant, provider: self.provider, kind: identity.kind, id: identity.id };
        let subject = named.or_its_event(&identity.event_id);
        Ok(Observation {
            id: receipt.observation_id,
            endpoint: receipt.endpoint,
            event_id: identity.event_id,
            event_type: identity.event_type,
            subject,
            source: Source::Webhook,
            replay: identity.replay,
            signed_at: self.signed_at,
            received_at: receipt.received_at,
            secret_label: self.secret_label,
            signature_digest: self.signature_digest,
            body_digest: Digest::of(&self.body),
            body: self.body,
            content_type: receipt.content_type,
            webhook_endpoint_id: receipt.webhook_endpoint_id,
        })
    }
}
