//! The demo's story as data: what is sent, and what the providers' contracts demand of the answers. Must
//! never be what the demo prints as an outcome: that is read from the answers alone.

use schema::Provider;
use serde_json::{Value, json};

/// The tenant of every endpoint of the demo.
pub(super) const TENANT: &str = "acme";

/// One part of the story.
pub(super) struct Chapter {
    pub(super) title: &'static str,
    /// What the reader should know before.
    pub(super) opening: &'static str,
    pub(super) steps: Vec<Step>,
}

pub(super) enum Step {
    Deliver(Delivery),
    Look(Look),
}

/// One request to the door.
pub(super) struct Delivery {
    /// What happens here, for the reader.
    pub(super) words: &'static str,
    pub(super) provider: Provider,
    pub(super) body: String,
    pub(super) signed: Signed,
    /// When it was signed, before the story began.
    pub(super) signed_seconds_ago: i64,
    pub(super) expected: Expected,
}

/// Who made the signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Signed {
    ByTheProvider,
    /// By someone who has to guess the secret.
    WithAnotherSecret,
    /// By the provider, for a body that was changed afterwards.
    ForAnotherBody,
}

/// What the contracts demand of an answer at the door.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// 200 with a new observation id.
    Accepted,
    /// 200 with the observation id of the delivery before: nothing was written.
    AcceptedAsBefore,
    /// This status and problem code.
    Refused(u16, &'static str),
}

/// A question about one subject.
pub(super) struct Look {
    pub(super) provider: Provider,
    pub(super) kind: &'static str,
    pub(super) id: &'static str,
    pub(super) expected: Option<Known>,
}

/// What the contracts demand of what is known; `None` in its place demands that nothing is.
pub(super) struct Known {
    pub(super) certainty: &'static str,
    pub(super) status: Option<&'static str>,
    pub(super) needs_refresh: bool,
    pub(super) facts: usize,
    /// Inbox classification and outcome of every observation, in journal order.
    pub(super) history: &'static [(&'static str, &'static str)],
}

/// The kinds of entries that must stand in the attention list at the end, sorted.
pub(super) const ATTENTION_EXPECTED: [&str; 3] = ["conflict", "contested", "failed"];

/// The whole story.
pub(super) fn chapters() -> Vec<Chapter> {
    vec![message(), forger(), work_order(), bank_link(), unread()]
}

fn deliver(words: &'static str, provider: Provider, body: &Value) -> Delivery {
    Delivery {
        words,
        provider,
        body: body.to_string(),
        signed: Signed::ByTheProvider,
        signed_seconds_ago: 30,
        expected: Expected::Accepted,
    }
}

impl Delivery {
    fn refused(self, status: u16, code: &'static str) -> Step {
        Step::Deliver(Self { expected: Expected::Refused(status, code), ..self })
    }

    fn accepted(self) -> Step {
        Step::Deliver(self)
    }
}

/// A YCloud event about one WhatsApp message.
fn whatsapp(event_id: &str, message_id: &str, status: &str, update_time: &str) -> Value {
    json!({
        "id": event_id,
        "type": "whatsapp.message.updated",
        "apiVersion": "v2",
        "createTime": update_time,
        "whatsappMessage": {
            "id": message_id,
            "status": status,
            "from": "+15550100",
            "to": "+15550199",
            "type": "text",
            "text": { "body": "Your table for four is booked for 19:30." },
            "updateTime": update_time,
        },
    })
}

