//! Claims: which subject an inbox key is about, where more than one says so; and the verdict on a subject that
//! came later. Must never depend on anything but the claims themselves: whoever judges them again must come to
//! the same verdicts.

use apache_avro::serde_avro_fixed;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::observation::inbox_digest;
use crate::projection::Inbox;
use crate::single_object::{DecodeError, Versions};
use crate::subject::encoded;
use crate::{Digest, Micros, Observation, Provider, Source, Subject};

/// Every version of the claim's schema that was ever written; the last one is the current.
pub(crate) static CLAIM: Versions =
    Versions::new(&[(include_str!("../avro/history/claim.1.avsc"), 0x538c_686a_b806_c0b5)]);

/// The endpoint that verdicts carry. No configured endpoint can have it: a colon is no character of an id.
pub const VERDICT_ENDPOINT: &str = "witness:verdict";

/// What happened, in a verdict's history entry.
pub const VERDICT_EVENT_TYPE: &str = "witness.verdict";

/// That an observation was new to its subject, told to whoever owns its inbox key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The endpoint that received the observation.
    pub endpoint: String,
    /// The provider's id of the event.
    pub event_id: String,
    /// What the observation is about.
    pub subject: Subject,
    /// The observation.
    pub observation_id: Uuid,
    /// SHOC's operator replay flag.
    pub replay: bool,
    /// SHA-256 of its body.
    pub body_digest: Digest,
}

/// The datum, in the order of the schema's fields.
#[derive(Serialize, Deserialize)]
struct Datum {
    provider: String,
    endpoint: String,
    event_id: String,
    tenant: String,
    subject_kind: String,
    subject_id: String,
    observation_id: String,
    replay: bool,
    #[serde(with = "serde_avro_fixed")]
    body_digest: [u8; 32],
}

impl Claim {
    /// The claim of a new observation. What is not a provider's is never claimed.
    pub fn of(observation: &Observation) -> Option<Self> {
        match observation.source {
            Source::Webhook | Source::ReadApi => Some(Self {
                endpoint: observation.endpoint.clone(),
                event_id: observation.event_id.clone(),
                subject: observation.subject.clone(),
                observation_id: observation.id,
                replay: observation.replay,
                body_digest: observation.body_digest,
            }),
            Source::Verdict | Source::Operator => None,
        }
    }

    /// The inbox key as the key of a record: `provider/endpoint/event id`, each part percent-encoded.
    pub fn key(&self) -> String {
        let provider = self.subject.provider.as_str();
        format!("{provider}/{}/{}", encoded(&self.endpoint), encoded(&self.event_id))
    }

    /// The inbox key as a digest.
    pub fn inbox_digest(&self) -> Digest {
        Digest::of(self.key().as_bytes())
    }

    /// As one record's value.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let Subject { tenant, provider, kind, id } = self.subject.clone();
        let datum = Datum {
            provider: provider.as_str().to_owned(),
            endpoint: self.endpoint.clone(),
            event_id: self.event_id.clone(),
            tenant,
            subject_kind: kind,
            subject_id: id,
            observation_id: self.observation_id.to_string(),
            replay: self.replay,
            body_digest: self.body_digest.0,
        };
        CLAIM.encode(&datum, 256)
    }

    /// From one record's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = |reason: &str| DecodeError::Malformed(reason.to_owned());
        let datum: Datum = CLAIM.decode(bytes)?;
        Ok(Self {
            endpoint: datum.endpoint,
            event_id: datum.event_id,
            subject: Subject {
                tenant: datum.tenant,
                provider: Provider::from_name(&datum.provider)
                    .ok_or_else(|| malformed("`provider` is none of ours"))?,
                kind: datum.subject_kind,
                id: datum.subject_id,
            },
            observation_id: Uuid::parse_str(&datum.observation_id)
                .map_err(|_| malformed("`observation_id` is no UUID"))?,
            replay: datum.replay,
            body_digest: Digest(datum.body_digest),
        })
    }
}

/// What is decided of a subject whose claim was not the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// `duplicate` or `conflict`: what the observation would have been, had the subjects been one.
    pub verdict: Inbox,
    /// What is judged: endpoint and event id of the later subject's inbox entry, and its observation.
    pub judged: Judged,
    /// The claim that came first.
    pub winner: Winner,
}

/// The inbox entry that is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Judged {
    pub endpoint: String,
    pub event_id: String,
    pub observation_id: Uuid,
    pub body_digest: Digest,
}

/// The claim that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Winner {
    /// The key of its subject.
    pub subject: String,
    /// Its observation.
    pub observation_id: Uuid,
    /// SHA-256 of that observation's body.
    pub body_digest: Digest,
    /// SHOC's operator replay flag.
    pub replay: bool,
}

impl Winner {
    /// The first claim of its inbox key.
    pub fn of(claim: &Claim) -> Self {
        Self {
            subject: claim.subject.key(),
            observation_id: claim.observation_id,
            body_digest: claim.body_digest,
            replay: claim.replay,
        }
    }
}

