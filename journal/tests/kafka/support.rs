//! What the Kafka tests share. Must never give two tests the same topic or group.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use journal::kafka::{KafkaAppender, KafkaConfig, KafkaConsumer, TopicNames, topics};
use journal::{
    Appender, Assigned, Consumer, NewRecord, PartitionOwner, Polled, Position, Publication, ReadError,
    Record, Topic,
};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message;

use crate::contract::record;
use crate::finder::Cluster;

/// Longer than anything that is going to happen takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A name that no other test, and no other run on the same broker, uses.
pub(crate) fn unique(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A configuration with topic names of its own, not created yet.
pub(crate) fn names(servers: &str, partitions: u32) -> KafkaConfig {
    let mut config = KafkaConfig::new(servers, NonZeroU32::new(partitions).unwrap(), unique("group"), "one");
    let prefix = unique("test");
    config.topics = TopicNames {
        observations: format!("{prefix}.observations"),
        projections: format!("{prefix}.projections"),
        claims: format!("{prefix}.claims"),
    };
    config
}

/// A configuration whose topics exist.
pub(crate) fn journal(cluster: &Cluster, partitions: u32) -> KafkaConfig {
    let config = names(&cluster.servers, partitions);
    let created = block_on(topics::create(&config, cluster.brokers)).unwrap();
    assert_eq!(created.len(), 3);
    config
}

/// The same journal as seen by another instance of the same group, quick to be given up.
pub(crate) fn instance(config: &KafkaConfig, id: &str) -> KafkaConfig {
    let mut config = config.clone();
    config.instance_id = id.to_owned();
    for (property, value) in
        [("session.timeout.ms", "2000"), ("heartbeat.interval.ms", "300"), ("max.poll.interval.ms", "2500")]
    {
        config.properties.insert(property.to_owned(), value.to_owned());
    }
    config
}

pub(crate) fn consumer(config: &KafkaConfig) -> KafkaConsumer {
    KafkaConsumer::open(config.clone(), Topic::Observations).unwrap()
}

/// Appends `count` records to `partition`, values `0`, `1`, ….
pub(crate) fn append(config: &KafkaConfig, partition: u32, count: u32) -> Vec<Position> {
    let appender = KafkaAppender::open(config.clone()).unwrap();
    block_on(async {
        let mut positions = Vec::new();
        for number in 0..count {
            let record = record(partition, "key", number.to_string());
            positions.push(appender.append(Topic::Observations, record).await.unwrap());
        }
        positions
    })
}

/// An owner that resumes where it is told, else at the committed offset, else at the log's start.
#[derive(Default)]
pub(crate) struct Keeper {
    pub(crate) from: BTreeMap<u32, u64>,
    pub(crate) assigned: Vec<Assigned>,
    pub(crate) revoked: Vec<u32>,
    pub(crate) held: BTreeSet<u32>,
    pub(crate) records: BTreeMap<u32, Vec<Record>>,
    pub(crate) errors: Vec<ReadError>,
}

impl PartitionOwner for Keeper {
    fn assigned(&mut self, assigned: Assigned) -> Result<u64, String> {
        assert!(self.held.insert(assigned.partition), "assigned twice: {assigned:?}");
        let committed = assigned.committed.as_ref().map(|committed| committed.offset);
        let from = self.from.get(&assigned.partition).copied().or(committed).unwrap_or(assigned.log_start);
        self.assigned.push(assigned);
        Ok(from)
    }

    fn revoked(&mut self, partition: u32) {
        assert!(self.held.remove(&partition), "revoked, but not assigned: {partition}");
        self.revoked.push(partition);
    }
}

impl Keeper {
    /// Polls once, and keeps what came.
    pub(crate) fn turn(&mut self, consumer: &mut dyn Consumer) {
        match consumer.poll(self, Duration::from_millis(50)) {
            Ok(Polled::Records { partition, records }) => {
                assert!(self.held.contains(&partition), "records of a partition that is not held");
                self.records.entry(partition).or_default().extend(records);
            }
            Ok(Polled::Nothing) => {}
            Err(error) => self.errors.push(error),
        }
    }

    /// Polls until `done`.
    pub(crate) fn until(&mut self, consumer: &mut dyn Consumer, what: &str, done: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !done(self) {
            assert!(
                started.elapsed() < PATIENCE,
                "not in time: {what}; assigned {:?}, revoked {:?}, errors {:?}, records {:?}",
                self.assigned,
                self.revoked,
                self.errors,
                self.records
                    .iter()
                    .map(|(partition, records)| (partition, records.len()))
                    .collect::<Vec<_>>()
            );
            self.turn(consumer);
        }
    }

    pub(crate) fn read(&self, partition: u32) -> usize {
        self.records.get(&partition).map_or(0, Vec::len)
    }
}

/// One projection and one claim of partition 0, and the next offset.
pub(crate) fn publication(offset: u64, text: &str) -> Publication {
    let record = |what: &str| NewRecord {
        partition: 0,
        key: format!("{what} key").into(),
        value: format!("{what} {text}").into(),
    };
    Publication {
        partition: 0,
        offset,
        metadata: format!("metadata {text}"),
        projections: vec![record("projection")],
        claims: vec![record("claim")],
    }
}

/// The values that a reader who is not ours sees in partition 0 of a topic, up to its stable end.
pub(crate) fn committed_values(servers: &str, topic: &str) -> Vec<String> {
    let reader: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", unique("reader"))
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .create()
        .unwrap();
    let mut partitions = rdkafka::TopicPartitionList::new();
    partitions.add_partition_offset(topic, 0, rdkafka::Offset::Beginning).unwrap();
    reader.assign(&partitions).unwrap();
    let mut values = Vec::new();
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "no end of {topic}");
        match reader.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => {
                values.push(String::from_utf8(message.payload().unwrap_or_default().to_vec()).unwrap());
            }
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => return values,
            Some(Err(error)) => panic!("{topic}: {error}"),
            None => {}
        }
    }
}
