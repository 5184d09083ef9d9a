//! Creating and checking the three topics. Must never change a topic that exists: what is in it is data.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::RDKafkaErrorCode;
use thiserror::Error;

use super::context::KafkaContext;
use super::{ConfigError, KafkaConfig, RECORD_OVERHEAD_BYTES};
use crate::Topic;

/// Replicas a topic is created with unless told otherwise, and the least that is safe.
pub const REPLICAS_SAFE_MIN: u32 = 3;

/// In-sync replicas that must have a record before it is acknowledged.
const IN_SYNC_SAFE_MIN: u32 = 2;

const REQUEST_TIME_MAX: Duration = Duration::from_secs(15);

/// Why the topics could not be created or looked at.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The broker cannot be asked.
    #[error("the Kafka cluster at {brokers} does not answer: {why}")]
    Unreachable {
        /// As configured.
        brokers: String,
        /// librdkafka's words.
        why: String,
    },
    /// The broker refuses one topic.
    #[error("the topic {topic:?} cannot be created: {why}")]
    Refused {
        /// Its name.
        topic: String,
        /// The broker's words.
        why: String,
    },
}

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Data can be lost; an operator may allow it by `allow_unsafe_topics`.
    Unsafe,
    /// Witness cannot work with it at all.
    Refused,
}

/// One thing that is wrong with a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The topic's name on the broker.
    pub topic: String,
    /// The setting, by Kafka's name for it where it has one.
    pub setting: &'static str,
    /// What the broker says.
    pub found: String,
    /// What it should say.
    pub wanted: String,
    /// What goes wrong otherwise.
    pub why: &'static str,
    /// What to do.
    pub fix: String,
    /// Whether it may be allowed.
    pub weight: Weight,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, setting, found, wanted, why, fix, .. } = self;
        write!(f, "{topic}: {setting} is {found}, wanted {wanted}: {why}. {fix}")
    }
}

/// Creates the topics that are missing, each with `replicas` replicas, and answers their names. Existing ones
/// are left as they are: [`check`] them.
pub async fn create(config: &KafkaConfig, replicas: u32) -> Result<Vec<String>, Error> {
    let admin = admin(config)?;
    let settings: Vec<(String, Vec<(&str, String)>)> = Topic::ALL
        .map(|topic| (config.topics.of(topic).to_owned(), settings_of(config, topic, replicas)))
        .into();
    let topics: Vec<NewTopic<'_>> = settings
        .iter()
        .map(|(name, settings)| {
            let topic = NewTopic::new(
                name,
                super::publisher::signed_partition(config.partitions.get()),
                TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(i32::MAX)),
            );
            settings.iter().fold(topic, |topic, (setting, value)| topic.set(setting, value))
        })
        .collect();
    let results =
        admin.create_topics(&topics, &options()).await.map_err(|error| unreachable_at(config, error))?;
    let mut created = Vec::new();
    for result in results {
        match result {
            Ok(name) => created.push(name),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, why)) => return Err(Error::Refused { topic, why: why.to_string() }),
        }
    }
    Ok(created)
}

/// Compares the topics with what Witness needs; nothing is wrong when it answers no findings. Blocking for a
/// moment while metadata is fetched.
pub async fn check(config: &KafkaConfig) -> Result<Vec<Finding>, Error> {
    let admin = admin(config)?;
    let mut findings = Vec::new();
    for topic in Topic::ALL {
        let name = config.topics.of(topic);
        // Of every topic, because asking for one by name could create it.
        let metadata = admin
            .inner()
            .fetch_metadata(None, REQUEST_TIME_MAX)
            .map_err(|error| unreachable_at(config, error))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == name) else {
            findings.push(missing(name));
            continue;
        };
        let partitions = found.partitions().len();
        if u32::try_from(partitions) != Ok(config.partitions.get()) {
            findings.push(partition_count(name, partitions, config.partitions.get()));
        }
        let replicas = found.partitions().iter().map(|partition| partition.replicas().len()).min();
        let replicas = u32::try_from(replicas.unwrap_or(0)).unwrap_or(u32::MAX);
        if replicas < REPLICAS_SAFE_MIN {
            findings.push(Finding {
                topic: name.to_owned(),
                setting: "replication factor",
                found: replicas.to_string(),
                wanted: format!("{REPLICAS_SAFE_MIN} or more"),
                why: "one lost disk must not lose an acknowledged delivery",
                fix: "Add replicas with kafka-reassign-partitions.sh".to_owned(),
                weight: Weight::Unsafe,
            });
        }
        let resources = admin
            .describe_configs([&ResourceSpecifier::Topic(name)], &options())
            .await
            .map_err(|error| unreachable_at(config, error))?;
        for resource in resources {
            let resource = resource.map_err(|error| unreachable_at(config, error))?;
            let values: BTreeMap<&str, &str> = resource
                .entries
                .iter()
                .filter_map(|entry| Some((entry.name.as_str(), entry.value.as_deref()?)))
                .collect();
            findings.extend(unsafe_settings(config, topic, &values));
        }
    }
    Ok(findings)
}

