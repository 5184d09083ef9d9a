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

use bytes::Bytes;
use contract::{Owner, PARTITIONS, read, record};
use futures_util::FutureExt;
use futures_util::future::join_all;
use journal::disk::{Batch, Disk, Tree};
use journal::embedded::{Config, EmbeddedJournal};
use journal::{AppendError, Appender, Consumer, LogReader, NewRecord, Polled, ReadError, Record, Topic};
use proptest::prelude::*;

impl contract::Journal for EmbeddedJournal {
    fn appender(&self) -> &dyn Appender {
        self
    }

    fn consumer(&self) -> Box<dyn Consumer> {
        Box::new(EmbeddedJournal::consumer(self, Topic::Observations))
    }

    fn publisher(&self, topic: Topic) -> Box<dyn Consumer> {
        Box::new(EmbeddedJournal::consumer(self, topic))
    }

    fn log_reader(&self, topic: Topic) -> Box<dyn LogReader> {
        Box::new(EmbeddedJournal::log_reader(self, topic))
    }
}

fn open(path: &Path) -> EmbeddedJournal {
    EmbeddedJournal::open(&Config::new(path, PARTITIONS)).expect("opens")
}

/// Reads to the end of the log; by partition, in order.
fn read_all(journal: &EmbeddedJournal) -> Vec<Vec<Record>> {
    let mut found = vec![Vec::new(); PARTITIONS.get() as usize];
    let mut consumer = journal.consumer(Topic::Observations);
    loop {
        match consumer.poll(&mut Owner::default(), Duration::ZERO).expect("readable") {
            Polled::Records { partition, records } => found[partition as usize].extend(records),
            Polled::Nothing => return found,
        }
    }
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
    contract::a_log_reader_reads_the_log_as_it_stands(&open(folder().path())).await;
}

#[test]
fn publications_are_remembered() {
    let folder = folder();
    contract::publications_are_remembered(&open(folder.path()));
}

#[test]
fn a_log_reader_gets_over_transactions() {
    let folder = folder();
    contract::a_log_reader_gets_over_transactions(&open(folder.path()));
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
async fn a_group_ends_at_its_bounds() {
    for (records_max, bytes_max) in [(1, usize::MAX), (usize::MAX, 1)] {
        let folder = folder();
        let usual = Config::new(folder.path(), PARTITIONS);
        let config = Config { batch_records_max: records_max, batch_bytes_max: bytes_max, ..usual };
        let journal = EmbeddedJournal::open(&config).expect("opens");
        let appends = (0..20).map(|_| journal.append(Topic::Observations, record(0, "k", "value")));
        join_all(appends).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
        assert_eq!(journal.syncs(), 20);
    }
}

#[tokio::test]
async fn a_full_queue_refuses_without_waiting() {
    for (records_max, bytes_max, size) in [(8_192, 3_000_000, 900_000), (2, usize::MAX, 10)] {
        let folder = folder();
        let usual = Config::new(folder.path(), PARTITIONS);
        let config = Config { queue_records_max: records_max, queue_bytes_max: bytes_max, ..usual };
        let journal = EmbeddedJournal::open(&config).expect("opens");
        let big = || record(0, "k", vec![7; size]);
        let answers: Vec<_> = (0..200).map(|_| journal.append(Topic::Observations, big())).collect();
        let answers = join_all(answers).await;
        let refused = answers.iter().filter(|answer| **answer == Err(AppendError::QueueFull)).count();
        assert!(refused > 0 && refused < 200, "{refused} of 200 refused");
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 200 - refused);
        journal.append(Topic::Observations, big()).await.expect("there is room again");
        assert_eq!(read_all(&journal)[0].len(), 201 - refused, "what was refused was not written");
    }
}

