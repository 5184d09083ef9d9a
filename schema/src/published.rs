//! What is published to the projections topic: a subject's state, or a fact, each with its version, as
//! Avro. Must never carry counts or times seen: a repeat must be the same bytes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::projection::{Basis, Certainty, Evidence, EvidenceList, Fact, RawJson, State, Version};
use crate::reading::OrderedBy;
use crate::single_object::{DecodeError, Versions};
use crate::{Micros, Subject};

/// Bytes a published value may have as JSON. A larger one is left out, and found in the history by the
/// event id and body digest that stand beside it.
pub const PUBLISHED_VALUE_BYTES_MAX: usize = 32 * 1024;

pub(crate) static PROJECTION: Versions =
    Versions::new(&[(include_str!("../avro/history/projection.1.avsc"), 0x86b8_8214_362e_06de)]);
pub(crate) static FACT: Versions =
    Versions::new(&[(include_str!("../avro/history/fact.1.avsc"), 0xbe65_0612_9261_e2da)]);

/// A subject's state as it is published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedProjection {
    subject: PublishedSubject,
    certainty: String,
    status: Option<String>,
    value: Option<String>,
    as_of: Option<i64>,
    basis: Option<PublishedBasis>,
    contenders: PublishedList,
    unplaced: PublishedList,
    needs_refresh: bool,
    version: PublishedVersion,
}

/// A fact as it is published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedFact {
    subject: PublishedSubject,
    fact_id: String,
    certainty: String,
    value: Option<String>,
    as_of: Option<i64>,
    contenders: PublishedList,
    version: PublishedVersion,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PublishedSubject {
    tenant: String,
    provider: String,
    kind: String,
    id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PublishedBasis {
    event_id: String,
    body_digest: String,
    ordered_by: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PublishedList {
    total: i64,
    items: Vec<PublishedEvidence>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PublishedEvidence {
    event_id: String,
    body_digest: String,
    status: Option<String>,
    value: Option<String>,
    as_of: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PublishedVersion {
    epoch: i64,
    offset: i64,
}

impl PublishedProjection {
    /// The published form of a state.
    pub fn new(subject: &Subject, state: &State, version: Version) -> Self {
        Self {
            subject: subject.into(),
            certainty: certainty_word(state.certainty).to_owned(),
            status: state.status.clone(),
            value: value(state.value.as_ref()),
            as_of: state.as_of.map(|time| time.0),
            basis: state.basis.as_ref().map(PublishedBasis::from),
            contenders: (&state.contenders).into(),
            unplaced: (&state.unplaced).into(),
            needs_refresh: state.needs_refresh,
            version: version.into(),
        }
    }

    /// As one record's value.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        PROJECTION.encode(self, 1024)
    }

    /// From one record's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        PROJECTION.decode(bytes)
    }

    /// Orders the published forms of one key.
    pub fn version(&self) -> Version {
        self.version.into()
    }

    /// The status word, where there is a value.
    pub fn status(&self) -> Option<&str> {
        self.status.as_deref()
    }
}

impl PublishedFact {
    /// The published form of a fact.
    pub fn new(fact: &Fact, version: Version) -> Self {
        Self {
            subject: (&fact.subject).into(),
            fact_id: fact.fact_id.clone(),
            certainty: certainty_word(fact.certainty).to_owned(),
            value: value(fact.value.as_ref()),
            as_of: fact.as_of.map(|time| time.0),
            contenders: (&fact.contenders).into(),
            version: version.into(),
        }
    }

    /// As one record's value.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        FACT.encode(self, 1024)
    }

    /// From one record's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        FACT.decode(bytes)
    }

    /// Orders the published forms of one key.
    pub fn version(&self) -> Version {
        self.version.into()
    }
}

fn value(json: Option<&RawJson>) -> Option<String> {
    json.map(RawJson::get).filter(|json| json.len() <= PUBLISHED_VALUE_BYTES_MAX).map(str::to_owned)
}

const fn certainty_word(certainty: Certainty) -> &'static str {
    match certainty {
        Certainty::Settled => "settled",
        Certainty::Contested => "contested",
        Certainty::Unordered => "unordered",
        Certainty::Skeleton => "skeleton",
        Certainty::Withdrawn => "withdrawn",
    }
}

impl From<&Subject> for PublishedSubject {
    fn from(subject: &Subject) -> Self {
        let Subject { tenant, provider, kind, id } = subject.clone();
        Self { tenant, provider: Cow::from(provider.as_str()).into_owned(), kind, id }
    }
}

