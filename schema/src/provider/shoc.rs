//! SHOC: its three signature headers, its key document, its envelope and its work orders. Must never
//! take a replay for news, or a work order's comment for its state (SHOC contract §3–§6).

use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{Contract, EnvelopeError, Identity, required_text};
use crate::json::{self, Object};
use crate::reading::{FactReading, OrderedBy, StateReading};
use crate::signature::{
    MalformedSignature, Secret, SignatureHeader, parse_hex_signature, parse_timestamp, visible_ascii,
};
use crate::subject::KIND_EVENT;
use crate::{Micros, Reading, Unreadable};

/// Characters a delivery id, an event type, a work order id or a comment id may have; the contract sets no
/// bound, a key needs one.
const ID_CHARACTERS_MAX: usize = 255;
/// Characters a key id may have; the contract sets no bound, a header needs one.
const KEY_ID_CHARACTERS_MAX: usize = 256;
/// Bytes of a body, unless configured (SHOC contract §2: 256 KB).
const BODY_BYTES_MAX_DEFAULT: usize = 256 * 1024;
const KIND_WORK_ORDER: &str = "work_order";
/// The statuses of SHOC contract §4.1; `unknown` is a real one. Everything else is `unrecognized`.
const STATUSES: [&str; 7] =
    ["new", "assigned", "in_progress", "on_hold", "completed", "cancelled", "unknown"];
const UNRECOGNIZED: &str = "unrecognized";

pub(super) struct Shoc;

/// What an event of this type is about.
enum About {
    State,
    Comment,
    /// A `work_order.*` type that we do not know: it keeps its work order's subject.
    UnknownOfWorkOrder,
    Unknown,
}

fn about(event_type: &str) -> About {
    match event_type {
        "work_order.created" | "work_order.updated" | "work_order.cancelled" => About::State,
        "work_order.comment_added" => About::Comment,
        _ if event_type.starts_with("work_order.") => About::UnknownOfWorkOrder,
        _ => About::Unknown,
    }
}

struct Envelope<'a> {
    delivery_id: String,
    event_type: String,
    replay: bool,
    object: Object<'a>,
}

fn envelope(body: &[u8]) -> Result<Envelope<'_>, EnvelopeError> {
    let object = json::envelope(body)?;
    if object.get("schema_version").map(RawValue::get) != Some("1") {
        return Err(EnvelopeError::UnknownSchemaVersion);
    }
    let replay = match object.get("replay").map(RawValue::get) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(EnvelopeError::Field { field: "replay", problem: "is not a boolean" }),
    };
    Ok(Envelope {
        delivery_id: required_text(&object, "delivery_id", ID_CHARACTERS_MAX)?,
        event_type: required_text(&object, "event_type", ID_CHARACTERS_MAX)?,
        replay,
        object,
    })
}

impl<'a> Envelope<'a> {
    /// The work order that this event is about, and its data; `None` where the event is its own subject
    /// and has no reading.
    fn locate(&self) -> Result<Option<(String, Object<'a>)>, Unreadable> {
        match about(&self.event_type) {
            About::State => self.work_order().map(Some),
            About::Comment => {
                let (work_order_id, data) = self.work_order()?;
                // A comment without an id of its own cannot be told from the next, so it is unreadable.
                id(&data, "comment_id")?;
                Ok(Some((work_order_id, data)))
            }
            About::UnknownOfWorkOrder => Ok(self.work_order().ok()),
            About::Unknown => Ok(None),
        }
    }

    fn work_order(&self) -> Result<(String, Object<'a>), Unreadable> {
        let data = self.object.object("data")?;
        Ok((id(&data, "work_order_id")?, data))
    }
}

fn id(data: &Object<'_>, name: &str) -> Result<String, Unreadable> {
    data.text(name).filter(|id| !id.is_empty() && id.chars().count() <= ID_CHARACTERS_MAX).ok_or_else(|| {
        let reason = format!("`data.{name}` is not a string of 1 to {ID_CHARACTERS_MAX} characters");
        Unreadable { reason }
    })
}

fn time(data: &Object<'_>, name: &str) -> Option<Micros> {
    data.text(name).and_then(|text| Micros::parse(&text))
}

fn status(data: &Object<'_>) -> String {
    let raw = data.text("wo_status");
    raw.filter(|word| STATUSES.contains(&word.as_str())).unwrap_or_else(|| UNRECOGNIZED.to_owned())
}

