//! Batches folded into a store, without the service around it: how the log is cut into batches, and where
//! the process is restarted, must never show. The generator prints its seed on failure, as proptest does.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod support;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;

use bytes::Bytes;
use journal::Record;
use projector::derive::Entry;
use projector::project::{Projected, project};
use projector::store::keys::{AttentionKey, AttentionRecord, FactRecord, Meta, PAGE_ENTRIES, SubjectRecord};
use projector::store::{Store, SubjectFilter};
use proptest::prelude::*;
use schema::projection::{AttentionKind, Inbox};
use schema::{Observation, Provider};
use support::{comment, observe, work_order};

/// One record: of an observation, or of bytes that are none.
#[derive(Clone, Debug)]
struct Told {
    event: u32,
    order: u32,
    variant: u32,
    is_comment: bool,
    is_malformed: bool,
    /// Offsets left out before it.
    gap: u64,
}

fn told() -> impl Strategy<Value = Told> {
    let variant = prop_oneof![4 => Just(0_u32), 1 => 1_u32..3];
    (
        0_u32..70,
        0_u32..2,
        variant,
        any::<bool>(),
        prop::bool::weighted(0.03),
        prop_oneof![9 => Just(0_u64), 1 => 1_u64..4],
    )
        .prop_map(|(event, order, variant, is_comment, is_malformed, gap)| Told {
            event,
            order,
            variant,
            is_comment,
            is_malformed,
            gap,
        })
}

fn records(told: &[Told]) -> Vec<(Record, Option<Observation>)> {
    let mut offset = 0;
    let mut records = Vec::new();
    for (number, told) in (0..).zip(told) {
        let (event, order) = (format!("d{}", told.event), told.order.to_string());
        let body = if told.is_comment {
            comment(&event, &order, &format!("c{}", told.event % 9), &format!("text {}", told.variant))
        } else {
            let second = told.event % 5 + told.variant;
            work_order(&event, &order, "assigned", Some(&format!("2026-01-01T00:00:0{second}Z")), false)
        };
        let observation = observe(Provider::Shoc, "main", number, body.to_string().as_bytes());
        offset += told.gap;
        let observation = (!told.is_malformed).then_some(observation);
        let value = observation.as_ref().map_or_else(
            || Bytes::from(format!("malformed {number}")),
            |observation| schema::avro::encode(observation).expect("encodes").into(),
        );
        records.push((Record { offset, key: Bytes::new(), value }, observation));
        offset += 1;
    }
    records
}

fn open(path: &Path) -> Store {
    Store::open(path, NonZeroU32::MIN, 1).expect("opens")
}

fn fold(store: &Store, records: &[Record]) {
    let Projected { changes, stop, claims: _ } =
        project(&store.read(), 0, records).expect("the store is readable");
    assert!(stop.is_none(), "{stop:?}");
    if !changes.observations.is_empty() {
        store.commit(0, changes).expect("durable");
    }
}

/// All that a store holds.
#[derive(Debug, PartialEq)]
struct Held {
    meta: Meta,
    subjects: Vec<(String, SubjectRecord, Vec<Entry>)>,
    facts: Vec<(String, FactRecord)>,
    attention: Vec<(AttentionKey, AttentionRecord)>,
}

