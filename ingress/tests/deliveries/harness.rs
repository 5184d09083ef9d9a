//! A door on a real socket, with a journal, a clock and a key document that do what a test says; and a
//! client that sends any bytes. Must never know more of the door than its configuration and HTTP.

#![allow(dead_code, reason = "a module of two test binaries, each of which uses a part")]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ingress::{Config, Endpoint, KeyDocument, Secrets};
use journal::{AppendError, Appender, NewRecord, Position, Topic};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use schema::signature::Secret;
use schema::{Micros, Observation, Provider, avro};
use serde_json::Value as Json;
use service::clock::ManualClock;
use service::ids::RandomIds;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// The second at which every clock starts.
pub(crate) const NOW: i64 = 1_784_642_602;
pub(crate) const YCLOUD_SECRET: &str = "whsec_current-for-tests-only";
pub(crate) const YCLOUD_PREVIOUS: &str = "whsec_previous-for-tests-only";
pub(crate) const YUTAI_SECRET: &str = "yutai-for-tests-only";
/// The limit of every endpoint's bodies.
pub(crate) const BODY_BYTES_MAX: usize = 4_096;
/// The partitions of the journal.
pub(crate) const PARTITIONS: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// What the journal does with the next appends.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    Accept,
    Refuse(AppendError),
    /// Never answers.
    Hang,
    /// Answers once [`MemoryJournal::release`] lets it.
    Hold,
    Panic,
}

/// A journal in memory.
pub(crate) struct MemoryJournal {
    mode: Mutex<Mode>,
    health: Mutex<Result<(), String>>,
    records: Mutex<Vec<NewRecord>>,
    begun: Semaphore,
    held: Semaphore,
}

impl MemoryJournal {
    fn new() -> Self {
        Self {
            mode: Mutex::new(Mode::Accept),
            health: Mutex::new(Ok(())),
            records: Mutex::default(),
            begun: Semaphore::new(0),
            held: Semaphore::new(0),
        }
    }

    pub(crate) fn does(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    pub(crate) fn is(&self, health: Result<(), String>) {
        *self.health.lock().unwrap() = health;
    }

    pub(crate) fn release(&self, appends: usize) {
        self.held.add_permits(appends);
    }

    /// Waits until as many appends have begun.
    pub(crate) async fn begun(&self, appends: u32) {
        drop(self.begun.acquire_many(appends).await);
    }

    /// Appends begun so far, whatever became of them.
    pub(crate) fn attempts(&self) -> usize {
        self.begun.available_permits()
    }

    pub(crate) fn records(&self) -> Vec<NewRecord> {
        self.records.lock().unwrap().clone()
    }

    pub(crate) fn observations(&self) -> Vec<Observation> {
        self.records().iter().map(|record| avro::decode(&record.value).unwrap()).collect()
    }
}

impl Appender for MemoryJournal {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        assert_eq!(topic, Topic::Observations);
        let mode = self.mode.lock().unwrap().clone();
        async move {
            self.begun.add_permits(1);
            match mode {
                Mode::Accept => {}
                Mode::Refuse(error) => return Err(error),
                Mode::Hang => std::future::pending().await,
                Mode::Hold => self.held.acquire().await.unwrap().forget(),
                Mode::Panic => panic!("the journal panics, as this test wants"),
            }
            let mut records = self.records.lock().unwrap();
            let position = Position { partition: record.partition, offset: records.len() as u64 };
            records.push(record);
            Ok(position)
        }
        .boxed()
    }

    fn partitions(&self) -> NonZeroU32 {
        PARTITIONS
    }

    fn health(&self) -> Result<(), String> {
        self.health.lock().unwrap().clone()
    }
}

/// SHOC's key document in memory.
pub(crate) struct MemoryKeys {
    document: Mutex<Result<String, String>>,
    fetches: Mutex<usize>,
}

impl MemoryKeys {
    pub(crate) fn is(&self, document: Result<String, String>) {
        *self.document.lock().unwrap() = document;
    }

