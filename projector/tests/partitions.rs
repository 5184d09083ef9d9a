//! The projector on a log that does what a real one does on its bad days: gaps, an end not reached yet, a
//! beginning that has moved, another log under the same name, no answer at all. Must never sleep in the
//! hope that something has happened by then: it waits for what it expects to see.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod http;
mod log;
mod running;
mod support;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use bytes::Bytes;
use journal::disk::{Batch, Disk};
use journal::{Committed, NewRecord, PublishError, ReadError, Record};
use log::{Log, Partition};
use projector::Config;
use projector::store::Store;
use projector::store::keys::AttentionKey;
use running::{PATIENCE, Running};
use schema::published::{PublishedFact, PublishedProjection};
use schema::{Observation, Provider, Subject};
use serde_json::{Value as Json, json};
use support::{comment, message, observe, work_order};

fn record(offset: u64, observation: &Observation) -> Record {
    let value = schema::avro::encode(observation).expect("encodes").into();
    Record { offset, key: Bytes::new(), value }
}

fn message_of(number: u32, id: &str) -> Observation {
    let body = message(&format!("e{number}"), id, "sent", Some("2026-01-01T00:00:00Z"));
    observe(Provider::YCloud, "main", number, body.to_string().as_bytes())
}

/// Records of one message at these offsets.
fn messages(offsets: &[u64]) -> Vec<Record> {
    offsets.iter().map(|offset| record(*offset, &message_of(*offset as u32, "m"))).collect()
}

fn ids(list: &Json, name: &str) -> Vec<String> {
    let items = list["items"].as_array().expect("items").iter();
    items.map(|item| item[name].as_str().expect("text").to_owned()).collect()
}

const SUBJECT: &str = "/v1/subjects/acme/ycloud/message/m";

#[test]
fn while_the_log_is_replayed_progress_is_the_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::new(&[Partition { start: 0, end: 8, records: messages(&[0, 3]), committed: None }]);
    let running = Running::start(folder.path(), &log);
    for path in [SUBJECT, "/v1/subjects", "/v1/attention", &format!("{SUBJECT}/history")] {
        let answer = running.until(path, |answer| answer.body.contains("offset 4 of 8"));
        assert_eq!(answer.code(), (503, "not_caught_up".to_owned()));
        assert_eq!((answer.header("retry-after"), &answer.json()["retryable"]), (Some("1"), &json!(true)));
    }
    assert_eq!(running.get("/health/ready").code(), (503, "not_ready".to_owned()));
    assert_eq!(running.get("/health/live").status, 200);
    messages(&[4, 7]).into_iter().for_each(|record| log.append(0, record));
    let answer = running.until(SUBJECT, |answer| answer.status == 200);
    assert_eq!((answer.header("witness-partition"), answer.header("witness-offset")), (Some("0"), Some("8")));
    assert_eq!(answer.json()["meta"]["observations"]["total"], 4, "gaps in the offsets are no records");
    let history = running.get(&format!("{SUBJECT}/history")).json();
    let offsets: Vec<_> =
        history["items"].as_array().expect("items").iter().map(|item| &item["offset"]).collect();
    assert_eq!(offsets, [0, 3, 4, 7]);
    let metrics = running.get("/metrics").body;
    for line in [
        r#"witness_projector_observations_total{provider="ycloud",inbox="new",outcome="no_change"}"#,
        "witness_projector_batch_seconds",
        r#"witness_projector_replay_offsets{partition="0"}"#,
        "witness_projector_store_bytes",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    running.stop();
}

#[test]
fn a_journal_that_cannot_be_read_is_said_and_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::new(&[Partition { start: 0, end: 1, records: messages(&[0]), committed: None }]);
    log.change(|state| state.problem = Some(ReadError::Unavailable("nobody is there".to_owned())));
    let running = Running::start(folder.path(), &log);
    let ready = running.until("/health/ready", |answer| answer.body.contains("nobody is there"));
    assert_eq!(ready.code(), (503, "not_ready".to_owned()));
    // Nothing is assigned yet.
    assert_eq!(running.get(SUBJECT).code(), (503, "partition_moving".to_owned()));
    log.change(|state| state.problem = None);
    running.until_ready();
    assert_eq!(running.get(SUBJECT).status, 200);
    running.stop();
}

