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
mod support;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Answer, request};
use journal::disk::{Batch, Disk};
use journal::{
    Assigned, Committed, Consumer, NewRecord, PartitionOwner, Polled, Publication, PublishError, ReadError,
    Record,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use projector::Config;
use projector::store::Store;
use projector::store::keys::AttentionKey;
use schema::published::{PublishedFact, PublishedProjection};
use schema::{Observation, Provider, Subject};
use serde_json::{Value as Json, json};
use service::clock::SystemClock;
use service::ids::RandomIds;
use service::problem::RequestIds;
use support::{comment, message, observe, work_order};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// How long a test waits for what it expects.
const PATIENCE: Duration = Duration::from_secs(20);

/// A log in memory, which a test can change under its reader.
#[derive(Clone)]
struct Log(Arc<(Mutex<State>, Condvar)>);

struct State {
    partitions: Vec<Partition>,
    problem: Option<ReadError>,
    /// What the group has published, in order, and how the next publications fail.
    published: Vec<NewRecord>,
    failures: VecDeque<PublishError>,
}

#[derive(Clone, Default)]
struct Partition {
    /// The log's bounds as an assignment reports them.
    start: u64,
    end: u64,
    records: Vec<Record>,
    committed: Option<Committed>,
}

impl Log {
    fn new(partitions: &[Partition]) -> Self {
        Self(Arc::new((
            Mutex::new(State {
                partitions: partitions.to_vec(),
                problem: None,
                published: Vec::new(),
                failures: VecDeque::new(),
            }),
            Condvar::new(),
        )))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().expect("not poisoned"));
        self.0.1.notify_all();
    }

    fn append(&self, partition: usize, record: Record) {
        self.change(|state| state.partitions[partition].records.push(record));
    }
}

struct Reader {
    log: Log,
    /// By partition; `None` where the owner refused. Empty before the assignment.
    positions: Vec<Option<u64>>,
    /// Whether the next poll must give everything up and join again.
    fenced: bool,
}

impl Consumer for Reader {
    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError> {
        let (state, changed) = &*self.log.0;
        let mut state = state.lock().expect("not poisoned");
        if let Some(problem) = &state.problem {
            return Err(problem.clone());
        }
        if std::mem::take(&mut self.fenced) {
            for partition in 0..self.positions.len() {
                owner.revoked(partition as u32);
            }
            self.positions.clear();
        }
        if self.positions.is_empty() {
            for (partition, of) in (0..).zip(&state.partitions) {
                let committed = of.committed.clone();
                let assigned = Assigned { partition, log_start: of.start, log_end: of.end, committed };
                self.positions.push(owner.assigned(assigned).ok());
            }
        }
        for attempt in 0..2 {
            for (partition, position) in self.positions.iter_mut().enumerate() {
                let Some(position) = position else { continue };
                let records = state.partitions[partition].records.iter();
                let records: Vec<_> = records.filter(|record| record.offset >= *position).cloned().collect();
                if let Some(last) = records.last() {
                    *position = last.offset + 1;
                    return Ok(Polled::Records { partition: partition as u32, records });
                }
            }
            if attempt == 0 {
                state = changed.wait_timeout(state, timeout).expect("not poisoned").0;
            }
        }
        Ok(Polled::Nothing)
    }

    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        let mut state = self.log.0.0.lock().expect("not poisoned");
        if let Some(failure) = state.failures.pop_front() {
            self.fenced = matches!(failure, PublishError::Fenced(_));
            return Err(failure);
        }
        for Publication { partition, offset, metadata, projections, claims } in publications {
            let committed = &mut state.partitions[partition as usize].committed;
            assert!(
                committed.as_ref().is_none_or(|before| before.offset < offset),
                "the committed offset only rises"
            );
            *committed = Some(Committed { offset, metadata });
            assert!(claims.is_empty() && projections.iter().all(|record| record.partition == partition));
            state.published.extend(projections);
        }
        Ok(())
    }
}

