//! One event id told of several subjects: whoever comes first in the claims stays, the others are judged, whatever
//! happens on the way. Must never look into the store to find out what an answer should have said.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod log;
mod support;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use journal::{AppendError, Appender, NewRecord, Record, Topic};
use log::{Log, Partition};
use projector::Config;
use projector::run::Runner;
use projector::store::{PartitionDigest, Store};
use schema::projection::{Certainty, Inbox, Outcome, Projection};
use schema::{Micros, Observation, Provider, Source, Subject};
use service::clock::ManualClock;
use support::{comment, message, observe, work_order};

const PARTITIONS: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// A projector that is driven step by step.
struct Driven {
    runner: Runner,
    clock: Arc<ManualClock>,
}

impl Driven {
    fn open(folder: &Path, log: &Log) -> Self {
        let clock = Arc::new(ManualClock::new(Micros(support::SIGNED_AT * 1_000_000)));
        let config = Config { publish: true, ..Config::new(folder, PARTITIONS) };
        let stop = Arc::new(AtomicBool::new(false));
        let runner = Runner::open(&config, log.journal(), clock.clone(), stop).expect("opens");
        Self { runner, clock }
    }

    fn step(&mut self) {
        let now = schema::Micros(service::clock::Clock::now(&*self.clock).0 + 400_000);
        self.clock.set(now);
        self.runner.step(Duration::ZERO).expect("the store is well");
    }

    /// Until nothing is left to do, as far as these few records go.
    fn settle(&mut self) {
        (0..60).for_each(|_| self.step());
        assert_eq!(self.runner.progress().claims_problems(), Vec::<String>::new());
    }

    fn store(&self) -> Arc<Store> {
        self.runner.store()
    }

    fn projection(&self, subject: &Subject) -> Projection {
        let (store, partition) = (self.store(), subject.partition(PARTITIONS));
        let record = store.read().subject(partition, &subject.key()).expect("readable").expect("known");
        record.fold.projection(subject)
    }

    /// What the history says of each observation: source, inbox, outcome.
    fn history(&self, subject: &Subject) -> Vec<(Source, Inbox, Outcome)> {
        let (store, partition) = (self.store(), subject.partition(PARTITIONS));
        let view = store.read();
        let record = view.subject(partition, &subject.key()).expect("readable").expect("known");
        let entries = view.entries(partition, &subject.key(), &record, None, usize::MAX).expect("readable");
        entries.iter().map(|entry| (entry.source, entry.inbox(), entry.outcome)).collect()
    }

    fn digests(&self) -> Vec<PartitionDigest> {
        let store = self.store();
        (0..PARTITIONS.get()).map(|partition| store.read().digest(partition).expect("readable")).collect()
    }
}

fn empty() -> Log {
    Log::new(&vec![Partition::default(); PARTITIONS.get() as usize])
}

fn tell(log: &Log, observation: &Observation) {
    let value = Bytes::from(schema::avro::encode(observation).expect("encodes"));
    let partition = observation.subject.partition(PARTITIONS);
    let record = NewRecord { partition, key: Bytes::from(observation.subject.key()), value };
    let appended = Appender::append(log, Topic::Observations, record);
    futures_util::FutureExt::now_or_never(appended).expect("at once").expect("appended");
}

fn told(number: u32, event: &str, id: &str, status: &str) -> Observation {
    let body = message(event, id, status, Some("2026-01-01T00:00:00Z"));
    observe(Provider::YCloud, "main", number, body.to_string().as_bytes())
}

fn verdicts(log: &Log) -> Vec<Observation> {
    let mut found = Vec::new();
    log.change(|state| {
        let records = state.partitions.iter().flat_map(|of| &of.records);
        let observations = records.map(|record: &Record| schema::avro::decode(&record.value).expect("ours"));
        found = observations.filter(|observation| observation.source == Source::Verdict).collect();
    });
    found
}

/// Two subjects in different partitions.
fn apart() -> [String; 2] {
    let partition = |id: &str| told(0, "e", id, "sent").subject.partition(PARTITIONS);
    let other = (0..).map(|number| format!("other-{number}")).find(|id| partition(id) != partition("one"));
    ["one".to_owned(), other.expect("another partition")]
}

