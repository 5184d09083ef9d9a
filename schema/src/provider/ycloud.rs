//! YCloud: its signature header, its envelope, and the table of its event types. Must never rank
//! statuses, alias legacy type names, or take a message id for an event id (YCloud contract, *Event
//! identity and message lifecycle*).

use super::{Contract, EnvelopeError, Identity, required_text};
use crate::json::{self, Object};
use crate::reading::{FactReading, OrderedBy, StateReading};
use crate::signature::{
    MalformedSignature, Secret, SignatureHeader, parse_hex_signature, parse_timestamp, visible_ascii,
};
use crate::subject::{KIND_EVENT, joined_id};
use crate::{Micros, Reading, Unreadable};

/// Characters an event id may have.
const EVENT_ID_CHARACTERS_MAX: usize = 255;
/// Characters an event type may have; the longest in the catalog has 41.
const EVENT_TYPE_CHARACTERS_MAX: usize = 255;
/// Characters one part of a subject's id may have; more is not an id, and would be a key for ever.
const SUBJECT_ID_CHARACTERS_MAX: usize = 512;
/// Bytes of a body, unless configured.
const BODY_BYTES_MAX_DEFAULT: usize = 1024 * 1024;

pub(super) struct YCloud;

/// What one payload of an event type is read as.
struct Rule {
    /// The envelope field that holds the object.
    payload: &'static str,
    /// The subject's kind; `None` names it after the event type, because the payload shows one aspect of
    /// an object and one aspect must not replace another.
    kind: Option<&'static str>,
    /// The parts of the subject's id: for each part the fields of the object to take, the first present.
    id: &'static [&'static [&'static str]],
    /// The object's time fields, the first present counts; none means the event's `createTime`.
    times: &'static [&'static str],
    reads: Reads,
}

enum Reads {
    State,
    /// A fact whose id is the subject's own.
    FactOfSubject,
    /// A fact whose id is the event's: a delta.
    FactOfEvent,
}

const MESSAGE: Rule = Rule {
    payload: "whatsappMessage",
    kind: Some("message"),
    id: &[&["id"]],
    times: &["updateTime"],
    reads: Reads::State,
};
const INBOUND_MESSAGE: Rule = Rule {
    payload: "whatsappInboundMessage",
    kind: Some("inbound_message"),
    id: &[&["id"]],
    times: &["sendTime"],
    reads: Reads::FactOfSubject,
};
const GROUP: Rule = Rule {
    payload: "whatsappGroup",
    kind: None,
    id: &[&["groupId", "requestId"]],
    times: &["webhookTime"],
    reads: Reads::State,
};
const CONTACT: Rule = Rule {
    payload: "contactCreated",
    kind: Some("contact"),
    id: &[&["id"]],
    times: &["updateTime", "createTime"],
    reads: Reads::State,
};
const UNSUBSCRIPTION: Rule = Rule {
    payload: "contactUnsubscribeCreated",
    kind: Some("unsubscription"),
    id: &[&["phoneNumber"]],
    times: &["updateTime"],
    reads: Reads::State,
};

/// The table of event types. A type with two rules is read by the first whose payload is there; a type
/// without a rule is unsupported.
fn rules(event_type: &str) -> &'static [Rule] {
    match event_type {
        "whatsapp.message.updated" => &[MESSAGE],
        "whatsapp.smb.message.echoes" | "whatsapp.smb.history" => &[
            Rule { times: &["updateTime", "sendTime"], ..MESSAGE },
            Rule { times: &["updateTime", "sendTime"], ..INBOUND_MESSAGE },
        ],
        "whatsapp.inbound_message.received" => &[INBOUND_MESSAGE],
        "sms.message.updated" => &[Rule { payload: "sms", kind: Some("sms"), ..MESSAGE }],
        "voice.message.updated" => &[Rule { payload: "voice", kind: Some("voice"), ..MESSAGE }],
        "sms.inbound.received" => {
            &[Rule { payload: "smsInbound", kind: Some("inbound_sms"), ..INBOUND_MESSAGE }]
        }
        "email.delivery.updated" => &[Rule {
            payload: "emailDelivery",
            kind: Some("email"),
            id: &[&["emailId"], &["recipientAddress"]],
            times: &[],
            ..MESSAGE
        }],
        "whatsapp.template.category_updated"
        | "whatsapp.template.quality_updated"
        | "whatsapp.template.reviewed" => &[Rule {
            payload: "whatsappTemplate",
            kind: None,
            id: &[&["wabaId"], &["name"], &["language"]],
            ..MESSAGE
        }],
        "whatsapp.payment.updated" => &[Rule {
            payload: "whatsappPayment",
            kind: Some("payment"),
            id: &[&["wabaId"], &["referenceId"]],
            times: &[],
            ..MESSAGE
        }],
        "whatsapp.group.lifecycle_update"
        | "whatsapp.group.settings_update"
        | "whatsapp.group.status_update" => &[GROUP],
        "whatsapp.group.participants_update" => {
            &[Rule { kind: Some("group_participants"), reads: Reads::FactOfEvent, ..GROUP }]
        }
        "contact.created" => &[CONTACT],
        "contact.deleted" => &[Rule { payload: "contactDeleted", ..CONTACT }],
        "contact.unsubscribe.created" => &[UNSUBSCRIPTION],
        "contact.unsubscribe.deleted" => &[Rule { payload: "contactUnsubscribeDeleted", ..UNSUBSCRIPTION }],
        _ if event_type.starts_with("whatsapp.phone_number.") => &[Rule {
            payload: "whatsappPhoneNumber",
            kind: None,
            id: &[&["id", "phoneNumber"]],
            times: &[],
            ..MESSAGE
        }],
        _ if event_type.starts_with("whatsapp.business_account.") => {
            &[Rule { payload: "whatsappBusinessAccount", kind: None, times: &[], ..MESSAGE }]
        }
        _ => &[],
    }
}