fn held(store: &Store) -> Held {
    let view = store.read();
    let filter = SubjectFilter::default();
    let (mut subjects, mut facts, mut attention) = (Vec::new(), Vec::new(), Vec::new());
    for item in view.subjects(0, &filter, None).expect("readable") {
        let (key, record) = item.expect("readable");
        facts.extend(view.facts(0, &key, None).expect("readable").map(|item| item.expect("readable")));
        let entries = view.entries(0, &key, &record, None, usize::MAX).expect("readable");
        for limit in [1, PAGE_ENTRIES, 50] {
            for (index, entry) in entries.iter().enumerate().step_by(7) {
                let after = view.entries(0, &key, &record, Some(entry.offset), limit).expect("readable");
                let wanted = entries.iter().skip(index + 1).take(limit);
                assert!(after.iter().eq(wanted), "entries after {} of {key}", entry.offset);
            }
        }
        subjects.push((key, record, entries));
    }
    for kind in AttentionKind::ALL {
        attention
            .extend(view.attention(0, kind, None).expect("readable").map(|item| item.expect("readable")));
    }
    Held { meta: view.meta(0).expect("readable"), subjects, facts, attention }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn neither_batches_nor_restarts_show(
        told in prop::collection::vec(told(), 1..260),
        sizes in prop::collection::vec(1_usize..90, 1..12),
        restart_each in 1_usize..8,
    ) {
        let all = records(&told);
        let log: Vec<_> = all.iter().map(|(record, _)| record.clone()).collect();
        let folder = tempfile::tempdir()?;
        let whole = open(&folder.path().join("whole"));
        fold(&whole, &log);
        let wanted = held(&whole);

        let path = folder.path().join("cut");
        let mut cut = open(&path);
        let (mut from, mut batches) = (0, 0);
        for size in sizes.iter().cycle() {
            if from == log.len() {
                break;
            }
            let to = (from + size).min(log.len());
            fold(&cut, &log[from..to]);
            batches += 1;
            from = to;
            if batches % restart_each == 0 {
                drop(cut);
                cut = open(&path);
                // The record read last comes once more, as after every restart, and changes nothing.
                fold(&cut, &log[from - 1..from]);
            }
        }
        prop_assert!(held(&cut) == wanted, "cut into batches, the store holds something else");

        // The inbox, as one would write it down without a store.
        let mut first = HashMap::new();
        let mut inbox = HashMap::new();
        for (record, observation) in &all {
            if let Some(observation) = observation {
                let key = (observation.subject.key(), observation.event_digest());
                let seen = first.entry(key).or_insert((record.offset, observation.body_digest));
                inbox.insert(record.offset, match *seen {
                    (offset, _) if offset == record.offset => Inbox::New,
                    (_, body) if body == observation.body_digest => Inbox::Duplicate,
                    _ => Inbox::Conflict,
                });
            }
        }
        let entries: HashMap<_, _> = wanted.subjects.iter().flat_map(|(_, _, entries)| entries).map(|entry| (entry.offset, entry.inbox)).collect();
        prop_assert_eq!(entries, inbox);

        // Every record, observation or not, is kept byte for byte.
        let mut kept = cut.observations(0).expect("there is such a partition");
        for record in &log {
            prop_assert_eq!(kept.at(record.offset).expect("it was read"), &record.value[..]);
        }
        prop_assert!(kept.at(log.last().map_or(0, |last| last.offset) + 1).is_err());
    }
}

/// The first under an inbox key decides for ever, also when it lies in a sealed page and only its repeats
/// are in memory.
#[test]
fn a_conflict_told_again_stays_a_conflict() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let tell = |number: u64, delivery: &str, text: &str| {
        let body = comment(delivery, "7", delivery, text).to_string();
        let observation = observe(Provider::Shoc, "main", number as u32, body.as_bytes());
        let value = schema::avro::encode(&observation).expect("encodes").into();
        Record { offset: number, key: Bytes::new(), value }
    };
    let filled = 0..PAGE_ENTRIES as u64 + 1;
    fold(&store, &filled.map(|number| tell(number, &format!("d{number}"), "first")).collect::<Vec<_>>());
    for (number, text) in (40..).zip(["other", "other", "first", "other", "third"]) {
        fold(&store, &[tell(number, "d0", text)]);
    }
    let (_, _, entries) = &held(&store).subjects[0];
    let inbox: Vec<_> = entries.iter().skip(PAGE_ENTRIES + 1).map(|entry| entry.inbox).collect();
    assert_eq!(inbox, [Inbox::Conflict, Inbox::Conflict, Inbox::Duplicate, Inbox::Conflict, Inbox::Conflict]);
}
