//! The journal's part of the configuration: the folder of the embedded one, or the topics on Kafka and how to
//! reach them. Must never let the value of a librdkafka property into a message: it may be a password.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ingress::KeyDocument;
use ingress::secrets::SecretReference;
use journal::kafka::topics::REPLICAS_SAFE_MIN;
use journal::kafka::{ConfigError, KafkaConfig, OWNED_PROPERTIES, RECORD_BYTES_MAX_DEFAULT, TopicNames};
use journal::registry::RegistryConfig;
use toml::Value;

use super::shape::{JournalShape, TopicsShape};
use super::{Checker, Endpoint, Projector, is_name, non_zero};
use crate::wrong_use::WrongUse;

/// Partitions a journal may have: more than any one machine has use for.
const PARTITIONS: RangeInclusive<u64> = 1..=1024;
/// Replicas a topic may be created with.
const REPLICAS: RangeInclusive<u64> = 1..=32;
/// Bytes a record may have beyond its body: the subject, in the key and in the value, and what is known of
/// the delivery.
const BEYOND_THE_BODY_BYTES: usize = 1024 * 1024;
/// Characters of a topic's name, as Kafka has it.
const TOPIC_CHARACTERS: RangeInclusive<usize> = 1..=249;

/// Where the log is.
#[derive(Clone, Debug)]
pub(crate) enum Journal {
    /// On this machine.
    Embedded(Embedded),
    /// On a Kafka cluster.
    Kafka(Box<Kafka>),
}

impl Journal {
    /// Partitions of every topic.
    pub(crate) fn partitions(&self) -> NonZeroU32 {
        match self {
            Self::Embedded(embedded) => embedded.partitions,
            Self::Kafka(kafka) => kafka.client.partitions,
        }
    }
}

/// The embedded journal.
#[derive(Clone, Debug)]
pub(crate) struct Embedded {
    pub(crate) path: PathBuf,
    pub(crate) partitions: NonZeroU32,
}

/// The journal on Kafka.
#[derive(Clone, Debug)]
pub(crate) struct Kafka {
    file: PathBuf,
    /// Validated, and without the properties whose values are only named; [`Kafka::resolve`] adds them.
    pub(crate) client: KafkaConfig,
    /// Properties that are somewhere else, by name.
    secrets: BTreeMap<String, SecretReference>,
    /// Replicas that topics are created with.
    pub(crate) replicas: u32,
    /// Whether topics that can lose data are accepted.
    pub(crate) allow_unsafe_topics: bool,
    /// Whose ids the records carry; without one they carry their schemas' fingerprints.
    pub(crate) registry: Option<SchemaRegistry>,
    /// Where other projectors reach this one.
    pub(crate) advertise: String,
}

impl Kafka {
    /// Reads the properties that are only named, and so makes the client ready to connect.
    pub(crate) async fn resolve(&self) -> Result<KafkaConfig, WrongUse> {
        let (check, mut client) = (Checker { file: &self.file }, self.client.clone());
        for (property, reference) in &self.secrets {
            let key = format!("journal.kafka.{property}");
            let value = reference.fetch().await.map_err(|error| check.because(&key, error))?;
            client.properties.insert(property.clone(), value);
        }
        client.validate().map_err(|error| check.because("journal.kafka", error))?;
        Ok(client)
    }
}

/// A schema registry, whose credentials are only named.
#[derive(Clone, Debug)]
pub(crate) struct SchemaRegistry {
    file: PathBuf,
    place: RegistryConfig,
    auth: Option<SecretReference>,
}

impl SchemaRegistry {
    /// Reads the credentials.
    pub(crate) async fn resolve(&self) -> Result<RegistryConfig, WrongUse> {
        let Some(auth) = &self.auth else { return Ok(self.place.clone()) };
        let (check, key) = (Checker { file: &self.file }, "journal.schema_registry_auth");
        let credentials = auth.fetch().await.map_err(|error| check.because(key, error))?;
        if !credentials.contains(':') {
            return Err(check.refuse(key, format_args!("({auth}) must be user:password")));
        }
        Ok(self.place.clone().with_credentials(&credentials))
    }
}

type Properties = BTreeMap<String, String>;
type Secrets = BTreeMap<String, SecretReference>;

