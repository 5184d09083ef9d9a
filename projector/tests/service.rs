//! The projector as a service: observations in an embedded journal, answers over HTTP. Must never look
//! into the store to find out what an answer should have said.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod http;
mod support;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Answer, request};
use journal::embedded::{self, EmbeddedJournal};
use journal::{Appender, NewRecord, Topic};
use projector::Config;
use schema::{Digest, Observation, Provider};
use serde_json::{Value as Json, json};
use service::clock::SystemClock;
use service::ids::RandomIds;
use service::problem::RequestIds;
use support::{World, comment, message, observe, work_order, yutai};
use tokio::sync::oneshot;

const PARTITIONS: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// A journal and a projector on it, in folders that outlive both.
struct Running {
    address: SocketAddr,
    journal: EmbeddedJournal,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), projector::Error>>,
    appended: u64,
}

impl Running {
    async fn start(folder: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let journal =
            EmbeddedJournal::open(&embedded::Config::new(folder.join("journal"), PARTITIONS)).expect("opens");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let mut config = Config::new(folder.join("store"), PARTITIONS);
        change(&mut config);
        let (stop, stopped) = oneshot::channel();
        let ids = RequestIds { clock: Arc::new(SystemClock), ids: Arc::new(RandomIds) };
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
        let (appender, log) = (Arc::new(journal.clone()), journal.clone());
        let on_journal = projector::Journal {
            observations: Box::new(journal.consumer(Topic::Observations)),
            claims: Box::new(journal.consumer(Topic::Claims)),
            appender,
            readers: Arc::new(move |topic| Ok(Box::new(log.log_reader(topic)))),
        };
        let task = tokio::spawn(projector::run(config, listener, on_journal, ids, metrics, async {
            drop(stopped.await);
        }));
        Self { address, journal, stop: Some(stop), task, appended: 0 }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        self.task.await.expect("no panic").expect("ended well");
        self.journal.close();
    }

    async fn append(&mut self, observation: &Observation) {
        let value = schema::avro::encode(observation).expect("encodes");
        self.append_bytes(observation.subject.partition(PARTITIONS), value).await;
    }

    async fn append_bytes(&mut self, partition: u32, value: Vec<u8>) {
        let record = NewRecord { partition, key: Bytes::new(), value: value.into() };
        self.journal.append(Topic::Observations, record).await.expect("durable");
        self.appended += 1;
    }

    async fn get(&self, path: &str) -> Answer {
        self.get_with(path, "").await
    }

    async fn get_with(&self, path: &str, headers: &str) -> Answer {
        let (address, path, headers) = (self.address, path.to_owned(), headers.to_owned());
        tokio::task::spawn_blocking(move || request(address, "GET", &path, &headers)).await.expect("no panic")
    }

