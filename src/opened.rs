//! The journal of this process, whichever kind it is: opened, handed to the services, and closed after them. Must
//! never open topics that were not checked, and never let go of an append that has no answer yet.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use journal::embedded::{self, EmbeddedJournal};
use journal::kafka::{self, KafkaAppender, KafkaConfig, KafkaConsumer, KafkaLogReader};
use journal::registry::{self, Registry, RegistryConfig};
use journal::{Appender, LogReader, Topic};

use crate::config::Journal;
use crate::topics;

/// How long appends that wait for their acknowledgement may still take when the process ends: longer than
/// each of them may.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(6);

/// An open journal.
pub(crate) enum Opened {
    Embedded(EmbeddedJournal),
    Kafka {
        client: Box<KafkaConfig>,
        /// `None` until a service asks for it.
        appender: Option<Arc<KafkaAppender>>,
        /// Whose ids the records carry.
        registry: Option<Arc<Registry>>,
    },
}

impl Opened {
    /// Opens the embedded journal, or checks Kafka's topics.
    pub(crate) async fn open(config: &Journal) -> anyhow::Result<Self> {
        match config {
            Journal::Embedded(config) => {
                make_folder(&config.path)?;
                let config = embedded::Config::new(&config.path, config.partitions);
                let journal = tokio::task::spawn_blocking(move || EmbeddedJournal::open(&config)).await??;
                Ok(Self::Embedded(journal))
            }
            Journal::Kafka(config) => {
                kafka::describe();
                let client = config.resolve().await?;
                topics::demand(config, &client).await?;
                let registry = match &config.registry {
                    Some(registry) => Some(register(registry.resolve().await?, &client).await?),
                    None => None,
                };
                Ok(Self::Kafka { client: Box::new(client), appender: None, registry })
            }
        }
    }

    /// One for all services of this process.
    pub(crate) fn appender(&mut self) -> anyhow::Result<Arc<dyn Appender>> {
        match self {
            Self::Embedded(journal) => Ok(Arc::new(journal.clone())),
            Self::Kafka { client, appender, registry } => {
                if let Some(opened) = appender {
                    return Ok(registry::appender(opened.clone(), registry.as_ref()));
                }
                let opened = Arc::new(KafkaAppender::open(KafkaConfig::clone(client))?);
                *appender = Some(opened.clone());
                Ok(registry::appender(opened, registry.as_ref()))
            }
        }
    }

    /// For the projector.
    pub(crate) fn projectors(&mut self) -> anyhow::Result<projector::Journal> {
        let appender = self.appender()?;
        Ok(match self {
            Self::Embedded(journal) => {
                let log = journal.clone();
                projector::Journal {
                    observations: Box::new(journal.consumer(Topic::Observations)),
                    claims: Box::new(journal.consumer(Topic::Claims)),
                    appender,
                    readers: Arc::new(move |topic| Ok(Box::new(log.log_reader(topic)))),
                }
            }
            Self::Kafka { client, registry, .. } => {
                let (config, registry) = (KafkaConfig::clone(client), registry.clone());
                let consumer = |config: &KafkaConfig, topic| -> anyhow::Result<_> {
                    let opened = Box::new(KafkaConsumer::open(config.clone(), topic)?);
                    Ok(registry::consumer(opened, registry.as_ref()))
                };
                // A group reads one topic.
                let claims = KafkaConfig { group: format!("{}-claims", config.group), ..config.clone() };
                projector::Journal {
                    observations: consumer(&config, Topic::Observations)?,
                    claims: consumer(&claims, Topic::Claims)?,
                    appender,
                    readers: Arc::new(move |topic| {
                        let opened = KafkaLogReader::open(config.clone(), topic);
                        let opened = Box::new(opened.map_err(|error| error.to_string())?);
                        Ok(registry::reader(opened, registry.as_ref()))
                    }),
                }
            }
        })
    }

    /// For whoever reads a topic as it stands, outside the group.
    pub(crate) fn log_reader(&self, topic: Topic) -> anyhow::Result<Box<dyn LogReader>> {
        Ok(match self {
            Self::Embedded(journal) => Box::new(journal.log_reader(topic)),
            Self::Kafka { client, registry, .. } => {
                // What leaves Kafka is in the encoding that needs no registry.
                let opened = Box::new(KafkaLogReader::open(KafkaConfig::clone(client), topic)?);
                registry::reader(opened, registry.as_ref())
            }
        })
    }

    /// What keeps the journal from ever writing again, if anything does. Kafka comes back by itself.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Embedded(journal) => journal.health().err(),
            Self::Kafka { .. } => None,
        }
    }

    /// Waits for what was appended; blocking. To be called when the services have ended.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(journal) => journal.close(),
            Self::Kafka { appender: Some(appender), .. } => {
                appender.close(CLOSE_TIME_MAX).context("some appends were left without an answer")?;
            }
            Self::Kafka { appender: None, .. } => {}
        }
        Ok(())
    }
}

/// Registers the schemas, and learns their ids.
async fn register(registry: RegistryConfig, client: &KafkaConfig) -> anyhow::Result<Arc<Registry>> {
    let topics = client.topics.clone();
    let registered = tokio::task::spawn_blocking(move || Registry::register(registry, &topics)).await?;
    Ok(Arc::new(registered.context("the schemas cannot be registered")?))
}

/// Makes a folder and those above it.
pub(crate) fn make_folder(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
}