#[test]
fn of_two_subjects_of_one_event_the_later_one_is_withdrawn() {
    let (folder, log) = (tempfile::tempdir().expect("a folder"), empty());
    let [one, other] = apart();
    let mut driven = Driven::open(folder.path(), &log);
    let (first, later) = (told(1, "e", &one, "sent"), told(2, "e", &other, "read"));
    tell(&log, &first);
    driven.settle();
    tell(&log, &later);
    // A copy of the judged one stays a duplicate of it, and another payload a conflict with it.
    tell(&log, &told(3, "e", &other, "read"));
    tell(&log, &told(4, "e", &other, "failed"));
    driven.settle();
    assert_eq!(verdicts(&log).len(), 1);
    assert_eq!(driven.projection(&first.subject).state.status.as_deref(), Some("sent"));
    let withdrawn = driven.projection(&later.subject);
    assert_eq!((withdrawn.state.certainty, withdrawn.state.value), (Certainty::Withdrawn, None));
    let counts = withdrawn.meta.observations;
    assert_eq!((counts.total, counts.new, counts.duplicate, counts.conflict), (3, 0, 1, 2));
    assert_eq!(
        driven.history(&later.subject),
        [
            (Source::Webhook, Inbox::Conflict, Outcome::NotRun),
            (Source::Webhook, Inbox::Duplicate, Outcome::NotRun),
            (Source::Webhook, Inbox::Conflict, Outcome::NotRun),
            (Source::Verdict, Inbox::New, Outcome::Applied),
        ]
    );
    // Nothing takes its place, and what was judged keeps its place in the inbox.
    tell(&log, &told(6, "e", &other, "read"));
    tell(&log, &told(7, "e", &other, "delivered"));
    driven.settle();
    assert_eq!(
        driven.history(&later.subject)[4..],
        [
            (Source::Webhook, Inbox::Duplicate, Outcome::NotRun),
            (Source::Webhook, Inbox::Conflict, Outcome::NotRun)
        ]
    );
    assert_eq!(driven.projection(&later.subject).state.certainty, Certainty::Withdrawn);
    // What comes to the withdrawn subject afterwards is known again.
    tell(&log, &told(5, "e2", &other, "delivered"));
    driven.settle();
    assert_eq!(driven.projection(&later.subject).state.status.as_deref(), Some("delivered"));
}

#[test]
fn equal_bytes_of_another_subject_are_a_duplicate() {
    let (folder, log) = (tempfile::tempdir().expect("a folder"), empty());
    let [one, other] = apart();
    let mut driven = Driven::open(folder.path(), &log);
    let first = told(1, "e", &one, "sent");
    tell(&log, &first);
    driven.settle();
    // As a release would write it that reads another subject from the same bytes.
    let mut later = told(2, "e", &one, "sent");
    later.subject.id = other;
    tell(&log, &later);
    driven.settle();
    assert_eq!(driven.history(&later.subject)[0], (Source::Webhook, Inbox::Duplicate, Outcome::NotRun));
    assert_eq!(driven.projection(&later.subject).state.certainty, Certainty::Withdrawn);
    assert_eq!(driven.projection(&first.subject).state.status.as_deref(), Some("sent"));
}

#[test]
fn of_three_payloads_one_stays() {
    let (folder, log) = (tempfile::tempdir().expect("a folder"), empty());
    let mut driven = Driven::open(folder.path(), &log);
    let all: Vec<_> = (0..3).map(|number| told(number, "e", &format!("m{number}"), "sent")).collect();
    all.iter().for_each(|observation| tell(&log, observation));
    driven.settle();
    assert_eq!(verdicts(&log).len(), 2);
    let standing: Vec<_> = all
        .iter()
        .filter(|observation| driven.projection(&observation.subject).state.certainty == Certainty::Settled)
        .collect();
    assert_eq!(standing.len(), 1);
    let first = standing[0].subject.key();
    for verdict in verdicts(&log) {
        let verdict = schema::Verdict::read(&verdict).expect("a verdict");
        assert_eq!(verdict.winner.subject, first, "the first claim wins, for ever");
    }
}