    /// Asks again until the answer is what the test waits for.
    async fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.get(path).await;
            if holds(&answer) {
                return answer;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "{path}: {} {}", answer.status, answer.body);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until as many observations of a subject are projected.
    async fn projected(&self, subject: &str, observations: u64) -> Json {
        let path = format!("/v1/subjects/{subject}");
        let holds = |answer: &Answer| {
            answer.status == 200 && answer.json()["meta"]["observations"]["total"] == observations
        };
        self.until(&path, holds).await.json()
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn body(json: &Json) -> Vec<u8> {
    json.to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_its_history_and_its_facts() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |_| {}).await;
    let created = work_order("d2", "7/1", "assigned", Some("2026-07-16T14:03:22.114208+00:00"), false);
    let bodies = [
        body(&comment("d1", "7/1", "7#a b", "on my way")),
        body(&created),
        body(&created),
        body(&work_order("d2", "7/1", "new", Some("2026-07-16T15:00:00Z"), false)),
        body(&work_order("d3", "7/1", "new", Some("2026-07-16T14:00:00Z"), false)),
    ];
    let observations: Vec<_> =
        (0..).zip(&bodies).map(|(number, body)| observe(Provider::Shoc, "shoc-main", number, body)).collect();
    for observation in &observations {
        running.append(observation).await;
    }
    let projection = running.projected("acme/shoc/work_order/7%2F1", 5).await;
    let nothing = json!({"total": 0, "items": []});
    let mut state = json!({
        "subject": {"tenant": "acme", "provider": "shoc", "kind": "work_order", "id": "7/1"},
        "certainty": "settled", "status": "assigned", "value": created["data"], "as_of": "2026-07-16T14:03:22.114208Z",
        "basis": {"event_id": "d2", "body_digest": Digest::of(&bodies[1]), "ordered_by": "object_time"},
        "contenders": nothing, "unplaced": nothing, "needs_refresh": false,
        "meta": {
            "version": {"epoch": 1, "offset": 1},
            "observations": {"total": 5, "new": 3, "duplicate": 1, "conflict": 1},
            "outcomes": {"applied": 2, "no_change": 0, "out_of_order": 1, "contested": 0, "unordered": 0, "unsupported": 0, "failed": 0, "not_run": 2},
            "first_observed_at": "2025-10-09T08:53:20.000000Z", "last_observed_at": "2025-10-09T08:53:20.000004Z",
        },
    });
    assert_eq!(projection, state);

    let answer = running.get("/v1/subjects/acme/shoc/work_order/7%2F1/history?body=true").await;
    let partition = observations[0].subject.partition(PARTITIONS);
    assert_eq!(answer.header("witness-partition"), Some(partition.to_string().as_str()));
    assert_eq!(answer.header("witness-offset"), Some("5"));
    let history = answer.json();
    assert_eq!(history["next"], json!(null));
    let column = |name: &str| {
        history["items"].as_array().expect("items").iter().map(|item| item[name].clone()).collect::<Vec<_>>()
    };
    assert_eq!(column("inbox"), ["new", "new", "duplicate", "conflict", "new"]);
    assert_eq!(column("outcome"), ["applied", "applied", "not_run", "not_run", "out_of_order"]);
    assert_eq!(column("offset"), [0, 1, 2, 3, 4]);
    assert_eq!(
        history["items"][1]["body"],
        json!(base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &bodies[1]))
    );
    let mut first = history["items"][0].clone();
    first.as_object_mut().expect("an object").remove("body");
    assert_eq!(
        first,
        json!({"observation_id": observations[0].id, "event_id": "d1", "event_type": "work_order.comment_added", "endpoint": "shoc-main",
            "source": "webhook", "inbox": "new", "outcome": "applied", "reason": null, "signed_at": "2025-10-09T08:53:20.000000Z",
            "received_at": "2025-10-09T08:53:20.000000Z", "provider_time": null, "body_digest": Digest::of(&bodies[0]), "partition": partition, "offset": 0})
    );
    assert!(history["items"][3]["reason"].as_str().expect("a reason").contains("another body"));

    let facts = running.get("/v1/subjects/acme/shoc/work_order/7%2F1/facts").await.json();
    assert_eq!(facts["items"][0]["fact_id"], "7#a b");
    assert_eq!(facts["items"][0]["value"]["text"], "on my way");
    assert_eq!((&facts["items"][0]["certainty"], &facts["next"]), (&json!("settled"), &json!(null)));

    let attention = running.get("/v1/attention").await.json();
    assert_eq!(attention["items"].as_array().map(Vec::len), Some(1));
    let conflict = &attention["items"][0];
    assert_eq!(conflict["id"], format!("{}-conflict", observations[3].id));
    assert_eq!(
        (&conflict["kind"], &conflict["subject"], &conflict["event_id"], &conflict["acknowledged"]),
        (&json!("conflict"), &state["subject"], &json!("d2"), &json!(null))
    );
    let reason = conflict["reason"].as_str().expect("a reason");
    assert!(
        reason.contains(&Digest::of(&bodies[1]).to_string())
            && reason.contains(&Digest::of(&bodies[3]).to_string()),
        "{reason}"
    );

