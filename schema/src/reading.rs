//! Readings: what a provider's code says an observation claims. Must never say more than the body did.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Digest, Micros};

/// What an observation claims about its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The subject's state, whole, as the provider had it at a time.
    State(StateReading),
    /// Something that happened to the subject and does not replace what was known.
    Fact(FactReading),
    /// A type that Witness keeps but does not read.
    Unsupported,
}

/// A claim of a subject's whole state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateReading {
    /// The claimed value.
    pub value: Value,
    /// The provider's time of it; `None` where there is none, or none that names an instant.
    pub as_of: Option<Micros>,
    /// Where `as_of` was read.
    pub ordered_by: OrderedBy,
}

/// A claim that something happened once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactReading {
    /// The fact's identity within its subject.
    pub fact_id: String,
    /// What is claimed of it.
    pub value: Value,
    /// The provider's time of it, where there is one.
    pub as_of: Option<Micros>,
}

/// What orders a reading among others. The discriminants are stored: pinned, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OrderedBy {
    /// Nothing: the provider gave no time that names an instant.
    Nothing = 0,
    /// A time field of the provider's own object.
    ObjectTime = 1,
    /// The event's creation time, because objects of this kind carry no time field.
    EventTime = 2,
    /// The journal's order among equal provider times, where the contract guarantees it (SHOC).
    JournalOrder = 3,
}

/// The provider's own object as it was received, and what two of them are compared by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The provider's status word (SHOC: mapped), or the event type where the object has none.
    pub status: String,
    /// The object's exact JSON text from the body.
    pub json: String,
    /// Digest of the status and of every field but the time fields the reading names, in a form that key
    /// order, white space, escapes and the spelling of numbers do not change. Equal digests mean the
    /// same value.
    pub digest: Digest,
}

/// A verified observation that cannot be read inside; it is kept, and its outcome is `failed`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Unreadable {
    /// What is wrong, naming the field; never the body's content.
    pub reason: String,
}
