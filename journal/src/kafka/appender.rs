//! Appending to Kafka. Must never acknowledge what the in-sync replicas have not, never wait for room in the
//! queue, and never take a lock or a thread per record.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tracing::{error, warn};

use super::context::KafkaContext;
use super::{ConfigError, KafkaConfig, metrics};
use crate::{AppendError, Appender, NewRecord, Position, Topic};

/// The writing half on Kafka: one idempotent producer, replaced when librdkafka declares it dead.
pub struct KafkaAppender {
    config: KafkaConfig,
    live: ArcSwap<Live>,
    replacing: Mutex<()>,
}

struct Live {
    producer: FutureProducer<KafkaContext>,
    context: KafkaContext,
}

impl KafkaAppender {
    /// Makes the producer; connects in the background.
    pub fn open(config: KafkaConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let live = ArcSwap::from_pointee(Live::open(&config)?);
        Ok(Self { config, live, replacing: Mutex::new(()) })
    }

    /// Waits until every append has its answer, at most `timeout`; blocking. Call it once nothing appends any
    /// more and before dropping the appender, which forgets what is still queued.
    pub fn close(&self, timeout: Duration) -> Result<(), AppendError> {
        self.live.load().producer.flush(timeout).map_err(|error| AppendError::Unavailable(error.to_string()))
    }

    fn enqueue(&self, topic: Topic, record: &NewRecord) -> Result<DeliveryFuture, AppendError> {
        let bytes = record.key.len() + record.value.len();
        if bytes > self.config.record_bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max: self.config.record_bytes_max });
        }
        let partitions = self.config.partitions.get();
        let partition = i32::try_from(record.partition)
            .ok()
            .filter(|_| record.partition < partitions)
            .ok_or_else(|| {
                AppendError::Unavailable(format!("partition {} is not below {partitions}", record.partition))
            })?;
        let record = FutureRecord::to(self.config.topics.of(topic))
            .partition(partition)
            .key(&*record.key)
            .payload(&*record.value);
        self.live.load().producer.send_result(record).map_err(|(error, _)| self.failure(&error))
    }

    /// Classes an error, and sees whether the producer survived it.
    fn failure(&self, error: &KafkaError) -> AppendError {
        let code = error.rdkafka_error_code();
        metrics::record_append_failed(code.map_or_else(|| "other".to_owned(), |code| format!("{code:?}")));
        if code == Some(RDKafkaErrorCode::QueueFull) {
            return AppendError::QueueFull;
        }
        self.replace_if_dead();
        AppendError::Unavailable(error.to_string())
    }

    /// Some errors disable a producer for good; a new one has a new identity and goes on. Answers why the old
    /// one died.
    fn replace_if_dead(&self) -> Option<String> {
        let why = self.live.load().death()?;
        if let Ok(_guard) = self.replacing.try_lock() {
            // Another thread may have been faster.
            if self.live.load().death().is_some() {
                error!("{why}; replacing it");
                match Live::open(&self.config) {
                    Ok(fresh) => {
                        let dead = self.live.swap(Arc::new(fresh));
                        // Dropping joins librdkafka's threads, which must not happen on an async worker.
                        std::thread::spawn(move || drop(dead));
                    }
                    Err(error) => warn!("cannot make a new Kafka producer yet: {error}"),
                }
            }
        }
        Some(why)
    }
}

impl Appender for KafkaAppender {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        // Enqueued before the future is first polled: dropping it does not undo the append.
        let enqueued = self.enqueue(topic, &record);
        Box::pin(async move {
            match enqueued?.await {
                Ok(Ok(delivery)) => match (u32::try_from(delivery.partition), u64::try_from(delivery.offset))
                {
                    (Ok(partition), Ok(offset)) => Ok(Position { partition, offset }),
                    _ => Err(AppendError::Unavailable("acknowledged without a position".to_owned())),
                },
                Ok(Err((error, _))) => Err(self.failure(&error)),
                Err(_) => Err(AppendError::Unavailable("the Kafka producer was closed".to_owned())),
            }
        })
    }

    fn partitions(&self) -> std::num::NonZeroU32 {
        self.config.partitions
    }

    fn health(&self) -> Result<(), String> {
        match self.replace_if_dead() {
            Some(why) => Err(why),
            None => self.live.load().context.connected(),
        }
    }
}

impl Live {
    fn open(config: &KafkaConfig) -> Result<Self, ConfigError> {
        let context = KafkaContext::new("append");
        let producer = FutureProducer::from_config_and_context(&config.producer(), context.clone())
            .map_err(ConfigError::from_kafka)?;
        Ok(Self { producer, context })
    }

    /// Why it will never append again, if it will not.
    fn death(&self) -> Option<String> {
        let fatal = self.producer.client().fatal_error();
        let fatal =
            fatal.map(|(code, reason)| format!("the Kafka producer failed for good ({code:?}: {reason})"));
        fatal.or_else(|| self.context.stranded())
    }
}