    pub(crate) fn lists(&self, key_ids: &[&str]) {
        let keys = key_ids.iter().map(|id| format!(r#"{{"kid":"{id}","secret":"{}"}}"#, shoc_secret(id)));
        self.is(Ok(format!(r#"{{"keys":[{}]}}"#, keys.collect::<Vec<_>>().join(","))));
    }

    pub(crate) fn fetches(&self) -> usize {
        *self.fetches.lock().unwrap()
    }
}

impl KeyDocument for MemoryKeys {
    fn fetch(&self) -> BoxFuture<'_, Result<String, String>> {
        *self.fetches.lock().unwrap() += 1;
        std::future::ready(self.document.lock().unwrap().clone()).boxed()
    }
}

pub(crate) fn shoc_secret(key_id: &str) -> String {
    format!("shoc-for-tests-only-{key_id}")
}

pub(crate) fn secret(label: &str, text: &str) -> Secret {
    Secret::new(label, text.as_bytes().to_vec()).unwrap()
}

/// The door.
pub(crate) struct House {
    pub(crate) address: SocketAddr,
    pub(crate) journal: Arc<MemoryJournal>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) keys: Arc<MemoryKeys>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), ingress::Error>>,
}

impl House {
    pub(crate) async fn open() -> Self {
        Self::with(|_| {}).await
    }

    /// With a changed configuration.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_metrics(PrometheusBuilder::new().build_recorder().handle(), change).await
    }

    pub(crate) async fn with_metrics(metrics: PrometheusHandle, change: impl FnOnce(&mut Config)) -> Self {
        let keys =
            Arc::new(MemoryKeys { document: Mutex::new(Err("unset".to_owned())), fetches: Mutex::new(0) });
        keys.lists(&["july", "june"]);
        let ycloud = vec![secret("current", YCLOUD_SECRET), secret("previous", YCLOUD_PREVIOUS)];
        let endpoint = |id: &str, provider, secrets| Endpoint {
            id: id.to_owned(),
            provider,
            tenant: "acme".to_owned(),
            secrets,
            tolerance_seconds: 300,
            body_bytes_max: BODY_BYTES_MAX,
            rate: None,
        };
        let mut config = Config::new(vec![
            endpoint("ycloud-main", Provider::YCloud, Secrets::Fixed(ycloud)),
            endpoint("shoc-main", Provider::Shoc, Secrets::Document(keys.clone())),
            endpoint("yutai-main", Provider::Yutai, Secrets::Fixed(vec![secret("only", YUTAI_SECRET)])),
        ]);
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let journal = Arc::new(MemoryJournal::new());
        let clock = Arc::new(ManualClock::new(Micros::from_seconds(NOW)));
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(ingress::run(
            config,
            listener,
            journal.clone(),
            clock.clone(),
            Arc::new(RandomIds),
            metrics,
            stopped.map(drop),
        ));
        Self { address, journal, clock, keys, stop: Some(stop), running }
    }

    pub(crate) fn after(&self, seconds: i64) {
        self.clock.set(Micros::from_seconds(NOW + seconds));
    }

    pub(crate) async fn send(&self, request: &Request) -> Answer {
        self.connect(request).await.answer().await
    }

    /// Sends a request without waiting for its answer.
    pub(crate) async fn connect(&self, request: &Request) -> Call {
        let mut call = Call { stream: TcpStream::connect(self.address).await.unwrap() };
        call.write(&request.bytes()).await;
        call
    }

    /// Asks the door to stop.
    pub(crate) fn close(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for it not to have started.
    pub(crate) async fn failed(self) -> ingress::Error {
        self.running.await.unwrap().unwrap_err()
    }

    /// Waits until it has stopped.
    pub(crate) async fn closed(self) {
        self.running.await.unwrap().unwrap();
    }
}

/// A connection with a request on its way.
pub(crate) struct Call {
    pub(crate) stream: TcpStream,
}

impl Call {
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // The door may answer, and close, before it has read everything.
        drop(self.stream.write_all(bytes).await);
    }

    pub(crate) async fn answer(mut self) -> Answer {
        let mut bytes = Vec::new();
        self.stream.read_to_end(&mut bytes).await.unwrap();
        Answer::parse(&bytes)
    }

    /// Goes away without a word: the connection is reset.
    pub(crate) fn hang_up(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        });
        Self { status, headers: headers.collect(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn observation_id(&self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        self.request_id();
        let json = self.json();
        assert_eq!(json.as_object().unwrap().len(), 1, "{self:?}");
        json["observation_id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn request_id(&self) -> String {
        let id = self.header("x-request-id").unwrap_or_else(|| panic!("no request id: {self:?}"));
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "a UUIDv7: {id}");
        id.to_owned()
    }

    /// Asserts that this is a well-formed problem of that status and code.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["code"], code, "{self:?}");
        assert_eq!(json["type"], format!("urn:witness:problem:{code}"));
        assert_eq!(json["status"], status);
        assert_eq!(json["instance"], format!("urn:uuid:{}", self.request_id()));
        assert!(!json["title"].as_str().unwrap().is_empty());
        let retryable = status == 503 || status == 429 || matches!(code, "body_incomplete" | "body_timeout");
        assert_eq!(json["retryable"], retryable, "{self:?}");
        let waits = matches!(status, 503 | 429);
        assert_eq!(self.header("retry-after").is_some(), waits, "{self:?}");
    }

    /// The seconds a caller is asked to wait.
    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after").unwrap().parse().unwrap()
    }
}

