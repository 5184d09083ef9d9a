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
use projector::derive::{Entry, FactFold, History, Moment, SubjectFold};
use projector::project::{Projected, project};
use projector::store::keys::{AttentionKey, AttentionRecord, FactRecord, Meta, PAGE_ENTRIES, SubjectRecord};
use projector::store::{Changes, Store, SubjectFilter};
use proptest::prelude::*;
use schema::claim::Winner;
use schema::projection::{AttentionKind, Certainty, Inbox, Outcome};
use schema::{Claim, Digest, Micros, Observation, Provider, Source, Subject, Verdict};
use support::{comment, observe, work_order};

/// One record: of an observation, or of bytes that are none.
#[derive(Clone, Debug)]
struct Told {
    event: u32,
    order: u32,
    variant: u32,
    is_comment: bool,
    is_malformed: bool,
    /// Not the observation, but a verdict on it.
    is_verdict: bool,
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
        prop::bool::weighted(0.06),
        prop_oneof![9 => Just(0_u64), 1 => 1_u64..4],
    )
        .prop_map(|(event, order, variant, is_comment, is_malformed, is_verdict, gap)| Told {
            event,
            order,
            variant,
            is_comment,
            is_malformed,
            is_verdict,
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
        let observation = if told.is_verdict { verdict_on(&observation) } else { observation };
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

/// As if another subject had claimed its event before.
fn verdict_on(observation: &Observation) -> Observation {
    let claim = Claim::of(observation).expect("a provider's");
    let other =
        Claim { subject: Subject { id: "another".to_owned(), ..claim.subject.clone() }, ..claim.clone() };
    let body_digest = if observation.received_at.0 % 2 == 0 { claim.body_digest } else { Digest::of(b"x") };
    let winner = Winner { body_digest, ..Winner::of(&other) };
    let verdict = Verdict::on(&claim, &winner).expect("another subject");
    verdict.observe(claim.subject, observation.received_at).expect("JSON")
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
        folded_again(store, &key, &record, &entries);
        subjects.push((key, record, entries));
    }
    for kind in AttentionKind::ALL {
        attention
            .extend(view.attention(0, kind, None).expect("readable").map(|item| item.expect("readable")));
    }
    Held { meta: view.meta(0).expect("readable"), subjects, facts, attention }
}

/// Folded from its history at once, a subject is what it became step by step.
fn folded_again(store: &Store, key: &str, record: &SubjectRecord, entries: &[Entry]) {
    let subject = Subject::from_key(key).expect("a key");
    let mut kept = store.observations(0).expect("there is such a partition");
    let mut history = History::new(Moment::default(), 1, entries);
    for entry in entries {
        let observation = schema::avro::decode(kept.at(entry.offset).expect("kept")).expect("an observation");
        assert!(history.take(entry, &observation));
    }
    assert_eq!(history.entries(), entries, "{key}");
    let Some(fold) = history.fold() else { return };
    let (again, known) = (fold.projection(&subject), record.fold.projection(&subject));
    assert_eq!(again.state, known.state, "{key}");
    assert_eq!(
        (again.meta.observations, again.meta.outcomes),
        (known.meta.observations, known.meta.outcomes)
    );
    for item in store.read().facts(0, key, None).expect("readable") {
        let (fact_key, record) = item.expect("readable");
        let id = schema::subject::fact_id_of(&fact_key).expect("a fact's key");
        let known = record.fold.fact(&subject, &id);
        match history.fact(&id) {
            Some(fold) => assert_eq!(fold.fact(&subject, &id), known),
            None => assert_eq!(known.certainty, Certainty::Withdrawn),
        }
    }
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
        let digest = |store: &Store| store.read().digest(0).expect("readable");
        prop_assert_eq!(digest(&cut), digest(&whole));

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

/// Every field of an answer has its part in the digest, and where something stands has none.
#[test]
fn whatever_is_altered_changes_the_digest() {
    let log: Vec<_> = (0..40_u64)
        .map(|number| {
            let body = if number % 2 == 0 {
                comment(&format!("d{number}"), "7", &format!("c{}", number % 3), "text")
            } else {
                work_order(&format!("d{number}"), "7", "new", Some("2026-01-01T00:00:00Z"), false)
            };
            let observation = observe(Provider::Shoc, "main", number as u32, body.to_string().as_bytes());
            Record {
                offset: number,
                key: Bytes::new(),
                value: schema::avro::encode(&observation).expect("encodes").into(),
            }
        })
        .collect();
    let key = "acme/shoc/work_order/7";
    let folder = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    let fresh = |log: &[Record]| {
        number.set(number.get() + 1);
        let store = open(&folder.path().join(number.get().to_string()));
        fold(&store, log);
        store
    };
    let digest = |store: &Store| store.read().digest(0).expect("readable").digest;
    let wanted = digest(&fresh(&log));
    for size in [1, 7, 5_000] {
        let store = open(&folder.path().join(format!("in batches of {size}")));
        log.chunks(size).for_each(|batch| fold(&store, batch));
        assert_eq!(digest(&store), wanted, "the size of batches is no part of it");
    }
    let moved: Vec<_> =
        log.iter().map(|record| Record { offset: record.offset * 3 + 5, ..record.clone() }).collect();
    assert_eq!(digest(&fresh(&moved)), wanted, "where something stands is no part of it");

    let altered_log = |alter: &dyn Fn(&mut Observation)| {
        let mut log = log.clone();
        let mut observation = schema::avro::decode(&log[3].value).expect("an observation");
        alter(&mut observation);
        log[3].value = schema::avro::encode(&observation).expect("encodes").into();
        digest(&fresh(&log))
    };
    type AlterLog<'a> = &'a dyn Fn(&mut Observation);
    let log_alterations: [(&str, AlterLog<'_>); 10] = [
        ("id", &|of| of.id = uuid::Uuid::from_u128(9)),
        ("endpoint", &|of| of.endpoint.push('x')),
        ("event id", &|of| of.event_id.push('x')),
        ("event type", &|of| of.event_type.push('x')),
        ("signed at", &|of| of.signed_at += 1),
        ("received at", &|of| of.received_at.0 += 1),
        ("secret label", &|of| of.secret_label.push('x')),
        ("signature", &|of| of.signature_digest = Digest::of(b"x")),
        ("content type", &|of| of.content_type = None),
        ("endpoint id", &|of| of.webhook_endpoint_id = Some("x".to_owned())),
    ];
    for (name, alter) in log_alterations {
        assert_ne!(altered_log(alter), wanted, "{name}");
    }

    // In the store alone, under an unchanged log.
    let altered = |alter: &dyn Fn(&mut SubjectRecord, &mut Vec<Entry>, &mut FactRecord)| {
        let store = fresh(&log);
        let (mut record, fact_key, mut fact, mut page) = {
            let view = store.read();
            let record = view.subject(0, key).expect("readable").expect("known");
            let fact_key = format!("{key}/c0");
            let fact = view.fact(0, &fact_key).expect("readable").expect("known");
            (record, fact_key, fact, view.page(0, key, 0).expect("sealed"))
        };
        alter(&mut record, &mut page, &mut fact);
        let changes = Changes {
            subjects: [(key.to_owned(), record)].into(),
            pages: [((key.to_owned(), 0), page)].into(),
            facts: [(fact_key, fact)].into(),
            ..Changes::default()
        };
        store.commit(0, changes).expect("durable");
        digest(&store)
    };
    assert_eq!(altered(&|_, _, _| {}), wanted);
    let at = projector::derive::At { offset: 1, epoch: 1, journal_time: Micros(1) };
    type Alter<'a> = &'a dyn Fn(&mut SubjectRecord, &mut Vec<Entry>, &mut FactRecord);
    let alterations: [(&str, Alter<'_>); 11] = [
        ("projection", &|record, _, _| record.fold = SubjectFold::new(at)),
        ("fact", &|_, _, fact| fact.fold = FactFold::new(at)),
        ("event", &|_, page, _| page[5].event = Digest::of(b"x")),
        ("body", &|_, page, _| page[5].body = Digest::of(b"x")),
        ("replay", &|_, page, _| page[5].replay = true),
        ("inbox", &|_, page, _| page[5].inbox = Inbox::Conflict),
        ("outcome", &|_, page, _| page[5].outcome = Outcome::Failed),
        ("differs", &|_, page, _| page[5].differs = true),
        ("source", &|_, page, _| page[5].source = Source::ReadApi),
        ("journal time", &|_, page, _| page[5].journal_time.0 += 1),
        ("verdict", &|_, page, _| {
            page[5].verdict = Some(projector::derive::Voided { offset: 9, inbox: Inbox::Duplicate })
        }),
    ];
    for (name, alter) in alterations {
        assert_ne!(altered(alter), wanted, "{name}");
    }
}
