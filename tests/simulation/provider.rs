//! The providers: what they tell, how they sign it, and when they try again, each as its contract says. Must never
//! forget a delivery that was not acknowledged before its contract lets it.

use std::collections::{BTreeSet, VecDeque};

use schema::Provider;
use serde_json::{Value as Json, json};

use crate::random::Random;

/// The endpoints: id, provider, secret. One provider has two, which must not share their inboxes.
pub const ENDPOINTS: [(&str, Provider, &str); 4] = [
    ("messages", Provider::YCloud, "whsec_one"),
    ("messages-too", Provider::YCloud, "whsec_other"),
    ("orders", Provider::Shoc, "shoc secret"),
    ("members", Provider::Yutai, "yutai secret"),
];

/// The label of every secret; SHOC's is its key's id.
pub const KEY_ID: &str = "2026-07-20T00";

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Seconds between the attempts of YCloud (contract: retries) and of Yutai (page: retries).
const YCLOUD_DELAYS: [i64; 7] = [10 * SECOND, 30 * SECOND, 5 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 2 * HOUR];
const YUTAI_DELAYS: [i64; 4] = [MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR];
/// How long SHOC tries, and what it waits between two attempts at most.
const SHOC_TRIES: i64 = 24 * HOUR;
const SHOC_DELAY_MAX: i64 = HOUR;
/// How often an operator of Yutai sends a spent delivery by hand.
const YUTAI_BY_HAND: u32 = 3;

/// One event on its way to one endpoint.
#[derive(Clone)]
pub struct Delivery {
    pub endpoint: usize,
    pub event_id: String,
    pub body: Json,
    /// What is in the same queue is sent in order (SHOC: a work order's events of one family).
    queue: Option<String>,
    pub due: i64,
    began: i64,
    failures: u32,
    by_hand: u32,
    /// The last signature: the second it was made, and the headers.
    pub signed: Option<(i64, Vec<(&'static str, String)>)>,
}

/// What came of an attempt, as the provider sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Accepted,
    /// 4xx but 429.
    Refused,
    /// 429, 5xx, or nothing.
    Failed,
}

/// All providers together.
pub struct Providers {
    random: Random,
    pending: VecDeque<Delivery>,
    /// What was told so far: endpoint, event id, body.
    told: Vec<(usize, String, Json)>,
    events: u64,
    pub given_up: u64,
}

impl Providers {
    pub fn new(seed: u64) -> Self {
        Self { random: Random(seed), pending: VecDeque::new(), told: Vec::new(), events: 0, given_up: 0 }
    }

    /// Whether anything is left to deliver.
    pub fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    /// When the next delivery is due.
    pub fn next_due(&self) -> Option<i64> {
        self.first().map(|(_, delivery)| delivery.due).min()
    }

    /// Those that nothing before them keeps back.
    fn first(&self) -> impl Iterator<Item = (usize, &Delivery)> {
        let mut queues = BTreeSet::new();
        let is_first = move |(_, delivery): &(usize, &Delivery)| {
            delivery.queue.as_ref().is_none_or(|queue| queues.insert(queue.clone()))
        };
        self.pending.iter().enumerate().filter(is_first)
    }

    /// Something happens at a provider.
    pub fn tell(&mut self, now: i64) {
        let random = &mut self.random;
        let endpoint = random.below(ENDPOINTS.len() as u64) as usize;
        let known: Vec<_> = self.told.iter().filter(|(at, _, _)| *at == endpoint).collect();
        let again = (!known.is_empty()).then(|| known[random.below(known.len() as u64) as usize]);
        self.events += 1;
        let new_id = format!("event-{}", self.events);
        let (endpoint, event_id, body) = match (random.below(100), again) {
            // The same event id with another content: about the same thing, or about another.
            (0..3, Some((_, event_id, known))) => (endpoint, event_id.clone(), altered(known)),
            (3..9, Some((_, event_id, _))) => {
                (endpoint, event_id.clone(), body(random, ENDPOINTS[endpoint].1, event_id))
            }
            // The same event once more, as after an answer that was slow.
            (9..14, Some((_, event_id, known))) => (endpoint, event_id.clone(), known.clone()),
            // The same event id at another endpoint of the provider is another event.
            (14..18, Some((_, event_id, known))) if ENDPOINTS[endpoint].1 == Provider::YCloud => {
                (1 - endpoint, event_id.clone(), known.clone())
            }
            // An operator's replay of something that was delivered: rebuilt, so of other bytes.
            (18..24, Some((_, event_id, known))) if ENDPOINTS[endpoint].1 == Provider::Shoc => {
                (endpoint, event_id.clone(), replayed(known))
            }
            _ => (endpoint, new_id.clone(), body(random, ENDPOINTS[endpoint].1, &new_id)),
        };
        self.told.push((endpoint, event_id.clone(), body.clone()));
        let order = &body["data"]["work_order_id"];
        let queue = order.as_str().map(|order| {
            let family = if body["event_type"] == "work_order.comment_added" { "comments" } else { "states" };
            format!("{order} {family}")
        });
        self.pending.push_back(Delivery {
            endpoint,
            event_id,
            body,
            queue,
            due: now,
            began: now,
            failures: 0,
            by_hand: 0,
            signed: None,
        });
    }

    /// A delivery that is due. It is answered with [`Providers::heard`].
    pub fn take(&mut self, now: i64) -> Option<Delivery> {
        let due: Vec<_> = self.first().filter(|(_, of)| of.due <= now).map(|(at, _)| at).collect();
        let at = *due.get(self.random.below(due.len().max(1) as u64) as usize)?;
        // What blocks a queue keeps its place in it.
        self.pending.get(at).cloned()
    }