/// What a new topic is created with.
fn settings_of(config: &KafkaConfig, topic: Topic, replicas: u32) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("cleanup.policy", cleanup_policy(topic).to_owned()),
        ("max.message.bytes", message_bytes_min(config).to_string()),
        ("min.insync.replicas", IN_SYNC_SAFE_MIN.min(replicas.saturating_sub(1)).max(1).to_string()),
        ("unclean.leader.election.enable", "false".to_owned()),
    ];
    if keeps_everything(topic) {
        settings.push(("retention.ms", "-1".to_owned()));
        settings.push(("retention.bytes", "-1".to_owned()));
    }
    settings
}

fn unsafe_settings(config: &KafkaConfig, topic: Topic, found: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let mut wanted: Vec<(&str, String, &str, Test)> = vec![
        (
            "cleanup.policy",
            cleanup_policy(topic).to_owned(),
            if keeps_everything(topic) {
                "a source of truth must never be compacted"
            } else {
                "the latest projection of every subject must stay, however old"
            },
            Test::Same,
        ),
        (
            "max.message.bytes",
            message_bytes_min(config).to_string(),
            "a legal delivery could be refused for ever",
            Test::AtLeast,
        ),
        (
            "min.insync.replicas",
            IN_SYNC_SAFE_MIN.to_string(),
            "an acknowledged delivery could be on one disk only",
            Test::AtLeast,
        ),
        (
            "unclean.leader.election.enable",
            "false".to_owned(),
            "an out-of-date replica could take over and forget acknowledged deliveries",
            Test::Same,
        ),
    ];
    if keeps_everything(topic) {
        let why = "the log is the source of truth: what expires can never be derived again";
        wanted.push(("retention.ms", "-1".to_owned(), why, Test::Same));
        wanted.push(("retention.bytes", "-1".to_owned(), why, Test::Same));
    }
    let name = config.topics.of(topic);
    wanted
        .into_iter()
        .filter_map(|(setting, wanted, why, test)| {
            let found = *found.get(setting).unwrap_or(&"unknown");
            (!test.holds(found, &wanted)).then(|| Finding {
                topic: name.to_owned(),
                setting,
                found: found.to_owned(),
                fix: format!(
                    "kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {setting}={wanted}"
                ),
                wanted: match test {
                    Test::Same => wanted,
                    Test::AtLeast => format!("{wanted} or more"),
                },
                why,
                weight: Weight::Unsafe,
            })
        })
        .collect()
}

enum Test {
    Same,
    AtLeast,
}

impl Test {
    fn holds(&self, found: &str, wanted: &str) -> bool {
        match self {
            Self::Same => found == wanted,
            Self::AtLeast => match (found.parse::<u64>(), wanted.parse::<u64>()) {
                (Ok(found), Ok(wanted)) => found >= wanted,
                _ => false,
            },
        }
    }
}

fn missing(name: &str) -> Finding {
    Finding {
        topic: name.to_owned(),
        setting: "topic",
        found: "missing".to_owned(),
        wanted: "there".to_owned(),
        why: "topics are never created on the way, because their settings decide what can be lost",
        fix: "Create it with `witness topics create`".to_owned(),
        weight: Weight::Refused,
    }
}

fn partition_count(name: &str, found: usize, wanted: u32) -> Finding {
    Finding {
        topic: name.to_owned(),
        setting: "partitions",
        found: found.to_string(),
        wanted: wanted.to_string(),
        why: "the partition of a key is part of the data, and another count moves keys away from their history",
        fix: format!(
            "Set partitions = {found} to use these topics, or move: `witness journal export --to FILE` \
             with the old count, `witness topics create` under new names with the new one, \
             `witness journal import --from FILE`"
        ),
        weight: Weight::Refused,
    }
}

const fn cleanup_policy(topic: Topic) -> &'static str {
    if keeps_everything(topic) { "delete" } else { "compact" }
}

const fn keeps_everything(topic: Topic) -> bool {
    match topic {
        Topic::Observations | Topic::Claims => true,
        Topic::Projections => false,
    }
}

fn message_bytes_min(config: &KafkaConfig) -> usize {
    config.record_bytes_max + RECORD_OVERHEAD_BYTES
}

fn admin(config: &KafkaConfig) -> Result<AdminClient<KafkaContext>, Error> {
    config.validate()?;
    Ok(AdminClient::from_config_and_context(&config.client(&[], &[]), KafkaContext::new("admin"))
        .map_err(ConfigError::from_kafka)?)
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_TIME_MAX)).operation_timeout(Some(REQUEST_TIME_MAX))
}

fn unreachable_at(config: &KafkaConfig, why: impl ToString) -> Error {
    Error::Unreachable { brokers: config.brokers.clone(), why: why.to_string() }
}
