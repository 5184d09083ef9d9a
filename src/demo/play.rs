//! Plays the story over real HTTP: signs, posts, asks, and compares with what the contracts demand. Must
//! never take an expectation for an answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use schema::signature::Secret;
use schema::{Provider, Subject};
use serde_json::Value;

use super::story::{ATTENTION_EXPECTED, Delivery, Expected, Known, Look, Signed, TENANT};
use crate::client::{Answer, Client};

/// How often a question is asked again while the projector has not come so far, and how many times.
const ASK_PERIOD: Duration = Duration::from_millis(10);
const ASKS_MAX: u32 = 2_000;

/// Where the story is played.
pub(super) struct Stage {
    client: Client,
    ingress: SocketAddr,
    projector: SocketAddr,
    secrets: BTreeMap<Provider, Secret>,
    /// Seconds since the Unix epoch when the story began.
    began_at: i64,
    /// The observation id that the last accepted delivery was given.
    last_observation_id: Option<String>,
}

/// What came back for one delivery.
pub(super) struct Delivered {
    pub(super) answer: Answer,
    /// What is other than the contracts demand.
    pub(super) wrong: Vec<String>,
}

/// What came back about one subject.
pub(super) struct Seen {
    pub(super) subject: Subject,
    /// The status of the answer, and its body: a projection, or a problem.
    pub(super) projection: Answer,
    pub(super) history: Vec<Value>,
    pub(super) facts: Vec<Value>,
    pub(super) wrong: Vec<String>,
}

/// What came back of the attention list.
pub(super) struct Attention {
    pub(super) items: Vec<Value>,
    pub(super) wrong: Vec<String>,
}

impl Stage {
    pub(super) fn new(
        ingress: SocketAddr,
        projector: SocketAddr,
        secrets: BTreeMap<Provider, Secret>,
        began_at: i64,
    ) -> Self {
        Self { client: Client::local(), ingress, projector, secrets, began_at, last_observation_id: None }
    }

    pub(super) fn ingress(&self) -> SocketAddr {
        self.ingress
    }

    pub(super) fn projector(&self) -> SocketAddr {
        self.projector
    }

    pub(super) fn deliver(&mut self, delivery: &Delivery) -> anyhow::Result<Delivered> {
        let provider = delivery.provider;
        let true_secret = self.secrets.get(&provider).context("the demo has no such endpoint")?;
        let guessed = Secret::new(true_secret.label(), b"a guess".to_vec()).context("an empty guess")?;
        let url = format!("http://{}/webhooks/{}", self.ingress, endpoint_id(provider));
        let signed_at = self.began_at - delivery.signed_seconds_ago;
        let body = delivery.body.as_bytes();
        let answer = match delivery.signed {
            Signed::ByTheProvider => self.client.deliver(&url, provider, true_secret, signed_at, body),
            Signed::WithAnotherSecret => self.client.deliver(&url, provider, &guessed, signed_at, body),
            Signed::ForAnotherBody => {
                let signed = provider.contract().sign(true_secret, signed_at, b"{\"what\":\"was signed\"}");
                self.client.post(&url, provider, signed, body)
            }
        }?;
        let wrong = self.compare(delivery.expected, &answer);
        if let Some(id) = answer.text("observation_id") {
            self.last_observation_id = Some(id.to_owned());
        }
        Ok(Delivered { answer, wrong })
    }

    fn compare(&self, expected: Expected, answer: &Answer) -> Vec<String> {
        let mut wrong = Vec::new();
        let (status, code) = match expected {
            Expected::Accepted | Expected::AcceptedAsBefore => (200, None),
            Expected::Refused(status, code) => (status, Some(code)),
        };
        expect(&mut wrong, "the status", &status, &answer.status);
        expect(&mut wrong, "the code", &code, &answer.text("code"));
        let (id, last) = (answer.text("observation_id"), self.last_observation_id.as_deref());
        match expected {
            Expected::Accepted if id.is_none() || id == last => {
                wrong.push(format!("a new observation id was expected, but {id:?} came"));
            }
            Expected::AcceptedAsBefore => expect(&mut wrong, "the observation id", &last, &id),
            Expected::Accepted | Expected::Refused(..) => {}
        }
        wrong
    }

    /// Asks about a subject; where something is expected, until the projector has come that far.
    pub(super) fn look(&self, look: &Look) -> anyhow::Result<Seen> {
        let subject = Subject {
            tenant: TENANT.to_owned(),
            provider: look.provider,
            kind: look.kind.to_owned(),
            id: look.id.to_owned(),
        };
        let url = format!("/v1/subjects/{}", subject.key());
        let wanted = look.expected.as_ref().map_or(0, |known| known.history.len());
        let history = self.list(&format!("{url}/history?limit=500"), wanted)?;
        let projection = self.ask(&url)?;
        let facts = self.list(&format!("{url}/facts?limit=500"), 0)?;
        let mut seen = Seen { subject, projection, history, facts, wrong: Vec::new() };
        seen.wrong = match &look.expected {
            Some(known) => known.compare(&seen),
            None => {
                let mut wrong = Vec::new();
                expect(&mut wrong, "the status", &404, &seen.projection.status);
                wrong
            }
        };
        Ok(seen)
    }

