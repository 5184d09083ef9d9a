//! Yutai: its signature header, its envelope, the bounds of its payload and its kinds of change. Must
//! never infer an order: the contract promises none (Yutai contract, *Delivery rules*).

use serde_json::value::RawValue;

use super::{Contract, EnvelopeError, Identity, required_text};
use crate::json::{self, Object};
use crate::reading::{FactReading, OrderedBy, StateReading};
use crate::signature::{
    MalformedSignature, Secret, SignatureHeader, parse_hex_signature, parse_timestamp, visible_ascii,
};
use crate::subject::{KIND_EVENT, joined_id};
use crate::{Micros, Reading, Unreadable};

/// Characters the signature header may have.
const HEADER_CHARACTERS_MAX: usize = 1024;
/// Characters an event id may have.
const EVENT_ID_CHARACTERS_MAX: usize = 256;
/// Characters a kind may have; the contract sets no bound, a key needs one.
const KIND_CHARACTERS_MAX: usize = 255;
/// Entries a payload may have.
const PAYLOAD_ENTRIES_MAX: usize = 32;
/// Characters a payload's key may have.
const PAYLOAD_KEY_CHARACTERS_MAX: usize = 64;
/// Characters a payload's string may have.
const PAYLOAD_TEXT_CHARACTERS_MAX: usize = 512;
/// Bytes of a body, unless configured.
const BODY_BYTES_MAX_DEFAULT: usize = 256 * 1024;

pub(super) struct Yutai;

/// What a kind of change is read as.
struct Rule {
    /// The subject's kind.
    subject: &'static str,
    /// The payload fields that make the subject's id.
    id: &'static [&'static str],
    /// All fields the kind names (Yutai contract, *What a delivery carries*).
    fields: &'static [(&'static str, Type)],
    reads: Reads,
}

/// What a field must hold.
enum Type {
    /// A string that is not empty: it becomes part of a subject's or a fact's id.
    Id,
    Text,
    /// A string or nothing: a first tier has no previous one.
    OptionalText,
    Boolean,
}

impl Type {
    fn holds(&self, raw: Option<&RawValue>) -> bool {
        let text = raw.and_then(json::text);
        match self {
            Self::Id => text.is_some_and(|text| !text.is_empty()),
            Self::Text => text.is_some(),
            Self::OptionalText => raw.is_none() || text.is_some(),
            Self::Boolean => matches!(raw.map(RawValue::get), Some("true" | "false")),
        }
    }

    fn words(&self) -> &'static str {
        match self {
            Self::Id => "a string that is not empty",
            Self::Text => "a string",
            Self::OptionalText => "a string or null",
            Self::Boolean => "a boolean",
        }
    }
}

enum Reads {
    /// State, timed by a field of the payload.
    StateAt(&'static str),
    /// State without a time.
    State,
    /// Fact whose id is the kind of change.
    FactOfKind,
    /// Fact whose id is the kind of change and a field of the payload.
    FactOfKindAnd(&'static str),
    /// Fact whose id is a field of the payload.
    FactOf(&'static str),
}

fn rule(kind: &str) -> Option<&'static Rule> {
    Some(match kind {
        "tier_changed" => &Rule {
            subject: "credential",
            id: &["credentialId"],
            fields: &[
                ("asOf", Type::Text),
                ("credentialId", Type::Id),
                ("holderId", Type::Text),
                ("previousTier", Type::OptionalText),
                ("tier", Type::Text),
            ],
            reads: Reads::StateAt("asOf"),
        },
        "benefit_unlocked" => &Rule {
            subject: "benefit",
            id: &["benefitId"],
            fields: &[("benefitId", Type::Id), ("tier", Type::Text)],
            reads: Reads::FactOfKindAnd("tier"),
        },
        "claim_confirmed" => &Rule {
            subject: "claim",
            id: &["claimId"],
            fields: &[("claimId", Type::Id), ("benefitId", Type::Text)],
            reads: Reads::FactOfKind,
        },
        "redemption_recorded" => &Rule {
            subject: "claim",
            id: &["claimId"],
            fields: &[("redemptionId", Type::Id), ("claimId", Type::Id)],
            reads: Reads::FactOf("redemptionId"),
        },
        "connect_linked" | "connect_revoked" => &Rule {
            subject: "bank_link",
            id: &["external_ref"],
            fields: &[("external_ref", Type::Id)],
            reads: Reads::State,
        },
        "owner_customer_changed" => &Rule {
            subject: "owner_customer",
            id: &["external_ref", "company_id"],
            fields: &[
                ("external_ref", Type::Id),
                ("company_id", Type::Id),
                ("owner_customer", Type::Boolean),
            ],
            reads: Reads::State,
        },
        _ => return None,
    })
}

struct Located<'a> {
    rule: &'static Rule,
    payload: Object<'a>,
    id: String,
}

/// Finds the payload of a known kind, within the contract's bounds and with its kind's fields.
fn locate<'a>(envelope: &Object<'a>, kind: &str) -> Result<Option<Located<'a>>, Unreadable> {
    let Some(rule) = rule(kind) else { return Ok(None) };
    let payload = envelope.object("payload")?;
    check_bounds(&payload)?;
    for (name, wanted) in rule.fields {
        if !wanted.holds(payload.get(name)) {
            return Err(Unreadable { reason: format!("`payload.{name}` is not {}", wanted.words()) });
        }
    }
    let parts: Vec<String> = rule.id.iter().filter_map(|name| payload.text(name)).collect();
    let id = match parts.as_slice() {
        [only] => only.clone(),
        several => joined_id(&several.iter().map(String::as_str).collect::<Vec<_>>()),
    };
    Ok(Some(Located { rule, payload, id }))
}