impl From<&Basis> for PublishedBasis {
    fn from(basis: &Basis) -> Self {
        let ordered_by = match basis.ordered_by {
            OrderedBy::Nothing => "nothing",
            OrderedBy::ObjectTime => "object_time",
            OrderedBy::EventTime => "event_time",
            OrderedBy::JournalOrder => "journal_order",
        };
        Self {
            event_id: basis.event_id.clone(),
            body_digest: basis.body_digest.to_string(),
            ordered_by: ordered_by.to_owned(),
        }
    }
}

impl From<&EvidenceList> for PublishedList {
    fn from(list: &EvidenceList) -> Self {
        Self { total: list.total as i64, items: list.items.iter().map(PublishedEvidence::from).collect() }
    }
}

impl From<&Evidence> for PublishedEvidence {
    fn from(evidence: &Evidence) -> Self {
        Self {
            event_id: evidence.event_id.clone(),
            body_digest: evidence.body_digest.to_string(),
            status: evidence.status.clone(),
            value: value(evidence.value.as_ref()),
            as_of: evidence.as_of.map(|Micros(time)| time),
        }
    }
}

impl From<Version> for PublishedVersion {
    fn from(Version { epoch, offset }: Version) -> Self {
        Self { epoch: i64::from(epoch), offset: offset as i64 }
    }
}

impl From<PublishedVersion> for Version {
    fn from(PublishedVersion { epoch, offset }: PublishedVersion) -> Self {
        Self { epoch: epoch as u32, offset: offset as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Digest, Provider};

    fn evidence(json: String) -> Evidence {
        Evidence {
            event_id: "e1".to_owned(),
            body_digest: Digest::of(b"1"),
            status: Some("sent".to_owned()),
            value: RawJson::new(json),
            as_of: Some(Micros(1_767_225_600_000_000)),
        }
    }

    fn subject() -> Subject {
        Subject { tenant: "acme".into(), provider: Provider::YCloud, kind: "message".into(), id: "m".into() }
    }

    fn state(json: String) -> State {
        State {
            certainty: Certainty::Settled,
            status: Some("sent".to_owned()),
            value: RawJson::new(json.clone()),
            as_of: Some(Micros(1_767_225_600_000_000)),
            basis: Some(Basis {
                event_id: "e1".to_owned(),
                body_digest: Digest::of(b"1"),
                ordered_by: OrderedBy::ObjectTime,
            }),
            contenders: EvidenceList { total: 20, items: vec![evidence(json.clone()), evidence(json)] },
            unplaced: EvidenceList::default(),
            needs_refresh: false,
        }
    }

    #[test]
    fn published_forms_are_read_back() {
        let version = Version { epoch: 3, offset: u64::from(u32::MAX) + 7 };
        let published =
            PublishedProjection::new(&subject(), &state(r#"{"n":9007199254740993}"#.to_owned()), version);
        let read = PublishedProjection::decode(&published.encode().expect("encodes")).expect("decodes");
        assert_eq!(read, published);
        assert_eq!(read.version(), version);
        assert_eq!(read.value.as_deref(), Some(r#"{"n":9007199254740993}"#));
        let fact = Fact {
            subject: subject(),
            fact_id: "f/1".to_owned(),
            certainty: Certainty::Contested,
            value: None,
            as_of: None,
            contenders: EvidenceList {
                total: 2,
                items: vec![evidence("{}".to_owned()), evidence("[]".to_owned())],
            },
        };
        let published = PublishedFact::new(&fact, version);
        assert_eq!(PublishedFact::decode(&published.encode().expect("encodes")), Ok(published));
    }

    #[test]
    fn a_large_value_becomes_its_event_id_and_digest() {
        let json = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        let published = |bytes| {
            PublishedProjection::new(&subject(), &state(json(bytes)), Version { epoch: 1, offset: 0 })
        };
        assert!(published(PUBLISHED_VALUE_BYTES_MAX).value.is_some());
        let large = published(PUBLISHED_VALUE_BYTES_MAX + 1);
        assert_eq!((&large.value, &large.contenders.items[0].value), (&None, &None));
        assert_eq!(
            large.basis.map(|basis| (basis.event_id, basis.body_digest)),
            Some(("e1".to_owned(), Digest::of(b"1").to_string()))
        );
    }

    #[test]
    fn a_fact_is_no_projection() {
        let fact =
            PublishedProjection::new(&subject(), &state("{}".to_owned()), Version { epoch: 1, offset: 0 });
        let bytes = fact.encode().expect("encodes");
        assert!(matches!(PublishedFact::decode(&bytes), Err(DecodeError::UnknownSchema { .. })));
    }
}