fn message() -> Chapter {
    const MESSAGE: &str = "msg-7f3a";
    let ycloud = |words, body: &Value| deliver(words, Provider::YCloud, body);
    let delivered = whatsapp("evt-2", MESSAGE, "delivered", "2026-07-16T09:00:04.000Z");
    let again = Delivery {
        signed_seconds_ago: 20,
        ..ycloud("YCloud sends evt-2 again, signed anew: it did not see our answer in time", &delivered)
    };
    Chapter {
        title: "A WhatsApp message",
        opening: "A restaurant confirms a table. YCloud reports what becomes of the message: at least once, \
                  in any order.",
        steps: vec![
            ycloud(
                "evt-1 says the message was sent at 09:00:02",
                &whatsapp("evt-1", MESSAGE, "sent", "2026-07-16T09:00:02.000Z"),
            )
            .accepted(),
            ycloud("evt-2 says it was delivered at 09:00:04", &delivered).accepted(),
            Step::Deliver(Delivery {
                expected: Expected::AcceptedAsBefore,
                ..ycloud("the very same request comes once more, byte for byte", &delivered)
            }),
            again.accepted(),
            ycloud(
                "evt-2 a third time, but now it says that the message failed",
                &whatsapp("evt-2", MESSAGE, "failed", "2026-07-16T09:00:09.000Z"),
            )
            .accepted(),
            ycloud(
                "evt-0 arrives late: accepted at 09:00:01, before all of this",
                &whatsapp("evt-0", MESSAGE, "accepted", "2026-07-16T09:00:01.000Z"),
            )
            .accepted(),
            Step::Look(Look {
                provider: Provider::YCloud,
                kind: "message",
                id: MESSAGE,
                expected: Some(Known {
                    certainty: "settled",
                    status: Some("delivered"),
                    needs_refresh: false,
                    facts: 0,
                    history: &[
                        ("new", "applied"),
                        ("new", "applied"),
                        ("duplicate", "not_run"),
                        ("conflict", "not_run"),
                        ("new", "out_of_order"),
                    ],
                }),
            }),
        ],
    }
}

fn forger() -> Chapter {
    const MESSAGE: &str = "msg-0bad";
    let body = whatsapp("evt-9", MESSAGE, "read", "2026-07-16T09:30:00.000Z");
    let forged = |words, signed, signed_seconds_ago| {
        Delivery { signed, signed_seconds_ago, ..deliver(words, Provider::YCloud, &body) }
            .refused(401, "invalid_signature")
    };
    Chapter {
        title: "Someone who is not YCloud",
        opening: "Anyone can reach a webhook's address. Only the provider can sign. Every failure gets one and \
                  the same answer.",
        steps: vec![
            forged("a body signed with a guessed secret", Signed::WithAnotherSecret, 30),
            forged("a true signature over a body that was changed on the way", Signed::ForAnotherBody, 30),
            forged("a true signature, ten minutes old: a recording", Signed::ByTheProvider, 600),
            Step::Look(Look { provider: Provider::YCloud, kind: "message", id: MESSAGE, expected: None }),
        ],
    }
}

/// A SHOC event.
fn shoc(version: u64, delivery_id: &str, event_type: &str, replay: bool, data: &Value) -> Value {
    json!({
        "schema_version": version,
        "delivery_id": delivery_id,
        "event_type": event_type,
        "occurred_at": "2026-07-16T14:03:22.114208+00:00",
        "source": "demo",
        "replay": replay,
        "data": data,
    })
}

const WORK_ORDER: &str = "11144580730";

fn work_order_data(status: &str, updated_at: &str) -> Value {
    json!({
        "work_order_id": WORK_ORDER,
        "wo_status": status,
        "description": "Dock door 14 will not close",
        "priority": "Medium",
        "updated_at": updated_at,
    })
}

