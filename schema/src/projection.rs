//! The shapes of Witness's answers, and the words they are made of. Must never be changed
//! in a way that breaks a reader: others build on them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::reading::OrderedBy;
use crate::{Digest, Micros, Subject};

/// How far an answer can be relied on. The discriminants are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Certainty {
    /// One value has the greatest provider time, or the subject's kind never has states.
    Settled = 0,
    /// The provider's own claims contradict each other and nothing orders them.
    Contested = 1,
    /// All claims agree, but none carries a provider time.
    Unordered = 2,
    /// A subject of a kind that has states, known so far only through other things.
    Skeleton = 3,
    /// Everything known of it was judged a conflict.
    Withdrawn = 4,
}

/// What the inbox says of an observation. The discriminants are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Inbox {
    /// The first under its inbox key.
    New = 0,
    /// The same inbox key and the same payload as before (or either copy is an operator replay).
    Duplicate = 1,
    /// The same inbox key with another payload: kept, never folded.
    Conflict = 2,
}

/// What the projector did with an observation. The discriminants are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Outcome {
    /// It became the value, or a new fact.
    Applied = 0,
    /// It says what was known already.
    NoChange = 1,
    /// It is older than what is known.
    OutOfOrder = 2,
    /// It contradicts what is known at the same provider time, or a fact under the same id.
    Contested = 3,
    /// It carries no time to place it by, and differs from what is known.
    Unordered = 4,
    /// Its type has no reading.
    Unsupported = 5,
    /// It cannot be read inside.
    Failed = 6,
    /// The inbox kept it out: a duplicate or a conflict.
    NotRun = 7,
}

/// A JSON text that is written into an answer as it stands.
#[derive(Clone, Debug)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// `None` when `text` is not JSON.
    pub fn new(text: String) -> Option<Self> {
        RawValue::from_string(text).ok().map(Self)
    }

    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

/// The part of a projection that converges: the same for every order in which the same accepted
/// observations arrive, and for any number of repeats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    /// How far it can be relied on.
    pub certainty: Certainty,
    /// The status word of `value`; null where there is no value.
    pub status: Option<String>,
    /// The provider's own object; null where none can be named honestly.
    pub value: Option<RawJson>,
    /// The provider's time of `value` (of the contenders, where contested by time).
    pub as_of: Option<Micros>,
    /// The evidence `value` stands on; null where there is no value.
    pub basis: Option<Basis>,
    /// The distinct values that compete, where more than one does (SHOC: that tied).
    pub contenders: EvidenceList,
    /// Distinct values without a provider time, where a timed one is known.
    pub unplaced: EvidenceList,
    /// The provider promises no order and its claims contradict each other: ask the provider.
    pub needs_refresh: bool,
}

/// Which observation a value was taken from, and what made it the one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Basis {
    /// The provider's id of the event.
    pub event_id: String,
    /// SHA-256 of its body.
    pub body_digest: Digest,
    /// What placed it before the others.
    pub ordered_by: OrderedBy,
}

/// The first of several distinct values, sorted by (as of, body digest), and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EvidenceList {
    /// All distinct values.
    pub total: u64,
    /// The first [`crate::limits::EVIDENCE_SHOWN_MAX`].
    pub items: Vec<Evidence>,
}

/// One distinct value and the observation that represents it (the least body digest among equals).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// The provider's id of the event.
    pub event_id: String,
    /// SHA-256 of its body.
    pub body_digest: Digest,
    /// Its status word.
    pub status: Option<String>,
    /// The provider's own object.
    pub value: Option<RawJson>,
    /// The provider's time of it.
    pub as_of: Option<Micros>,
}

/// The current answer about one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Projection {
    /// What it is about.
    pub subject: Subject,
    /// What is known.
    #[serde(flatten)]
    pub state: State,
    /// What was seen.
    pub meta: Meta,
}

/// What was seen of a subject, as opposed to what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Meta {
    /// Rises with every observation that changed the published state, and with nothing else.
    pub version: Version,
    /// Observations by inbox classification.
    pub observations: ObservationCounts,
    /// Observations by outcome.
    pub outcomes: OutcomeCounts,
    /// Journal time of the first.
    pub first_observed_at: Micros,
    /// Journal time of the last.
    pub last_observed_at: Micros,
}

/// Orders all published forms of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Rises with a changed derivation, an import or a reset of the log.
    pub epoch: u32,
    /// Offset of the last observation that changed the published bytes.
    pub offset: u64,
}

/// Observations of a subject by inbox classification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it, and ARCHITECTURE.md explains the words")]
pub struct ObservationCounts {
    pub total: u64,
    pub new: u64,
    pub duplicate: u64,
    pub conflict: u64,
}

/// Observations of a subject by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it, and ARCHITECTURE.md explains the words")]
pub struct OutcomeCounts {
    pub applied: u64,
    pub no_change: u64,
    pub out_of_order: u64,
    pub contested: u64,
    pub unordered: u64,
    pub unsupported: u64,
    pub failed: u64,
    pub not_run: u64,
}

/// One fact of a subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fact {
    /// What it happened to.
    pub subject: Subject,
    /// Its identity within the subject.
    pub fact_id: String,
    /// `settled`, or `contested` where one id carries several values; `withdrawn` after a verdict.
    pub certainty: Certainty,
    /// The provider's own object; null where contested.
    pub value: Option<RawJson>,
    /// The provider's time of it.
    pub as_of: Option<Micros>,
    /// The distinct values, where there are several.
    pub contenders: EvidenceList,
}

/// One observation in a subject's history.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it, and ARCHITECTURE.md explains the words")]
pub struct HistoryEntry {
    pub observation_id: uuid::Uuid,
    pub event_id: String,
    pub event_type: String,
    pub endpoint: String,
    pub source: crate::Source,
    pub inbox: Inbox,
    pub outcome: Outcome,
    /// Why, where the outcome does not say it all (failed, conflict, a noted difference).
    pub reason: Option<String>,
    pub signed_at: Micros,
    pub received_at: Micros,
    pub provider_time: Option<Micros>,
    pub body_digest: Digest,
    pub partition: u32,
    pub offset: u64,
    /// The exact body in base64, only with `?body=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// Why an entry stands in the attention list. The discriminants are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum AttentionKind {
    /// An event id came twice with different payloads.
    Conflict = 0,
    /// A subject or fact is contested.
    Contested = 1,
    /// A subject is known only through claims without a time.
    Unordered = 2,
    /// A verified body could not be read inside.
    Failed = 3,
    /// Bytes in the journal that are no observation.
    Malformed = 4,
}

impl AttentionKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Conflict, Self::Contested, Self::Unordered, Self::Failed, Self::Malformed];

    /// Its name in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Contested => "contested",
            Self::Unordered => "unordered",
            Self::Failed => "failed",
            Self::Malformed => "malformed",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Something a person should look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it, and ARCHITECTURE.md explains the words")]
pub struct Attention {
    pub id: String,
    pub kind: AttentionKind,
    pub subject: Option<Subject>,
    pub observation_id: Option<uuid::Uuid>,
    pub event_id: Option<String>,
    pub reason: String,
    pub since: Micros,
    pub acknowledged: Option<Acknowledgement>,
}

/// Who looked at an attention entry, and why it may rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Acknowledgement {
    pub by: String,
    pub reason: String,
    pub at: Micros,
}

/// A page of a list. `next` is null on the last page; a cursor stays good when new data arrives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page<T> {
    /// In the list's own order.
    pub items: Vec<T>,
    /// Pass as `after` for the next page.
    pub next: Option<String>,
}
