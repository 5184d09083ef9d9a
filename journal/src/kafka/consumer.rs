//! A member of the consumer group: reads partitions where their owner says, and publishes what was made of
//! them. Must never resume by itself at any offset, and never publish for a partition that may be another's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::Offset;
use tracing::{info, warn};

use super::group::KafkaGroup;
use super::members::Members;
use super::membership::{Membership, Rebalance, join, leave};
use super::publisher::{Failure, Publisher, signed_offset, signed_partition};
use super::pulse::Pulse;
use super::{ConfigError, KafkaConfig, metrics};
use crate::{
    Assigned, Committed, Consumer, Group, PartitionOwner, Polled, Publication, PublishError, ReadError,
    Record, Topic,
};

/// How long one question to the broker may take while a partition is being taken over.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(5);

/// How long to ask for committed offsets: while a transaction over one is undecided, librdkafka asks again and
/// again, and the other partitions wait meanwhile.
const COMMITTED_TIME_MAX: Duration = Duration::from_secs(1);

/// How long partitions that could not be taken over wait for the next try, while the others are read.
const TAKE_OVER_PAUSE: Duration = Duration::from_secs(1);

/// A second fatal end within this is not an accident. See [`KafkaConsumer::end`].
const ENDS_APART: Duration = Duration::from_secs(120);

/// The longest wait for records before rebalances and waiting partitions are looked at again.
const POLL_STEP: Duration = Duration::from_millis(100);

/// The reading half on Kafka. All its work, rebalances included, happens inside the calls of its one user.
pub struct KafkaConsumer {
    config: KafkaConfig,
    topic: Topic,
    group: Arc<KafkaGroup>,
    /// `None` only between leaving the group and joining it again.
    member: Option<BaseConsumer<Membership>>,
    /// `None` until the first partition comes, and after it failed.
    publisher: Option<Publisher>,
    /// Partitions that the owner knows of, with the next offset; `None` where it stands still.
    held: BTreeMap<u32, Option<u64>>,
    /// Partitions that the group gave us and the owner has not been told of yet.
    waiting: BTreeSet<u32>,
    /// When to try again to take over the waiting partitions.
    try_again: Option<Instant>,
    /// Taken in and not yet handed out.
    ready: VecDeque<(u32, Vec<Record>)>,
    /// Not yet reported.
    problems: VecDeque<ReadError>,
    /// Who we were in the group when the latest records were taken in.
    identity: Option<Arc<ConsumerGroupMetadata>>,
    /// Why the membership must be given up at the next poll.
    fenced: Option<String>,
    /// When a membership last ended with a fatal error.
    ended_before: Option<Instant>,
    /// Why there will never be a membership again.
    ended: Option<String>,
}

impl KafkaConsumer {
    /// Joins the group as a reader of `topic`; the joining itself happens while polling. A group reads one
    /// topic: another topic needs another group.
    pub fn open(config: KafkaConfig, topic: Topic) -> Result<Self, ConfigError> {
        config.validate()?;
        let pulse = Arc::new(Pulse::new(config.session()));
        let member = join(&config, topic, &pulse)?;
        let members = Members::new(config.clone(), topic);
        Ok(Self {
            config,
            topic,
            group: Arc::new(KafkaGroup { pulse, members }),
            member: Some(member),
            publisher: None,
            held: BTreeMap::new(),
            waiting: BTreeSet::new(),
            try_again: None,
            ready: VecDeque::new(),
            problems: VecDeque::new(),
            identity: None,
            fenced: None,
            ended_before: None,
            ended: None,
        })
    }

    fn member(&self) -> Result<&BaseConsumer<Membership>, ReadError> {
        self.member.as_ref().ok_or_else(|| ReadError::Unavailable("not a member of the group".to_owned()))
    }