    /// What came of an attempt. Answers whether the event was replayed by an operator for it.
    pub fn heard(&mut self, delivery: Delivery, heard: Heard, now: i64) {
        let at = self.pending.iter().position(|pending| {
            (pending.endpoint, &pending.event_id, &pending.body, pending.began)
                == (delivery.endpoint, &delivery.event_id, &delivery.body, delivery.began)
        });
        let at = at.expect("it is pending");
        let pending = &mut self.pending[at];
        *pending = Delivery { failures: pending.failures + 1, signed: delivery.signed, ..pending.clone() };
        let failures = pending.failures as usize;
        let delay = match (heard, ENDPOINTS[pending.endpoint].1) {
            // At least once: some are sent again although they were accepted.
            (Heard::Accepted, _) if self.random.below(25) == 0 => {
                pending.failures -= 1;
                Some(SECOND + self.random.below(5) as i64 * MINUTE)
            }
            (Heard::Accepted, _) => None,
            (Heard::Refused | Heard::Failed, Provider::YCloud) => YCLOUD_DELAYS.get(failures - 1).copied(),
            (Heard::Refused | Heard::Failed, Provider::Yutai) => match YUTAI_DELAYS.get(failures - 1) {
                Some(delay) => Some(*delay),
                None if pending.by_hand < YUTAI_BY_HAND && self.random.below(2) == 0 => {
                    pending.by_hand += 1;
                    pending.failures = 0;
                    Some(HOUR)
                }
                None => None,
            },
            (Heard::Failed, Provider::Shoc) if now - pending.began < SHOC_TRIES => {
                Some((SECOND << failures.min(12)).min(SHOC_DELAY_MAX))
            }
            // Parked, and replayed by an operator later; the queue goes on meanwhile.
            (Heard::Failed | Heard::Refused, Provider::Shoc) => {
                let parked = self.pending.remove(at).expect("it is pending");
                let due = now + HOUR;
                let body = replayed(&parked.body);
                self.pending.push_back(Delivery {
                    body,
                    due,
                    began: now,
                    failures: 0,
                    signed: None,
                    ..parked
                });
                return;
            }
        };
        match delay {
            Some(delay) => pending.due = now + delay,
            None => {
                self.given_up += u64::from(heard != Heard::Accepted);
                self.pending.remove(at);
            }
        }
    }
}

/// Rebuilt by the operator's tool: the same event, other bytes.
fn replayed(body: &Json) -> Json {
    let mut body = body.clone();
    body["replay"] = json!(true);
    body["rebuilt"] = json!(true);
    body
}

/// The same event about the same thing, with another content.
fn altered(body: &Json) -> Json {
    let mut body = body.clone();
    for place in [
        "/whatsappMessage/n",
        "/whatsappInboundMessage/text",
        "/data/wo_status",
        "/data/text",
        "/payload/tier",
    ] {
        if let Some(content) = body.pointer_mut(place) {
            *content = json!("altered");
        }
    }
    body
}

/// What an event says. Few subjects, times and values, so that they meet.
fn body(random: &mut Random, provider: Provider, event_id: &str) -> Json {
    let time = format!("2026-03-01T10:00:{:02}Z", random.below(12));
    let time = (random.below(6) != 0).then_some(time);
    let number = random.below(16);
    let content = random.below(2);
    match provider {
        Provider::YCloud if random.below(30) == 0 => {
            json!({"id": event_id, "type": "unheard.of", "x": number})
        }
        // A message without an id: kept, and unreadable.
        Provider::YCloud if random.below(30) == 0 => {
            json!({"id": event_id, "type": "whatsapp.message.updated", "whatsappMessage": {"x": number}})
        }
        Provider::YCloud if random.below(5) == 0 => {
            let message = json!({"id": format!("inbound-{number}"), "text": content, "sendTime": time});
            json!({"id": event_id, "type": "whatsapp.inbound_message.received", "whatsappInboundMessage": message})
        }
        Provider::YCloud => {
            let status = ["accepted", "sent", "delivered", "read", "failed"][random.below(5) as usize];
            let message = json!({"id": format!("message-{number}"), "status": status, "updateTime": time, "n": content});
            json!({"id": event_id, "type": "whatsapp.message.updated", "whatsappMessage": message})
        }
        Provider::Shoc => {
            let order = format!("order-{number}");
            let (event_type, data) = if random.below(2) == 0 {
                let status = ["new", "assigned", "completed", "asleep"][random.below(4) as usize];
                let kind = ["created", "updated", "cancelled"][random.below(3) as usize];
                let data = json!({"work_order_id": order, "wo_status": status, "updated_at": time});
                (format!("work_order.{kind}"), data)
            } else {
                let comment = format!("comment#{}", random.below(6));
                let data = json!({"work_order_id": order, "comment_id": comment, "text": content, "created_at": time});
                ("work_order.comment_added".to_owned(), data)
            };
            json!({"schema_version": 1, "delivery_id": event_id, "event_type": event_type, "replay": false, "data": data})
        }
        Provider::Yutai => {
            let tier = format!("Tier {}", random.below(3));
            let (kind, payload) = match random.below(4) {
                0 => ("connect_linked", json!({"external_ref": format!("customer-{number}")})),
                1 => ("connect_revoked", json!({"external_ref": format!("customer-{number}")})),
                2 => ("benefit_unlocked", json!({"benefitId": format!("benefit-{number}"), "tier": tier})),
                _ => (
                    "tier_changed",
                    json!({"credentialId": format!("credential-{number}"), "tier": tier, "asOf": time}),
                ),
            };
            json!({"eventId": event_id, "kind": kind, "payload": payload})
        }
    }
}