/// All tests of this program share one recorder: there is one of a process.
fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || PrometheusBuilder::new().install_recorder().expect("the first");
    HANDLE.get_or_init(install).clone()
}

/// A projector on a log, and a runtime of its own.
struct Running {
    runtime: Runtime,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), projector::Error>>,
}

impl Running {
    fn start(store: &Path, log: &Log) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("binds");
        let address = listener.local_addr().expect("bound");
        let partitions = log.0.0.lock().expect("not poisoned").partitions.len() as u32;
        let mut config = Config::new(store, NonZeroU32::new(partitions).expect("at least one"));
        config.publish = true;
        let reader = Box::new(Reader { log: log.clone(), positions: Vec::new(), fenced: false });
        let ids = RequestIds { clock: Arc::new(SystemClock), ids: Arc::new(RandomIds) };
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(projector::run(config, listener, reader, ids, metrics(), async {
            drop(stopped.await);
        }));
        Self { runtime, address, stop: Some(stop), task }
    }

    fn get(&self, path: &str) -> Answer {
        request(self.address, "GET", path, "")
    }

    /// Asks again until the answer is what the test waits for.
    fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.get(path);
            if holds(&answer) {
                return answer;
            }
            assert!(started.elapsed() < PATIENCE, "{path}: {} {}", answer.status, answer.body);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn until_ready(&self) {
        self.until("/health/ready", |answer| answer.status == 200);
    }

    fn stop(mut self) {
        drop(self.stop.take());
        self.runtime.block_on(self.task).expect("no panic").expect("ended well");
    }

    /// Waits for the end that comes by itself.
    fn failure(self) -> String {
        self.runtime.block_on(self.task).expect("no panic").expect_err("it cannot run").to_string()
    }
}

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
    let answer = running.get(SUBJECT);
    assert_eq!(answer.code(), (503, "not_caught_up".to_owned()));
    assert!(answer.body.contains("not assigned yet"), "{}", answer.body);
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

        let log = Log::new(&[met]);
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
fn a_store_of_another_layout_is_refused_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    {
        let disk = Disk::open(folder.path()).expect("opens");
        let tree = disk.tree("observations/0").expect("a tree");
        let mut batch = Batch::default();
        // Layout 7, and nothing else that this release could read.
        batch.insert_new(b"m", &[7, 0xff, 0xff]);
        tree.apply(batch).expect("applies");
        disk.sync().expect("syncs");
    }
    let failure = Running::start(folder.path(), &Log::new(&[Partition::default()])).failure();
    for part in ["layout 7", "this release has 1", "delete the folder", &folder.path().display().to_string()]
    {
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
    Store::open(folder.path(), NonZeroU32::MIN).expect("nobody holds it");
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
    // A group that never published begins at the log's end: what was there before is not published.
    log.append(0, Record { offset: 1, ..first });
    until_committed(&log, 2);
    assert_eq!(published(&log), []);
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
    assert_eq!(published(&log), [(KEY.to_owned(), Some("read".to_owned()), 2), (work_order, None, 4), fact]);
    running.stop();
}

/// A first owner that dies before it published anything has left word of where publishing begins.
#[test]
fn a_new_group_begins_where_it_first_looked() {
    let folder = tempfile::tempdir().expect("a folder");
    let log =
        Log::new(&[Partition { start: 0, end: 1, records: vec![status_at(0, "sent", 1)], committed: None }]);
    let running = Running::start(folder.path(), &log);
    until_committed(&log, 1);
    log.change(|state| {
        state.failures = (0..10_000).map(|_| PublishError::Aborted("no".to_owned())).collect()
    });
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
    let committed = Some(Committed { offset: 2, metadata: last });
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
    for (offset, metadata, name) in
        [(9, "", "log ends at 1"), (1, "0190c0de-0000-7000-8000-000000000000", "of different logs")]
    {
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