impl Contract for Shoc {
    fn signature_headers(&self) -> &'static [&'static str] {
        &["X-SH-Timestamp", "X-SH-Key-Id", "X-SH-Signature"]
    }

    fn parse_signature(&self, values: &[&[u8]]) -> Result<SignatureHeader, MalformedSignature> {
        let [timestamp, key_id, signature] = values else { return Err(MalformedSignature) };
        let key_id = visible_ascii(key_id)?;
        if key_id.is_empty() || key_id.len() > KEY_ID_CHARACTERS_MAX {
            return Err(MalformedSignature);
        }
        let signature = visible_ascii(signature)?.strip_prefix("v1=").ok_or(MalformedSignature)?;
        Ok(SignatureHeader {
            timestamp: parse_timestamp(visible_ascii(timestamp)?)?,
            signature: parse_hex_signature(signature)?,
            key_id: Some(key_id.to_owned()),
        })
    }

    fn sign(&self, secret: &Secret, signed_at: i64, body: &[u8]) -> Vec<(&'static str, String)> {
        let timestamp = signed_at.to_string();
        let signature = hex::encode(secret.sign(&timestamp, body));
        vec![
            ("X-SH-Timestamp", timestamp),
            ("X-SH-Key-Id", secret.label().to_owned()),
            ("X-SH-Signature", format!("v1={signature}")),
        ]
    }

    fn body_bytes_max_default(&self) -> usize {
        BODY_BYTES_MAX_DEFAULT
    }

    fn identify(&self, body: &[u8]) -> Result<Identity, EnvelopeError> {
        let envelope = envelope(body)?;
        let (kind, id) = match envelope.locate() {
            Ok(Some((work_order_id, _))) => (KIND_WORK_ORDER.to_owned(), work_order_id),
            Ok(None) | Err(Unreadable { .. }) => (KIND_EVENT.to_owned(), envelope.delivery_id.clone()),
        };
        Ok(Identity {
            event_id: envelope.delivery_id,
            event_type: envelope.event_type,
            replay: envelope.replay,
            kind,
            id,
        })
    }

    fn read(&self, body: &[u8]) -> Result<Reading, Unreadable> {
        let envelope = envelope(body)?;
        let Some((_, data)) = envelope.locate()? else { return Ok(Reading::Unsupported) };
        Ok(match about(&envelope.event_type) {
            About::State => {
                let as_of = time(&data, "updated_at");
                let ordered_by = if as_of.is_some() { OrderedBy::ObjectTime } else { OrderedBy::Nothing };
                let value = data.value(status(&data), &["updated_at"]);
                Reading::State(StateReading { value, as_of, ordered_by })
            }
            About::Comment => {
                let value = data.value(envelope.event_type, &["created_at", "ingested_at"]);
                let as_of = time(&data, "created_at");
                Reading::Fact(FactReading { fact_id: id(&data, "comment_id")?, value, as_of })
            }
            About::UnknownOfWorkOrder | About::Unknown => Reading::Unsupported,
        })
    }

    fn kind_has_states(&self, kind: &str) -> bool {
        kind == KIND_WORK_ORDER
    }

    fn journal_order_breaks_ties(&self) -> bool {
        true
    }
}

/// A key document that cannot be used. The messages never show a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyDocumentError {
    /// Not the JSON object of SHOC contract §6.1. The parser's own message is left out: it may quote.
    #[error("the key document is not {{\"keys\":[{{\"kid\":\"…\",\"secret\":\"…\"}}]}} with strings in it")]
    Malformed,
    /// No key in it.
    #[error("the key document lists no key")]
    Empty,
    /// A key id that no header could name.
    #[error(
        "key {0} of the key document has no usable `kid` (1 to {KEY_ID_CHARACTERS_MAX} visible ASCII characters)"
    )]
    KeyId(usize),
    /// An empty secret.
    #[error("key {0} of the key document has an empty `secret`")]
    EmptySecret(usize),
    /// One id for two keys.
    #[error("key {0} of the key document has the `kid` of an earlier one")]
    SameKeyId(usize),
}

/// Reads the key document of SHOC contract §6.1, in its order. Each secret's label is its key id, and
/// its bytes are the characters of the secret as written.
pub fn parse_key_document(text: &str) -> Result<Vec<Secret>, KeyDocumentError> {
    #[derive(Deserialize)]
    struct Document {
        keys: Vec<Key>,
    }
    #[derive(Deserialize)]
    struct Key {
        kid: String,
        secret: String,
    }
    let document: Document = serde_json::from_str(text).map_err(|_| KeyDocumentError::Malformed)?;
    let mut secrets: Vec<Secret> = Vec::with_capacity(document.keys.len());
    for (index, key) in document.keys.into_iter().enumerate() {
        let number = index + 1;
        let usable = !key.kid.is_empty() && key.kid.len() <= KEY_ID_CHARACTERS_MAX;
        if !usable || visible_ascii(key.kid.as_bytes()).is_err() {
            return Err(KeyDocumentError::KeyId(number));
        }
        if secrets.iter().any(|secret| secret.label() == key.kid) {
            return Err(KeyDocumentError::SameKeyId(number));
        }
        let secret = Secret::new(key.kid, key.secret.into_bytes());
        secrets.push(secret.ok_or(KeyDocumentError::EmptySecret(number))?);
    }
    if secrets.is_empty() { Err(KeyDocumentError::Empty) } else { Ok(secrets) }
}