impl Checker<'_> {
    pub(super) fn journal(
        &self,
        shape: JournalShape,
        projector: &Projector,
        endpoints: &[Endpoint],
    ) -> Result<Journal, WrongUse> {
        match shape.kind.as_deref().unwrap_or("embedded") {
            "embedded" => self.embedded(shape, projector).map(Journal::Embedded),
            "kafka" => self.kafka(shape, projector, endpoints).map(|kafka| Journal::Kafka(Box::new(kafka))),
            other => {
                let problem = format!("is {other:?}; it must be \"embedded\" or \"kafka\"");
                Err(self.refuse("journal.kind", problem))
            }
        }
    }

    fn embedded(&self, shape: JournalShape, projector: &Projector) -> Result<Embedded, WrongUse> {
        let JournalShape {
            kind: _,
            path,
            partitions,
            brokers,
            replication_factor,
            allow_unsafe_topics,
            schema_registry,
            schema_registry_auth,
            topics,
            kafka,
        } = shape;
        for (key, is_set) in [
            ("journal.brokers", brokers.is_some()),
            ("journal.replication_factor", replication_factor.is_some()),
            ("journal.allow_unsafe_topics", allow_unsafe_topics.is_some()),
            ("journal.schema_registry", schema_registry.is_some()),
            ("journal.schema_registry_auth", schema_registry_auth.is_some()),
            ("journal.topics", topics.is_some()),
            ("journal.kafka", kafka.is_some()),
            ("projector.instance_id", projector.instance_id.is_some()),
            ("projector.advertise", projector.advertise.is_some()),
        ] {
            if is_set {
                tracing::warn!("{}: `{key}` is not used with kind = \"embedded\"", self.file.display());
            }
        }
        let path = self.folder("journal.path", path, "witness-data/journal")?;
        if projector.store == path {
            return Err(self.refuse(
                "projector.store",
                "is the folder of `journal.path`; give each a folder of its own",
            ));
        }
        Ok(Embedded { path, partitions: self.partitions(partitions)? })
    }

    fn kafka(
        &self,
        shape: JournalShape,
        projector: &Projector,
        endpoints: &[Endpoint],
    ) -> Result<Kafka, WrongUse> {
        let JournalShape {
            kind: _,
            path,
            partitions,
            brokers,
            replication_factor,
            allow_unsafe_topics,
            schema_registry,
            schema_registry_auth,
            topics,
            kafka,
        } = shape;
        if path.is_some() {
            tracing::warn!("{}: `journal.path` is not used with kind = \"kafka\"", self.file.display());
        }
        let example = "as in brokers = \"kafka-1:9092,kafka-2:9092\"";
        let brokers = brokers.ok_or_else(|| {
            let problem =
                format!("is missing, and kind = \"kafka\" needs it: name a broker or two, {example}");
            self.refuse("journal.brokers", problem)
        })?;
        if brokers.split(',').any(|broker| broker.trim().is_empty()) {
            let problem = format!("is {brokers:?}; it must be host:port, or several with commas, {example}");
            return Err(self.refuse("journal.brokers", problem));
        }
        let allow_unsafe_topics = allow_unsafe_topics.unwrap_or(false);
        let replicas = self.replicas(replication_factor, allow_unsafe_topics)?;
        let host = host_name();
        let instance_id = match &projector.instance_id {
            Some(instance_id) => instance_id.clone(),
            None => host.clone().ok_or_else(|| {
                let problem = "is missing, and this machine's host name cannot stand for it; give every projector a name of its own, as in instance_id = \"projector-1\"";
                self.refuse("projector.instance_id", problem)
            })?,
        };
        let mut client =
            KafkaConfig::new(brokers, self.partitions(partitions)?, &projector.group, instance_id);
        client.topics = self.topics(topics.unwrap_or_default())?;
        let (properties, secrets) = self.properties(kafka)?;
        client.properties = properties;
        let body_bytes_max = endpoints.iter().map(|endpoint| endpoint.body_bytes_max).max().unwrap_or(0);
        client.record_bytes_max = RECORD_BYTES_MAX_DEFAULT.max(body_bytes_max + BEYOND_THE_BODY_BYTES);
        client.validate().map_err(|error| self.because("journal.kafka", error))?;
        let advertise = match &projector.advertise {
            Some(advertise) => advertise.clone(),
            None => advertised(projector, host),
        };
        client.advertise = advertise.strip_prefix("http://").map(str::to_owned);
        let registry = self.registry(schema_registry, schema_registry_auth)?;
        let file = self.file.to_owned();
        Ok(Kafka { file, client, secrets, replicas, allow_unsafe_topics, registry, advertise })
    }

    fn partitions(&self, partitions: Option<i64>) -> Result<NonZeroU32, WrongUse> {
        self.bounded("journal.partitions", partitions, 4, PARTITIONS).map(non_zero)
    }

    fn replicas(&self, replicas: Option<i64>, allow_unsafe_topics: bool) -> Result<u32, WrongUse> {
        let safe_min = REPLICAS_SAFE_MIN;
        let key = "journal.replication_factor";
        let replicas = non_zero(self.bounded(key, replicas, u64::from(safe_min), REPLICAS)?).get();
        if replicas < safe_min && !allow_unsafe_topics {
            let problem = format!(
                "is {replicas}, with which a lost disk can lose acknowledged deliveries; it must be {safe_min} or more, unless allow_unsafe_topics = true"
            );
            return Err(self.refuse(key, problem));
        }
        Ok(replicas)
    }

    fn registry(
        &self,
        place: Option<Value>,
        auth: Option<Value>,
    ) -> Result<Option<SchemaRegistry>, WrongUse> {
        let (key, auth_key) = ("journal.schema_registry", "journal.schema_registry_auth");
        let auth = auth.map(|auth| self.reference(auth_key, &auth)).transpose()?;
        let Some(place) = place else {
            let alone = "is of no use without `journal.schema_registry`";
            return if auth.is_some() { Err(self.refuse(auth_key, alone)) } else { Ok(None) };
        };
        let place = place.as_str().unwrap_or_default();
        let place = RegistryConfig::new(place).map_err(|problem| self.refuse(key, problem))?;
        Ok(Some(SchemaRegistry { file: self.file.to_owned(), place, auth }))
    }

    fn topics(&self, shape: TopicsShape) -> Result<TopicNames, WrongUse> {
        let TopicsShape { observations, projections, claims } = shape;
        let default = TopicNames::default();
        let names = TopicNames {
            observations: observations.unwrap_or(default.observations),
            projections: projections.unwrap_or(default.projections),
            claims: claims.unwrap_or(default.claims),
        };
        let (least, most) = (TOPIC_CHARACTERS.start(), TOPIC_CHARACTERS.end());
        for (key, name, others) in [
            ("observations", &names.observations, [&names.projections, &names.claims]),
            ("projections", &names.projections, [&names.observations, &names.claims]),
            ("claims", &names.claims, [&names.observations, &names.projections]),
        ] {
            let key = format!("journal.topics.{key}");
            if !is_name(name, TOPIC_CHARACTERS) {
                let problem =
                    format!("is {name:?}; it must be {least} to {most} characters of A-Z a-z 0-9 . _ -");
                return Err(self.refuse(&key, problem));
            }
            if others.contains(&name) {
                return Err(self.refuse(
                    &key,
                    format_args!("is {name:?}, as another topic is; each needs a name of its own"),
                ));
            }
        }
        Ok(names)
    }

    /// The properties whose values stand here, and those whose values are somewhere else.
    fn properties(&self, kafka: Option<Value>) -> Result<(Properties, Secrets), WrongUse> {
        let Some(kafka) = kafka else { return Ok((BTreeMap::new(), BTreeMap::new())) };
        let Value::Table(kafka) = kafka else {
            let problem =
                "must be a table of librdkafka properties, as in { \"security.protocol\" = \"SSL\" }";
            return Err(self.refuse("journal.kafka", problem));
        };
        let text = |(property, value): (String, Value)| {
            let text = match value {
                Value::String(text) => text,
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                Value::Boolean(is_so) => is_so.to_string(),
                Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                    let problem = "must be text, a number or true or false, and the property's whole name must stand in quotes, as in \"security.protocol\" = \"SSL\"";
                    return Err(self.refuse(&format!("journal.kafka.{property}"), problem));
                }
            };
            Ok((property, text))
        };
        let (mut properties, mut secrets) = (BTreeMap::new(), BTreeMap::new());
        for (property, value) in kafka {
            let is_named =
                value.as_str().is_some_and(|text| text.starts_with("env:") || text.starts_with("file:"));
            if is_named {
                let reference = self.reference(&format!("journal.kafka.{property}"), &value)?;
                secrets.insert(property, reference);
            } else {
                let (property, text) = text((property, value))?;
                properties.insert(property, text);
            }
        }
        for (property, why) in OWNED_PROPERTIES {
            if secrets.contains_key(*property) {
                return Err(self.because("journal.kafka", ConfigError::Owned { property, why }));
            }
        }
        Ok((properties, secrets))
    }
}

/// The address it listens on; every address of this machine is its host name.
fn advertised(projector: &Projector, host: Option<String>) -> String {
    let listen = projector.listen;
    match host.filter(|_| listen.ip().is_unspecified()) {
        Some(host) => format!("http://{host}:{}", listen.port()),
        None => format!("http://{listen}"),
    }
}

/// This machine's name, if it can stand where names may.
fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    is_name(&name, super::ID_CHARACTERS).then_some(name)
}