    /// The attention list, once it has as many entries as it must have.
    pub(super) fn attention(&self) -> anyhow::Result<Attention> {
        let items = self.list("/v1/attention?limit=500", ATTENTION_EXPECTED.len())?;
        let mut kinds: Vec<&str> = items.iter().map(|item| text(item, "kind")).collect();
        kinds.sort_unstable();
        let mut wrong = Vec::new();
        expect(&mut wrong, "the attention list", &ATTENTION_EXPECTED.as_slice(), &kinds.as_slice());
        Ok(Attention { items, wrong })
    }

    /// The items of a list, asked for until there are `wanted` of them or it has been too long.
    fn list(&self, path: &str, wanted: usize) -> anyhow::Result<Vec<Value>> {
        let mut items = Vec::new();
        for _ in 0..ASKS_MAX {
            let mut answer = self.ask(path)?;
            match answer.body.get_mut("items").map(Value::take) {
                Some(Value::Array(found)) => items = found,
                // A subject that is not there yet, or a projector that is not there yet.
                Some(_) | None if matches!(answer.status, 404 | 503) => items.clear(),
                Some(_) | None => bail!("{path} answered {} without a list", answer.status),
            }
            if items.len() >= wanted {
                break;
            }
            std::thread::sleep(ASK_PERIOD);
        }
        Ok(items)
    }

    fn ask(&self, path: &str) -> anyhow::Result<Answer> {
        self.client.get(&format!("http://{}{path}", self.projector))
    }
}

impl Known {
    fn compare(&self, seen: &Seen) -> Vec<String> {
        let mut wrong = Vec::new();
        let projection = &seen.projection;
        expect(&mut wrong, "the status of the answer", &200, &projection.status);
        expect(&mut wrong, "the certainty", &Some(self.certainty), &projection.text("certainty"));
        expect(&mut wrong, "the status", &self.status, &projection.text("status"));
        let has_value = projection.body.get("value").is_some_and(|value| !value.is_null());
        expect(&mut wrong, "whether there is a value", &self.status.is_some(), &has_value);
        let needs_refresh = projection.body.get("needs_refresh").and_then(Value::as_bool);
        expect(&mut wrong, "`needs_refresh`", &Some(self.needs_refresh), &needs_refresh);
        expect(&mut wrong, "the number of facts", &self.facts, &seen.facts.len());
        let history: Vec<(&str, &str)> =
            seen.history.iter().map(|entry| (text(entry, "inbox"), text(entry, "outcome"))).collect();
        expect(&mut wrong, "the history", &self.history, &history.as_slice());
        wrong
    }
}

/// The endpoint of a provider.
pub(super) fn endpoint_id(provider: Provider) -> String {
    format!("{}-demo", provider.as_str())
}

/// A text of an answer; empty where there is none.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn expect<T: PartialEq + std::fmt::Debug>(wrong: &mut Vec<String>, what: &str, expected: &T, found: &T) {
    if expected != found {
        wrong.push(format!("{what} should be {expected:?}, but is {found:?}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(certainty: &str, status: Option<&str>) -> Seen {
        let body = json!({
            "certainty": certainty, "status": status, "value": status.map(|_| json!({})), "needs_refresh": false,
        });
        Seen {
            subject: Subject {
                tenant: TENANT.to_owned(),
                provider: Provider::YCloud,
                kind: "message".to_owned(),
                id: "m".to_owned(),
            },
            projection: Answer { status: 200, body },
            history: vec![json!({ "inbox": "new", "outcome": "applied" })],
            facts: Vec::new(),
            wrong: Vec::new(),
        }
    }

    #[test]
    fn what_is_other_than_demanded_is_named() {
        let history = &[("new", "applied")];
        let known =
            Known { certainty: "settled", status: Some("read"), needs_refresh: false, facts: 0, history };
        assert_eq!(known.compare(&seen("settled", Some("read"))), Vec::<String>::new());
        assert_eq!(
            known.compare(&seen("contested", None)),
            [
                r#"the certainty should be Some("settled"), but is Some("contested")"#,
                r#"the status should be Some("read"), but is None"#,
                "whether there is a value should be true, but is false",
            ]
        );
    }

    #[test]
    fn an_answer_at_the_door_is_compared_with_the_contract() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut stage = Stage::new(address, address, BTreeMap::new(), 0);
        stage.last_observation_id = Some("first".to_owned());
        let accepted = |id: &str| Answer { status: 200, body: json!({ "observation_id": id }) };
        let refused = Answer { status: 401, body: json!({ "code": "invalid_signature" }) };
        let wrong = |expected, answer: &Answer| stage.compare(expected, answer).len();
        assert_eq!(wrong(Expected::Accepted, &accepted("second")), 0);
        assert_eq!(wrong(Expected::Accepted, &accepted("first")), 1);
        assert_eq!(wrong(Expected::AcceptedAsBefore, &accepted("first")), 0);
        assert_eq!(wrong(Expected::AcceptedAsBefore, &accepted("second")), 1);
        assert_eq!(wrong(Expected::Refused(401, "invalid_signature"), &refused), 0);
        assert_eq!(wrong(Expected::Refused(401, "invalid_signature"), &accepted("second")), 2);
        assert_eq!(wrong(Expected::Accepted, &refused), 3);
    }
}
