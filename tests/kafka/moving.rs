//! From one machine to Kafka and back, through files, with an import that is killed on the way. Must never compare
//! anything but keys and values: offsets and partitions belong to each journal.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use journal::embedded::{Config, EmbeddedJournal};
use journal::kafka::{KafkaConfig, KafkaLogReader, TopicNames};
use journal::{Appender, LogReader, NewRecord, Topic};
use schema::subject::partition_of;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::common::{PATIENCE, PROGRAM};
use crate::finder::Cluster;

const TOPICS: [Topic; 2] = [Topic::Observations, Topic::Claims];
const RECORDS: u32 = 6_000;
const ON_KAFKA: NonZeroU32 = NonZeroU32::new(6).unwrap();
const EMBEDDED: NonZeroU32 = NonZeroU32::new(4).unwrap();
const BACK: NonZeroU32 = NonZeroU32::new(3).unwrap();

/// Values by topic and key, in the order of the log.
type Content = BTreeMap<(Topic, Bytes), Vec<Bytes>>;

pub(crate) fn a_log_moves_to_kafka_and_back(cluster: &Cluster) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path();
    let prefix = format!("moved-{}", std::process::id());
    let on_kafka = on_kafka(cluster, &prefix);
    configure(
        path,
        "embedded",
        &format!("path = \"{}\"\npartitions = {EMBEDDED}\n", path.join("a").display()),
    );
    configure(path, "back", &format!("path = \"{}\"\npartitions = {BACK}\n", path.join("b").display()));
    let topics = TOPICS.map(|topic| on_kafka.topics.of(topic).to_owned());
    configure(
        path,
        "kafka",
        &format!(
            "kind = \"kafka\"\nbrokers = \"{}\"\npartitions = {ON_KAFKA}\nreplication_factor = {}\n\
             allow_unsafe_topics = true\n[journal.topics]\nobservations = \"{}\"\nclaims = \"{}\"\n\
             projections = \"{prefix}.projections\"\n",
            cluster.servers,
            if cluster.brokers < 3 { 1 } else { 3 },
            topics[0],
            topics[1],
        ),
    );
    fill(&path.join("a"));
    let wanted = content(&mut |topic| Box::new(open(&path.join("a"), EMBEDDED).log_reader(topic)), EMBEDDED);
    assert_eq!(wanted.values().map(Vec::len).sum::<usize>(), RECORDS as usize);

    done(path, &["topics", "create", "--config", "kafka.toml"]);
    done(path, &["journal", "export", "--config", "embedded.toml", "--to", "log"]);
    let import = ["journal", "import", "--config", "kafka.toml", "--from", "log"];
    kill_when_it_has_begun(path, &import, &on_kafka);
    let imported = done(path, &import);
    assert_eq!(imported["records"], RECORDS);
    let reader = |topic| KafkaLogReader::open(on_kafka.clone(), topic).expect("a reader");
    assert_eq!(content(&mut |topic| Box::new(reader(topic)), ON_KAFKA), wanted);
    let again = done(path, &import);
    assert_eq!((&again["records"], &again["resumed"]), (&json!(RECORDS), &json!(RECORDS)));

    let exported = done(path, &["journal", "export", "--config", "kafka.toml", "--to", "log-of-kafka"]);
    assert_eq!((&exported["records"], &exported["partitions"]), (&json!(RECORDS), &json!(ON_KAFKA)));
    let back = done(path, &["journal", "import", "--config", "back.toml", "--from", "log-of-kafka"]);
    assert_eq!(back["file_digest"], exported["digest"]);
    assert_eq!(content(&mut |topic| Box::new(open(&path.join("b"), BACK).log_reader(topic)), BACK), wanted);

    // What is on Kafka already is the beginning of no other log.
    fill_one(&path.join("c"));
    configure(path, "other", &format!("path = \"{}\"\npartitions = {EMBEDDED}\n", path.join("c").display()));
    done(path, &["journal", "export", "--config", "other.toml", "--to", "other-log"]);
    let refused =
        witness(path, &["journal", "import", "--config", "kafka.toml", "--from", "other-log"]).output();
    let refused = refused.expect("witness runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("not the beginning of this import"), "{said}");
}

