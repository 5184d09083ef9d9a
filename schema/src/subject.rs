//! Subjects: what an observation is about, the key that names one in the journal, in the store and in
//! URLs, and the partition that key belongs to. Must never change a key once written: keys are data.

use std::fmt;
use std::num::NonZeroU32;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::Provider;
use crate::limits::SUBJECT_KEY_BYTES_MAX;

/// Everything but `A-Za-z0-9-._~` is percent-encoded in a key.
const KEY_PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The kind of a subject that is only its own event: a type without a reading, or an unreadable body.
pub const KIND_EVENT: &str = "event";

/// What an observation is about. Ordered as its parts are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// Whose it is; from configuration, never from a delivery.
    pub tenant: String,
    /// Who speaks about it.
    pub provider: Provider,
    /// What kind of thing it is, e.g. `message`, `work_order`.
    pub kind: String,
    /// The provider's id of it; ids of several parts are joined by [`joined_id`].
    pub id: String,
}

impl Subject {
    /// The key `tenant/provider/kind/id`, each part percent-encoded.
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            encoded(&self.tenant),
            self.provider.as_str(),
            encoded(&self.kind),
            encoded(&self.id)
        )
    }

    /// The key of one fact of this subject: the subject's key, `/`, the fact id percent-encoded.
    pub fn fact_key(&self, fact_id: &str) -> String {
        format!("{}/{}", self.key(), encoded(fact_id))
    }

    /// Reads a key that [`Subject::key`] wrote; `None` for any other text.
    pub fn from_key(key: &str) -> Option<Self> {
        let mut parts = key.split('/');
        let subject = Self {
            tenant: decoded(parts.next()?)?,
            provider: Provider::from_name(parts.next()?)?,
            kind: decoded(parts.next()?)?,
            id: decoded(parts.next()?)?,
        };
        (parts.next().is_none() && subject.key() == key).then_some(subject)
    }

    /// This subject, or the event as its own subject where the key is longer than one may be.
    pub(crate) fn or_its_event(self, event_id: &str) -> Self {
        if self.key().len() <= SUBJECT_KEY_BYTES_MAX {
            self
        } else {
            Self { kind: KIND_EVENT.to_owned(), id: event_id.to_owned(), ..self }
        }
    }

    /// The partition of this subject, and so of all its observations and facts, among `partitions`.
    pub fn partition(&self, partitions: NonZeroU32) -> u32 {
        partition_of(self.key().as_bytes(), partitions)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}

/// An id made of several parts: the percent-encoded parts joined by `+`, so that no two lists of parts
/// share an id.
pub fn joined_id(parts: &[&str]) -> String {
    parts.iter().map(|part| encoded(part)).collect::<Vec<_>>().join("+")
}

/// One part of a key, percent-encoded (all but `A-Za-z0-9-._~`).
pub fn encoded(part: &str) -> String {
    utf8_percent_encode(part, KEY_PART).to_string()
}

fn decoded(part: &str) -> Option<String> {
    percent_decode_str(part).decode_utf8().ok().map(|text| text.into_owned())
}

/// The fact id in a key that [`Subject::fact_key`] wrote; `None` for any other text.
pub fn fact_id_of(fact_key: &str) -> Option<String> {
    let (subject, fact_id) = fact_key.rsplit_once('/')?;
    Subject::from_key(subject).and_then(|_| decoded(fact_id))
}

/// The partition of a key, as Kafka's Java default partitioner computes it, so that any Kafka client can
/// co-partition.
pub fn partition_of(key: &[u8], partitions: NonZeroU32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions.get()
}

/// Kafka's murmur2 (seed `0x9747b28c`). Written here because the partition of a key is part of our data
/// format, and the function is shorter than the review of a dependency for it.
pub fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ (bytes.len() as u32);
    let mut words = bytes.chunks_exact(4);
    for word in words.by_ref() {
        let word = word.iter().rev().fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
        let mut k = word.wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        hash ^= tail.iter().rev().fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Apache Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_is_kafkas() {
        for (text, expected) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, expected, "{text}");
        }
    }

    #[test]
    fn a_key_names_one_subject() {
        let subject = Subject {
            tenant: "acme/eu".into(),
            provider: Provider::YCloud,
            kind: "email".into(),
            id: joined_id(&["e+1", "jane@example.test"]),
        };
        assert_eq!(subject.id, "e%2B1+jane%40example.test");
        assert_eq!(subject.key(), "acme%2Feu/ycloud/email/e%252B1%2Bjane%2540example.test");
        assert_eq!(Subject::from_key(&subject.key()), Some(subject.clone()));
        assert_eq!(subject.fact_key("a/b"), "acme%2Feu/ycloud/email/e%252B1%2Bjane%2540example.test/a%2Fb");
        for text in
            ["", "a/b/c/d", "acme/ycloud/message", "acme/ycloud/message/a/b", "acme/ycloud/message/%7E"]
        {
            assert_eq!(Subject::from_key(text), None, "{text}");
        }
    }
}