/// What a restarted projector meets, and what it then says; `None` where it goes on as if nothing was.
#[test]
fn a_restart_recognizes_its_log() {
    let at = |start, end, records| Partition { start, end, records, committed: None };
    let other = |offset: u64| record(offset, &message_of(77, "m"));
    for (met, says) in [
        (at(0, 4, messages(&[0, 1, 2, 3])), None),
        // The last known record has expired, and nothing is lost.
        (at(3, 4, messages(&[3])), None),
        (at(4, 5, messages(&[4])), Some("the log begins at offset 4, but the store has read only up to 3")),
        (at(0, 2, messages(&[0, 1])), Some("the store has read up to offset 3, but the log ends at 2")),
        (at(0, 3, vec![other(2)]), Some("the log was rewritten: at offset 2")),
        (at(0, 6, messages(&[5])), Some("offset 2, which the store had read, is gone, and 5 comes next")),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let log = Log::new(&[at(0, 3, messages(&[0, 1, 2]))]);
        let running = Running::start(folder.path(), &log);
        running.until_ready();
        running.stop();

        let (claims, log) = (log.claims(), Log::new(&[met]));
        log.change(|state| state.claims = claims);
        let running = Running::start(folder.path(), &log);
        match says {
            None => {
                running.until_ready();
                let answer = running.get(SUBJECT);
                assert_eq!(answer.header("witness-offset"), Some("4"));
                assert_eq!(answer.json()["meta"]["observations"]["total"], 4);
            }
            Some(says) => {
                let answer = running.until("/health/ready", |answer| answer.body.contains(says));
                assert_eq!(answer.status, 503);
                assert_eq!(running.get(SUBJECT).code(), (503, "partition_stopped".to_owned()));
            }
        }
        running.stop();
    }
}

#[test]
fn a_store_answers_only_once_its_log_is_recognized() {
    let folder = tempfile::tempdir().expect("a folder");
    let known = Partition { start: 0, end: 2, records: messages(&[0, 1]), committed: None };
    let running = Running::start(folder.path(), &Log::new(std::slice::from_ref(&known)));
    running.until_ready();
    running.stop();
    let log = Log::new(&[Partition { records: Vec::new(), ..known.clone() }]);
    let running = Running::start(folder.path(), &log);
    let answer = running.until(SUBJECT, |answer| answer.body.contains("offset 2 of 2"));
    assert_eq!(answer.code(), (503, "not_caught_up".to_owned()));
    log.change(|state| state.partitions = vec![known]);
    assert_eq!(running.until(SUBJECT, |answer| answer.status == 200).header("witness-offset"), Some("2"));
    running.stop();
}

#[test]
fn attention_is_in_order_of_time_over_partitions_and_kinds() {
    let folder = tempfile::tempdir().expect("a folder");
    let partitions = NonZeroU32::new(3).expect("three");
    let mut logs = vec![Partition::default(); 3];
    let mut offsets = [0; 3];
    let mut raised = Vec::new();
    // Every third record is malformed, every third unordered, every third unreadable.
    for number in 0..30_u32 {
        let body = match number % 3 {
            0 => message(&format!("e{number}"), &format!("m{number}"), "sent", None),
            1 => message(&format!("e{number}"), &format!("m{number}"), "sent", Some("2026-01-01T00:00:00Z")),
            _ => {
                json!({"id": format!("e{number}"), "type": "whatsapp.message.updated", "whatsappMessage": {}})
            }
        };
        let observation = observe(Provider::YCloud, "main", number * 10, body.to_string().as_bytes());
        let partition = observation.subject.partition(partitions) as usize;
        let mut push = |value: Bytes| {
            logs[partition].records.push(Record { offset: offsets[partition], key: Bytes::new(), value });
            offsets[partition] += 1;
            logs[partition].end = offsets[partition];
        };
        push(schema::avro::encode(&observation).expect("encodes").into());
        match number % 3 {
            0 => raised.push(format!("{}-unordered", observation.id)),
            1 => {
                push(Bytes::from_static(b"not an observation"));
                let (partition, offset) = (partition as u32, offsets[partition] - 1);
                let key = AttentionKey::malformed(observation.received_at, partition, offset);
                raised.push(format!("{}-malformed", key.observation));
            }
            _ => raised.push(format!("{}-failed", observation.id)),
        }
    }
    // The ids begin with a time and are of one length, so that their texts sort as they do.
    raised.sort();
    let running = Running::start(folder.path(), &Log::new(&logs));
    running.until_ready();
    for limit in [1, 4, 30] {
        let (mut found, mut path) = (Vec::new(), format!("/v1/attention?limit={limit}"));
        loop {
            let page = running.get(&path).json();
            found.extend(ids(&page, "id"));
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/v1/attention?limit={limit}&after={next}");
        }
        assert_eq!(found, raised, "limit {limit}");
    }
    let raised: Vec<_> = raised.iter().filter(|id| id.ends_with("-failed")).map(String::as_str).collect();
    let failed = running.get("/v1/attention?kind=failed&limit=3").json();
    assert_eq!(ids(&failed, "id"), raised[..3]);
    let next = failed["next"].as_str().expect("more").to_owned();
    let failed = running.get(&format!("/v1/attention?kind=failed&limit=500&after={next}")).json();
    assert_eq!(ids(&failed, "id"), raised[3..]);
    assert_eq!(failed["next"], json!(null));
    running.stop();
}

