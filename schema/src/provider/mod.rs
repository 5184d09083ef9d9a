//! The providers: one file each knows everything about its provider's contract. Adding one = one file,
//! one entry in [`Provider`], one fixtures folder. Must never let one provider's rule leak into another's.

mod shoc;
mod ycloud;
mod yutai;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::json::{self, Object};
use crate::signature::{MalformedSignature, Secret, SignatureHeader};
use crate::subject::KIND_EVENT;
use crate::{Observation, Reading, Source, Unreadable};

pub use shoc::{KeyDocumentError, parse_key_document};

/// Who sends. The numbers are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Provider {
    /// YCloud: WhatsApp, SMS, voice, email, contacts.
    YCloud = 0,
    /// SHOC: work orders and their comments.
    Shoc = 1,
    /// Yutai: holder changes, benefits, bank links.
    Yutai = 2,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::YCloud, Self::Shoc, Self::Yutai];

    /// Its name in configuration, keys and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::YCloud => "ycloud",
            Self::Shoc => "shoc",
            Self::Yutai => "yutai",
        }
    }

    /// The provider of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.as_str() == name)
    }

    /// Its rules.
    pub fn contract(self) -> &'static dyn Contract {
        match self {
            Self::YCloud => &ycloud::YCloud,
            Self::Shoc => &shoc::Shoc,
            Self::Yutai => &yutai::Yutai,
        }
    }
}

/// One provider's rules. Every method is a pure function of its arguments.
pub trait Contract: Sync {
    /// The names of the headers that carry the signature, each of which must stand exactly once.
    fn signature_headers(&self) -> &'static [&'static str];

    /// Reads the values of [`Contract::signature_headers`], in that order.
    fn parse_signature(&self, values: &[&[u8]]) -> Result<SignatureHeader, MalformedSignature>;

    /// The headers this provider would send for `body`, signed with `secret` at `signed_at` (seconds).
    fn sign(&self, secret: &Secret, signed_at: i64, body: &[u8]) -> Vec<(&'static str, String)>;

    /// Bytes a body may have unless configured.
    fn body_bytes_max_default(&self) -> usize;

    /// Whether a request without `Content-Type` is accepted.
    fn content_type_is_optional(&self) -> bool {
        false
    }

    /// Reads the envelope of a verified body: who the event is, and what it is about. A body that is
    /// authentic but unreadable inside is its own subject (kind `event`), never an error.
    fn identify(&self, body: &[u8]) -> Result<Identity, EnvelopeError>;

    /// Reads what a body, whose envelope was accepted before, claims.
    fn read(&self, body: &[u8]) -> Result<Reading, Unreadable>;

    /// Whether subjects of this kind ever have states (and so can be skeletons).
    fn kind_has_states(&self, kind: &str) -> bool;

    /// Whether the journal's order decides among equal provider times (SHOC contract §5).
    fn journal_order_breaks_ties(&self) -> bool {
        false
    }

    /// Whether contested untimed subjects should be asked for at the provider (Yutai promises no order).
    fn needs_refresh_when_contested(&self) -> bool {
        false
    }
}

/// What an envelope says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The provider's id of the event.
    pub event_id: String,
    /// The provider's word for what happened.
    pub event_type: String,
    /// The operator replay flag (SHOC).
    pub replay: bool,
    /// The subject's kind.
    pub kind: String,
    /// The subject's id.
    pub id: String,
}

/// A verified body whose envelope cannot be accepted. The messages name fields and never show content.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvelopeError {
    /// Not UTF-8.
    #[error("the body is not valid UTF-8")]
    InvalidUtf8,
    /// Begins with a byte-order mark.
    #[error("the body begins with a byte-order mark; send plain UTF-8")]
    ByteOrderMark,
    /// Not JSON at all, or more than one JSON text.
    #[error("the body is not one JSON text")]
    InvalidJson,
    /// JSON, but not an object.
    #[error("the body is JSON but not an object")]
    NotAnObject,
    /// Nested too deeply.
    #[error("the body nests deeper than {} levels", crate::limits::NESTING_LEVELS_MAX)]
    NestedTooDeeply,
    /// A key of the envelope stands twice.
    #[error("a key of the envelope stands twice")]
    DuplicateKey,
    /// A field that the envelope needs is missing or not of its type.
    #[error("the envelope's `{field}` {problem}")]
    Field {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it, and what it should be.
        problem: &'static str,
    },
    /// SHOC: a `schema_version` we do not know.
    #[error("`schema_version` must be the integer 1")]
    UnknownSchemaVersion,
}

/// A body whose envelope does not hold cannot be read inside either; only a journal written by other
/// hands than ours can bring one here.
impl From<EnvelopeError> for Unreadable {
    fn from(error: EnvelopeError) -> Self {
        Self { reason: error.to_string() }
    }
}

/// A field of the envelope that must be a string of 1 to `characters_max` characters.
fn required_text(
    envelope: &Object<'_>,
    field: &'static str,
    characters_max: usize,
) -> Result<String, EnvelopeError> {
    let raw = envelope.get(field).ok_or(EnvelopeError::Field { field, problem: "is missing" })?;
    let text = json::text(raw).ok_or(EnvelopeError::Field { field, problem: "is not a string of text" })?;
    if text.is_empty() {
        return Err(EnvelopeError::Field { field, problem: "is empty" });
    }
    if text.chars().count() > characters_max {
        return Err(EnvelopeError::Field { field, problem: "is longer than the contract allows" });
    }
    Ok(text)
}

/// Reads an observation. The subject written in the journal is the authority: an observation that was
/// kept as its own subject, because its type was unsupported or its inside unreadable when it was
/// received, stays unsupported although a later release could read it: keys are data, and only an import that
/// re-keys may change them.
pub fn read(observation: &Observation) -> Result<Reading, Unreadable> {
    match observation.source {
        Source::Webhook | Source::ReadApi => {}
        // What we said ourselves is no claim of the provider's.
        Source::Verdict | Source::Operator => return Ok(Reading::Unsupported),
    }
    let contract = observation.provider().contract();
    let reading = contract.read(&observation.body)?;
    let kept_as_event = observation.subject.kind == KIND_EVENT;
    Ok(if kept_as_event { Reading::Unsupported } else { reading })
}
