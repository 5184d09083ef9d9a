//! One digest of all that a partition's answers are made of: equal wherever the same log was derived, in whatever
//! batches, on whatever machine, after export and import. Must never take in where something stands: partition,
//! offset and version differ from journal to journal.

use std::collections::HashSet;

use schema::avro::decode;
use schema::projection::Inbox;
use schema::{Digest, Micros, Observation, Source};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::keys::SubjectRecord;
use super::{Error, SubjectFilter, View};
use crate::derive::Entry;

/// The digest of one partition, and what went into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionDigest {
    /// The partition.
    pub partition: u32,
    /// The store's next offset when it was computed.
    pub offset: u64,
    /// SHA-256 over every observation, projection, history entry and fact.
    pub digest: Digest,
    /// Records read of the log, verdicts that were written again aside.
    pub observations: u64,
    /// Subjects known.
    pub subjects: u64,
}

/// Feeds a hash with parts, each after its length, so that no two lists of parts are the same bytes.
struct Parts(Sha256);

impl Parts {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    fn time(&mut self, time: Micros) {
        self.0.update(time.0.to_be_bytes());
    }

    fn json(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let bytes = serde_json::to_vec(value).map_err(|error| Error::Packing(error.to_string()))?;
        self.bytes(&bytes);
        Ok(())
    }

    fn optional(&mut self, text: Option<&str>) {
        self.number(u64::from(text.is_some()));
        self.bytes(text.unwrap_or_default().as_bytes());
    }

    fn observation(&mut self, observation: &Observation) {
        self.bytes(observation.id.as_bytes());
        self.bytes(observation.subject.key().as_bytes());
        for text in [&observation.endpoint, &observation.event_id, &observation.event_type] {
            self.bytes(text.as_bytes());
        }
        self.number(observation.source as u64);
        self.number(u64::from(observation.replay));
        self.time(Micros(observation.signed_at));
        self.time(observation.received_at);
        self.bytes(observation.secret_label.as_bytes());
        self.bytes(&observation.signature_digest.0);
        self.bytes(&observation.body_digest.0);
        self.optional(observation.content_type.as_deref());
        self.optional(observation.webhook_endpoint_id.as_deref());
    }

    fn entry(&mut self, entry: &Entry) {
        self.bytes(&entry.event.0);
        self.bytes(&entry.body.0);
        self.number(u64::from(entry.replay));
        self.number(entry.inbox as u64);
        self.number(entry.verdict.map_or(u64::MAX, |verdict| verdict.inbox as u64));
        self.number(entry.outcome as u64);
        self.number(u64::from(entry.differs));
        self.number(entry.source as u64);
        self.time(entry.journal_time);
    }
}

impl View<'_> {
    /// The digest of a partition as it stands. Reads all of it: no batch is applied meanwhile.
    pub fn digest(&self, partition: u32) -> Result<PartitionDigest, Error> {
        let mut parts = Parts(Sha256::new());
        let (mut observations, mut subjects) = (0, 0);
        let mut verdicts = HashSet::new();
        for item in self.store.observations_from(partition, 0)? {
            let (_, value) = item?;
            match decode(&value) {
                // A verdict written again, as after a crash or an import, is the same one.
                Ok(verdict) if verdict.source == Source::Verdict && !verdicts.insert(verdict.id) => continue,
                Ok(observation) => parts.observation(&observation),
                Err(_) => parts.bytes(&value),
            }
            observations += 1;
        }
        parts.number(observations);
        for item in self.subjects(partition, &SubjectFilter::default(), None)? {
            let (key, record) = item?;
            subjects += 1;
            self.subject_digest(&mut parts, partition, &key, &record)?;
        }
        parts.number(subjects);
        let digest = Digest(parts.0.finalize().into());
        let offset = self.meta(partition)?.next_offset;
        Ok(PartitionDigest { partition, offset, digest, observations, subjects })
    }

    fn subject_digest(
        &self,
        parts: &mut Parts,
        partition: u32,
        key: &str,
        record: &SubjectRecord,
    ) -> Result<(), Error> {
        let subject = schema::Subject::from_key(key)
            .ok_or_else(|| Error::Packing(format!("{key} is no subject's key")))?;
        parts.bytes(key.as_bytes());
        let projection = record.fold.projection(&subject);
        parts.json(&projection.state)?;
        parts.json(&projection.meta.observations)?;
        parts.json(&projection.meta.outcomes)?;
        parts.time(projection.meta.first_observed_at);
        parts.time(projection.meta.last_observed_at);
        let mut entries = self.entries(partition, key, record, None, usize::MAX)?;
        entries.retain(|entry| entry.source != Source::Verdict || entry.inbox == Inbox::New);
        parts.number(entries.len() as u64);
        entries.iter().for_each(|entry| parts.entry(entry));
        for item in self.facts(partition, key, None)? {
            let (fact_key, record) = item?;
            parts.bytes(fact_key.as_bytes());
            let fact_id = schema::subject::fact_id_of(&fact_key).unwrap_or_default();
            parts.json(&record.fold.fact(&subject, &fact_id))?;
        }
        Ok(())
    }
}