    /// After a fence nothing of the old membership can be trusted: all partitions go back, and a new
    /// membership begins.
    fn rejoin_if_fenced(&mut self, owner: &mut dyn PartitionOwner) -> Result<(), ReadError> {
        if let Some(why) = self.ended.clone() {
            self.let_everything_go(owner);
            // So that a caller who only polls on does not spin.
            std::thread::sleep(POLL_STEP);
            return Err(ReadError::Ended(why));
        }
        let stranded = self.member.as_ref().and_then(|member| member.context().stranded());
        if let Some(why) = self.fenced.take().or(stranded) {
            warn!(topic = %self.topic, "giving up all partitions and joining the group again: {why}");
            self.let_everything_go(owner);
            // The old membership must be gone before one of the same instance id begins.
            leave(self.member.take());
        }
        if self.member.is_none() {
            self.member = Some(join(&self.config, self.topic, &self.group.pulse).map_err(unavailable)?);
        }
        Ok(())
    }

    fn let_everything_go(&mut self, owner: &mut dyn PartitionOwner) {
        for partition in mem::take(&mut self.held).into_keys() {
            owner.revoked(partition);
        }
        self.waiting.clear();
        self.ready.clear();
        self.identity = None;
    }

    /// Carries out what the group decided since the last look.
    fn serve_rebalances(&mut self, owner: &mut dyn PartitionOwner) -> Result<(), ReadError> {
        for rebalance in self.member()?.context().take() {
            // Another generation: who we are must be asked anew.
            self.identity = None;
            let done = match rebalance {
                Rebalance::Assign(partitions) => {
                    info!(topic = %self.topic, ?partitions, "assigned");
                    self.waiting.extend(partitions);
                    // Nothing is read yet; this only tells librdkafka that we heard.
                    self.member()?.incremental_assign(&TopicPartitionList::new())
                }
                Rebalance::Revoke(partitions) => {
                    info!(topic = %self.topic, ?partitions, "revoked");
                    let read = self.hand_back(partitions, owner);
                    self.member()?.incremental_unassign(&read)
                }
            };
            if let Err(error) = done {
                // The group and we no longer agree on what we hold.
                self.fenced = Some(error.to_string());
                return Err(unavailable(error));
            }
        }
        Ok(())
    }

    /// Tells the owner of what it lost, and answers which of that was being read.
    fn hand_back(&mut self, partitions: Vec<u32>, owner: &mut dyn PartitionOwner) -> TopicPartitionList {
        let mut read = TopicPartitionList::new();
        for partition in partitions {
            self.waiting.remove(&partition);
            self.ready.retain(|(of, _)| *of != partition);
            if let Some(next) = self.held.remove(&partition) {
                owner.revoked(partition);
                if next.is_some() {
                    read.add_partition(self.config.topics.of(self.topic), signed_partition(partition));
                }
            }
        }
        read
    }

    /// Gives waiting partitions to the owner, or lets them wait a little longer.
    fn serve_waiting(&mut self, owner: &mut dyn PartitionOwner) -> Result<(), ReadError> {
        if self.waiting.is_empty() || self.try_again.is_some_and(|time| Instant::now() < time) {
            return Ok(());
        }
        let result = self.take_over_waiting(owner);
        self.try_again = (!self.waiting.is_empty()).then(|| Instant::now() + TAKE_OVER_PAUSE);
        result
    }

    fn take_over_waiting(&mut self, owner: &mut dyn PartitionOwner) -> Result<(), ReadError> {
        // Before the committed offset is read: it decides what an earlier process of ours left undecided.
        if self.publisher.is_none() {
            let publisher = Publisher::open(&self.config, self.topic, QUESTION_TIME_MAX);
            self.publisher = Some(publisher.map_err(ReadError::Unavailable)?);
        }
        let name = self.config.topics.of(self.topic).to_owned();
        let mut asked = TopicPartitionList::new();
        for partition in &self.waiting {
            asked.add_partition(&name, signed_partition(*partition));
        }
        let answered = self.member()?.committed_offsets(asked, COMMITTED_TIME_MAX).map_err(unavailable)?;
        let mut begin = TopicPartitionList::new();
        let mut problem = None;
        for element in answered.elements() {
            let Ok(partition) = u32::try_from(element.partition()) else { continue };
            match self.measured(&name, partition, element.error(), element.offset(), element.metadata()) {
                Ok(assigned) => {
                    self.waiting.remove(&partition);
                    let offset = self.handed_over(owner, assigned);
                    self.held.insert(partition, offset);
                    if let Some(offset) = offset {
                        let offset = Offset::Offset(signed_offset(offset));
                        begin
                            .add_partition_offset(&name, signed_partition(partition), offset)
                            .map_err(unavailable)?;
                    }
                }
                // It keeps waiting; those that came before it begin.
                Err(error) => problem = Some(error),
            }
        }
        if begin.count() > 0
            && let Err(error) = self.member()?.incremental_assign(&begin)
        {
            self.fenced = Some(error.to_string());
            return Err(unavailable(error));
        }
        problem.map_or(Ok(()), Err)
    }