/// The contract's bounds: flat, at most 32 entries, keys and values of their shapes.
fn check_bounds(payload: &Object<'_>) -> Result<(), Unreadable> {
    let unreadable = |reason: String| Err(Unreadable { reason });
    if payload.fields().count() > PAYLOAD_ENTRIES_MAX {
        return unreadable(format!("`payload` has more than {PAYLOAD_ENTRIES_MAX} entries"));
    }
    for (index, (key, raw)) in payload.fields().enumerate() {
        let number = index + 1;
        if !(1..=PAYLOAD_KEY_CHARACTERS_MAX).contains(&key.len()) || !key.iter().all(|byte| is_name(*byte)) {
            return unreadable(format!(
                "the key of entry {number} of `payload` is not 1 to {PAYLOAD_KEY_CHARACTERS_MAX} of A-Za-z0-9_.-"
            ));
        }
        let fits = match raw.get().as_bytes().first() {
            Some(b'"') => {
                json::text(raw).is_some_and(|text| text.chars().count() <= PAYLOAD_TEXT_CHARACTERS_MAX)
            }
            Some(b'-' | b'0'..=b'9') => raw.get().parse::<f64>().is_ok_and(f64::is_finite),
            Some(b'{' | b'[') => false,
            Some(_) | None => true,
        };
        if !fits {
            return unreadable(format!(
                "entry {number} of `payload` is not a string of at most {PAYLOAD_TEXT_CHARACTERS_MAX} characters, a finite number, a boolean or null"
            ));
        }
    }
    Ok(())
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn event_id_and_kind(envelope: &Object<'_>) -> Result<(String, String), EnvelopeError> {
    let event_id = required_text(envelope, "eventId", EVENT_ID_CHARACTERS_MAX)?;
    if !event_id.bytes().all(|byte| is_name(byte) || byte == b':') {
        let problem = "is not 1 to 256 of A-Za-z0-9._:-";
        return Err(EnvelopeError::Field { field: "eventId", problem });
    }
    Ok((event_id, required_text(envelope, "kind", KIND_CHARACTERS_MAX)?))
}

impl Contract for Yutai {
    fn signature_headers(&self) -> &'static [&'static str] {
        &["Yutai-Signature"]
    }

    fn parse_signature(&self, values: &[&[u8]]) -> Result<SignatureHeader, MalformedSignature> {
        let [value] = values else { return Err(MalformedSignature) };
        let value = visible_ascii(value)?;
        if value.len() > HEADER_CHARACTERS_MAX {
            return Err(MalformedSignature);
        }
        let (mut timestamp, mut signature) = (None, None);
        for part in value.split(',') {
            let (name, value) = part.split_once('=').ok_or(MalformedSignature)?;
            let repeated = match name {
                "" => true,
                "t" => timestamp.replace(value).is_some(),
                "v1" => signature.replace(value).is_some(),
                _ => false,
            };
            if repeated {
                return Err(MalformedSignature);
            }
        }
        Ok(SignatureHeader {
            timestamp: parse_timestamp(timestamp.ok_or(MalformedSignature)?)?,
            signature: parse_hex_signature(signature.ok_or(MalformedSignature)?)?,
            key_id: None,
        })
    }

    fn sign(&self, secret: &Secret, signed_at: i64, body: &[u8]) -> Vec<(&'static str, String)> {
        let timestamp = signed_at.to_string();
        let signature = hex::encode(secret.sign(&timestamp, body));
        vec![("Yutai-Signature", format!("t={timestamp},v1={signature}"))]
    }

    fn body_bytes_max_default(&self) -> usize {
        BODY_BYTES_MAX_DEFAULT
    }

    fn content_type_is_optional(&self) -> bool {
        true
    }

    fn identify(&self, body: &[u8]) -> Result<Identity, EnvelopeError> {
        let envelope = json::envelope(body)?;
        let (event_id, event_type) = event_id_and_kind(&envelope)?;
        let (kind, id) = match locate(&envelope, &event_type) {
            Ok(Some(located)) => (located.rule.subject.to_owned(), located.id),
            Ok(None) | Err(Unreadable { .. }) => (KIND_EVENT.to_owned(), event_id.clone()),
        };
        Ok(Identity { event_id, event_type, replay: false, kind, id })
    }

    fn read(&self, body: &[u8]) -> Result<Reading, Unreadable> {
        let envelope = json::envelope(body)?;
        let (_, kind) = event_id_and_kind(&envelope)?;
        let Some(located) = locate(&envelope, &kind)? else { return Ok(Reading::Unsupported) };
        let field = |name: &str| located.payload.text(name).unwrap_or_default();
        let (time, fact_id) = match located.rule.reads {
            Reads::StateAt(name) => (Some(name), None),
            Reads::State => (None, None),
            Reads::FactOfKind => (None, Some(kind.clone())),
            Reads::FactOfKindAnd(name) => (None, Some(joined_id(&[&kind, &field(name)]))),
            Reads::FactOf(name) => (None, Some(field(name))),
        };
        let value = located.payload.value(kind, time.as_slice());
        let as_of = time.and_then(|name| Micros::parse(&field(name)));
        let ordered_by = if as_of.is_some() { OrderedBy::ObjectTime } else { OrderedBy::Nothing };
        Ok(match fact_id {
            None => Reading::State(StateReading { value, as_of, ordered_by }),
            Some(fact_id) => Reading::Fact(FactReading { fact_id, value, as_of }),
        })
    }

    fn kind_has_states(&self, kind: &str) -> bool {
        matches!(kind, "credential" | "bank_link" | "owner_customer")
    }

    fn needs_refresh_when_contested(&self) -> bool {
        true
    }
}