#[tokio::test]
async fn records_of_any_size_come_back_after_a_drop() {
    let folder = folder();
    let journal = open(folder.path());
    let mut wanted = Vec::new();
    for (offset, (key, size)) in
        [(0, 0), (0, 1), (600, 0), (40_000, 3), (5, 3 * 1024 * 1024)].into_iter().enumerate()
    {
        let (key, value) = (Bytes::from(vec![b'k'; key]), Bytes::from(vec![offset as u8; size]));
        let new = NewRecord { partition: 1, key: key.clone(), value: value.clone() };
        journal.append(Topic::Observations, new).await.expect("durable");
        wanted.push(Record { offset: offset as u64, key, value });
    }
    drop(journal); // without a close
    assert!(read_all(&open(folder.path()))[1] == wanted);
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

#[tokio::test]
async fn a_waiting_reader_wakes_for_the_close() {
    let folder = folder();
    let journal = open(folder.path());
    journal.append(Topic::Observations, record(2, "k", "v")).await.expect("durable");
    let mut consumer = journal.consumer(Topic::Observations);
    assert!(matches!(consumer.poll(&mut Owner::default(), Duration::ZERO), Ok(Polled::Records { .. })));
    let reader = std::thread::spawn(move || consumer.poll(&mut Owner::default(), Duration::from_secs(600)));
    journal.close();
    let polled = reader.join().expect("no panic");
    assert_eq!(polled.expect_err("no more comes"), ReadError::Unavailable("it is closed".to_owned()));
}

#[tokio::test]
async fn a_place_beyond_the_log_is_refused_and_the_others_go_on() {
    let folder = folder();
    let journal = open(folder.path());
    for partition in [0, 0, 1, 2, 2] {
        journal.append(Topic::Observations, record(partition, "k", "v")).await.expect("durable");
    }
    let mut owner = Owner { from: 2, ..Owner::default() };
    let mut consumer = journal.consumer(Topic::Observations);
    let problem = consumer.poll(&mut owner, Duration::ZERO).expect_err("refused").to_string();
    assert!(problem.contains("partition 1 ends at offset 1, but reading stands at 2"), "{problem}");
    assert!(matches!(consumer.poll(&mut owner, Duration::ZERO), Ok(Polled::Nothing)));
    journal.append(Topic::Observations, record(1, "k", "offset 1")).await.expect("durable");
    journal.append(Topic::Observations, record(2, "k", "offset 2")).await.expect("durable");
    let polled = consumer.poll(&mut owner, Duration::ZERO).expect("readable");
    assert!(matches!(polled, Polled::Records { partition: 2, .. }), "{polled:?}");
    assert!(matches!(consumer.poll(&mut owner, Duration::ZERO), Ok(Polled::Nothing)), "1 is not read");
}

#[tokio::test]
async fn damage_is_named_and_never_stepped_over() {
    let damages: [fn(&mut Batch, &Tree); 3] = [
        |batch, tree| batch.remove(tree, &KEY).expect("removed"),
        |batch, tree| batch.replace(tree, &KEY, &[0, 0, 0, 9, b'k']).expect("replaced"),
        |batch, tree| batch.replace(tree, &KEY, &[0, 0]).expect("replaced"),
    ];
    const KEY: [u8; 12] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
    for damage in damages {
        let folder = folder();
        let journal = open(folder.path());
        for _ in 0..4 {
            journal.append(Topic::Observations, record(1, "k", "v")).await.expect("durable");
        }
        drop(journal);
        let disk = Disk::open(folder.path()).expect("opens");
        let tree = disk.tree("witness.observations").expect("a tree");
        let mut batch = Batch::default();
        damage(&mut batch, &tree);
        tree.apply(batch).expect("applied");
        drop((tree, disk));
        let journal = open(folder.path());
        let mut consumer = journal.consumer(Topic::Observations);
        let first = consumer.poll(&mut Owner::default(), Duration::ZERO);
        assert!(matches!(&first, Ok(Polled::Records { records, .. }) if records.len() == 2), "{first:?}");
        for _ in 0..2 {
            let problem =
                consumer.poll(&mut Owner::default(), Duration::ZERO).expect_err("damaged").to_string();
            assert!(problem.contains("partition 1, offset 2: the record"), "{problem}");
        }
        let next = journal.append(Topic::Observations, record(1, "k", "v")).await.expect("durable");
        assert_eq!(next.offset, 4);
    }
}

/// The child of the test below: appends until the disk is full, and says what came of it.
#[test]
fn child_whose_disk_is_full() {
    let Some(path) = std::env::var_os("WITNESS_TEST_FULL_DISK") else { return };
    let journal = open(Path::new(&path));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let append = || journal.append(Topic::Observations, record(0, "k", vec![7; 50_000]));
    let (mut written, mut refused) = (0, 0);
    while refused == 0 {
        for answer in runtime.block_on(join_all((0..32).map(|_| append()))) {
            match answer {
                Ok(_) => written += 1,
                Err(AppendError::Unavailable(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    let later = append().now_or_never();
    println!("WRITTEN {written} REFUSED {refused}");
    println!("LATER {later:?} HEALTH {:?}", journal.health());
    journal.close();
    println!("CLOSED");
}

/// A file may not grow beyond the shell's limit: what a full disk looks like to a program.
#[test]
fn a_full_disk_refuses_every_append_and_keeps_what_was_acknowledged() {
    let folder = folder();
    let script = "trap '' XFSZ; ulimit -f 16384; exec \"$@\"";
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_whose_disk_is_full", "--nocapture"])
        .env("WITNESS_TEST_FULL_DISK", folder.path())
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&child.stdout);
    let context = || format!("{said}\n{}", String::from_utf8_lossy(&child.stderr));
    let (_, rest) = said.split_once("WRITTEN ").unwrap_or_else(|| panic!("{}", context()));
    let written: usize = rest.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    let (_, later) = said.split_once("LATER ").unwrap_or_else(|| panic!("{}", context()));
    assert!(later.starts_with("Some(Err(Unavailable(\""), "{}", context());
    assert!(later.contains("HEALTH Err(\"") && later.contains("must be opened anew"), "{}", context());
    assert!(said.contains("CLOSED") && child.status.success(), "{}", context());
    assert!(written > 0, "{}", context());
    let found = read_all(&open(folder.path()));
    assert!(found[0].len() >= written, "{} of {written}", found[0].len());
    assert!(found[0].iter().all(|record| record.value[..] == [7; 50_000]));
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
    // Also what was written and not acknowledged.
    let found = read_all(&journal);
    for (partition, offset, digest) in &acknowledged {
        let record = &found[*partition][*offset as usize];
        assert_eq!((record.offset, schema::Digest::of(&record.value).to_string()), (*offset, digest.clone()));
    }
    let mut places: Vec<_> = acknowledged.iter().map(|(partition, offset, _)| (partition, offset)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), acknowledged.len(), "no offset was given twice");
    drop(journal);
    assert_eq!(Disk::open(folder.path()).and_then(|disk| disk.blob_files()).expect("readable"), 0);
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
        let mut owner = Owner { from, refused: vec![1, 2], ..Owner::default() };
        let found = read(&mut journal.consumer(Topic::Observations), &mut owner, count - from as usize);
        let values: Vec<u8> = found[0].iter().map(|record| record.value[0]).collect();
        prop_assert_eq!(values, (from as u8..count as u8).collect::<Vec<_>>());
    }
}