/// A payload found in a body, and whom it is about.
struct Located<'a> {
    rule: &'static Rule,
    object: Object<'a>,
    kind: String,
    id: String,
}

fn locate<'a>(envelope: &Object<'a>, event_type: &str) -> Result<Option<Located<'a>>, Unreadable> {
    let rules = rules(event_type);
    let Some(first) = rules.first() else { return Ok(None) };
    let rule = rules.iter().find(|rule| envelope.get(rule.payload).is_some()).unwrap_or(first);
    let object = envelope.object(rule.payload)?;
    let parts = rule.id.iter().map(|names| id_part(&object, rule.payload, names));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let id = match parts.as_slice() {
        [only] => only.clone(),
        several => joined_id(&several.iter().map(String::as_str).collect::<Vec<_>>()),
    };
    let kind = rule.kind.unwrap_or(event_type).to_owned();
    Ok(Some(Located { rule, object, kind, id }))
}

fn id_part(object: &Object<'_>, payload: &str, names: &[&str]) -> Result<String, Unreadable> {
    let unreadable =
        |problem: String| Unreadable { reason: format!("`{payload}.{}` {problem}", names.join("` or `")) };
    let present = names.iter().find_map(|name| object.get(name));
    let raw = present.ok_or_else(|| unreadable("is missing".to_owned()))?;
    json::text(raw)
        .filter(|id| !id.is_empty() && id.chars().count() <= SUBJECT_ID_CHARACTERS_MAX)
        .ok_or_else(|| unreadable(format!("is not a string of 1 to {SUBJECT_ID_CHARACTERS_MAX} characters")))
}

/// The time of a payload, and where it was read. A field that is there but names no instant leaves the
/// reading untimed: the next field would be another time than the provider meant.
fn time_of(located: &Located<'_>, envelope: &Object<'_>) -> (Option<Micros>, OrderedBy) {
    let (raw, ordered_by) = if located.rule.times.is_empty() {
        (envelope.get("createTime"), OrderedBy::EventTime)
    } else {
        (located.rule.times.iter().find_map(|name| located.object.get(name)), OrderedBy::ObjectTime)
    };
    match raw.and_then(json::text).and_then(|text| Micros::parse(&text)) {
        Some(time) => (Some(time), ordered_by),
        None => (None, OrderedBy::Nothing),
    }
}

fn event_id_and_type(envelope: &Object<'_>) -> Result<(String, String), EnvelopeError> {
    Ok((
        required_text(envelope, "id", EVENT_ID_CHARACTERS_MAX)?,
        required_text(envelope, "type", EVENT_TYPE_CHARACTERS_MAX)?,
    ))
}

impl Contract for YCloud {
    fn signature_headers(&self) -> &'static [&'static str] {
        &["YCloud-Signature"]
    }

    fn parse_signature(&self, values: &[&[u8]]) -> Result<SignatureHeader, MalformedSignature> {
        let [value] = values else { return Err(MalformedSignature) };
        let (timestamp, signature) = visible_ascii(value)?
            .strip_prefix("t=")
            .and_then(|rest| rest.split_once(",s="))
            .ok_or(MalformedSignature)?;
        Ok(SignatureHeader {
            timestamp: parse_timestamp(timestamp)?,
            signature: parse_hex_signature(signature)?,
            key_id: None,
        })
    }

    fn sign(&self, secret: &Secret, signed_at: i64, body: &[u8]) -> Vec<(&'static str, String)> {
        let timestamp = signed_at.to_string();
        let signature = hex::encode(secret.sign(&timestamp, body));
        vec![("YCloud-Signature", format!("t={timestamp},s={signature}"))]
    }

    fn body_bytes_max_default(&self) -> usize {
        BODY_BYTES_MAX_DEFAULT
    }

    fn identify(&self, body: &[u8]) -> Result<Identity, EnvelopeError> {
        let envelope = json::envelope(body)?;
        let (event_id, event_type) = event_id_and_type(&envelope)?;
        let (kind, id) = match locate(&envelope, &event_type) {
            Ok(Some(located)) => (located.kind, located.id),
            Ok(None) | Err(Unreadable { .. }) => (KIND_EVENT.to_owned(), event_id.clone()),
        };
        Ok(Identity { event_id, event_type, replay: false, kind, id })
    }

    fn read(&self, body: &[u8]) -> Result<Reading, Unreadable> {
        let envelope = json::envelope(body)?;
        let (event_id, event_type) = event_id_and_type(&envelope)?;
        let Some(located) = locate(&envelope, &event_type)? else { return Ok(Reading::Unsupported) };
        let status = located.object.text("status").unwrap_or(event_type);
        let value = located.object.value(status, located.rule.times);
        let (as_of, ordered_by) = time_of(&located, &envelope);
        Ok(match located.rule.reads {
            Reads::State => Reading::State(StateReading { value, as_of, ordered_by }),
            Reads::FactOfSubject => Reading::Fact(FactReading { fact_id: located.id, value, as_of }),
            Reads::FactOfEvent => Reading::Fact(FactReading { fact_id: event_id, value, as_of }),
        })
    }

    fn kind_has_states(&self, kind: &str) -> bool {
        !matches!(kind, "inbound_message" | "inbound_sms" | "group_participants" | KIND_EVENT)
    }
}
