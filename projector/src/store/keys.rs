//! Every key and value the store keeps, in one place. Must never be changed without raising
//! [`LAYOUT_VERSION`]: what is described here is on disks already.
//!
//! One tree for each (topic, partition), named `observations/<partition>` and `claims/<partition>`. The first byte of a key is its
//! table; integers are big-endian, so that keys sort as their numbers do. `KEY` is a subject's key
//! (`tenant/provider/kind/id`, percent-encoded, so never a byte 0). Values but blocks are postcard.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `a` attention | kind (1 byte), observation id (16 bytes) | [`AttentionRecord`] |
//! | `b` block | first offset (`u64`) | [`encode_block`]: raw length (`u32`), then zstd of offset (`u64`), length (`u32`), value, … |
//! | `c` claim winners (claims alone) | inbox digest (32 bytes) | [`ClaimRecord`] |
//! | `f` facts | `KEY`, `/`, fact id percent-encoded | [`FactRecord`] |
//! | `i` index | `KEY`, 0, event digest (32 bytes) | the [`Entry`] that was first under it, once its page is sealed |
//! | `m` meta | nothing more | [`Meta`] |
//! | `p` pages | `KEY`, 0, page number (`u32`) | `Vec<Entry>`, exactly [`PAGE_ENTRIES`] of them |
//! | `s` subject | `KEY` | [`SubjectRecord`] |

use schema::claim::Winner;
use schema::projection::{Acknowledgement, AttentionKind};
use schema::{Digest, Micros};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::derive::{Entry, FactFold, SubjectFold};

/// The layout this file describes. A store of another one is refused.
pub const LAYOUT_VERSION: u32 = 2;

/// Entries of a subject's history that a sealed page holds.
pub const PAGE_ENTRIES: usize = 32;

/// Bytes of observations that one block packs before it is compressed, unless one alone has more.
pub const BLOCK_RAW_BYTES: usize = 128 * 1024;

/// The key of [`Meta`].
pub const META: &[u8] = b"m";

/// Where the store stands in its partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`LAYOUT_VERSION`] when it was written.
    pub layout: u32,
    /// The epoch of the derivation that wrote it.
    pub epoch: u32,
    /// The next offset to read: all before it is in the store.
    pub next_offset: u64,
    /// Offset and id of the observation (of a claim: that claims) read last, to notice a log that was
    /// rewritten under us.
    pub last_observation: Option<(u64, Uuid)>,
    /// Journal time: the greatest `received_at` so far, in microseconds.
    pub journal_time: Micros,
}

/// A subject, its open page of history, and where its sealed pages are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectRecord {
    /// What is known and seen.
    pub fold: SubjectFold,
    /// The entries since the last sealed page, at most [`PAGE_ENTRIES`].
    pub recent: Vec<Entry>,
    /// How many pages are sealed.
    pub pages: u32,
    /// The attention entry that is open for the subject's certainty.
    pub attention: Option<AttentionKey>,
}

/// A fact, and its open attention entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactRecord {
    /// What is known.
    pub fold: FactFold,
    /// The attention entry that is open because it is contested.
    pub attention: Option<AttentionKey>,
}

/// What names an attention entry: the observation that raised it, and why. Ordered by time; stored kind by
/// kind, so that a list of one kind reads nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttentionKey {
    /// A UUIDv7, so that entries sort by time; of bytes that are no observation, one made of their place.
    pub observation: Uuid,
    /// Why.
    pub kind: AttentionKind,
}

/// Something a person should look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionRecord {
    /// The subject's key, unless the bytes were no observation.
    pub subject: Option<String>,
    /// The provider's event id of the observation that raised it.
    pub event_id: Option<String>,
    /// What is wrong; never content.
    pub reason: String,
    /// Journal time when it was raised.
    pub since: Micros,
    /// Where the observations stand that it is about, where it is about some in particular.
    pub offsets: Vec<u64>,
    /// Who looked at it, and why it may rest.
    pub acknowledged: Option<Acknowledgement>,
}

/// The first claim of an inbox key, and the other subjects that a verdict was given on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The claim that stands.
    pub winner: Winner,
    /// Keys of the subjects that came later.
    pub judged: Vec<String>,
}

/// Key of the first claim of an inbox key.
pub fn claim(inbox: Digest) -> Vec<u8> {
    [b"c", &inbox.0[..]].concat()
}

