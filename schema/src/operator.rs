//! What an operator says: that an attention entry was looked at, by whom and why it may rest. Must never be
//! taken for anything a provider said.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Micros, Observation, Source, Subject};

/// The endpoint that an operator's observations carry. No configured endpoint can have it.
pub const OPERATOR_ENDPOINT: &str = "witness:operator";

/// What happened, in an acknowledgement's history entry.
pub const ACKNOWLEDGEMENT_EVENT_TYPE: &str = "witness.attention.acknowledged";

/// The kind of a subject that is an attention entry without a subject of its own.
pub const KIND_ATTENTION: &str = "attention";

/// That an attention entry was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The entry's id.
    pub attention: String,
    /// Who looked.
    pub by: String,
    /// Why it may rest.
    pub reason: String,
}

impl Acknowledged {
    /// As an observation on the entry's subject.
    pub fn observe(
        &self,
        id: Uuid,
        subject: Subject,
        received_at: Micros,
    ) -> Result<Observation, serde_json::Error> {
        let body = serde_json::to_vec(self)?;
        let (endpoint, event_type) = (OPERATOR_ENDPOINT, ACKNOWLEDGEMENT_EVENT_TYPE);
        Ok(Observation::ours(Source::Operator, id, endpoint, event_type, subject, body, received_at))
    }

    /// Reads the body of an observation whose source is `operator`. The reason names what is wrong with it.
    pub fn read(observation: &Observation) -> Result<Self, String> {
        serde_json::from_slice(&observation.body).map_err(|_| "the operator's word cannot be read".to_owned())
    }
}
