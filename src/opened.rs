//! The journal of this process, whichever kind it is: opened, handed to the services, and closed after them. Must
//! never open topics that were not checked, and never let go of an append that has no answer yet.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use journal::embedded::{self, EmbeddedJournal};
use journal::kafka::{self, KafkaAppender, KafkaConfig, KafkaConsumer, KafkaLogReader};
use journal::{Appender, Consumer, LogReader, Topic};

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
        /// `None` until the ingress asks for it: a projector alone appends nothing.
        appender: Option<Arc<KafkaAppender>>,
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
                topics::demand(config).await?;
                Ok(Self::Kafka { client: Box::new(config.client.clone()), appender: None })
            }
        }
    }

    /// For the ingress.
    pub(crate) fn appender(&mut self) -> anyhow::Result<Arc<dyn Appender>> {
        match self {
            Self::Embedded(journal) => Ok(Arc::new(journal.clone())),
            Self::Kafka { client, appender } => {
                let opened = Arc::new(KafkaAppender::open(KafkaConfig::clone(client))?);
                *appender = Some(opened.clone());
                Ok(opened)
            }
        }
    }

    /// For the projector.
    pub(crate) fn consumer(&self) -> anyhow::Result<Box<dyn Consumer>> {
        Ok(match self {
            Self::Embedded(journal) => Box::new(journal.consumer(Topic::Observations)),
            Self::Kafka { client, .. } => {
                Box::new(KafkaConsumer::open(KafkaConfig::clone(client), Topic::Observations)?)
            }
        })
    }

    /// For whoever reads a topic as it stands, outside the group.
    pub(crate) fn log_reader(&self, topic: Topic) -> anyhow::Result<Box<dyn LogReader>> {
        Ok(match self {
            Self::Embedded(journal) => Box::new(journal.log_reader(topic)),
            Self::Kafka { client, .. } => Box::new(KafkaLogReader::open(KafkaConfig::clone(client), topic)?),
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

/// Makes a folder and those above it.
pub(crate) fn make_folder(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
}