    fn measured(
        &self,
        topic: &str,
        partition: u32,
        error: Result<(), KafkaError>,
        offset: Offset,
        metadata: &str,
    ) -> Result<Assigned, ReadError> {
        // An error is most often an undecided transaction: its owner or the broker decides it soon.
        error.map_err(|error| {
            ReadError::Unavailable(format!(
                "the committed offset of partition {partition} cannot be read yet: {error}"
            ))
        })?;
        let committed = match offset {
            Offset::Offset(offset) => {
                Some(Committed { offset: u64::try_from(offset).unwrap_or(0), metadata: metadata.to_owned() })
            }
            Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => {
                None
            }
        };
        let (log_start, log_end) = watermarks(self.member()?, topic, partition)?;
        Ok(Assigned { partition, log_start, log_end, committed })
    }

    /// Where to read from, or `None` where the partition must stand still.
    fn handed_over(&mut self, owner: &mut dyn PartitionOwner, assigned: Assigned) -> Option<u64> {
        let Assigned { partition, log_start, log_end, .. } = assigned;
        match owner.assigned(assigned) {
            Ok(wanted) if wanted < log_start => {
                self.problems.push_back(ReadError::Lost { partition, log_start, wanted });
                None
            }
            Ok(wanted) if wanted > log_end => {
                self.problems.push_back(beyond_the_end(partition, wanted, log_end));
                None
            }
            Ok(wanted) => Some(wanted),
            Err(why) => {
                warn!(topic = %self.topic, partition, "the partition stands still: {why}");
                None
            }
        }
    }

    /// Takes in what is there, waiting at most `wait` for the first record.
    fn take_in(&mut self, wait: Duration) -> Result<(), ReadError> {
        // Taken out so that messages, which borrow from it, can be sorted into the other fields.
        let Some(member) = self.member.take() else { return Ok(()) };
        let result = self.take_in_from(&member, wait);
        self.member = Some(member);
        result
    }

    fn take_in_from(&mut self, member: &BaseConsumer<Membership>, wait: Duration) -> Result<(), ReadError> {
        let (mut records, mut bytes) = (0, 0);
        let mut wait = wait;
        while records < self.config.batch_records_max && bytes < self.config.batch_bytes_max {
            match member.poll(wait) {
                None => break,
                Some(Ok(message)) => {
                    if let Some(record_bytes) = self.sort_in(&message) {
                        records += 1;
                        bytes += record_bytes;
                    }
                }
                Some(Err(error)) => self.note(member, &error)?,
            }
            wait = Duration::ZERO;
        }
        if records > 0 {
            self.identity = member.group_metadata().map(Arc::new);
        }
        Ok(())
    }

    /// Answers the record's bytes, or `None` for one that nobody waits for.
    fn sort_in(&mut self, message: &BorrowedMessage<'_>) -> Option<usize> {
        let partition = u32::try_from(message.partition()).ok()?;
        let offset = u64::try_from(message.offset()).ok()?;
        let next = self.held.get_mut(&partition)?.as_mut().filter(|next| offset >= **next)?;
        *next = offset + 1;
        let record = record_of(offset, message);
        let bytes = record.key.len() + record.value.len();
        match self.ready.iter_mut().find(|(of, _)| *of == partition) {
            Some((_, records)) => records.push(record),
            None => self.ready.push_back((partition, vec![record])),
        }
        Some(bytes)
    }