impl Judged {
    /// The part of the inbox key that the subject does not fix, as [`Observation::event_digest`] has it.
    pub fn event_digest(&self) -> Digest {
        inbox_digest(&self.endpoint, &self.event_id)
    }
}

impl Verdict {
    /// Judges a claim against the first one of its inbox key; `None` where both are of one subject, whose own
    /// inbox knows what to make of them. Equal bytes are a duplicate, as where a new release reads another
    /// subject from them; and so is whatever an operator replays (SHOC contract §8).
    pub fn on(claim: &Claim, winner: &Winner) -> Option<Self> {
        let is_duplicate = claim.body_digest == winner.body_digest || claim.replay || winner.replay;
        (claim.subject.key() != winner.subject).then(|| Self {
            verdict: if is_duplicate { Inbox::Duplicate } else { Inbox::Conflict },
            judged: Judged {
                endpoint: claim.endpoint.clone(),
                event_id: claim.event_id.clone(),
                observation_id: claim.observation_id,
                body_digest: claim.body_digest,
            },
            winner: winner.clone(),
        })
    }

    /// The verdict as an observation on the later subject. Its id is made of what it judges, so that the same
    /// verdict, written again, is known for a repeat.
    pub fn observe(&self, subject: Subject, received_at: Micros) -> Result<Observation, serde_json::Error> {
        let mut hash = Sha256::new();
        hash.update(subject.key().as_bytes());
        hash.update(self.judged.event_digest().0);
        let id = hash.finalize().first_chunk().copied().unwrap_or_default();
        let id = uuid::Builder::from_custom_bytes(id).into_uuid();
        let body = serde_json::to_vec(self)?;
        Ok(Observation::ours(
            Source::Verdict,
            id,
            VERDICT_ENDPOINT,
            VERDICT_EVENT_TYPE,
            subject,
            body,
            received_at,
        ))
    }

    /// Reads the body of an observation whose source is `verdict`. The reason names what is wrong with it.
    pub fn read(observation: &Observation) -> Result<Self, String> {
        serde_json::from_slice(&observation.body).map_err(|_| "the verdict cannot be read".to_owned())
    }
}

impl Observation {
    /// An observation of our own: nobody signed it, and its event id is its own id.
    pub(crate) fn ours(
        source: Source,
        id: Uuid,
        endpoint: &str,
        event_type: &str,
        subject: Subject,
        body: Vec<u8>,
        received_at: Micros,
    ) -> Self {
        Self {
            id,
            endpoint: endpoint.to_owned(),
            event_id: id.to_string(),
            event_type: event_type.to_owned(),
            subject,
            source,
            replay: false,
            signed_at: received_at.seconds(),
            received_at,
            secret_label: String::new(),
            signature_digest: Digest::of(b""),
            body_digest: Digest::of(&body),
            body: Bytes::from(body),
            content_type: Some("application/json".to_owned()),
            webhook_endpoint_id: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str, body: &[u8], replay: bool) -> Claim {
        Claim {
            endpoint: "main".to_owned(),
            event_id: "e/1".to_owned(),
            subject: Subject {
                tenant: "acme".to_owned(),
                provider: Provider::Shoc,
                kind: "work_order".to_owned(),
                id: id.to_owned(),
            },
            observation_id: Uuid::from_u128(7),
            replay,
            body_digest: Digest::of(body),
        }
    }

    #[test]
    fn claims_are_read_back() {
        let claim = claim("w", b"1", true);
        assert_eq!(Claim::decode(&claim.encode().expect("encodes")), Ok(claim.clone()));
        assert_eq!(claim.key(), "shoc/main/e%2F1");
        assert!(matches!(Claim::decode(b"x"), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn the_later_subject_is_judged() {
        let winner = Winner::of(&claim("w", b"1", false));
        let on = |id, body, replay| Verdict::on(&claim(id, body, replay), &winner).map(|of| of.verdict);
        assert_eq!(on("w", b"2", false), None, "one subject");
        assert_eq!(on("v", b"2", false), Some(Inbox::Conflict));
        assert_eq!(on("v", b"1", false), Some(Inbox::Duplicate));
        assert_eq!(on("v", b"2", true), Some(Inbox::Duplicate));
    }

    #[test]
    fn a_verdict_written_twice_is_one() {
        let later = claim("v", b"2", false);
        let verdict = Verdict::on(&later, &Winner::of(&claim("w", b"1", false))).expect("judged");
        let observe = |at| verdict.observe(later.subject.clone(), Micros(at)).expect("JSON");
        let (one, other) = (observe(1), observe(2_000_000));
        assert_eq!(
            (one.id, one.event_digest(), one.body_digest),
            (other.id, other.event_digest(), other.body_digest)
        );
        assert_eq!(Verdict::read(&one), Ok(verdict));
        let another = claim("u", b"2", false);
        let verdict = Verdict::on(&another, &Winner::of(&claim("w", b"1", false))).expect("judged");
        assert_ne!(verdict.observe(another.subject, Micros(1)).expect("JSON").id, one.id);
    }
}
