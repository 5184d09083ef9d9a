//! Deliveries to measure with. Must never be random: both sides of a ratio get the same ones.

use bytes::Bytes;
use schema::Provider;
use schema::signature::Secret;
use serde_json::json;

/// Bytes of every body.
pub(crate) const BODY_BYTES: usize = 438;

/// What all of them are signed with.
pub(crate) const KEY: &[u8] = b"whsec_0123456789abcdef0123456789abcdef";

/// A body of exactly [`BODY_BYTES`], about one of so many subjects.
pub(crate) fn body(provider: Provider, number: u64, subjects: u64) -> Bytes {
    let text = |padding: usize| {
        let (event_id, padding) = (format!("event-{number:012}"), "x".repeat(padding));
        let (subject, minute) = (format!("subject-{:06}", number % subjects), number / 60 % 60);
        let time = format!("2026-03-01T10:{minute:02}:{:02}.000Z", number % 60);
        let body = match provider {
            Provider::YCloud => {
                json!({"id": event_id, "type": "whatsapp.message.updated", "apiVersion": "v2",
                "createTime": time, "whatsappMessage": {"id": subject, "status": "delivered", "updateTime": time,
                "from": "+10000000001", "to": "+10000000002", "text": padding}})
            }
            Provider::Shoc => {
                json!({"schema_version": 1, "delivery_id": event_id, "event_type": "work_order.updated",
                "occurred_at": time, "data": {"work_order_id": subject, "wo_status": "assigned", "updated_at": time,
                "description": padding}})
            }
            Provider::Yutai => {
                json!({"eventId": event_id, "kind": "tier_changed", "payload": {"credentialId": subject,
                "asOf": time, "tier": "Tier 2", "previousTier": "Tier 1", "note": padding}})
            }
        };
        body.to_string().into_bytes()
    };
    let body = text(BODY_BYTES - text(0).len());
    assert_eq!(body.len(), BODY_BYTES);
    body.into()
}

/// Signs all of them.
pub(crate) fn secret() -> Secret {
    Secret::new("current", KEY.to_vec()).expect("a secret")
}