/// A request as raw as a test wants it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) framing: Framing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Framing {
    /// With this `Content-Length`, whatever the body.
    Length(usize),
    /// In chunks of as many bytes.
    Chunks(usize),
    /// The body is what the headers of the test make of it.
    Raw,
}

impl Request {
    pub(crate) fn get(path: &str) -> Self {
        Self {
            method: "GET",
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            framing: Framing::Raw,
        }
    }

    /// An unsigned one with a JSON body.
    pub(crate) fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let framing = Framing::Length(body.len());
        Self { method: "POST", path: path.to_owned(), headers: Vec::new(), body, framing }
            .header("Content-Type", "application/json")
    }

    /// One that YCloud signed at that second.
    pub(crate) fn ycloud_at(signed_at: i64, secret_text: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::post("/webhooks/ycloud-main", body).signed(
            Provider::YCloud,
            &secret("-", secret_text),
            signed_at,
        )
    }

    /// One that YCloud signed now, with the current secret.
    pub(crate) fn ycloud(body: impl Into<Vec<u8>>) -> Self {
        Self::ycloud_at(NOW, YCLOUD_SECRET, body)
    }

    /// One that SHOC signed with that key at that second.
    pub(crate) fn shoc_at(signed_at: i64, key_id: &str, body: impl Into<Vec<u8>>) -> Self {
        let secret = secret(key_id, &shoc_secret(key_id));
        Self::post("/webhooks/shoc-main", body).signed(Provider::Shoc, &secret, signed_at)
    }

    /// One that Yutai signed now.
    pub(crate) fn yutai(body: impl Into<Vec<u8>>) -> Self {
        Self::post("/webhooks/yutai-main", body).signed(Provider::Yutai, &secret("-", YUTAI_SECRET), NOW)
    }

    fn signed(self, provider: Provider, secret: &Secret, signed_at: i64) -> Self {
        let headers = provider.contract().sign(secret, signed_at, &self.body);
        headers.into_iter().fold(self, |request, (name, value)| request.header(name, value))
    }

    /// Adds a header line.
    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Removes all lines of a header.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self
    }

    /// Puts one line in the place of all lines of a header.
    pub(crate) fn with(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.without(name).header(name, value)
    }

    /// The value of a header.
    pub(crate) fn value(&self, name: &str) -> String {
        let (_, value) = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).unwrap();
        String::from_utf8(value.clone()).unwrap()
    }

    pub(crate) fn framed(self, framing: Framing) -> Self {
        Self { framing, ..self }
    }

    pub(crate) fn method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub(crate) fn path(self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nHost: door\r\nConnection: close\r\n", self.method, self.path)
                .into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        match self.framing {
            Framing::Length(length) => {
                bytes.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
                bytes.extend_from_slice(&self.body);
            }
            Framing::Chunks(size) => {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in self.body.chunks(size) {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
            Framing::Raw => {
                bytes.extend_from_slice(b"\r\n");
                bytes.extend_from_slice(&self.body);
            }
        }
        bytes
    }
}

/// A small body of YCloud's, with that event id.
pub(crate) fn event(id: &str) -> String {
    format!(
        r#"{{"id":"{id}","type":"whatsapp.message.updated","whatsappMessage":{{"id":"msg-{id}","status":"sent","updateTime":"2026-07-21T14:03:22.000Z"}}}}"#
    )
}

/// A small body of SHOC's, with that delivery id.
pub(crate) fn work_order(delivery_id: &str) -> String {
    format!(
        r#"{{"schema_version":1,"delivery_id":"{delivery_id}","event_type":"work_order.updated","replay":false,"data":{{"work_order_id":"wo-1","wo_status":"assigned","updated_at":"2026-07-21T14:03:22+00:00"}}}}"#
    )
}

/// A small body of Yutai's, with that event id.
pub(crate) fn change(event_id: &str) -> String {
    format!(r#"{{"eventId":"{event_id}","kind":"connect_linked","payload":{{"external_ref":"customer-1"}}}}"#)
}

/// As long as a test waits for what should come at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
