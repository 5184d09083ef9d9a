//! Reads a topic as it stands, outside any group. Must never commit anything, and never begin at an offset that
//! it was not told.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::Offset;

use super::context::KafkaContext;
use super::publisher::{signed_offset, signed_partition};
use super::{ConfigError, KafkaConfig};
use crate::{LogReader, ReadError, Record, Topic};

/// How long one question to the broker may take.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);

impl ConsumerContext for KafkaContext {}

/// Reads one topic. Transactions that were aborted are not seen.
pub struct KafkaLogReader {
    consumer: BaseConsumer<KafkaContext>,
    topic: String,
    /// The partition that is being read, and its next offset.
    reading: Option<(u32, u64)>,
    records_max: usize,
    bytes_max: usize,
}

impl KafkaLogReader {
    /// Opens a reader; it connects when it is used.
    pub fn open(config: KafkaConfig, topic: Topic) -> Result<Self, ConfigError> {
        config.validate()?;
        let consumer = BaseConsumer::from_config_and_context(&config.log_reader(), KafkaContext::new("read"))
            .map_err(ConfigError::from_kafka)?;
        let (records_max, bytes_max) = (config.batch_records_max, config.batch_bytes_max);
        let topic = config.topics.of(topic).to_owned();
        Ok(Self { consumer, topic, reading: None, records_max, bytes_max })
    }

    fn begin(&mut self, partition: u32, from: u64) -> Result<(), ReadError> {
        let mut assignment = TopicPartitionList::new();
        let offset = Offset::Offset(signed_offset(from));
        assignment
            .add_partition_offset(&self.topic, signed_partition(partition), offset)
            .map_err(unavailable)?;
        self.consumer.assign(&assignment).map_err(unavailable)?;
        self.reading = Some((partition, from));
        Ok(())
    }
}

impl LogReader for KafkaLogReader {
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError> {
        let found =
            self.consumer.fetch_watermarks(&self.topic, signed_partition(partition), QUESTION_TIME_MAX);
        let (start, end) = found.map_err(unavailable)?;
        match (u64::try_from(start), u64::try_from(end)) {
            (Ok(start), Ok(end)) => Ok((start, end)),
            _ => Err(ReadError::Unavailable(format!("partition {partition} has no bounds"))),
        }
    }

    fn read(&mut self, partition: u32, from: u64, timeout: Duration) -> Result<Vec<Record>, ReadError> {
        if self.reading != Some((partition, from)) {
            self.begin(partition, from)?;
        }
        let deadline = Instant::now() + timeout;
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < self.records_max && bytes < self.bytes_max {
            let left = deadline.saturating_duration_since(Instant::now());
            // What has arrived is handed on at once.
            match self.consumer.poll(if records.is_empty() { left } else { Duration::ZERO }) {
                None => break,
                Some(Ok(message)) => {
                    let offset = u64::try_from(message.offset()).unwrap_or_default();
                    if message.partition() != signed_partition(partition) || offset < from {
                        continue;
                    }
                    let record = Record {
                        offset,
                        key: Bytes::copy_from_slice(message.key().unwrap_or_default()),
                        value: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
                    };
                    bytes += record.key.len() + record.value.len();
                    records.push(record);
                }
                Some(Err(error)) => match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                        self.reading = None;
                        let (log_start, log_end) = self.bounds(partition)?;
                        return Err(if from < log_start {
                            ReadError::Lost { partition, log_start, wanted: from }
                        } else {
                            ReadError::Unavailable(format!(
                                "partition {partition} ends at offset {log_end}, but offset {from} is wanted"
                            ))
                        });
                    }
                    // librdkafka connects again by itself.
                    _ if records.is_empty() => return Err(unavailable(error)),
                    _ => break,
                },
            }
        }
        let next = records.last().map_or(from, |last| last.offset + 1);
        self.reading = Some((partition, next));
        Ok(records)
    }
}

fn unavailable(error: impl ToString) -> ReadError {
    ReadError::Unavailable(error.to_string())
}