#[test]
fn a_contested_fact_is_shown_and_brought_to_attention() {
    let folder = tempfile::tempdir().expect("a folder");
    let tell = |offset: u64, delivery: &str, text: &str| {
        let body = comment(delivery, "7", "c/1", text).to_string();
        record(offset, &observe(Provider::Shoc, "main", offset as u32, body.as_bytes()))
    };
    let records = vec![tell(0, "d0", "yes"), tell(1, "d1", "no"), tell(2, "d2", "yes")];
    let log = Log::new(&[Partition { start: 0, end: 3, records, committed: None }]);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    let facts = running.get("/v1/subjects/acme/shoc/work_order/7/facts");
    assert_eq!((facts.header("witness-partition"), facts.header("witness-offset")), (Some("0"), Some("3")));
    let fact = &facts.json()["items"][0];
    assert_eq!(
        (&fact["fact_id"], &fact["certainty"], &fact["value"]),
        (&json!("c/1"), &json!("contested"), &json!(null))
    );
    assert_eq!(fact["contenders"]["total"], 2);
    let list = running.get("/v1/attention").json();
    assert_eq!(list["items"].as_array().expect("items").len(), 1);
    let entry = &list["items"][0];
    assert_eq!((&entry["kind"], &entry["event_id"]), (&json!("contested"), &json!("d1")));
    assert_eq!(
        entry["subject"],
        json!({"tenant": "acme", "provider": "shoc", "kind": "work_order", "id": "7"})
    );
    let reason = entry["reason"].as_str().expect("a reason");
    assert!(reason.contains("c/1") && reason.contains("d1"), "{reason}");
    assert!(!reason.contains("yes") && !reason.contains("no,"), "content is in {reason}");
    running.stop();
}

#[test]
fn a_cursor_is_good_for_its_own_list_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut records = Vec::new();
    for number in 0..6_u32 {
        let order = (number % 2).to_string();
        for body in [
            comment(&format!("c{number}"), &order, &format!("c{number}"), "x"),
            work_order(&format!("w{number}"), &order, "new", None, false),
        ] {
            let observation = observe(Provider::Shoc, "main", number, body.to_string().as_bytes());
            records.push(record(records.len() as u64, &observation));
        }
    }
    let log = Log::new(&[Partition { start: 0, end: records.len() as u64, records, committed: None }]);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    let lists = [
        "/v1/subjects",
        "/v1/attention",
        "/v1/subjects/acme/shoc/work_order/0/history",
        "/v1/subjects/acme/shoc/work_order/0/facts",
        "/v1/subjects/acme/shoc/work_order/1/facts",
    ];
    let cursors = lists.map(|list| {
        let page = running.get(&format!("{list}?limit=1")).json();
        page["next"].as_str().unwrap_or_else(|| panic!("{list}: {page}")).to_owned()
    });
    for (list, own) in lists.iter().zip(&cursors) {
        for cursor in &cursors {
            let answer = running.get(&format!("{list}?after={cursor}"));
            if cursor == own {
                assert_eq!(answer.status, 200, "{list}");
                assert_eq!(answer.json()["next"], json!(null));
            } else {
                assert_eq!(answer.code(), (400, "invalid_parameter".to_owned()), "{list}");
            }
        }
    }
    running.stop();
}