/// Key of a block.
pub fn block(first_offset: u64) -> Vec<u8> {
    [b"b", &first_offset.to_be_bytes()[..]].concat()
}

/// Key of a subject, and the start of the keys of all subjects whose keys begin so.
pub fn subject(key: &str) -> Vec<u8> {
    [b"s", key.as_bytes()].concat()
}

/// Key of a fact, given its fact key.
pub fn fact(fact_key: &str) -> Vec<u8> {
    [b"f", fact_key.as_bytes()].concat()
}

/// Key of a sealed page.
pub fn page(subject_key: &str, number: u32) -> Vec<u8> {
    [b"p", subject_key.as_bytes(), &[0], &number.to_be_bytes()].concat()
}

/// Key of an index entry.
pub fn index(subject_key: &str, event: Digest) -> Vec<u8> {
    [b"i", subject_key.as_bytes(), &[0], &event.0].concat()
}

impl AttentionKey {
    /// Key of the entry.
    pub fn key(self) -> Vec<u8> {
        [b"a", &[self.kind as u8], &self.observation.as_bytes()[..]].concat()
    }

    /// The entry's name in answers.
    pub fn id(self) -> String {
        format!("{}-{}", self.observation, self.kind.as_str())
    }

    /// Reads a name that [`AttentionKey::id`] wrote.
    pub fn from_id(id: &str) -> Option<Self> {
        let (observation, kind) = id.rsplit_once('-')?;
        Some(Self { observation: Uuid::parse_str(observation).ok()?, kind: AttentionKind::from_name(kind)? })
    }

    /// The entry of malformed bytes: journal time, partition and offset in the form of a UUIDv7, so that it
    /// sorts by time as the others do, and the same bytes at the same place get the same one again.
    pub fn malformed(journal_time: Micros, partition: u32, offset: u64) -> Self {
        let millis = u64::try_from(journal_time.0 / 1_000).unwrap_or_default();
        let place = (u128::from(partition) << 64 | u128::from(offset)).to_be_bytes();
        let place = place.last_chunk().copied().unwrap_or_default();
        let observation = uuid::Builder::from_unix_timestamp_millis(millis, &place).into_uuid();
        Self { observation, kind: AttentionKind::Malformed }
    }

    /// Reads a key that [`AttentionKey::key`] wrote.
    pub fn from_key(key: &[u8]) -> Option<Self> {
        let (table, rest) = key.split_first()?;
        let (kind, observation) = rest.split_first()?;
        let kind = AttentionKind::ALL.into_iter().find(|known| *known as u8 == *kind)?;
        let observation = Uuid::from_bytes(observation.try_into().ok()?);
        (*table == b'a').then_some(Self { observation, kind })
    }
}

/// Packs records as they were read into the value of a block.
pub fn encode_block(records: &[(u64, bytes::Bytes)]) -> std::io::Result<Vec<u8>> {
    let mut raw = Vec::with_capacity(records.iter().map(|(_, value)| value.len() + 12).sum());
    for (offset, value) in records {
        raw.extend_from_slice(&offset.to_be_bytes());
        raw.extend_from_slice(&(value.len() as u32).to_be_bytes());
        raw.extend_from_slice(value);
    }
    let mut block = (raw.len() as u32).to_be_bytes().to_vec();
    block.extend(zstd::bulk::compress(&raw, 1)?);
    Ok(block)
}

