//! One membership of a consumer group: what the group decides about it, kept until the polling thread carries
//! it out. Must never carry out a decision itself while the membership is in use: the owner is asked first.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Statistics, TopicPartitionList};
use tracing::debug;

use super::context::KafkaContext;
use super::pulse::Pulse;
use super::{ConfigError, KafkaConfig};
use crate::Topic;

/// Begins a membership; it needs polling to go on.
pub(super) fn join(
    config: &KafkaConfig,
    topic: Topic,
    pulse: &Arc<Pulse>,
) -> Result<BaseConsumer<Membership>, ConfigError> {
    pulse.begin(Instant::now());
    let member: BaseConsumer<Membership> =
        BaseConsumer::from_config_and_context(&config.consumer(), Membership::new(pulse.clone()))
            .map_err(ConfigError::from_kafka)?;
    member.subscribe(&[config.topics.of(topic)]).map_err(ConfigError::from_kafka)?;
    Ok(member)
}

/// Closing a membership rebalances once more, with nobody left to carry it out but the callback itself.
pub(super) fn leave(member: Option<BaseConsumer<Membership>>) {
    let Some(member) = member else { return };
    member.context().leaving.store(true, Ordering::SeqCst);
    // What nobody has carried out yet would keep the closing waiting for ever.
    for rebalance in member.context().take() {
        let_go(&member, &rebalance);
    }
    drop(member);
}

/// Carries out a rebalance with nobody to tell: whatever is being read is let go.
fn let_go(member: &BaseConsumer<Membership>, rebalance: &Rebalance) {
    let done = match rebalance {
        Rebalance::Assign(_) => member.incremental_assign(&TopicPartitionList::new()),
        Rebalance::Revoke(_) => member.assignment().and_then(|read| member.incremental_unassign(&read)),
    };
    if let Err(error) = done {
        debug!("while leaving the group: {error}");
    }
}

/// A decision of the group, waiting to be carried out by the polling thread.
pub(super) enum Rebalance {
    Assign(Vec<u32>),
    Revoke(Vec<u32>),
}

/// Receives the group's decisions and keeps them for whoever polls: librdkafka waits for them to be carried
/// out, and so the owner, who is borrowed by `poll` alone, can be asked first.
pub(super) struct Membership {
    context: KafkaContext,
    pulse: Arc<Pulse>,
    rebalances: Mutex<Vec<Rebalance>>,
    leaving: AtomicBool,
}

impl Membership {
    fn new(pulse: Arc<Pulse>) -> Self {
        Self {
            context: KafkaContext::new("consume"),
            pulse,
            rebalances: Mutex::new(Vec::new()),
            leaving: AtomicBool::new(false),
        }
    }

    /// See [`KafkaContext::stranded`].
    pub(super) fn stranded(&self) -> Option<String> {
        self.context.stranded()
    }

    /// What the group decided since the last time.
    pub(super) fn take(&self) -> Vec<Rebalance> {
        mem::take(&mut *self.rebalances.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientContext for Membership {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn stats(&self, statistics: Statistics) {
        self.pulse.counted(&statistics, Instant::now());
        self.context.stats(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }
}

impl ConsumerContext for Membership {
    fn rebalance(&self, member: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let partitions: Vec<u32> =
            list.elements().iter().filter_map(|element| u32::try_from(element.partition()).ok()).collect();
        let rebalance = if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.pulse.given();
            Rebalance::Assign(partitions)
        } else {
            self.pulse.taken(member.assignment_lost());
            Rebalance::Revoke(partitions)
        };
        if self.leaving.load(Ordering::SeqCst) {
            let_go(member, &rebalance);
        } else {
            self.rebalances.lock().unwrap_or_else(PoisonError::into_inner).push(rebalance);
        }
    }
}