    /// Classes an error that polling brought.
    fn note(&mut self, member: &BaseConsumer<Membership>, error: &KafkaError) -> Result<(), ReadError> {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                self.note_partitions_out_of_range(member)
            }
            // A line to one broker; librdkafka connects again, and says so when it has none left.
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::RequestTimedOut
                // The loss of the partitions follows as a rebalance.
                | RDKafkaErrorCode::PollExceeded,
            ) => Ok(()),
            _ => {
                if let Some(why) = self.end_of(member) {
                    self.end(why);
                }
                Err(unavailable(error))
            }
        }
    }

    /// Why the membership is over for good, if it is: librdkafka revokes nothing then, and never recovers.
    fn end_of(&self, member: &BaseConsumer<Membership>) -> Option<String> {
        let (code, reason) = member.client().fatal_error()?;
        let instance = &self.config.instance_id;
        Some(format!(
            "the membership of the group has ended ({code:?}: {reason}); another process may run with the \
             instance id {instance:?}"
        ))
    }

    /// A broker that was silent for a while can find two of our own requests to join, and take one of them for
    /// another process of our instance. So the first end is answered by a new membership. When it is really two
    /// processes, each ends the other's until one of them has ended twice, and gives up.
    fn end(&mut self, why: String) {
        if self.ended_before.is_some_and(|before| before.elapsed() < ENDS_APART) {
            self.ended = Some(why);
        } else {
            self.ended_before = Some(Instant::now());
            self.fenced = Some(why);
        }
    }

    /// librdkafka does not say which partition is meant, so all are measured.
    fn note_partitions_out_of_range(&mut self, member: &BaseConsumer<Membership>) -> Result<(), ReadError> {
        let name = self.config.topics.of(self.topic).to_owned();
        for (partition, held) in &mut self.held {
            let Some(wanted) = *held else { continue };
            let (log_start, log_end) = watermarks(member, &name, *partition)?;
            let problem = if wanted < log_start {
                ReadError::Lost { partition: *partition, log_start, wanted }
            } else if wanted > log_end {
                beyond_the_end(*partition, wanted, log_end)
            } else {
                continue;
            };
            self.problems.push_back(problem);
            *held = None;
            let mut stop = TopicPartitionList::new();
            stop.add_partition(&name, signed_partition(*partition));
            member.incremental_unassign(&stop).map_err(unavailable)?;
        }
        Ok(())
    }

    /// The publisher, opened anew when it failed.
    fn publisher(&mut self) -> Result<&Publisher, String> {
        let publisher = match self.publisher.take() {
            Some(publisher) => publisher,
            None => Publisher::open(&self.config, self.topic, QUESTION_TIME_MAX)?,
        };
        Ok(self.publisher.insert(publisher))
    }

    /// Nothing but a new membership can publish again.
    fn fence(&mut self, why: String) -> PublishError {
        self.fenced = Some(why.clone());
        PublishError::Fenced(why)
    }

    fn publish_now(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        if let Some(why) = &self.ended {
            return Err(PublishError::Fatal(why.clone()));
        }
        if let Some(why) = &self.fenced {
            return Err(PublishError::Fenced(why.clone()));
        }
        let Some(member) = &self.member else {
            return Err(self.fence("not a member of the group".to_owned()));
        };
        if let Some(why) = self.end_of(member) {
            self.end(why.clone());
            return Err(if self.ended.is_some() {
                PublishError::Fatal(why)
            } else {
                PublishError::Fenced(why)
            });
        }
        if member.assignment_lost() {
            return Err(self.fence("the partitions were lost while their records were handled".to_owned()));
        }
        if let Some(other) =
            publications.iter().find(|of| !matches!(self.held.get(&of.partition), Some(Some(_))))
        {
            return Err(self.fence(format!("partition {} is not ours", other.partition)));
        }
        let identity = match self.identity.take().or_else(|| member.group_metadata().map(Arc::new)) {
            Some(identity) => identity,
            None => return Err(self.fence("not a member of the group".to_owned())),
        };
        let publisher = self.publisher().map_err(PublishError::Aborted)?;
        let Err(failure) = publisher.publish(publications, identity.clone()) else {
            self.identity = Some(identity);
            return Ok(());
        };
        match failure {
            // librdkafka gives the sequence numbers of aborted records to the next ones, also where the broker has
            // the aborted ones: it would take the next ones for repeats, and drop them. A new epoch cannot be
            // confused.
            Failure::Aborted(why) => {
                self.publisher = None;
                self.identity = Some(identity);
                Err(PublishError::Aborted(why))
            }
            // We may be a member of the new generation and keep these partitions: no one else gets them before
            // we let go. The next try asks who we are now; the broker refuses it if we are nobody.
            Failure::OldGeneration(why) => {
                self.publisher = None;
                Err(PublishError::Aborted(why))
            }
            Failure::Broken(why) => {
                self.publisher = None;
                self.identity = Some(identity);
                Err(PublishError::Aborted(why))
            }
            Failure::NotAMember(why) | Failure::TakenOver(why) => {
                self.publisher = None;
                Err(self.fence(why))
            }
            Failure::Unknown(why) => {
                self.publisher = None;
                Err(self.fence(format!("it is not known whether the publication took place: {why}")))
            }
            Failure::Forbidden(why) => {
                self.publisher = None;
                Err(PublishError::Fatal(why))
            }
        }
    }
}