#[test]
fn subjects_are_found_by_any_part_and_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let partitions = NonZeroU32::new(2).expect("two");
    let mut logs = vec![Partition::default(); 2];
    for number in 0..24_u32 {
        let (provider, body) = if number % 2 == 0 {
            (Provider::YCloud, message(&format!("e{number}"), &format!("m{number:02}"), "sent", None))
        } else {
            (Provider::Shoc, comment(&format!("d{number}"), &format!("{number:02}"), "c", "x"))
        };
        let observation = observe(provider, "main", number, body.to_string().as_bytes());
        let log = &mut logs[observation.subject.partition(partitions) as usize];
        log.records.push(record(log.end, &observation));
        log.end += 1;
    }
    let running = Running::start(folder.path(), &Log::new(&logs));
    running.until_ready();
    for (filter, first, count) in [
        ("", "acme/shoc/work_order/01", 24),
        ("provider=ycloud&", "acme/ycloud/message/m00", 12),
        ("provider=shoc&", "acme/shoc/work_order/01", 12),
        ("kind=message&", "acme/ycloud/message/m00", 12),
        ("tenant=acme&kind=work_order&", "acme/shoc/work_order/01", 12),
        ("tenant=acm&", "", 0),
        ("provider=yutai&", "", 0),
    ] {
        let (mut found, mut path) = (Vec::new(), format!("/v1/subjects?{filter}limit=5"));
        loop {
            let page = running.get(&path).json();
            let items = page["items"].as_array().expect("items");
            found.extend(items.iter().map(|item| {
                serde_json::from_value::<Subject>(item["subject"].clone()).expect("a subject").key()
            }));
            let Some(next) = page["next"].as_str() else { break };
            assert_eq!(items.len(), 5, "{filter}: a page with more behind it is full");
            path = format!("/v1/subjects?{filter}limit=5&after={next}");
        }
        assert!(found.is_sorted() && found.len() == count, "{filter}: {found:?}");
        assert_eq!(found.first().map_or("", String::as_str), first, "{filter}");
    }
    running.stop();
}

#[test]
fn a_store_of_another_layout_is_left_and_a_new_one_is_derived() {
    let folder = tempfile::tempdir().expect("a folder");
    {
        let disk = Disk::open(&folder.path().join("store-1")).expect("opens");
        let tree = disk.tree("observations/0").expect("a tree");
        let mut batch = Batch::default();
        // Layout 77, and nothing else that this release could read.
        batch.insert_new(b"m", &[77, 0xff, 0xff]);
        tree.apply(batch).expect("applies");
        disk.sync().expect("syncs");
        std::fs::write(folder.path().join("live"), "1\n").expect("written");
    }
    let log = Log::new(&[Partition { start: 0, end: 1, records: messages(&[0]), committed: None }]);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    assert_eq!(running.get(SUBJECT).status, 200);
    let status = running.get("/v1/rebuild").json();
    assert_eq!(status["old"], json!([folder.path().join("store-1").display().to_string()]));
    running.stop();
    assert!(folder.path().join("store-2").exists());
}

#[test]
fn a_folder_that_holds_a_store_of_the_first_release_is_refused_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(Disk::open(folder.path()).expect("opens"));
    let failure = Running::start(folder.path(), &Log::new(&[Partition::default()])).failure();
    for part in ["an older release", "delete the folder", &folder.path().display().to_string()] {
        assert!(failure.contains(part), "{failure}");
    }
}

#[test]
fn a_projector_that_is_dropped_lets_go_of_its_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let running = Running::start(folder.path(), &Log::new(&[Partition::default()]));
    running.until_ready();
    running.task.abort();
    drop(running);
    Store::open(&folder.path().join("store-1"), NonZeroU32::MIN, 1).expect("nobody holds it");
}

#[test]
fn the_token_is_not_shown() {
    let mut config = Config::new("store", NonZeroU32::MIN);
    config.token = Some("opensesame".to_owned());
    let shown = format!("{config:?}");
    assert!(shown.contains("******") && !shown.contains("opensesame"), "{shown}");
}

/// What was published, by key: event ids and versions.
fn published(log: &Log) -> Vec<(String, Option<String>, u64)> {
    let state = log.0.0.lock().expect("not poisoned");
    let read = |record: &NewRecord| {
        let key = String::from_utf8(record.key.to_vec()).expect("text");
        match PublishedProjection::decode(&record.value) {
            Ok(projection) => (key, projection.status().map(str::to_owned), projection.version().offset),
            Err(_) => {
                (key, None, PublishedFact::decode(&record.value).expect("a fact then").version().offset)
            }
        }
    };
    state.published.iter().map(read).collect()
}

