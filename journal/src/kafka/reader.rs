//! A reader outside any group: a topic as it stands. Must never join or commit anything, and never read on from
//! an offset that its caller did not name.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::Offset;

use super::consumer::{beyond_the_end, record_of, unavailable, watermarks};
use super::context::KafkaContext;
use super::publisher::{signed_offset, signed_partition};
use super::{ConfigError, KafkaConfig};
use crate::{LogReader, ReadError, Record, Topic};

/// How long a partition may be without a leader before that is an error.
const LEADER_TIME_MAX: Duration = Duration::from_secs(10);

/// Between two questions for a partition's bounds.
const LEADER_PAUSE: Duration = Duration::from_millis(200);

/// Reads one topic on Kafka.
pub struct KafkaLogReader {
    config: KafkaConfig,
    topic: Topic,
    client: BaseConsumer<KafkaContext>,
    /// The partition that is being fetched, and its next offset.
    position: Option<(u32, u64)>,
}

impl KafkaLogReader {
    /// Makes the client; connects in the background.
    pub fn open(config: KafkaConfig, topic: Topic) -> Result<Self, ConfigError> {
        config.validate()?;
        let client = client(&config)?;
        Ok(Self { config, topic, client, position: None })
    }

    fn refuse_unknown(&self, partition: u32) -> Result<(), ReadError> {
        let partitions = self.config.partitions;
        let is_known = partition < partitions.get();
        if is_known { Ok(()) } else { Err(ReadError::no_such_partition(partition, partitions)) }
    }

    fn replace_if_stranded(&mut self) -> Result<(), ReadError> {
        if self.client.context().stranded().is_some() {
            self.client = client(&self.config).map_err(unavailable)?;
            self.position = None;
        }
        Ok(())
    }

    /// Lets librdkafka fetch from there, unless it does already.
    fn go_to(&mut self, partition: u32, from: u64) -> Result<(), ReadError> {
        if self.position == Some((partition, from)) {
            return Ok(());
        }
        self.position = None;
        let mut place = TopicPartitionList::new();
        let offset = Offset::Offset(signed_offset(from));
        place
            .add_partition_offset(self.config.topics.of(self.topic), signed_partition(partition), offset)
            .map_err(unavailable)?;
        self.client.assign(&place).map_err(unavailable)?;
        self.position = Some((partition, from));
        Ok(())
    }

    /// Where nothing can be fetched, the bounds say why.
    fn out_of_range(&self, partition: u32, wanted: u64) -> ReadError {
        match watermarks(&self.client, self.config.topics.of(self.topic), partition) {
            Ok((log_start, _)) if wanted < log_start => ReadError::Lost { partition, log_start, wanted },
            Ok((_, log_end)) => beyond_the_end(partition, wanted, log_end),
            Err(error) => error,
        }
    }
}

impl LogReader for KafkaLogReader {
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError> {
        self.refuse_unknown(partition)?;
        self.replace_if_stranded()?;
        let started = Instant::now();
        loop {
            let bounds = watermarks(&self.client, self.config.topics.of(self.topic), partition);
            // A partition that was made or moved a moment ago has no leader yet.
            if bounds.is_ok() || started.elapsed() > LEADER_TIME_MAX {
                return bounds;
            }
            std::thread::sleep(LEADER_PAUSE);
        }
    }

    fn read(&mut self, partition: u32, from: u64, timeout: Duration) -> Result<Vec<Record>, ReadError> {
        self.refuse_unknown(partition)?;
        self.replace_if_stranded()?;
        self.go_to(partition, from)?;
        let deadline = Instant::now() + timeout;
        let (mut records, mut bytes) = (Vec::new(), 0);
        let mut next = from;
        while records.len() < self.config.batch_records_max && bytes < self.config.batch_bytes_max {
            let is_first = records.is_empty();
            let wait =
                if is_first { deadline.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            match self.client.poll(wait) {
                Some(Ok(message)) => {
                    let offset = u64::try_from(message.offset()).unwrap_or(0);
                    // librdkafka drops what it fetched for an earlier place; an order so important is checked all
                    // the same.
                    if message.partition() != signed_partition(partition) || offset < next {
                        continue;
                    }
                    let record = record_of(offset, &message);
                    next = offset.saturating_add(1);
                    bytes += record.key.len() + record.value.len();
                    records.push(record);
                }
                Some(Err(KafkaError::PartitionEOF(of))) if of == signed_partition(partition) => {
                    // Said once for a place: who asks again has the log fetched anew.
                    self.position = None;
                    return Ok(records);
                }
                Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(Err(error)) if passes(&error) => {}
                // What stands before the problem is read first; the next read meets it again.
                Some(Err(_)) if !is_first => {
                    self.position = None;
                    return Ok(records);
                }
                Some(Err(error)) => {
                    self.position = None;
                    return Err(match error.rdkafka_error_code() {
                        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                            self.out_of_range(partition, from)
                        }
                        _ => unavailable(error),
                    });
                }
                None if !is_first => break,
                None if Instant::now() < deadline => {}
                None => {
                    let why = format!(
                        "Kafka brought nothing of partition {partition} from offset {from} on in time"
                    );
                    return Err(ReadError::Unavailable(why));
                }
            }
        }
        self.position = Some((partition, next));
        Ok(records)
    }
}

/// Whether librdkafka gets over it by itself: a line to one broker was lost.
fn passes(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::RequestTimedOut
        )
    )
}

fn client(config: &KafkaConfig) -> Result<BaseConsumer<KafkaContext>, ConfigError> {
    BaseConsumer::from_config_and_context(&config.log_reader(), KafkaContext::new("log"))
        .map_err(ConfigError::from_kafka)
}
