//! One Kafka transaction per publication: records and offsets, all or nothing. Must never answer "nothing was
//! published" when that is not known, and never commit an offset outside a transaction.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use rdkafka::topic_partition_list::Offset;

use super::context::KafkaContext;
use super::{KafkaConfig, TopicNames};
use crate::{NewRecord, Publication, Topic};

/// How long one publication may take. Within the transaction's own timeout, so that ours is noticed first.
const PUBLICATION_TIME_MAX: Duration = Duration::from_secs(12);

/// How long to wait for a transaction to be taken back; the broker does it by itself later.
const ABORT_TIME_MAX: Duration = Duration::from_secs(5);

/// How much longer than it was given librdkafka may take to come back. It has been seen never to (2.12.1,
/// `send_offsets_to_transaction`, after a broker was silent for a while).
const GRACE: Duration = Duration::from_secs(3);

/// A transactional producer that has taken over its transactional id, on a thread of its own: when librdkafka
/// does not come back, the thread is left behind, and the next publisher makes sure that it cannot commit.
pub(super) struct Publisher {
    jobs: Sender<Job>,
}

struct Job {
    publications: Vec<Publication>,
    member: Arc<ConsumerGroupMetadata>,
    answer: Sender<Result<(), Failure>>,
}

struct Transactions {
    producer: ThreadedProducer<KafkaContext>,
    topics: TopicNames,
    reads: Topic,
}

/// Why a publication failed. The publisher can be used again after `OldGeneration` and `Aborted`, and must be
/// replaced after all others.
#[derive(Debug)]
pub(super) enum Failure {
    /// The group's coordinator does not know us any more. Nothing was published.
    NotAMember(String),
    /// The group has moved on to another generation, in which we may still be a member. Nothing was published.
    OldGeneration(String),
    /// Nothing was published.
    Aborted(String),
    /// Nothing was published; the producer is of no more use.
    Broken(String),
    /// Another process has taken over the transactional id. Nothing was published.
    TakenOver(String),
    /// It is not known whether it was published; opening the next publisher decides it.
    Unknown(String),
    /// Nothing was published, and trying again does not help.
    Forbidden(String),
}

impl Publisher {
    /// Takes over the transactional id: transactions that an earlier process left open are aborted, or
    /// completed if they were being committed. Blocking, at most `timeout` and a little.
    pub(super) fn open(config: &KafkaConfig, reads: Topic, timeout: Duration) -> Result<Self, String> {
        let (jobs, accepted) = mpsc::channel();
        let (answer, opened) = mpsc::channel();
        let config = config.clone();
        std::thread::Builder::new()
            .name("kafka-publisher".to_owned())
            .spawn(move || match Transactions::open(&config, reads, timeout) {
                Ok(transactions) => {
                    drop(answer.send(Ok(())));
                    transactions.serve(&accepted);
                }
                Err(error) => drop(answer.send(Err(error))),
            })
            .map_err(|error| format!("cannot start the publisher's thread: {error}"))?;
        match opened.recv_timeout(timeout + GRACE) {
            Ok(opened) => opened.map(|()| Self { jobs }),
            Err(_) => Err("librdkafka does not come back from opening a transactional producer".to_owned()),
        }
    }

    /// Publishes everything and commits the offsets as the member of the group that `member` names. Blocking,
    /// for a bounded time.
    pub(super) fn publish(
        &self,
        publications: Vec<Publication>,
        member: Arc<ConsumerGroupMetadata>,
    ) -> Result<(), Failure> {
        let (answer, answered) = mpsc::channel();
        let stuck = |_| Failure::Unknown("librdkafka does not come back from a transaction".to_owned());
        if self.jobs.send(Job { publications, member, answer }).is_err() {
            return Err(Failure::Broken("the publisher's thread has ended".to_owned()));
        }
        answered.recv_timeout(PUBLICATION_TIME_MAX + 2 * ABORT_TIME_MAX + GRACE).map_err(stuck)?
    }
}

impl Transactions {
    fn open(config: &KafkaConfig, reads: Topic, timeout: Duration) -> Result<Self, String> {
        let producer: ThreadedProducer<KafkaContext> = ThreadedProducer::from_config_and_context(
            &config.transactional_producer(reads),
            KafkaContext::new("publish"),
        )
        .map_err(|error| super::ConfigError::from_kafka(error).to_string())?;
        producer.init_transactions(timeout).map_err(|error| error.to_string())?;
        Ok(Self { producer, topics: config.topics.clone(), reads })
    }

    /// Until the publisher is dropped.
    fn serve(self, jobs: &Receiver<Job>) {
        for job in jobs {
            // Nobody listens any more when we came back too late.
            drop(job.answer.send(self.publish(&job.publications, &job.member)));
        }
    }