fn committed(log: &Log) -> Option<u64> {
    log.0.0.lock().expect("not poisoned").partitions[0].committed.as_ref().map(|committed| committed.offset)
}

/// Waits until the group has published up to an offset.
fn until_committed(log: &Log, offset: u64) {
    let started = Instant::now();
    while committed(log) != Some(offset) {
        assert!(started.elapsed() < PATIENCE, "committed {:?}, not {offset}", committed(log));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn status_at(offset: u64, status: &str, seconds: u32) -> Record {
    let time = format!("2026-01-01T00:00:{seconds:02}Z");
    let body = message(&format!("e{offset}-{status}"), "m", status, Some(&time));
    record(offset, &observe(Provider::YCloud, "main", offset as u32, body.to_string().as_bytes()))
}

const KEY: &str = "acme/ycloud/message/m";

#[test]
fn what_changes_is_published_once_and_a_repeat_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = status_at(0, "sent", 1);
    let log = Log::new(&[Partition { start: 0, end: 1, records: vec![first.clone()], committed: None }]);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    // A group that never published does it once, as soon as it has read what there is.
    until_committed(&log, 1);
    let sent = (KEY.to_owned(), Some("sent".to_owned()), 0);
    assert_eq!(published(&log), std::slice::from_ref(&sent));
    log.append(0, Record { offset: 1, ..first });
    until_committed(&log, 2);
    assert_eq!(published(&log), std::slice::from_ref(&sent));
    log.append(0, status_at(2, "read", 2));
    until_committed(&log, 3);
    log.append(0, status_at(3, "sent", 1));
    log.append(
        0,
        record(
            4,
            &observe(Provider::Shoc, "main", 4, comment("d", "7", "c 1", "hello").to_string().as_bytes()),
        ),
    );
    until_committed(&log, 5);
    let work_order = "acme/shoc/work_order/7".to_owned();
    let fact = (format!("{work_order}/c%201"), None, 4);
    let read = (KEY.to_owned(), Some("read".to_owned()), 2);
    assert_eq!(published(&log), [sent, read, (work_order, None, 4), fact]);
    running.stop();
}

/// First owners that die before they published anything leave no word of where publishing begins, and need none.
#[test]
fn a_new_group_publishes_all_that_there_is_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let log =
        Log::new(&[Partition { start: 0, end: 1, records: vec![status_at(0, "sent", 1)], committed: None }]);
    log.change(|state| {
        state.failures = (0..10_000).map(|_| PublishError::Aborted("no".to_owned())).collect()
    });
    let running = Running::start(folder.path(), &log);
    log.append(0, status_at(1, "read", 2));
    running.until(SUBJECT, |answer| answer.header("witness-offset") == Some("2"));
    running.stop();
    log.change(|state| state.failures.clear());
    // Meanwhile the log has grown, and the next owner has no store.
    log.append(0, status_at(2, "read", 2));
    log.change(|state| state.partitions[0].end = 3);
    let other = tempfile::tempdir().expect("a folder");
    let running = Running::start(other.path(), &log);
    until_committed(&log, 3);
    assert_eq!(published(&log), [(KEY.to_owned(), Some("read".to_owned()), 1)]);
    running.stop();
}

/// What is published at once is bounded, and a part of it moves no mark.
#[test]
fn much_is_published_in_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let records: Vec<_> =
        (0..4_500).map(|offset| record(offset, &message_of(offset as u32, &format!("m{offset}")))).collect();
    let log = Log::new(&[Partition { start: 0, end: 4_500, records, committed: None }]);
    let running = Running::start(folder.path(), &log);
    until_committed(&log, 4_500);
    let mut keys: Vec<_> = published(&log).into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys.len(), 4_500);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4_500);
    running.stop();
}

#[test]
fn another_epoch_derives_everything_anew_and_publishes_it_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = vec![status_at(0, "sent", 1), status_at(1, "delivered", 2)];
    let log = Log::new(&[Partition { start: 0, end: 2, records, committed: None }]);
    let running = Running::start(folder.path(), &log);
    until_committed(&log, 2);
    running.stop();
    let running = Running::start_with(folder.path(), &log, |config| config.epoch = 1);
    running.until_ready();
    let answer = running.get(SUBJECT).json();
    assert_eq!(answer["meta"]["version"], json!({"epoch": 2, "offset": 1}));
    let started = Instant::now();
    while published(&log).len() < 2 {
        assert!(started.elapsed() < PATIENCE, "{:?}", published(&log));
        std::thread::sleep(Duration::from_millis(5));
    }
    let delivered = (KEY.to_owned(), Some("delivered".to_owned()), 1);
    assert_eq!(published(&log), [delivered.clone(), delivered]);
    running.stop();
    // The earlier epoch is not derived over the later one.
    let running = Running::start(folder.path(), &log);
    let ready = running.until("/health/ready", |answer| answer.body.contains("under epoch 2"));
    assert_eq!(ready.code(), (503, "not_ready".to_owned()));
    running.stop();
}

