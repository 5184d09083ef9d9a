//! The embedded journal: the common contract, and what is its own — group commit, bounds, restarts,
//! kills. Must never rely on a clean shutdown.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod contract;

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use contract::{Owner, PARTITIONS, read, record};
use futures_util::FutureExt;
use futures_util::future::join_all;
use journal::embedded::{Config, EmbeddedJournal};
use journal::{AppendError, Appender, Consumer, Polled, Topic};
use proptest::prelude::*;

impl contract::Journal for EmbeddedJournal {
    fn appender(&self) -> &dyn Appender {
        self
    }

    fn consumer(&self) -> Box<dyn Consumer> {
        Box::new(EmbeddedJournal::consumer(self, Topic::Observations))
    }
}

fn open(path: &Path) -> EmbeddedJournal {
    EmbeddedJournal::open(&Config::new(path, PARTITIONS)).expect("opens")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[tokio::test]
async fn keeps_the_contract() {
    contract::appends_are_read_back_in_order(&open(folder().path())).await;
    contract::many_appends_at_once(&open(folder().path())).await;
    contract::readers_own_their_place(&open(folder().path())).await;
    contract::odd_appends(&open(folder().path())).await;
}

#[tokio::test]
async fn many_appends_share_a_sync() {
    let folder = folder();
    let journal = open(folder.path());
    let appends =
        (0..500).map(|number| journal.append(Topic::Observations, record(number % 3, "k", "value")));
    for answer in join_all(appends).await {
        answer.expect("durable");
    }
    assert!(journal.syncs() <= 50, "{} syncs for 500 appends", journal.syncs());
}

#[tokio::test]
async fn a_full_queue_refuses_without_waiting() {
    let folder = folder();
    let config = Config { queue_bytes_max: 3_000_000, ..Config::new(folder.path(), PARTITIONS) };
    let journal = EmbeddedJournal::open(&config).expect("opens");
    let big = || record(0, "k", vec![7; 900_000]);
    let answers: Vec<_> = (0..40).map(|_| journal.append(Topic::Observations, big())).collect();
    let refused =
        join_all(answers).await.into_iter().filter(|answer| *answer == Err(AppendError::QueueFull)).count();
    assert!(refused > 0 && refused < 40, "{refused} of 40 refused");
    journal.append(Topic::Observations, big()).await.expect("there is room again");
    assert_eq!(
        read(&mut journal.consumer(Topic::Observations), &mut Owner::default(), 41 - refused)[0].len(),
        41 - refused
    );
}

#[tokio::test]
async fn a_closed_journal_has_written_its_queue_and_opens_again() {
    let folder = folder();
    let journal = open(folder.path());
    let answers: Vec<_> =
        (0..100).map(|number| journal.append(Topic::Observations, record(number % 3, "k", "v"))).collect();
    journal.close();
    for answer in join_all(answers).await {
        answer.expect("written before the close");
    }
    assert!(matches!(
        journal.append(Topic::Observations, record(0, "k", "v")).await,
        Err(AppendError::Unavailable(_))
    ));
    assert!(journal.health().is_err());
    drop(journal);
    let journal = open(folder.path());
    let next = journal.append(Topic::Observations, record(0, "k", "next")).await.expect("durable");
    assert_eq!(next.offset, 34);
    assert_eq!(
        read(&mut journal.consumer(Topic::Observations), &mut Owner::default(), 101)[0][34].value,
        "next"
    );
}

#[test]
fn another_partition_count_is_refused() {
    let folder = folder();
    open(folder.path()).close();
    let error =
        EmbeddedJournal::open(&Config::new(folder.path(), NonZeroU32::MIN)).expect_err("refused").to_string();
    for part in ["has 3 partitions, but 1 are configured", "export", &folder.path().display().to_string()] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn topics_are_apart() {
    let folder = folder();
    let journal = open(folder.path());
    for topic in Topic::ALL {
        journal.append(topic, record(1, "k", topic.name())).await.expect("durable");
    }
    for topic in Topic::ALL {
        assert_eq!(read(&mut journal.consumer(topic), &mut Owner::default(), 1)[1][0].value, topic.name());
    }
}

#[tokio::test]
async fn a_waiting_reader_wakes_for_a_new_record() {
    let folder = folder();
    let journal = open(folder.path());
    let mut consumer = journal.consumer(Topic::Observations);
    assert!(matches!(consumer.poll(&mut Owner::default(), Duration::ZERO), Ok(Polled::Nothing)));
    let reader = std::thread::spawn(move || consumer.poll(&mut Owner::default(), Duration::from_secs(60)));
    journal.append(Topic::Observations, record(2, "k", "v")).await.expect("durable");
    let polled = tokio::task::spawn_blocking(|| reader.join().expect("no panic")).await.expect("joined");
    assert!(matches!(polled, Ok(Polled::Records { partition: 2, .. })), "{polled:?}");
}

/// The child of the test below: appends from several tasks and says on standard output what was acknowledged.
#[test]
fn child_that_is_killed() {
    let Some(path) = std::env::var_os("WITNESS_TEST_JOURNAL") else { return };
    let journal = open(Path::new(&path));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let tasks: Vec<_> = (0..16_u32)
        .map(|task| {
            let journal = journal.clone();
            runtime.spawn(async move {
                for number in 0.. {
                    let text = format!("{task}-{number}-{}", "x".repeat(number % 3 * 20_000));
                    let digest = schema::Digest::of(text.as_bytes());
                    let position = journal
                        .append(Topic::Observations, record(task % 3, "k", text))
                        .await
                        .expect("durable");
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "ACK {} {} {digest}", position.partition, position.offset)
                        .expect("the parent listens");
                }
            })
        })
        .collect();
    runtime.block_on(async {
        join_all(tasks).now_or_never().map_or_else(std::future::pending::<()>, |_| panic!()).await
    });
}

#[test]
fn a_kill_loses_nothing_acknowledged() {
    let folder = folder();
    let mut acknowledged = Vec::new();
    for round in 0..6_u64 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env("WITNESS_TEST_JOURNAL", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let stop_after = 40 + round * 67;
        let mut seen = 0;
        for line in lines.map_while(Result::ok) {
            // The harness may have begun its own line before the child's first one.
            let Some((_, ack)) = line.split_once("ACK ") else { continue };
            let parts: Vec<String> = ack.split(' ').map(str::to_owned).collect();
            // A line cut by the kill is no acknowledgement we have received.
            if let [partition, offset, digest] = parts.as_slice()
                && digest.len() == 64
            {
                acknowledged.push((
                    partition.parse::<usize>().expect("a number"),
                    offset.parse::<u64>().expect("a number"),
                    digest.clone(),
                ));
                seen += 1;
            }
            if seen == stop_after {
                child.kill().expect("killed"); // SIGKILL; what it said until now is still read
            }
        }
        assert!(seen >= stop_after, "the child ended by itself after {seen}");
        child.wait().expect("reaped");
    }
    let journal = open(folder.path());
    let found = read(&mut journal.consumer(Topic::Observations), &mut Owner::default(), acknowledged.len());
    for (partition, offset, digest) in &acknowledged {
        let record = &found[*partition][*offset as usize];
        assert_eq!((record.offset, schema::Digest::of(&record.value).to_string()), (*offset, digest.clone()));
    }
    let mut places: Vec<_> = acknowledged.iter().map(|(partition, offset, _)| (partition, offset)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), acknowledged.len(), "no offset was given twice");
    assert_eq!(std::fs::read_dir(folder.path().join("blobs")).map_or(0, Iterator::count), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_reader_sees_every_record_from_any_place(count in 1_usize..40, from in 0_u64..40) {
        let folder = folder();
        let journal = open(folder.path());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for number in 0..count {
                journal.append(Topic::Observations, record(0, "k", vec![number as u8])).await.expect("durable");
            }
        });
        let from = from.min(count as u64);
        let mut owner = Owner { from, ..Owner::default() };
        let found = read(&mut journal.consumer(Topic::Observations), &mut owner, count - from as usize);
        let values: Vec<u8> = found[0].iter().map(|record| record.value[0]).collect();
        prop_assert_eq!(values, (from as u8..count as u8).collect::<Vec<_>>());
    }
}