    fn publish(&self, publications: &[Publication], member: &ConsumerGroupMetadata) -> Result<(), Failure> {
        let deadline = Instant::now() + PUBLICATION_TIME_MAX;
        let offsets = self.offsets(publications).map_err(|error| Failure::Aborted(error.to_string()))?;
        self.producer.begin_transaction().map_err(|error| classed(&error))?;
        let filled = self.send_all(publications, deadline).and_then(|()| {
            retried(deadline, |left| self.producer.send_offsets_to_transaction(&offsets, member, left))
        });
        if let Err(error) = filled {
            return Err(self.taken_back(&error));
        }
        // Flushed apart from committing, so that running out of time here is still a clean abort.
        if let Err(error) = self.producer.flush(left(deadline)) {
            return Err(self.taken_back(&error));
        }
        let committed = retried(deadline + ABORT_TIME_MAX, |left| self.producer.commit_transaction(left));
        match committed {
            Ok(()) => Ok(()),
            Err(error) if requires_abort(&error) => Err(self.taken_back(&error)),
            // A fatal error can also mean that the broker ran out of patience; either way the transaction is
            // decided, and only the committed offset tells how.
            Err(error) => Err(Failure::Unknown(error.to_string())),
        }
    }

    fn offsets(&self, publications: &[Publication]) -> Result<TopicPartitionList, KafkaError> {
        let mut offsets = TopicPartitionList::with_capacity(publications.len());
        for publication in publications {
            let mut element =
                offsets.add_partition(self.topics.of(self.reads), signed_partition(publication.partition));
            element.set_offset(Offset::Offset(signed_offset(publication.offset)))?;
            element.set_metadata(&publication.metadata);
        }
        Ok(offsets)
    }

    fn send_all(&self, publications: &[Publication], deadline: Instant) -> Result<(), KafkaError> {
        for publication in publications {
            for record in &publication.projections {
                self.send(self.topics.of(Topic::Projections), record, deadline)?;
            }
            for record in &publication.claims {
                self.send(self.topics.of(Topic::Claims), record, deadline)?;
            }
        }
        Ok(())
    }

    fn send(&self, topic: &str, record: &NewRecord, deadline: Instant) -> Result<(), KafkaError> {
        loop {
            let message = BaseRecord::to(topic)
                .partition(signed_partition(record.partition))
                .key(&*record.key)
                .payload(&*record.value);
            match self.producer.send(message) {
                Ok(()) => return Ok(()),
                // The queue empties as the broker acknowledges: wait for that, not for a timer.
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _))
                    if Instant::now() < deadline =>
                {
                    self.producer.flush(left(deadline))?;
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Aborts the transaction that `error` interrupted.
    fn taken_back(&self, error: &KafkaError) -> Failure {
        let failure = classed(error);
        match failure {
            Failure::Broken(_) | Failure::TakenOver(_) | Failure::Unknown(_) => failure,
            Failure::NotAMember(_)
            | Failure::OldGeneration(_)
            | Failure::Aborted(_)
            | Failure::Forbidden(_) => {
                let deadline = Instant::now() + ABORT_TIME_MAX;
                match retried(deadline, |left| self.producer.abort_transaction(left)) {
                    Ok(()) => failure,
                    // It was never committed, so it is not published; the next publisher makes sure.
                    Err(abort) if matches!(failure, Failure::Aborted(_) | Failure::OldGeneration(_)) => {
                        Failure::Broken(format!("{error}; and aborting failed: {abort}"))
                    }
                    Err(_) => failure,
                }
            }
        }
    }
}

/// Calls again what may be called again, until `deadline`.
fn retried(
    deadline: Instant,
    mut call: impl FnMut(Duration) -> Result<(), KafkaError>,
) -> Result<(), KafkaError> {
    loop {
        match call(left(deadline)) {
            Err(KafkaError::Transaction(error))
                if error.is_retriable() && !error.txn_requires_abort() && Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// Never zero: librdkafka takes zero for "do not even try".
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100))
}

fn requires_abort(error: &KafkaError) -> bool {
    if let KafkaError::Transaction(error) = error { error.txn_requires_abort() } else { false }
}

fn is_fatal(error: &KafkaError) -> bool {
    if let KafkaError::Transaction(error) = error { error.is_fatal() } else { false }
}

fn classed(error: &KafkaError) -> Failure {
    let why = error.to_string();
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::UnknownMemberId | RDKafkaErrorCode::FencedInstanceId) => {
            Failure::NotAMember(why)
        }
        Some(RDKafkaErrorCode::IllegalGeneration | RDKafkaErrorCode::RebalanceInProgress) => {
            Failure::OldGeneration(why)
        }
        Some(
            RDKafkaErrorCode::Fenced
            | RDKafkaErrorCode::ProducerFenced
            | RDKafkaErrorCode::TransactionCoordinatorFenced
            | RDKafkaErrorCode::InvalidProducerEpoch,
        ) => Failure::TakenOver(why),
        Some(
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::TransactionalIdAuthorizationFailed
            | RDKafkaErrorCode::MessageSizeTooLarge,
        ) => Failure::Forbidden(why),
        _ if is_fatal(error) => Failure::Broken(why),
        _ => Failure::Aborted(why),
    }
}

/// Partitions and offsets beyond the signed range do not exist; the broker refuses what this makes of them.
pub(super) fn signed_partition(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// See [`signed_partition`].
pub(super) fn signed_offset(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