/// Unpacks a block; `None` when it is damaged.
pub fn decode_block(block: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let (length, packed) = block.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > schema::limits::RECORD_BYTES_MAX + BLOCK_RAW_BYTES + 1024 {
        return None;
    }
    let raw = zstd::bulk::decompress(packed, length).ok().filter(|raw| raw.len() == length)?;
    let mut rest = raw.as_slice();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (offset, after) = rest.split_first_chunk::<8>()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        records.push((u64::from_be_bytes(*offset), value.to_vec()));
        rest = after;
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use schema::Source;
    use schema::projection::{Inbox, Outcome};

    use super::*;
    use crate::derive::Voided;

    fn entry() -> impl Strategy<Value = Entry> {
        (
            any::<u64>(),
            any::<[u8; 32]>(),
            any::<[u8; 32]>(),
            any::<bool>(),
            0_usize..3,
            0_usize..8,
            any::<bool>(),
            0_usize..4,
            any::<i64>(),
            prop::option::of((any::<u64>(), 1_usize..3)),
        )
            .prop_map(
                |(offset, event, body, replay, inbox, outcome, differs, source, time, verdict)| Entry {
                    source: [Source::Webhook, Source::ReadApi, Source::Verdict, Source::Operator][source],
                    journal_time: Micros(time),
                    verdict: verdict.map(|(offset, inbox)| Voided {
                        offset,
                        inbox: [Inbox::New, Inbox::Duplicate, Inbox::Conflict][inbox],
                    }),
                    offset,
                    event: Digest(event),
                    body: Digest(body),
                    replay,
                    inbox: [Inbox::New, Inbox::Duplicate, Inbox::Conflict][inbox],
                    outcome: [
                        Outcome::Applied,
                        Outcome::NoChange,
                        Outcome::OutOfOrder,
                        Outcome::Contested,
                        Outcome::Unordered,
                        Outcome::Unsupported,
                        Outcome::Failed,
                        Outcome::NotRun,
                    ][outcome],
                    differs,
                },
            )
    }

    proptest! {
        #[test]
        fn blocks_round_trip(records in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20)) {
            let packed: Vec<_> = records.iter().map(|(offset, value)| (*offset, value.clone().into())).collect();
            prop_assert_eq!(decode_block(&encode_block(&packed)?), Some(records));
        }

        #[test]
        fn damaged_blocks_are_answered(mut bytes in prop::collection::vec(any::<u8>(), 0..60), at in 0_usize..200, byte in any::<u8>()) {
            drop(decode_block(&bytes));
            bytes = encode_block(&[(7, bytes.clone().into())])?;
            let length = bytes.len();
            bytes[at % length] = byte;
            drop(decode_block(&bytes));
        }

        #[test]
        fn attention_keys_round_trip_and_sort_by_time(one in any::<u128>(), other in any::<u128>(), kind in 0_usize..5) {
            let key = |id: u128| AttentionKey { observation: Uuid::from_u128(id), kind: AttentionKind::ALL[kind] };
            prop_assert_eq!(AttentionKey::from_key(&key(one).key()), Some(key(one)));
            prop_assert_eq!(AttentionKey::from_id(&key(one).id()), Some(key(one)));
            prop_assert_eq!(key(one).key() < key(other).key(), one < other);
        }

        #[test]
        fn entries_round_trip(entries in prop::collection::vec(entry(), 0..40)) {
            let bytes = postcard::to_stdvec(&entries).expect("writable");
            prop_assert_eq!(postcard::from_bytes::<Vec<Entry>>(&bytes).expect("readable"), entries);
        }
    }

    /// The bytes of an entry, pinned: enum numbers are positions here, and must never move.
    #[test]
    fn the_layout_is_pinned() {
        let entry = Entry {
            offset: 300,
            event: Digest([1; 32]),
            body: Digest([2; 32]),
            replay: true,
            inbox: Inbox::Conflict,
            outcome: Outcome::NotRun,
            differs: false,
            source: Source::ReadApi,
            journal_time: Micros(-3),
            verdict: Some(Voided { offset: 9, inbox: Inbox::Duplicate }),
        };
        let bytes = postcard::to_stdvec(&entry).expect("writable");
        let wanted = [&[0xac, 0x02][..], &[1; 32], &[2; 32], &[1, 2, 7, 0, 1, 5, 1, 9, 1]].concat();
        assert_eq!(bytes, wanted);
        for (index, outcome) in [
            Outcome::Applied,
            Outcome::NoChange,
            Outcome::OutOfOrder,
            Outcome::Contested,
            Outcome::Unordered,
            Outcome::Unsupported,
            Outcome::Failed,
            Outcome::NotRun,
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(
                (outcome as usize, postcard::to_stdvec(&outcome).expect("writable")),
                (index, vec![index as u8])
            );
        }
        assert_eq!(page("acme/shoc/work_order/7", 1), b"pacme/shoc/work_order/7\0\0\0\0\x01");
        assert_eq!(subject("k"), b"sk");
        assert_eq!(claim(Digest([3; 32])), [&b"c"[..], &[3; 32]].concat());
        assert_eq!(block(258), b"b\0\0\0\0\0\0\x01\x02");
        let malformed = AttentionKey::malformed(Micros(0x0123_4567_89ab * 1_000 + 999), 0x302, 0x102);
        assert_eq!(malformed.observation.to_string(), "01234567-89ab-7302-8000-000000000102");
        assert_eq!(malformed.key()[..4], [b'a', 4, 0x01, 0x23]);
    }
}