#[test]
fn what_was_stored_and_not_published_is_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::new(&[Partition { start: 0, end: 0, records: Vec::new(), committed: None }]);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    log.append(0, status_at(0, "sent", 1));
    until_committed(&log, 1);
    // From here on publishing is impossible, but the store goes on.
    log.change(|state| {
        state.failures = (0..10_000).map(|_| PublishError::Fatal("forbidden".to_owned())).collect()
    });
    log.append(0, status_at(1, "delivered", 2));
    log.append(
        0,
        record(
            2,
            &observe(Provider::Shoc, "main", 2, comment("d", "7", "c", "hello").to_string().as_bytes()),
        ),
    );
    let answer = running.until("/v1/subjects/acme/shoc/work_order/7", |answer| answer.status == 200);
    assert_eq!(answer.header("witness-offset"), Some("3"));
    running.until("/health/ready", |answer| answer.body.contains("forbidden"));
    running.stop();
    log.change(|state| state.failures.clear());
    log.change(|state| state.partitions[0].end = 3);
    let running = Running::start(folder.path(), &log);
    until_committed(&log, 3);
    let mut found = published(&log).split_off(1);
    found.sort();
    let work_order = "acme/shoc/work_order/7".to_owned();
    assert_eq!(
        found,
        [
            (work_order.clone(), None, 2),
            (format!("{work_order}/c"), None, 2),
            (KEY.to_owned(), Some("delivered".to_owned()), 1)
        ]
    );
    running.stop();
}

#[test]
fn a_store_derived_anew_publishes_nothing_that_was_published() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = vec![status_at(0, "sent", 1), status_at(1, "delivered", 2), status_at(2, "read", 3)];
    let last = schema::avro::decode(&records[1].value).expect("ours").id.to_string();
    let metadata = format!("epoch=1 reached=2 last={last}");
    let committed = Some(Committed { offset: 2, metadata });
    let log = Log::new(&[Partition { start: 0, end: 3, records, committed }]);
    let running = Running::start(folder.path(), &log);
    until_committed(&log, 3);
    assert_eq!(published(&log), [(KEY.to_owned(), Some("read".to_owned()), 2)]);
    running.stop();
}

#[test]
fn a_fenced_instance_asks_for_its_partitions_again_and_an_aborted_publication_is_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::new(&[Partition { start: 0, end: 0, records: Vec::new(), committed: None }]);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    for (offset, failure) in
        [PublishError::Aborted("busy".to_owned()), PublishError::Fenced("too late".to_owned())]
            .into_iter()
            .enumerate()
    {
        log.change(|state| {
            state.failures.push_back(failure);
            state.partitions[0].end = offset as u64 + 1;
        });
        log.append(0, status_at(offset as u64, ["sent", "read"][offset], offset as u32));
        until_committed(&log, offset as u64 + 1);
    }
    assert_eq!(
        published(&log),
        [(KEY.to_owned(), Some("sent".to_owned()), 0), (KEY.to_owned(), Some("read".to_owned()), 1)]
    );
    running.stop();
}

#[test]
fn a_committed_offset_of_another_log_stops_the_partition() {
    for (offset, metadata, name) in [
        (9, "", "log ends at 1"),
        (1, "epoch=1 reached=1 last=0190c0de-0000-7000-8000-000000000000", "of different logs"),
        (1, "who knows", "cannot be read"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let log = Log::new(&[Partition { start: 0, end: 1, records: messages(&[0]), committed: None }]);
        let running = Running::start(folder.path(), &log);
        running.until_ready();
        running.stop();
        let committed = Some(Committed { offset, metadata: metadata.to_owned() });
        log.change(|state| state.partitions[0].committed = committed);
        let running = Running::start(folder.path(), &log);
        let ready = running.until("/health/ready", |answer| answer.body.contains(name));
        assert_eq!(ready.code(), (503, "not_ready".to_owned()));
        running.stop();
    }
}
