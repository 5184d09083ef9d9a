//! What anybody can see of the topics with an ordinary Kafka client that reads committed records only. Must
//! never join the projectors' group, nor write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::common::PATIENCE;
use crate::fleet::{LOOK_AGAIN, PARTITIONS};
use crate::registry::Mock;

/// How long one question to the broker may take.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);

/// Reads one fleet's topics.
pub(crate) struct Reader {
    pub(crate) servers: String,
    prefix: String,
    group: String,
    /// Whose ids every record must carry.
    registry: Option<Mock>,
}

/// A record as it was read.
pub(crate) struct Record {
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(servers: &str, prefix: &str, group: &str, registry: Option<Mock>) -> Self {
        let (servers, prefix, group) = (servers.to_owned(), prefix.to_owned(), format!("{prefix}-{group}"));
        Self { servers, prefix, group, registry }
    }

    /// The value in single-object encoding.
    fn value(&self, value: &[u8]) -> Vec<u8> {
        let Some(registry) = &self.registry else { return value.to_vec() };
        assert_eq!(value.first(), Some(&0), "the value is not in the wire format");
        let schema_of = |id: u32| registry.contents().schemas.get(id.checked_sub(1)? as usize).cloned();
        schema::wire::from_wire(value.to_vec().into(), |id| schema::wire::fingerprint(&schema_of(id)?)).into()
    }

    /// Every observation, in the order of its partition.
    pub(crate) fn observations(&self) -> Vec<Record> {
        self.everything(&self.topic("observations"))
    }

    /// Every committed record of the projections topic, in the order of its partition.
    pub(crate) fn projections(&self) -> Vec<Record> {
        self.everything(&self.topic("projections"))
    }

    fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// A client that never joins: asking for a group's offsets needs no membership.
    fn client(&self) -> BaseConsumer {
        ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("group.id", &self.group)
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .create()
            .expect("a client")
    }

    fn everything(&self, topic: &str) -> Vec<Record> {
        let client = self.client();
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS as i32 {
            partitions.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
        }
        client.assign(&partitions).expect("the partitions are there");
        let (mut records, mut ended) = (Vec::new(), BTreeSet::new());
        let started = Instant::now();
        while ended.len() < PARTITIONS as usize {
            assert!(started.elapsed() < PATIENCE, "no end of {topic} but in {ended:?}");
            match client.poll(LOOK_AGAIN) {
                Some(Ok(message)) => records.push(Record {
                    partition: message.partition() as u32,
                    offset: message.offset() as u64,
                    key: String::from_utf8(message.key().expect("a key").to_vec()).expect("a key of text"),
                    value: self.value(message.payload().expect("a value")),
                }),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    ended.insert(partition);
                }
                // A lost line to one broker: the client connects again by itself.
                Some(Err(_)) | None => {}
            }
        }
        records
    }

    /// The end of every partition of the observations.
    pub(crate) fn ends(&self) -> BTreeMap<u32, u64> {
        let (client, topic) = (self.client(), self.topic("observations"));
        let end = |partition| {
            let bounds = client.fetch_watermarks(&topic, partition as i32, QUESTION_TIME_MAX);
            (partition, bounds.expect("the partition has bounds").1 as u64)
        };
        (0..PARTITIONS).map(end).collect()
    }

    /// The group's committed offsets: how far each partition is published. Not while one is undecided.
    pub(crate) fn committed(&self) -> Option<BTreeMap<u32, u64>> {
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS as i32 {
            partitions.add_partition(&self.topic("observations"), partition);
        }
        let committed = self.client().committed_offsets(partitions, QUESTION_TIME_MAX).ok()?;
        let offset = |offset| if let Offset::Offset(offset) = offset { Some(offset as u64) } else { None };
        let elements = committed.elements();
        let known = elements.iter().filter_map(|of| Some((of.partition() as u32, offset(of.offset())?)));
        Some(known.collect())
    }
}