/// A verdict changes more than the observation that it voids: what stood behind it counts again.
#[test]
fn a_subject_is_folded_again_without_what_was_judged() {
    let (folder, log) = (tempfile::tempdir().expect("a folder"), empty());
    let mut driven = Driven::open(folder.path(), &log);
    let order = |number, delivery: &str, id: &str, status: &str, time: &str| {
        let body = work_order(delivery, id, status, Some(time), false);
        observe(Provider::Shoc, "main", number, body.to_string().as_bytes())
    };
    let note = |number, delivery: &str, id: &str, text: &str| {
        observe(Provider::Shoc, "main", number, comment(delivery, id, "c", text).to_string().as_bytes())
    };
    tell(&log, &order(1, "stolen", "a", "new", "2026-01-01T00:00:00Z"));
    tell(&log, &note(2, "said", "a", "yes"));
    driven.settle();
    // More than a page, so that the history is in several places; the judged ones stand in the sealed page.
    tell(&log, &order(10, "first", "b", "assigned", "2026-01-01T00:00:00Z"));
    tell(&log, &order(11, "stolen", "b", "completed", "2026-01-05T00:00:00Z"));
    tell(&log, &note(12, "said", "b", "no"));
    for number in 13..60 {
        tell(&log, &order(number, &format!("d{number}"), "b", "in_progress", "2026-01-02T00:00:00Z"));
    }
    driven.settle();
    let subject = order(0, "x", "b", "new", "2026-01-01T00:00:00Z").subject;
    let projection = driven.projection(&subject);
    assert_eq!(projection.state.status.as_deref(), Some("in_progress"), "what the judged one had hidden");
    let outcomes = projection.meta.outcomes;
    assert_eq!((outcomes.applied, outcomes.out_of_order, outcomes.no_change), (2, 0, 46));
    let fact = driven.store().read().fact(subject.partition(PARTITIONS), &subject.fact_key("c"));
    let fact = fact.expect("readable").expect("known").fold;
    assert_eq!(fact.certainty(), Certainty::Withdrawn);
    // The journal's order decides a rebuild's answers, and no verdict is given twice.
    let (again, fresh) = (tempfile::tempdir().expect("a folder"), verdicts(&log).len());
    let mut rebuilt = Driven::open(again.path(), &log);
    rebuilt.settle();
    assert_eq!(verdicts(&log).len(), fresh);
    assert_eq!(rebuilt.digests(), driven.digests());
    let version = rebuilt.projection(&subject).meta.version;
    assert_eq!(version, projection.meta.version);
}

#[test]
fn a_verdict_that_cannot_be_written_is_written_later_and_one_written_twice_is_one() {
    let (folder, log) = (tempfile::tempdir().expect("a folder"), empty());
    let [one, other] = apart();
    tell(&log, &told(1, "e", &one, "sent"));
    let mut driven = Driven::open(folder.path(), &log);
    driven.settle();
    log.change(|state| state.append_failures.push_back(AppendError::QueueFull));
    let later = told(2, "e", &other, "read");
    let value = Bytes::from(schema::avro::encode(&later).expect("encodes"));
    log.append(later.subject.partition(PARTITIONS) as usize, Record { offset: 0, key: Bytes::new(), value });
    driven.settle();
    assert_eq!(verdicts(&log).len(), 1);
    let digests = |driven: &Driven| driven.digests().into_iter().map(|of| of.digest).collect::<Vec<_>>();
    let before = digests(&driven);
    // A crash after the verdict, before anything was remembered of the claims.
    log.change(|state| state.claims.iter_mut().for_each(|of| of.committed = None));
    drop(driven);
    let fresh = tempfile::tempdir().expect("a folder");
    let mut driven = Driven::open(fresh.path(), &log);
    driven.settle();
    assert_eq!(verdicts(&log).len(), 2, "given again");
    assert_eq!(driven.projection(&later.subject).state.certainty, Certainty::Withdrawn);
    let counts = driven.projection(&later.subject).meta.observations;
    assert_eq!((counts.total, counts.conflict), (1, 1), "and counted once");
    assert_eq!(digests(&driven), before, "what is known is the same");
}
