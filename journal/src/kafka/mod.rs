//! The journal on Apache Kafka: its configuration, and the librdkafka properties that go with it. Must never
//! let a passed-through property weaken what the journal promises, and never print a property's value: they
//! hold passwords.

mod appender;
mod consumer;
mod context;
mod group;
mod members;
mod membership;
mod metrics;
mod publisher;
mod pulse;
mod reader;
pub mod topics;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use thiserror::Error;

pub use self::appender::KafkaAppender;
pub use self::consumer::KafkaConsumer;
pub use self::metrics::describe;
pub use self::reader::KafkaLogReader;
use crate::Topic;

/// Bytes of one record (key and value) unless configured; the topics must take as much.
pub const RECORD_BYTES_MAX_DEFAULT: usize = 2 * 1024 * 1024;

/// Bytes that a record's framing may add to its key and value.
const RECORD_OVERHEAD_BYTES: usize = 64 * 1024;

/// Milliseconds librdkafka may try to deliver a record unless told otherwise. It notices an overdue record up to about a second
/// late, twice, and the provider must have its answer within 5 s whatever the broker does.
pub const DELIVERY_MILLISECONDS_MAX_DEFAULT: u32 = 3_000;

/// Milliseconds a transaction may stay open before the broker aborts it, and so the longest that a crashed
/// owner's undecided publication can hold up the next owner.
const TRANSACTION_MILLISECONDS_MAX: u32 = 15_000;

/// Milliseconds between two statistics of one client.
const STATISTICS_MILLISECONDS_MAX: u64 = 1_000;

/// Milliseconds that the group waits for a sign of a member, unless configured.
const SESSION_MILLISECONDS_DEFAULT: &str = "10000";

/// Where the journal is and how much of it is taken at once.
#[derive(Clone)]
pub struct KafkaConfig {
    /// Bootstrap servers, `host:port` joined by commas.
    pub brokers: String,
    /// The topics' names.
    pub topics: TopicNames,
    /// Partitions of every topic. Part of the data: see [`topics::check`].
    pub partitions: NonZeroU32,
    /// The consumer group.
    pub group: String,
    /// Names this process within the group (`group.instance.id`), and its transactions. No two living
    /// processes may share one; a process that keeps its own across restarts also keeps its partitions.
    ///
    /// Not optional: a Kafka broker checks who commits offsets in a transaction by member id and generation,
    /// but accepts a commit that carries neither, and librdkafka carries neither just after its membership
    /// expired. With an instance id the broker always checks.
    pub instance_id: String,
    /// The `host:port` at which other members of the group reach this one, if they can.
    pub advertise: Option<String>,
    /// Bytes of one record's key and value together.
    pub record_bytes_max: usize,
    /// Milliseconds an append may wait for its acknowledgement before it is reported failed.
    pub delivery_milliseconds_max: u32,
    /// Appends that may wait for their acknowledgement.
    pub queue_records_max: u32,
    /// Kibibytes that may wait for their acknowledgement.
    pub queue_kibibytes_max: u32,
    /// Records that one [`crate::Consumer::poll`] may take in.
    pub batch_records_max: usize,
    /// Bytes after which [`crate::Consumer::poll`] takes in no further record.
    pub batch_bytes_max: usize,
    /// librdkafka properties, passed through: TLS, SASL, timings. Those that Witness owns are refused.
    pub properties: BTreeMap<String, String>,
}

impl KafkaConfig {
    /// A configuration with default names and bounds.
    pub fn new(
        brokers: impl Into<String>,
        partitions: NonZeroU32,
        group: impl Into<String>,
        instance_id: impl Into<String>,
    ) -> Self {
        Self {
            brokers: brokers.into(),
            topics: TopicNames::default(),
            partitions,
            group: group.into(),
            instance_id: instance_id.into(),
            advertise: None,
            record_bytes_max: RECORD_BYTES_MAX_DEFAULT,
            delivery_milliseconds_max: DELIVERY_MILLISECONDS_MAX_DEFAULT,
            queue_records_max: 20_000,
            queue_kibibytes_max: 64 * 1024,
            batch_records_max: 1_000,
            batch_bytes_max: 8 * 1024 * 1024,
            properties: BTreeMap::new(),
        }
    }

