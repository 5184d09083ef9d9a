//! What Witness costs on a real Kafka beside what Kafka costs alone: the door beside the same door without a
//! journal and beside Kafka's own producer, a projector that drains a topic beside a bare consumer of it. Must
//! never compare figures of two runs, nor take a request for done that was not answered 200.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "a benchmark stops at the first surprise, and prints"
)]

mod deliveries;
#[path = "../tests/kafka/finder.rs"]
mod finder;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use deliveries::{BODY_BYTES, KEY, body, secret};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use journal::embedded::{self, EmbeddedJournal};
use journal::kafka::{KafkaAppender, KafkaConfig, TopicNames, topics};
use journal::{AppendError, Appender, NewRecord, Position, Topic};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use schema::Provider;
use service::clock::{Clock, SystemClock};
use service::ids::RandomIds;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

const PARTITIONS: NonZeroU32 = NonZeroU32::new(4).expect("more than none");
/// Connections that post at the same time, each the next delivery when the one before was answered.
const CONNECTIONS: usize = 64;
/// Subjects that the deliveries are about.
const SUBJECTS: u64 = 5_000;
/// Bytes of a record's value: the body, and what an observation has beside it.
const RECORD_BYTES: usize = BODY_BYTES + 235;
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let deliveries = if is_quick { 20_000 } else { 100_000 };
    let cluster = match finder::one() {
        Ok(cluster) => cluster,
        Err(why) => {
            eprintln!("no figures: {why}");
            return ExitCode::FAILURE;
        }
    };
    let prefix = format!("bench-{}", std::process::id());
    let mut kafka = KafkaConfig::new(cluster.servers.clone(), PARTITIONS, format!("{prefix}-group"), "bench");
    kafka.topics = TopicNames {
        observations: format!("{prefix}.observations"),
        projections: format!("{prefix}.projections"),
        claims: format!("{prefix}.claims"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(topics::create(&kafka, 1)).expect("the topics are created");
    println!("load average at the start: {}", load_average());

    let requests = Arc::new(requests(deliveries));
    let folder = tempfile::tempdir().expect("a folder");
    let alone = runtime.block_on(door(Arc::new(AtOnce), &requests));
    print("door, appender that answers at once", &alone, None);
    let journal = EmbeddedJournal::open(&embedded::Config::new(folder.path().join("journal"), PARTITIONS));
    let journal = journal.expect("opens");
    let embedded = runtime.block_on(door(Arc::new(journal.clone()), &requests));
    print("door, embedded journal", &embedded, Some(&alone));
    journal.close();
    let appender = Arc::new(KafkaAppender::open(kafka.clone()).expect("a producer"));
    let on_kafka = runtime.block_on(door(appender.clone(), &requests));
    print("door, Kafka", &on_kafka, Some(&alone));
    appender.close(Duration::from_secs(6)).expect("everything was acknowledged");

    let perf_topic = &kafka.topics.claims;
    let most = producer_perf_test(&kafka, perf_topic, deliveries * 3, None);
    print("kafka-producer-perf-test, as fast as it goes", &most, Some(&on_kafka));
    let same_rate = on_kafka.per_second as usize;
    let same = producer_perf_test(&kafka, perf_topic, deliveries, Some(same_rate));
    print("kafka-producer-perf-test, at the door's rate", &same, Some(&on_kafka));

    let bare = bare_consumer(&kafka, deliveries);
    println!("bare consumer: {bare:.0} records/s");
    let projector = projector(&kafka, folder.path(), deliveries);
    println!("projector:     {projector:.0} records/s = {:.3} x a bare consumer", projector / bare);
    println!("load average at the end: {}", load_average());
    ExitCode::SUCCESS
}

/// What a run came to.
struct Figures {
    per_second: f64,
    median_milliseconds: f64,
    p99_milliseconds: f64,
}

fn print(name: &str, figures: &Figures, beside: Option<&Figures>) {
    let Figures { per_second, median_milliseconds, p99_milliseconds } = figures;
    let mut line = format!(
        "{name:<46} {per_second:>8.0}/s   p50 {median_milliseconds:>6.2} ms   p99 {p99_milliseconds:>7.2} ms"
    );
    if let Some(beside) = beside {
        let (rate, median, p99) = (
            per_second / beside.per_second,
            median_milliseconds / beside.median_milliseconds,
            p99_milliseconds / beside.p99_milliseconds,
        );
        write!(line, "   = x {rate:.2}, x {median:.2}, x {p99:.2}").expect("text");
    }
    println!("{line}");
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Durable at once, because it is nowhere.
struct AtOnce;

impl Appender for AtOnce {
    fn append(&self, _: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        ready(Ok(Position { partition: record.partition, offset: 0 })).boxed()
    }

    fn partitions(&self) -> NonZeroU32 {
        PARTITIONS
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Signed before the clock runs: what the client costs is no part of the figures.
fn requests(count: usize) -> Vec<Vec<u8>> {
    let signed_at = SystemClock.now().seconds();
    let request = |number| {
        let body = body(Provider::YCloud, number as u64, SUBJECTS);
        let mut request = format!(
            "POST /webhooks/main HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in Provider::YCloud.contract().sign(&secret(), signed_at, &body) {
            write!(request, "{name}: {value}\r\n").expect("text");
        }
        request.push_str("\r\n");
        [request.as_bytes(), &body].concat()
    };
    (0..count).map(request).collect()
}

/// The whole door, over the loopback.
async fn door(journal: Arc<dyn Appender>, requests: &Arc<Vec<Vec<u8>>>) -> Figures {
    let endpoint = ingress::Endpoint {
        id: "main".to_owned(),
        provider: Provider::YCloud,
        tenant: "acme".to_owned(),
        secrets: ingress::Secrets::Fixed(vec![secret()]),
        // Longer than a run: the deliveries were signed before it.
        tolerance_seconds: 3_600,
        body_bytes_max: 1024 * 1024,
        rate: None,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
    let door = tokio::spawn(ingress::run(
        ingress::Config::new(vec![endpoint]),
        listener,
        journal,
        Arc::new(SystemClock),
        Arc::new(RandomIds),
        metrics,
        stopped.map(drop),
    ));
    let requests = requests.clone();
    let figures = tokio::task::spawn_blocking(move || post_all(address, &requests)).await.expect("posts");
    drop(stop);
    door.await.expect("no panic").expect("the door closes");
    figures
}

fn post_all(address: SocketAddr, requests: &[Vec<u8>]) -> Figures {
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let mut latencies = std::thread::scope(|scope| {
        let client = || post_some(address, requests, &next);
        let clients = (0..CONNECTIONS).map(|_| scope.spawn(client)).collect::<Vec<_>>();
        clients
            .into_iter()
            .flat_map(|client| client.join().expect("every delivery is taken"))
            .collect::<Vec<_>>()
    });
    let seconds = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let per_second = requests.len() as f64 / seconds;
    Figures { per_second, median_milliseconds: at(0.5), p99_milliseconds: at(0.99) }
}

fn post_some(address: SocketAddr, requests: &[Vec<u8>], next: &AtomicUsize) -> Vec<Duration> {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_nodelay(true).expect("settable");
    let mut answers = BufReader::new(stream.try_clone().expect("cloned"));
    let (mut stream, mut latencies, mut line) = (stream, Vec::new(), String::new());
    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
        let started = Instant::now();
        stream.write_all(request).expect("writes");
        let (mut is_first, mut length) = (true, 0);
        loop {
            line.clear();
            answers.read_line(&mut line).expect("answers");
            assert!(!is_first || line.starts_with("HTTP/1.1 200"), "{line}");
            is_first = false;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        answers.read_exact(&mut body).expect("answers");
        latencies.push(started.elapsed());
    }
    latencies
}

/// Kafka's own benchmark, told to wait for the same acknowledgement, not to wait for company, and to compress as
/// the door's producer does.
fn producer_perf_test(
    kafka: &KafkaConfig,
    topic: &str,
    records: usize,
    per_second: Option<usize>,
) -> Figures {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kafka/broker");
    let classpath = Command::new(script).arg("classpath").output().expect("the script runs");
    assert!(classpath.status.success(), "{}", String::from_utf8_lossy(&classpath.stderr));
    let classpath = String::from_utf8(classpath.stdout).expect("text");
    let throughput = per_second.map_or_else(|| "-1".to_owned(), |rate| rate.to_string());
    let output = Command::new("java")
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classpath.trim()])
        .args(["org.apache.kafka.tools.ProducerPerformance", "--topic", topic])
        .args(["--num-records", &records.to_string(), "--record-size", &RECORD_BYTES.to_string()])
        .args(["--throughput", &throughput, "--producer-props"])
        .arg(format!("bootstrap.servers={}", kafka.brokers))
        .args(["acks=all", "enable.idempotence=true", "linger.ms=0", "compression.type=lz4"])
        .stderr(Stdio::inherit())
        .output()
        .expect("java runs");
    let said = String::from_utf8(output.stdout).expect("text");
    let last = said.lines().rfind(|line| line.contains("99.9th")).unwrap_or_else(|| panic!("{said}"));
    // "100 records sent, 5.0 records/sec (…), 1.0 ms avg latency, 2.0 ms max latency, 1 ms 50th, 2 ms 95th, …"
    let figure = |after: &str| {
        let part = last.split(", ").find(|part| part.contains(after)).expect("a figure of that name");
        part.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).expect("a number")
    };
    Figures {
        per_second: figure("records/sec"),
        median_milliseconds: figure("50th"),
        p99_milliseconds: figure("99th"),
    }
}

/// Records a second of librdkafka alone, with the properties that the projector's consumer has.
fn bare_consumer(kafka: &KafkaConfig, records: usize) -> f64 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &kafka.brokers)
        .set("group.id", format!("{}-bare", kafka.group))
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "10")
        .set("fetch.wait.max.ms", "100")
        .set("queued.max.messages.kbytes", "32768")
        .create()
        .expect("a client");
    let mut partitions = TopicPartitionList::new();
    for partition in 0..PARTITIONS.get() as i32 {
        let topic = &kafka.topics.observations;
        partitions.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&partitions).expect("the partitions are there");
    let (mut first, mut count, mut bytes) = (None, 0, 0);
    let began = Instant::now();
    while count < records {
        assert!(began.elapsed() < PATIENCE, "only {count} records came");
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            first.get_or_insert_with(Instant::now);
            bytes += message.expect("a record").payload_len();
            count += 1;
        }
    }
    assert!(bytes > records * BODY_BYTES, "the records are shorter than their bodies");
    records as f64 / first.expect("a first record").elapsed().as_secs_f64()
}

