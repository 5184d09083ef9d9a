//! The kinds of trouble, counted. Must never count what did not happen.

use std::collections::BTreeMap;
use std::fmt;

/// Everything that must have happened in every run, or it has shown nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    Duplicate,
    Conflict,
    CrossPartitionConflict,
    Tie,
    Untimed,
    Stale,
    /// A retry whose signature is older than the window.
    StaleSigned,
    Replay,
    Malformed,
    IngressCrash,
    /// Of the projector, between two steps.
    Crash,
    /// In the middle of writing the store.
    CrashInWrite,
    /// After a verdict was written, before the claims it covers were stored.
    CrashAfterVerdict,
    /// While a publication was undecided.
    CrashInPublication,
    /// The store was lost, or an old copy took its place.
    StoreLost,
    StoreOld,
    LostAcknowledgement,
    /// The provider never heard the answer.
    LostAnswer,
    LateAppend,
    Reassignment,
    Fenced,
    ClockSkew,
}

impl Trouble {
    pub const ALL: [Self; 22] = [
        Self::Duplicate,
        Self::Conflict,
        Self::CrossPartitionConflict,
        Self::Tie,
        Self::Untimed,
        Self::Stale,
        Self::StaleSigned,
        Self::Replay,
        Self::Malformed,
        Self::IngressCrash,
        Self::Crash,
        Self::CrashInWrite,
        Self::CrashAfterVerdict,
        Self::CrashInPublication,
        Self::StoreLost,
        Self::StoreOld,
        Self::LostAcknowledgement,
        Self::LostAnswer,
        Self::LateAppend,
        Self::Reassignment,
        Self::Fenced,
        Self::ClockSkew,
    ];
}

/// How often each kind has happened.
#[derive(Clone, Default)]
pub struct Troubles(BTreeMap<Trouble, u64>);

impl Troubles {
    pub fn count(&mut self, trouble: Trouble) {
        *self.0.entry(trouble).or_default() += 1;
    }

    /// The kinds that have not happened.
    pub fn missing(&self) -> Vec<Trouble> {
        Trouble::ALL.into_iter().filter(|trouble| !self.0.contains_key(trouble)).collect()
    }

    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(trouble, times)| *self.0.entry(*trouble).or_default() += times);
    }
}

impl fmt::Display for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter().map(|(trouble, times)| format!("{trouble:?} {times}")).collect();
        f.write_str(&parts.join(", "))
    }
}