fn work_order() -> Chapter {
    let send = |words, body: &Value| deliver(words, Provider::Shoc, body);
    let update = |words, delivery_id, event_type, status, updated_at| {
        send(words, &shoc(1, delivery_id, event_type, false, &work_order_data(status, updated_at))).accepted()
    };
    let comment = json!({
        "work_order_id": WORK_ORDER,
        "comment_id": "11144580730#1",
        "record_type": "comment",
        "commenter": "Technician",
        "text": "On my way.",
        "created_at": "2026-07-16T14:03:20",
    });
    let created = work_order_data("assigned", "2026-07-16T14:03:22.114208+00:00");
    let look = |certainty, status, history| {
        Step::Look(Look {
            provider: Provider::Shoc,
            kind: "work_order",
            id: WORK_ORDER,
            expected: Some(Known { certainty, status, needs_refresh: false, facts: 1, history }),
        })
    };
    Chapter {
        title: "A work order, told in the wrong order",
        opening: "SHOC signs with keys that rotate, repeats itself, and lets an operator replay what was missed.",
        steps: vec![
            send(
                "a comment comes first, on a work order nobody has heard of",
                &shoc(1, "d-1", "work_order.comment_added", false, &comment),
            )
            .accepted(),
            look("skeleton", None, &[("new", "applied")]),
            send(
                "now the work order itself: created, assigned",
                &shoc(1, "d-2", "work_order.created", false, &created),
            )
            .accepted(),
            update(
                "in progress since 15:10",
                "d-4",
                "work_order.updated",
                "in_progress",
                "2026-07-16T15:10:00+00:00",
            ),
            update(
                "a stale snapshot: on hold at 14:40",
                "d-3",
                "work_order.updated",
                "on_hold",
                "2026-07-16T14:40:00+00:00",
            ),
            send(
                "an operator replays d-2, rebuilt and marked as a replay",
                &shoc(1, "d-2", "work_order.created", true, &created),
            )
            .accepted(),
            update(
                "16:00, with a status word that no contract knows",
                "d-5",
                "work_order.updated",
                "awaiting_parts",
                "2026-07-16T18:00:00+02:00",
            ),
            send(
                "an envelope of schema version 2, which does not exist yet",
                &shoc(2, "d-6", "work_order.updated", false, &created),
            )
            .refused(422, "unknown_schema_version"),
            look(
                "settled",
                Some("unrecognized"),
                &[
                    ("new", "applied"),
                    ("new", "applied"),
                    ("new", "applied"),
                    ("new", "out_of_order"),
                    ("duplicate", "not_run"),
                    ("new", "applied"),
                ],
            ),
        ],
    }
}

fn bank_link() -> Chapter {
    const CUSTOMER: &str = "customer-4471";
    let event = |event_id: &str, kind: &str| json!({ "eventId": event_id, "kind": kind, "payload": { "external_ref": CUSTOMER } });
    let look = |certainty, status, needs_refresh, history| {
        Step::Look(Look {
            provider: Provider::Yutai,
            kind: "bank_link",
            id: CUSTOMER,
            expected: Some(Known { certainty, status, needs_refresh, facts: 0, history }),
        })
    };
    Chapter {
        title: "A bank link: linked, or revoked?",
        opening: "Yutai promises no order, and these two changes carry no time. Receive time is never order.",
        steps: vec![
            deliver(
                "a customer's bank account was linked",
                Provider::Yutai,
                &event("link-1", "connect_linked"),
            )
            .accepted(),
            look("unordered", Some("connect_linked"), false, &[("new", "applied")]),
            deliver(
                "a customer's bank account was revoked",
                Provider::Yutai,
                &event("link-2", "connect_revoked"),
            )
            .accepted(),
            look("contested", None, true, &[("new", "applied"), ("new", "unordered")]),
        ],
    }
}

fn unread() -> Chapter {
    let hologram = json!({
        "id": "evt-20",
        "type": "whatsapp.hologram.projected",
        "createTime": "2026-07-16T10:00:00.000Z",
        "whatsappHologram": { "id": "holo-1" },
    });
    let nameless = json!({
        "id": "evt-21",
        "type": "whatsapp.message.updated",
        "createTime": "2026-07-16T10:00:01.000Z",
        "whatsappMessage": { "status": "sent" },
    });
    let look = |id, history| {
        Step::Look(Look {
            provider: Provider::YCloud,
            kind: "event",
            id,
            expected: Some(Known {
                certainty: "settled",
                status: None,
                needs_refresh: false,
                facts: 0,
                history,
            }),
        })
    };
    Chapter {
        title: "What nobody can read yet",
        opening: "An authentic delivery is never thrown away for what is inside it.",
        steps: vec![
            deliver("an event type from the future", Provider::YCloud, &hologram).accepted(),
            deliver("a message update that forgot to say which message", Provider::YCloud, &nameless)
                .accepted(),
            look("evt-20", &[("new", "unsupported")]),
            look("evt-21", &[("new", "failed")]),
        ],
    }
}