/// Records a second of `witness projector` with an empty store, from the first batch it counts to the last.
fn projector(kafka: &KafkaConfig, folder: &Path, records: usize) -> f64 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let (file, log) = (folder.join("witness.toml"), folder.join("log"));
    let TopicNames { observations, projections, claims } = &kafka.topics;
    let text = format!(
        r#"[journal]
kind = "kafka"
brokers = "{}"
partitions = {PARTITIONS}
replication_factor = 1
allow_unsafe_topics = true
topics = {{ observations = "{observations}", projections = "{projections}", claims = "{claims}" }}
[projector]
listen = "{address}"
store = "{}"
group = "{}"
instance_id = "bench"
[[endpoint]]
id = "main"
provider = "ycloud"
tenant = "acme"
secrets = ["env:WITNESS_BENCH_SECRET"]
"#,
        kafka.brokers,
        folder.join("store").display(),
        kafka.group,
    );
    std::fs::write(&file, text).expect("written");
    let child = Command::new(env!("CARGO_BIN_EXE_witness"))
        .args(["projector", "--config"])
        .arg(file)
        .env("WITNESS_BENCH_SECRET", String::from_utf8_lossy(KEY).as_ref())
        .stderr(std::fs::File::create(&log).expect("a log"))
        .spawn();
    let mut child = KilledOnDrop(child.expect("it starts"));
    let (began, mut first) = (Instant::now(), None);
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let (now, derived) = (Instant::now(), observations_derived(address).unwrap_or(0));
        let (at, before) = match first {
            None if derived > 0 => *first.insert((now, derived)),
            Some(first) => first,
            None => (now, derived),
        };
        if derived >= records {
            return (derived - before) as f64 / now.duration_since(at).as_secs_f64();
        }
        let ended = child.0.try_wait().expect("it can be waited for");
        let failed = ended.is_some() || began.elapsed() > PATIENCE;
        assert!(!failed, "{derived} derived; {}", std::fs::read_to_string(&log).unwrap_or_default());
    }
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The projector's own count; `None` while it does not answer.
fn observations_derived(address: SocketAddr) -> Option<usize> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let lines = text.lines().filter(|line| line.starts_with("witness_projector_observations_total"));
    Some(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum())
}