    // The same answers after a restart, and a new observation on top.
    running.stop().await;
    let mut running = Running::start(folder.path(), |_| {}).await;
    assert_eq!(running.projected("acme/shoc/work_order/7%2F1", 5).await, state);
    running.append(&observe(Provider::Shoc, "shoc-main", 9, &bodies[4])).await;
    let again = running.projected("acme/shoc/work_order/7%2F1", 6).await;
    state["meta"]["observations"] = json!({"total": 6, "new": 3, "duplicate": 2, "conflict": 1});
    state["meta"]["outcomes"]["not_run"] = json!(3);
    state["meta"]["last_observed_at"] = json!("2025-10-09T08:53:20.000009Z");
    assert_eq!(again, state);
    running.stop().await;
}

/// Everything an instance answers, as one value.
async fn everything(running: &Running) -> Vec<Json> {
    let mut answers = vec![
        running.get("/v1/subjects?limit=500").await.json(),
        running.get("/v1/attention?limit=500").await.json(),
    ];
    let subjects = answers[0]["items"].as_array().expect("items").clone();
    for item in subjects {
        let subject = schema::Subject {
            tenant: item["subject"]["tenant"].as_str().expect("text").to_owned(),
            provider: Provider::from_name(item["subject"]["provider"].as_str().expect("text")).expect("ours"),
            kind: item["subject"]["kind"].as_str().expect("text").to_owned(),
            id: item["subject"]["id"].as_str().expect("text").to_owned(),
        };
        for list in ["history?body=true&limit=500", "facts?limit=500"] {
            answers.push(running.get(&format!("/v1/subjects/{subject}/{list}")).await.json());
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_batches_changes_nothing_and_memory_agrees() {
    let mut observations = Vec::new();
    for number in 0..300_u32 {
        let (provider, json) = match number % 5 {
            0 => (
                Provider::YCloud,
                message(
                    &format!("e{}", number % 40),
                    // One event id is about one message: what is told of two is judged, and another test's.
                    &format!("m{}", number % 40 / 5 % 7),
                    ["sent", "read"][number as usize % 2],
                    Some("2026-01-01T00:00:01Z").filter(|_| number % 3 > 0),
                ),
            ),
            1 => (
                Provider::Shoc,
                comment(
                    &format!("d{number}"),
                    "1",
                    &format!("c{}", number % 90),
                    &format!("text {}", number % 11),
                ),
            ),
            2 => (
                Provider::Shoc,
                work_order(
                    &format!("w{number}"),
                    &format!("{}", number % 4),
                    ["new", "assigned"][number as usize % 2],
                    Some("2026-07-16T14:00:00Z"),
                    number % 7 == 0,
                ),
            ),
            3 => (
                Provider::Yutai,
                yutai(
                    &format!("y{number}"),
                    ["connect_linked", "connect_revoked"][number as usize % 2],
                    json!({"external_ref": format!("c{}", number % 3)}),
                ),
            ),
            _ => (Provider::YCloud, json!({"id": format!("u{number}"), "type": "whatsapp.call.connect"})),
        };
        observations.push(observe(provider, "main", number, &body(&json)));
    }
    let mut answers = Vec::new();
    for size in [1, 7, 1_000] {
        let folder = folder();
        let mut running = Running::start(folder.path(), |config| config.batch_records_max = size).await;
        for observation in &observations {
            running.append(observation).await;
        }
        let mut world = World::default();
        for observation in &observations {
            world.take(observation);
        }
        for (subject, (fold, entries)) in &world.subjects {
            let found = running.projected(&subject.to_string(), entries.len() as u64).await;
            let wanted = serde_json::to_value(fold.projection(subject)).expect("JSON");
            for name in
                ["certainty", "status", "value", "as_of", "basis", "contenders", "unplaced", "needs_refresh"]
            {
                assert_eq!(found[name], wanted[name], "{name} of {subject}");
            }
            assert_eq!(found["meta"]["outcomes"], wanted["meta"]["outcomes"], "{subject}");
        }
        answers.push(everything(&running).await);
        assert_eq!(std::fs::read_dir(folder.path().join("store/blobs")).map_or(0, Iterator::count), 0);
        running.stop().await;
    }
    assert!(answers[0] == answers[1] && answers[1] == answers[2], "answers depend on the size of batches");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_history_keeps_its_inbox_and_its_pages() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |config| config.batch_records_max = 10).await;
    let of =
        |number: u32, text: &str| body(&comment(&format!("d{number}"), "7", &format!("c{number:03}"), text));
    for number in 0..100 {
        running.append(&observe(Provider::Shoc, "main", number, &of(number, "hello"))).await;
    }
    for (number, text) in [(3, "hello"), (3, "other"), (99, "hello"), (50, "other")] {
        running.append(&observe(Provider::Shoc, "main", 100 + number, &of(number, text))).await;
    }
    let projection = running.projected("acme/shoc/work_order/7", 104).await;
    assert_eq!(
        projection["meta"]["observations"],
        json!({"total": 104, "new": 100, "duplicate": 2, "conflict": 2})
    );

    // Pages, while new data arrives between them.
    let (mut offsets, mut path) =
        (Vec::new(), "/v1/subjects/acme/shoc/work_order/7/history?limit=30".to_owned());
    for round in 0.. {
        let page = running.get(&path).await.json();
        offsets.extend(
            page["items"]
                .as_array()
                .expect("items")
                .iter()
                .map(|item| item["offset"].as_u64().expect("a number")),
        );
        running.append(&observe(Provider::Shoc, "main", 300 + round, &of(300 + round, "late"))).await;
        running.projected("acme/shoc/work_order/7", 105 + u64::from(round)).await;
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/subjects/acme/shoc/work_order/7/history?limit=30&after={next}");
    }
    assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<_>>());
    assert!(offsets.len() >= 104);

    let mut facts = Vec::new();
    let mut path = "/v1/subjects/acme/shoc/work_order/7/facts?limit=40".to_owned();
    loop {
        let page = running.get(&path).await.json();
        facts.extend(
            page["items"]
                .as_array()
                .expect("items")
                .iter()
                .map(|item| item["fact_id"].as_str().expect("text").to_owned()),
        );
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/subjects/acme/shoc/work_order/7/facts?limit=40&after={next}");
    }
    assert!(facts.len() >= 100 && facts.is_sorted(), "{facts:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attention_lasts_as_long_as_its_cause() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |_| {}).await;
    let at = |event: &str, status: &str, time: Option<&str>| body(&message(event, "m", status, time));
    let kinds = async |running: &Running| -> Vec<String> {
        let list = running.get("/v1/attention").await.json();
        list["items"]
            .as_array()
            .expect("items")
            .iter()
            .map(|item| item["kind"].as_str().expect("text").to_owned())
            .collect()
    };
    for (number, (bytes, wanted)) in [
        (at("e1", "sent", None), vec!["unordered"]),
        (at("e2", "sent", Some("2026-01-01T00:00:00Z")), vec![]),
        (at("e3", "read", Some("2026-01-01T00:00:00Z")), vec!["contested"]),
        (at("e4", "failed", Some("2026-01-01T00:00:00Z")), vec!["contested"]),
        (at("e5", "failed", Some("2026-01-01T00:00:01Z")), vec![]),
    ]
    .into_iter()
    .enumerate()
    {
        running.append(&observe(Provider::YCloud, "main", number as u32, &bytes)).await;
        running.projected("acme/ycloud/message/m", number as u64 + 1).await;
        assert_eq!(kinds(&running).await, wanted, "after {number}");
        if number == 3 {
            let reason = running.get("/v1/attention?kind=contested").await.json()["items"][0]["reason"]
                .as_str()
                .expect("a reason")
                .to_owned();
            for part in ["3 different values", "2026-01-01T00:00:00.000000Z", "e2", "e3", "e4"] {
                assert!(reason.contains(part), "{reason}");
            }
        }
    }
    running
        .append(&observe(
            Provider::YCloud,
            "main",
            9,
            &body(&json!({"id": "bad", "type": "whatsapp.message.updated", "whatsappMessage": {}})),
        ))
        .await;
    running.projected("acme/ycloud/event/bad", 1).await;
    let list = running.get("/v1/attention?kind=failed").await.json();
    assert_eq!(list["items"][0]["reason"], "`whatsappMessage.id` is missing");
    assert_eq!(running.get("/v1/attention?kind=conflict").await.json(), json!({"items": [], "next": null}));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_is_kept_and_an_unknown_schema_stops_only_its_partition() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |_| {}).await;
    let good = |id: &str, number| {
        observe(Provider::YCloud, "main", number, &body(&message(&format!("e-{id}"), id, "sent", None)))
    };
    let of_partition = |partition: u32| {
        (0..)
            .map(|number| format!("m{number}"))
            .find(|id| good(id, 0).subject.partition(PARTITIONS) == partition)
            .expect("there is one")
    };
    let (here, there) = (of_partition(1), of_partition(2));
    running.append_bytes(1, b"no observation".to_vec()).await;
    running.append(&good(&here, 1)).await;
    running.projected(&format!("acme/ycloud/message/{here}"), 1).await;
    let list = running.get("/v1/attention").await.json();
    assert_eq!(
        (&list["items"][0]["kind"], &list["items"][0]["subject"], &list["items"][0]["observation_id"]),
        (&json!("malformed"), &json!(null), &json!(null))
    );
    let reason = list["items"][0]["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("witness.observations, partition 1, offset 0: "), "{reason}");

    let mut newer = schema::avro::encode(&good(&here, 2)).expect("encodes");
    newer[4] ^= 0x40;
    running.append_bytes(1, newer).await;
    let ready = running.until("/health/ready", |answer| answer.status == 503).await;
    assert!(ready.body.contains("partition 1") && ready.body.contains("does not know"), "{}", ready.body);
    running.append(&good(&there, 3)).await;
    running.projected(&format!("acme/ycloud/message/{there}"), 1).await;
    assert_eq!(
        running.get(&format!("/v1/subjects/acme/ycloud/message/{here}")).await.code(),
        (503, "partition_stopped".to_owned())
    );
    assert_eq!(running.get("/v1/subjects").await.code(), (503, "partition_stopped".to_owned()));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_are_answered_byte_for_byte() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |_| {}).await;
    let noise: String = (0..40_000_u32)
        .map(|number| Digest::of(&number.to_be_bytes()).to_string()[..26].to_owned())
        .collect();
    let mut large = message("e1", "m", "sent", Some("2026-01-01T00:00:00Z"));
    large["whatsappMessage"]["text"] = json!(noise);
    let mut bytes = body(&large);
    bytes.push(b'\n');
    assert!(bytes.len() > 1_000_000);
    running.append(&observe(Provider::YCloud, "main", 0, &bytes)).await;
    let projection = running.projected("acme/ycloud/message/m", 1).await;
    assert_eq!(projection["value"], large["whatsappMessage"]);
    let history = running.get("/v1/subjects/acme/ycloud/message/m/history?body=true").await.json();
    let found = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        history["items"][0]["body"].as_str().expect("base64"),
    );
    assert!(found.expect("base64") == bytes);
    for place in ["journal", "store"] {
        assert_eq!(
            std::fs::read_dir(folder.path().join(place).join("blobs")).map_or(0, Iterator::count),
            0,
            "{place}"
        );
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_answered_says_why() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |config| config.token = Some("s3cret".to_owned())).await;
    running.append(&observe(Provider::YCloud, "main", 0, &body(&message("e1", "m", "sent", None)))).await;
    let token = "Authorization: Bearer s3cret\r\n";
    let started = Instant::now();
    while running.get_with("/v1/subjects/acme/ycloud/message/m", token).await.status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    for headers in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Basic s3cret\r\n",
        "Authorization: Bearer s3cre\r\n",
    ] {
        let answer = running.get_with("/v1/attention", headers).await;
        assert_eq!(answer.code(), (401, "unauthorized".to_owned()));
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    for (path, status, code, detail) in [
        ("/v1/subjects/acme/ycloud/message/other", 404, "unknown_subject", "acme/ycloud/message/other"),
        ("/v1/subjects/acme/ycloud/message/other/history", 404, "unknown_subject", ""),
        ("/v1/subjects/acme/nobody/message/m", 400, "invalid_parameter", "ycloud, shoc or yutai"),
        ("/v1/subjects/acme/ycloud/message/%ff", 400, "invalid_parameter", "UTF-8"),
        ("/v1/subjects/acme/ycloud/message/m?as_of=2026-01-01", 400, "invalid_parameter", "as_of"),
        (
            "/v1/subjects/acme/ycloud/message/m?limit=1",
            400,
            "invalid_parameter",
            "`limit` is no parameter here",
        ),
        ("/v1/subjects?limit=0", 400, "invalid_parameter", "from 1 to 500"),
        ("/v1/subjects?limit=501", 400, "invalid_parameter", "from 1 to 500"),
        ("/v1/subjects?limit=ten", 400, "invalid_parameter", "from 1 to 500"),
        ("/v1/subjects?limit=1&limit=2", 400, "invalid_parameter", "stands twice"),
        ("/v1/subjects?colour=red", 400, "invalid_parameter", "tenant, provider, kind, after, limit"),
        ("/v1/subjects?provider=nobody", 400, "invalid_parameter", "ycloud, shoc or yutai"),
        ("/v1/subjects?after=%21", 400, "invalid_parameter", "`next`"),
        ("/v1/attention?kind=odd", 400, "invalid_parameter", "conflict, contested"),
        ("/v1/attention?after=AAAA", 400, "invalid_parameter", "`next`"),
        ("/v1/subjects/acme/ycloud/message/m/history?body=yes", 400, "invalid_parameter", "true or false"),
        ("/v1/subjects/acme/ycloud/message/m/history?after=AAAA", 400, "invalid_parameter", "`next`"),
        ("/v1/nothing", 404, "not_found", ""),
        ("/", 404, "not_found", ""),
    ] {
        let answer = running.get_with(path, token).await;
        assert_eq!(answer.code(), (status, code.to_owned()), "{path}: {}", answer.body);
        assert!(answer.body.contains(detail), "{path}: {}", answer.body);
    }
    let address = running.address;
    let posted = tokio::task::spawn_blocking(move || {
        request(address, "POST", "/v1/subjects", &format!("{token}Content-Length: 0\r\n"))
    })
    .await
    .expect("no panic");
    assert_eq!(
        (posted.code(), posted.header("allow")),
        ((405, "method_not_allowed".to_owned()), Some("GET, HEAD"))
    );
    for path in ["/health/live", "/health/ready", "/metrics"] {
        assert_eq!(running.get(path).await.status, 200, "{path} needs no token");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_whole_and_their_cursors_survive_new_data() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |_| {}).await;
    for number in 0..40_u32 {
        let bytes = body(&message(&format!("e{number}"), &format!("m{number:02}"), "sent", None));
        running.append(&observe(Provider::YCloud, "main", number, &bytes)).await;
        running.projected(&format!("acme/ycloud/message/m{number:02}"), 1).await;
    }
    running
        .append(&observe(Provider::Shoc, "main", 50, &body(&work_order("d", "7", "new", None, false))))
        .await;
    running.projected("acme/shoc/work_order/7", 1).await;
    for path in [
        "/v1/subjects?kind=message&limit=7",
        "/v1/subjects?tenant=acme&provider=ycloud&kind=message&limit=7",
        "/v1/attention?limit=7",
    ] {
        let (mut seen, mut next) = (Vec::new(), path.to_owned());
        for round in 0..20 {
            let page = running.get(&next).await.json();
            seen.extend(
                page["items"]
                    .as_array()
                    .expect("items")
                    .iter()
                    .map(|item| item["subject"]["id"].as_str().expect("text").to_owned()),
            );
            // New data on both sides of the cursor.
            let bytes =
                body(&message(&format!("n{path}{round}"), &format!("a{round}{}", path.len()), "sent", None));
            running.append(&observe(Provider::YCloud, "main", 100, &bytes)).await;
            let Some(cursor) = page["next"].as_str() else { break };
            next = format!("{path}&after={cursor}");
        }
        let old: Vec<_> = seen.iter().filter(|id| id.starts_with('m')).collect();
        assert_eq!(
            old,
            (0..40).map(|number| format!("m{number:02}")).collect::<Vec<_>>().iter().collect::<Vec<_>>(),
            "{path}"
        );
    }
    assert_eq!(running.get("/v1/subjects?tenant=other").await.json(), json!({"items": [], "next": null}));
    assert_eq!(
        running.get("/v1/subjects?provider=shoc").await.json()["items"].as_array().map(Vec::len),
        Some(1)
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_not_the_stores_own_stops_the_partition() {
    // The same number of records, but other ones; and fewer records.
    for (name, replaced) in [("rewritten", 3_u32), ("ends at", 1)] {
        let folder = folder();
        let mut running = Running::start(folder.path(), |_| {}).await;
        for number in 0..3 {
            running
                .append(&observe(
                    Provider::YCloud,
                    "main",
                    number,
                    &body(&message(&format!("e{number}"), "m", "sent", None)),
                ))
                .await;
        }
        running.projected("acme/ycloud/message/m", 3).await;
        running.stop().await;
        std::fs::remove_dir_all(folder.path().join("journal")).expect("removed");
        let journal =
            EmbeddedJournal::open(&embedded::Config::new(folder.path().join("journal"), PARTITIONS))
                .expect("opens");
        for number in 0..replaced {
            let other = observe(
                Provider::YCloud,
                "main",
                50 + number,
                &body(&message(&format!("o{number}"), "m", "read", None)),
            );
            let value = schema::avro::encode(&other).expect("encodes").into();
            let record =
                NewRecord { partition: other.subject.partition(PARTITIONS), key: Bytes::new(), value };
            journal.append(Topic::Observations, record).await.expect("durable");
        }
        journal.close();
        drop(journal);
        let running = Running::start(folder.path(), |_| {}).await;
        let ready = running.until("/health/ready", |answer| answer.body.contains(name)).await;
        assert_eq!(ready.code(), (503, "not_ready".to_owned()));
        assert_eq!(
            running.get("/v1/subjects/acme/ycloud/message/m").await.code(),
            (503, "partition_stopped".to_owned())
        );
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_of_two_messages_is_judged_and_a_rebuild_agrees() {
    let folder = folder();
    let mut running = Running::start(folder.path(), |_| {}).await;
    let told = |number, id: &str| {
        let body = body(&message("e", id, "sent", Some("2026-01-01T00:00:00Z")));
        observe(Provider::YCloud, "main", number, &body)
    };
    let first = told(1, "one");
    let apart = |number: &u32| told(2, &format!("other-{number}")).subject.partition(PARTITIONS);
    let other = (0..).find(|number| apart(number) != first.subject.partition(PARTITIONS)).expect("one");
    let later = told(2, &format!("other-{other}"));
    running.append(&first).await;
    running.append(&later).await;
    // Whichever claims it first keeps it.
    let judged = |answer: &Answer| answer.status == 200 && answer.json()["items"][0]["kind"] == "conflict";
    let attention = running.until("/v1/attention", judged).await.json();
    let entry = &attention["items"][0];
    let names = [&first, &later].map(|observation| observation.subject.to_string());
    let (winner, loser) = match entry["subject"]["id"].as_str() {
        Some("one") => (&names[1], &names[0]),
        _ => (&names[0], &names[1]),
    };
    assert!(entry["reason"].as_str().expect("a reason").contains(winner.as_str()), "{entry}");
    let path = format!("/v1/subjects/{loser}");
    let withdrawn = running.get(&path).await.json();
    assert_eq!((&withdrawn["certainty"], &withdrawn["value"]), (&json!("withdrawn"), &json!(null)));
    let history = running.get(&format!("{path}/history")).await.json();
    assert_eq!(
        (&history["items"][0]["inbox"], &history["items"][1]["source"]),
        (&json!("conflict"), &json!("verdict"))
    );
    assert_eq!(running.get(&format!("/v1/subjects/{winner}")).await.json()["certainty"], "settled");
    let address = running.address;
    let ask = move || request(address, "POST", "/v1/rebuild", "Content-Length: 0\r\n");
    assert_eq!(tokio::task::spawn_blocking(ask).await.expect("no panic").status, 202);
    running.until("/v1/rebuild", |answer| answer.json()["phase"] == "done").await;
    assert_eq!(running.get(&path).await.json(), withdrawn);
    running.stop().await;
}
