//! `witness journal` from outside: a log moved to a file and into another journal, interrupted, damaged and
//! re-keyed on the way. Must never look inside the file beyond cutting and damaging it.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use journal::embedded::{Config, EmbeddedJournal};
use journal::{Appender, LogReader, NewRecord, Topic};
use schema::signature::{Receipt, Secret, SignatureHeader};
use schema::subject::partition_of;
use schema::{Micros, Observation, Provider, Source, Subject, Unverified, avro};
use serde_json::Value;
use tempfile::TempDir;

/// Keys and values of a journal, by topic, partition and offset.
type Content = BTreeMap<(Topic, u32), Vec<(Bytes, Bytes)>>;

/// A folder with journals in it, each with a configuration of its own.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, name: &str, partitions: u32) {
        let folder = self.folder.path().display();
        let text = format!(
            "[journal]\npath = \"{folder}/{name}\"\npartitions = {partitions}\n\
             [[endpoint]]\nid = \"main\"\nprovider = \"ycloud\"\ntenant = \"acme\"\nsecrets = [\"env:NONE\"]\n"
        );
        fs::write(self.path(&format!("{name}.toml")), text).expect("written");
    }

    /// `witness journal …` with the configuration of that name.
    fn run(&self, action: &str, name: &str, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_witness"))
            .args(["journal", action, "--config", &format!("{name}.toml")])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("RUST_LOG")
            .output()
            .expect("witness runs")
    }

    /// The same, done, and its JSON.
    fn done(&self, action: &str, name: &str, arguments: &[&str]) -> Value {
        let output = self.run(action, name, &[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }

    fn open(&self, name: &str, partitions: u32) -> EmbeddedJournal {
        self.configure(name, partitions);
        let partitions = NonZeroU32::new(partitions).expect("not zero");
        EmbeddedJournal::open(&Config::new(self.path(name), partitions)).expect("opens")
    }

    fn content(&self, name: &str, partitions: u32) -> Content {
        let journal = self.open(name, partitions);
        let mut content = Content::new();
        for topic in Topic::ALL {
            let mut reader = journal.log_reader(topic);
            for partition in 0..partitions {
                let (mut next, end) = reader.bounds(partition).expect("measured");
                let records = content.entry((topic, partition)).or_default();
                while next < end {
                    let found = reader.read(partition, next, Duration::ZERO).expect("readable");
                    next += found.len() as u64;
                    records.extend(found.into_iter().map(|record| (record.key, record.value)));
                }
            }
        }
        drop(journal);
        content
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn assert_refused(output: &Output, code: i32, part: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(part), "no {part:?} in: {}", said(output));
}

fn append(journal: &EmbeddedJournal, records: Vec<(Topic, String, Vec<u8>)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let appends = records.into_iter().map(|(topic, key, value)| {
        let partition = partition_of(key.as_bytes(), journal.partitions());
        journal.append(topic, NewRecord { partition, key: key.into(), value: value.into() })
    });
    runtime.block_on(join_all(appends)).into_iter().for_each(|answer| assert!(answer.is_ok(), "{answer:?}"));
}

/// Several subjects with many records each, some of them large, and claims.
fn fill(place: &Place, name: &str, partitions: u32, records: u32) {
    let journal = place.open(name, partitions);
    let records = (0..records).map(|number| {
        let topic = if number % 5 == 0 { Topic::Claims } else { Topic::Observations };
        let size = if number % 100 == 0 { 40_000 } else { number % 90 };
        // What does not repeat is not packed away.
        let noise = (0..size).map(|at: u32| {
            let mixed = (at ^ (number << 16)).wrapping_mul(2_654_435_761);
            (mixed >> 13) as u8
        });
        let value = number.to_be_bytes().into_iter().chain(noise).collect();
        (topic, format!("acme/ycloud/message/{}", number % 23), value)
    });
    append(&journal, records.collect());
    append(&journal, vec![(Topic::Projections, "derived".to_owned(), Vec::new())]);
    drop(journal);
}

/// What of a journal is moved, by topic and key: the order within a key is what a move keeps.
fn by_key(content: &Content) -> BTreeMap<(Topic, Bytes), Vec<Bytes>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for ((topic, _), records) in content.iter().filter(|((topic, _), _)| *topic != Topic::Projections) {
        for (key, value) in records {
            by_key.entry((*topic, key.clone())).or_default().push(value.clone());
        }
    }
    by_key
}

fn without_projections(mut content: Content) -> Content {
    content.retain(|(topic, _), _| *topic != Topic::Projections);
    content
}

#[test]
fn a_log_comes_through_a_file_as_it_was() {
    let place = Place::new();
    fill(&place, "source", 4, 3_000);
    place.configure("same", 4);
    place.configure("other", 7);
    let exported = place.done("export", "source", &["--to", "log"]);
    assert_eq!(exported["records"], 3_000);
    assert!(!place.path("log.partial").exists());
    let imported = place.done("import", "same", &["--from", "log"]);
    assert_eq!((&imported["records"], &imported["resumed"]), (&3_000.into(), &0.into()));
    assert_eq!(imported["file_digest"], exported["digest"]);
    let source = place.content("source", 4);
    assert_eq!(without_projections(place.content("same", 4)), without_projections(source.clone()));
    place.done("import", "other", &["--from", "log"]);
    let other = place.content("other", 7);
    assert_eq!(by_key(&other), by_key(&source));
    for ((_, partition), records) in without_projections(other) {
        let partitions = NonZeroU32::new(7).expect("not zero");
        assert!(records.iter().all(|(key, _)| partition_of(key, partitions) == partition));
    }
    // Twice is once; and the way back gives the same bytes for the same log.
    let again = place.done("import", "other", &["--from", "log"]);
    assert_eq!((&again["records"], &again["resumed"]), (&3_000.into(), &3_000.into()));
    place.done("export", "other", &["--to", "log-of-other"]);
    place.configure("back", 4);
    let back = place.done("import", "back", &["--from", "log-of-other"]);
    assert_eq!(by_key(&place.content("back", 4)), by_key(&source));
    assert_eq!(back["topics"][0]["records"], 2_400);
    assert_refused(&place.run("export", "source", &["--to", "log"]), 2, "is there already");
}

#[test]
fn an_export_that_was_cut_is_gone_on_with_and_ends_as_the_same_file() {
    let place = Place::new();
    fill(&place, "source", 3, 2_500);
    place.done("export", "source", &["--to", "log"]);
    let whole = fs::read(place.path("log")).expect("the file");
    // What comes later is in none of the files: each says what it was begun with.
    let journal = place.open("source", 3);
    append(&journal, vec![(Topic::Observations, "acme/ycloud/message/1".to_owned(), b"later".to_vec())]);
    drop(journal);
    for part in 1..8 {
        // From the middle of the file on there is a header for certain.
        let cut = whole.len() * (8 + part) / 16 + part;
        fs::write(place.path("log.partial"), &whole[..cut]).expect("written");
        fs::remove_file(place.path("log")).expect("removed");
        let resumed = place.done("export", "source", &["--to", "log"]);
        assert_eq!(resumed["records"], 2_500);
        assert!(fs::read(place.path("log")).expect("the file") == whole, "cut at {cut}");
    }
    // In its header, or before: it is begun anew, with all that is there by now.
    fs::write(place.path("new.partial"), &whole[..30]).expect("written");
    assert_eq!(place.done("export", "source", &["--to", "new"])["records"], 2_501);
}

#[test]
fn an_export_is_not_gone_on_with_from_another_log() {
    let place = Place::new();
    fill(&place, "source", 2, 300);
    place.done("export", "source", &["--to", "log"]);
    let whole = fs::read(place.path("log")).expect("the file");
    fs::write(place.path("next.partial"), &whole[..whole.len() - 1]).expect("written");
    fill(&place, "another", 2, 300);
    assert_refused(&place.run("export", "another", &["--to", "next"]), 2, "was begun from another log");
    // In the same folder, but made anew.
    fs::remove_dir_all(place.path("source")).expect("removed");
    fill(&place, "source", 2, 10);
    assert_refused(&place.run("export", "source", &["--to", "next"]), 2, "was begun from another log");
    fs::write(place.path("mine.partial"), "a file that was there, and is longer than that").expect("written");
    assert_refused(&place.run("export", "source", &["--to", "mine"]), 2, "is no export of a Witness journal");
}

#[test]
fn a_damaged_file_is_refused_before_anything_is_appended() {
    let place = Place::new();
    fill(&place, "source", 2, 800);
    place.done("export", "source", &["--to", "log"]);
    let whole = fs::read(place.path("log")).expect("the file");
    place.configure("target", 2);
    for part in 0..6 {
        let mut damaged = whole.clone();
        let at = whole.len() * part / 6 + 33;
        damaged[at] ^= 0x10;
        fs::write(place.path("damaged"), &damaged).expect("written");
        assert_refused(&place.run("import", "target", &["--from", "damaged"]), 1, "damaged at byte");
        fs::write(place.path("damaged"), &whole[..at]).expect("written");
        assert_refused(&place.run("import", "target", &["--from", "damaged"]), 1, "damaged at byte");
    }
    assert_refused(&place.run("import", "target", &["--from", "none"]), 2, "there is no file none");
    let content = place.content("target", 2);
    assert!(content.values().all(Vec::is_empty), "{content:?}");
}

#[test]
fn an_import_goes_on_after_what_is_there_and_refuses_anything_else() {
    let place = Place::new();
    fill(&place, "source", 4, 1_500);
    place.done("export", "source", &["--to", "log"]);
    place.configure("whole", 3);
    place.done("import", "whole", &["--from", "log"]);
    let whole = place.content("whole", 3);
    // As an import leaves it that was stopped: a beginning of every partition, here of different lengths.
    let journal = place.open("begun", 3);
    for ((topic, partition), records) in &whole {
        let count = records.len() * (*partition as usize) / 2;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for (key, value) in &records[..count] {
            let record = NewRecord { partition: *partition, key: key.clone(), value: value.clone() };
            runtime.block_on(journal.append(*topic, record)).expect("durable");
        }
    }
    drop(journal);
    let there: usize = place.content("begun", 3).values().map(Vec::len).sum();
    assert!(there > 300 && there < 1_500, "{there} records");
    let resumed = place.done("import", "begun", &["--from", "log"]);
    assert_eq!((&resumed["records"], &resumed["resumed"]), (&1_500.into(), &there.into()));
    assert_eq!(place.content("begun", 3), whole);

    for (name, value) in [("more", None), ("other", Some(&b"something else"[..]))] {
        let journal = place.open(name, 3);
        let (key, first) = whole[&(Topic::Observations, 1)][0].clone();
        let key = String::from_utf8(key.to_vec()).expect("text");
        append(
            &journal,
            vec![(Topic::Observations, key.clone(), value.map_or(first.to_vec(), <[u8]>::to_vec))],
        );
        if value.is_none() {
            append(&journal, vec![(Topic::Claims, key, b"a claim of its own".to_vec())]);
        }
        drop(journal);
        let before = place.content(name, 3);
        let refused = place.run("import", name, &["--from", "log"]);
        assert_refused(&refused, 2, "that are not the beginning of this import");
        assert_eq!(place.content(name, 3), before);
    }
}

/// An observation of a body, verified as at the door.
fn observation(number: u128, body: &str) -> Observation {
    let secret = Secret::new("test", b"secret".to_vec()).expect("a secret");
    let body = Bytes::copy_from_slice(body.as_bytes());
    let signature = secret.sign("1700000000", &body);
    let header = SignatureHeader { timestamp: "1700000000".to_owned(), signature, key_id: None };
    let verified = Unverified::new(Provider::YCloud, header, body)
        .verify(&[secret], 1_700_000_000, 300)
        .expect("the signature holds");
    let receipt = Receipt {
        observation_id: uuid::Uuid::from_u128(number),
        endpoint: "main".to_owned(),
        tenant: "acme".to_owned(),
        received_at: Micros(5),
        content_type: None,
        webhook_endpoint_id: None,
    };
    verified.observe(receipt).expect("an envelope")
}

#[test]
fn rekeying_moves_what_has_become_readable() {
    let place = Place::new();
    let body = |event: u32| {
        format!(
            r#"{{"id":"evt-{event}","type":"whatsapp.message.updated","whatsappMessage":{{"id":"msg-1","status":"sent"}}}}"#
        )
    };
    let readable = observation(1, &body(1));
    // As an earlier release kept it, that could not read it.
    let kept = |number: u32, source| {
        let mut observation = observation(number.into(), &body(number));
        observation.subject = Subject {
            kind: "event".to_owned(),
            id: observation.event_id.clone(),
            ..observation.subject.clone()
        };
        observation.source = source;
        observation
    };
    let (event, operator, verdict) =
        (kept(2, Source::Webhook), kept(3, Source::Operator), kept(4, Source::Verdict));
    let unknown = observation(5, r#"{"id":"evt-5","type":"of.another.release"}"#);
    let journal = place.open("source", 4);
    let all = [&readable, &event, &operator, &verdict, &unknown];
    let encoded = |observation: &Observation| {
        (Topic::Observations, observation.subject.key(), avro::encode(observation).expect("encodes"))
    };
    let mut records = all.map(encoded).to_vec();
    records.push((Topic::Observations, "acme/ycloud/event/x".to_owned(), b"no observation".to_vec()));
    records.push((Topic::Claims, "a key".to_owned(), b"a claim".to_vec()));
    append(&journal, records);
    drop(journal);
    place.done("export", "source", &["--to", "log"]);
    place.configure("target", 4);
    let imported = place.done("import", "target", &["--from", "log", "--rekey"]);
    for (what, count) in [("records", 5), ("rekeyed", 1), ("left_out", 2), ("unreadable", 1)] {
        assert_eq!(imported[what], count, "{what}");
    }
    let found = by_key(&place.content("target", 4));
    let values = |key: String| found.get(&(Topic::Observations, key.into())).cloned().unwrap_or_default();
    let mut about_the_message = values(readable.subject.key());
    about_the_message.sort();
    let mut moved = event.clone();
    moved.subject = readable.subject.clone();
    let mut wanted = [&readable, &moved].map(|observation| Bytes::from(encoded(observation).2)).to_vec();
    wanted.sort();
    assert_eq!(about_the_message, wanted);
    assert_eq!(values(event.subject.key()), Vec::<Bytes>::new());
    assert_eq!(values(operator.subject.key()), [encoded(&operator).2]);
    assert_eq!(values(verdict.subject.key()), Vec::<Bytes>::new());
    assert_eq!(values(unknown.subject.key()), [encoded(&unknown).2]);
    assert_eq!(values("acme/ycloud/event/x".to_owned()), [&b"no observation"[..]]);
    assert!(found.keys().all(|(topic, _)| *topic == Topic::Observations), "claims start afresh");
    // Gone on with in the same way, and refused in another.
    let again = place.done("import", "target", &["--from", "log", "--rekey"]);
    assert_eq!((&again["records"], &again["resumed"]), (&5.into(), &5.into()));
    assert_refused(&place.run("import", "target", &["--from", "log"]), 2, "not the beginning of this import");
}

#[test]
fn a_journal_in_use_and_one_that_is_not_there_are_said() {
    let place = Place::new();
    place.configure("nowhere", 2);
    assert_refused(&place.run("export", "nowhere", &["--to", "log"]), 2, "there is no journal in");
    assert!(!Path::new(&place.path("nowhere")).exists(), "none is made");
    let journal = place.open("used", 2);
    let refused = place.run("export", "used", &["--to", "log"]);
    assert_refused(&refused, 1, "only while Witness is stopped");
    drop(journal);
}