impl Consumer for KafkaConsumer {
    fn group(&self) -> Arc<dyn Group> {
        self.group.clone()
    }

    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError> {
        let deadline = Instant::now() + timeout;
        loop {
            self.rejoin_if_fenced(owner)?;
            self.serve_rebalances(owner)?;
            if let Some((partition, records)) = self.ready.pop_front() {
                return Ok(Polled::Records { partition, records });
            }
            self.serve_waiting(owner)?;
            if let Some(problem) = self.problems.pop_front() {
                return Err(problem);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.take_in(left.min(POLL_STEP))?;
            if left.is_zero() && self.ready.is_empty() {
                return Ok(Polled::Nothing);
            }
        }
    }

    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        if publications.is_empty() {
            return Ok(());
        }
        let result = self.publish_now(publications);
        metrics::record_transaction(match &result {
            Ok(()) => "committed",
            Err(PublishError::Fenced(_)) => "fenced",
            Err(PublishError::Aborted(_)) => "aborted",
            Err(PublishError::Fatal(_)) => "fatal",
        });
        result
    }
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        leave(self.member.take());
    }
}

pub(super) fn watermarks<C: ConsumerContext>(
    member: &BaseConsumer<C>,
    topic: &str,
    partition: u32,
) -> Result<(u64, u64), ReadError> {
    let (start, end) = member
        .fetch_watermarks(topic, signed_partition(partition), QUESTION_TIME_MAX)
        .map_err(unavailable)?;
    match (u64::try_from(start), u64::try_from(end)) {
        (Ok(start), Ok(end)) => Ok((start, end)),
        _ => Err(ReadError::Unavailable(format!("partition {partition} has no bounds"))),
    }
}

/// What stands at `offset`.
pub(super) fn record_of(offset: u64, message: &BorrowedMessage<'_>) -> Record {
    Record {
        offset,
        key: Bytes::copy_from_slice(message.key().unwrap_or_default()),
        value: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
    }
}

pub(super) fn beyond_the_end(partition: u32, wanted: u64, log_end: u64) -> ReadError {
    ReadError::Unavailable(format!(
        "partition {partition} ends at offset {log_end}, but reading stands at {wanted}: the log was cut or replaced"
    ))
}

pub(super) fn unavailable(error: impl ToString) -> ReadError {
    ReadError::Unavailable(error.to_string())
}