    /// Refuses properties that Witness owns, those that librdkafka does not know, and values it does not take.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (property, why) in OWNED_PROPERTIES {
            if self.properties.contains_key(*property) {
                return Err(ConfigError::Owned { property, why });
            }
        }
        let clients = [
            self.producer(),
            self.consumer(),
            self.log_reader(),
            self.transactional_producer(Topic::Observations),
        ];
        for config in clients {
            config.create_native_config().map_err(ConfigError::from_kafka)?;
        }
        Ok(())
    }

    /// A client with `defaults` that the operator may change, and `owned` that nobody may.
    fn client(&self, defaults: &[(&str, &str)], owned: &[(&str, String)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", members::client_id(&self.instance_id, None))
            // A broker that accepts connections and says nothing must be given up soon, not after a minute.
            .set("socket.timeout.ms", "10000")
            .set("socket.connection.setup.timeout.ms", "5000")
            .set("reconnect.backoff.max.ms", "1000")
            .set("socket.nagle.disable", "true");
        for (property, value) in defaults {
            config.set(*property, *value);
        }
        for (property, value) in &self.properties {
            config.set(property, value);
        }
        for (property, value) in owned {
            config.set(*property, value);
        }
        config
            .set("bootstrap.servers", &self.brokers)
            .set("allow.auto.create.topics", "false")
            .set("statistics.interval.ms", STATISTICS_MILLISECONDS_MAX.to_string())
            .set_log_level(RDKafkaLogLevel::Info);
        config
    }

    fn any_producer(&self) -> ClientConfig {
        self.client(
            // One await per request makes lingering a delay for everyone.
            &[("linger.ms", "0"), ("compression.type", "lz4")],
            &[
                ("enable.idempotence", "true".to_owned()),
                ("acks", "all".to_owned()),
                // Partitions are named by us; this only makes a mistake land where Java would put it.
                ("partitioner", "murmur2_random".to_owned()),
                ("message.max.bytes", (self.record_bytes_max + RECORD_OVERHEAD_BYTES).to_string()),
            ],
        )
    }

    fn producer(&self) -> ClientConfig {
        let mut config = self.any_producer();
        config
            .set("message.timeout.ms", self.delivery_milliseconds_max.to_string())
            .set("queue.buffering.max.messages", self.queue_records_max.to_string())
            .set("queue.buffering.max.kbytes", self.queue_kibibytes_max.to_string());
        config
    }

    fn transactional_producer(&self, reads: Topic) -> ClientConfig {
        let mut config = self.any_producer();
        config
            .set("transactional.id", format!("{}-{}-{}", self.group, self.instance_id, self.topics.of(reads)))
            .set("transaction.timeout.ms", TRANSACTION_MILLISECONDS_MAX.to_string());
        config
    }

    /// The client id of a member of the group.
    fn member_client_id(&self) -> String {
        members::client_id(&self.instance_id, self.advertise.as_deref())
    }

    /// How long the group waits for a sign of a member before it gives its partitions to others.
    fn session(&self) -> Duration {
        let configured = self.properties.get("session.timeout.ms").map(String::as_str);
        let milliseconds = configured.unwrap_or(SESSION_MILLISECONDS_DEFAULT).trim().parse();
        // What is no number is refused by librdkafka.
        Duration::from_millis(milliseconds.unwrap_or(0))
    }

    fn consumer(&self) -> ClientConfig {
        let mut config = self.any_reader();
        config.set("group.instance.id", &self.instance_id);
        // Heartbeats are counted by them: see [`pulse`].
        let session_milliseconds = u64::try_from(self.session().as_millis()).unwrap_or(u64::MAX);
        let interval = (session_milliseconds / 10).clamp(1, STATISTICS_MILLISECONDS_MAX);
        config.set("statistics.interval.ms", interval.to_string()).set("client.id", self.member_client_id());
        config
    }

    /// librdkafka wants a group even of a reader that never joins it.
    fn log_reader(&self) -> ClientConfig {
        let mut config = self.any_reader();
        config.set("group.id", format!("{}-reader", self.group));
        // The only word from librdkafka that a log was read to its end.
        config.set("enable.partition.eof", "true");
        config
    }

    fn any_reader(&self) -> ClientConfig {
        self.client(
            &[
                ("session.timeout.ms", SESSION_MILLISECONDS_DEFAULT),
                ("heartbeat.interval.ms", "1000"),
                // Also how long a rebalance waits for a member that is never heard of again.
                ("max.poll.interval.ms", "60000"),
                // librdkafka's default of a second quarters the rate of reading.
                ("fetch.queue.backoff.ms", "10"),
                ("fetch.wait.max.ms", "100"),
                ("queued.max.messages.kbytes", "32768"),
            ],
            &[
                ("group.id", self.group.clone()),
                ("partition.assignment.strategy", "cooperative-sticky".to_owned()),
                // Also makes the committed offset be read only once no transaction over it is undecided.
                ("isolation.level", "read_committed".to_owned()),
                ("enable.auto.commit", "false".to_owned()),
                ("enable.auto.offset.store", "false".to_owned()),
                ("auto.offset.reset", "error".to_owned()),
            ],
        )
    }

    /// A client that asks about the group, and reads nothing.
    fn onlooker(&self) -> ClientConfig {
        let mut config = self.log_reader();
        config.set("group.id", format!("{}-onlooker", self.group));
        config
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("topics", &self.topics)
            .field("partitions", &self.partitions)
            .field("group", &self.group)
            .field("instance_id", &self.instance_id)
            .field("properties", &self.properties.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The names of the three topics on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicNames {
    /// Of [`Topic::Observations`].
    pub observations: String,
    /// Of [`Topic::Projections`].
    pub projections: String,
    /// Of [`Topic::Claims`].
    pub claims: String,
}

impl TopicNames {
    /// The name of `topic`.
    pub fn of(&self, topic: Topic) -> &str {
        match topic {
            Topic::Observations => &self.observations,
            Topic::Projections => &self.projections,
            Topic::Claims => &self.claims,
        }
    }
}

impl Default for TopicNames {
    fn default() -> Self {
        Self {
            observations: Topic::Observations.name().to_owned(),
            projections: Topic::Projections.name().to_owned(),
            claims: Topic::Claims.name().to_owned(),
        }
    }
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The property belongs to Witness.
    #[error("the librdkafka property {property:?} cannot be set: {why}")]
    Owned {
        /// Its name.
        property: &'static str,
        /// What it would break.
        why: &'static str,
    },
    /// librdkafka refuses the property.
    #[error("the librdkafka property {property:?} is refused: {why}")]
    Refused {
        /// Its name.
        property: String,
        /// librdkafka's words, without the value.
        why: String,
    },
    /// No client can be made of it.
    #[error("no Kafka client can be made: {0}")]
    Client(String),
}

impl ConfigError {
    fn from_kafka(error: KafkaError) -> Self {
        let KafkaError::ClientConfig(_, why, property, value) = error else {
            return Self::Client(error.to_string());
        };
        // librdkafka repeats the value in its message; it may be a secret.
        let why = if value.is_empty() { why } else { why.replace(&value, "…") };
        Self::Refused { property, why }
    }
}

const DURABILITY: &str = "an acknowledged delivery must be on every in-sync replica, once";
const PARTITION: &str = "the partition of a key is part of the data";
const RESUME: &str = "where reading resumes is decided by the store, never by the broker or by default";
const PUBLISHING: &str = "projections and offsets are published together by the current owner, or not at all";
const OWN_KEY: &str = "it has a key of its own in the configuration";
const OBSERVED: &str = "readiness and metrics are made of it";

/// Properties (and librdkafka's other names of them) that an operator cannot pass through, and why.
pub const OWNED_PROPERTIES: &[(&str, &str)] = &[
    ("acks", DURABILITY),
    ("request.required.acks", DURABILITY),
    ("enable.idempotence", DURABILITY),
    ("enable.gapless.guarantee", DURABILITY),
    ("max.in.flight", DURABILITY),
    ("max.in.flight.requests.per.connection", DURABILITY),
    ("message.timeout.ms", "a delivery must be answered within 5 s"),
    ("delivery.timeout.ms", "a delivery must be answered within 5 s"),
    ("message.send.max.retries", "deliveries are retried until their time is over"),
    ("retries", "deliveries are retried until their time is over"),
    ("message.max.bytes", OWN_KEY),
    ("queue.buffering.max.messages", OWN_KEY),
    ("queue.buffering.max.kbytes", OWN_KEY),
    ("partitioner", PARTITION),
    ("allow.auto.create.topics", PARTITION),
    ("bootstrap.servers", OWN_KEY),
    ("metadata.broker.list", OWN_KEY),
    ("group.id", OWN_KEY),
    ("group.instance.id", OWN_KEY),
    ("group.protocol", PUBLISHING),
    ("partition.assignment.strategy", PUBLISHING),
    ("isolation.level", PUBLISHING),
    ("transactional.id", PUBLISHING),
    ("transaction.timeout.ms", PUBLISHING),
    ("enable.auto.commit", RESUME),
    ("auto.commit.enable", RESUME),
    ("enable.auto.offset.store", RESUME),
    ("auto.offset.reset", RESUME),
    ("enable.partition.eof", RESUME),
    ("statistics.interval.ms", OBSERVED),
    ("client.id", "the other projectors find each other by it"),
    ("log.queue", OBSERVED),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> KafkaConfig {
        KafkaConfig::new("localhost:9092", NonZeroU32::new(4).unwrap(), "group", "one")
    }

    #[test]
    fn properties_that_keep_the_promises_cannot_be_set() {
        config().validate().unwrap();
        for (property, _) in OWNED_PROPERTIES {
            let mut config = config();
            config.properties.insert((*property).to_owned(), "0".to_owned());
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(property) && message.contains("cannot be set: "), "{message}");
        }
    }

    #[test]
    fn properties_of_the_operator_reach_librdkafka() {
        let mut config = config();
        config.properties.insert("security.protocol".to_owned(), "SASL_SSL".to_owned());
        config.properties.insert("sasl.mechanism".to_owned(), "SCRAM-SHA-512".to_owned());
        config.properties.insert("sasl.password".to_owned(), "hush".to_owned());
        config.properties.insert("session.timeout.ms".to_owned(), "20000".to_owned());
        config.validate().unwrap();
        assert_eq!(config.producer().get("security.protocol"), Some("SASL_SSL"));
        assert_eq!(config.consumer().get("sasl.password"), Some("hush"));
        assert_eq!(config.consumer().get("session.timeout.ms"), Some("20000"));
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn what_librdkafka_refuses_is_named_without_its_value() {
        let mut unknown = config();
        unknown.properties.insert("no.such.property".to_owned(), "1".to_owned());
        let message = unknown.validate().unwrap_err().to_string();
        assert!(message.contains("no.such.property"), "{message}");

        let mut wrong = config();
        wrong.properties.insert("security.protocol".to_owned(), "hush-hush".to_owned());
        let message = wrong.validate().unwrap_err().to_string();
        assert!(message.contains("security.protocol") && !message.contains("hush-hush"), "{message}");
    }
}