fn on_kafka(cluster: &Cluster, prefix: &str) -> KafkaConfig {
    let mut config = KafkaConfig::new(&cluster.servers, ON_KAFKA, format!("{prefix}-reader"), "reader");
    config.topics = TopicNames {
        observations: format!("{prefix}.observations"),
        projections: format!("{prefix}.projections"),
        claims: format!("{prefix}.claims"),
    };
    config
}

fn configure(folder: &Path, name: &str, journal: &str) {
    let endpoint =
        "[[endpoint]]\nid = \"main\"\nprovider = \"ycloud\"\ntenant = \"acme\"\nsecrets = [\"env:NONE\"]\n";
    std::fs::write(folder.join(format!("{name}.toml")), format!("[journal]\n{journal}{endpoint}"))
        .expect("the configuration is written");
}

fn witness(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(folder);
    command
}

/// Runs to its good end, and answers what it says as JSON.
fn done(folder: &Path, arguments: &[&str]) -> Json {
    let output = witness(folder, arguments).arg("--json").output().expect("witness runs");
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    assert!(output.status.success(), "{arguments:?}: {said:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// SIGKILL as soon as anything is there; when the import is faster than that, there is nothing to go on with.
fn kill_when_it_has_begun(folder: &Path, arguments: &[&str], config: &KafkaConfig) {
    let mut reader = KafkaLogReader::open(config.clone(), Topic::Observations).expect("a reader");
    let mut import = witness(folder, arguments).stdout(Stdio::null()).spawn().expect("witness runs");
    let started = Instant::now();
    let mut is_begun = false;
    while !is_begun {
        assert!(started.elapsed() < PATIENCE, "nothing was imported");
        is_begun =
            (0..ON_KAFKA.get()).any(|partition| reader.bounds(partition).is_ok_and(|(_, end)| end > 0));
    }
    import.kill().expect("killed");
    import.wait().expect("reaped");
}

fn open(path: &PathBuf, partitions: NonZeroU32) -> EmbeddedJournal {
    EmbeddedJournal::open(&Config::new(path, partitions)).expect("opens")
}

fn fill(path: &PathBuf) {
    append(
        path,
        (0..RECORDS).map(|number| {
            let topic = TOPICS[usize::from(number % 4 == 0)];
            let size = if number % 500 == 0 { 500_000 } else { 40 };
            (topic, format!("acme/ycloud/message/{}", number % 101), format!("{number}{}", "x".repeat(size)))
        }),
    );
}

fn fill_one(path: &PathBuf) {
    append(path, [(Topic::Observations, "acme/ycloud/message/1".to_owned(), "other".to_owned())].into_iter());
}

fn append(path: &PathBuf, records: impl Iterator<Item = (Topic, String, String)>) {
    let journal = open(path, EMBEDDED);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let appends = records.map(|(topic, key, value)| {
        let partition = partition_of(key.as_bytes(), EMBEDDED);
        journal.append(topic, NewRecord { partition, key: key.into(), value: value.into() })
    });
    for answer in runtime.block_on(join_all(appends)) {
        assert!(answer.is_ok(), "{answer:?}");
    }
}

fn content(reader: &mut dyn FnMut(Topic) -> Box<dyn LogReader>, partitions: NonZeroU32) -> Content {
    let mut content = Content::new();
    for topic in TOPICS {
        let mut reader = reader(topic);
        for partition in 0..partitions.get() {
            let (mut next, end) = reader.bounds(partition).expect("measured");
            while next < end {
                let records = reader.read(partition, next, PATIENCE).expect("readable");
                next = records.last().map_or(end, |record| record.offset + 1);
                for record in records {
                    content.entry((topic, record.key)).or_default().push(record.value);
                }
            }
        }
    }
    content
}
