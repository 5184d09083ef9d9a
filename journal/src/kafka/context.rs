//! What librdkafka tells us unasked: log lines, statistics, errors. Must never block: it is called on
//! librdkafka's polling threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientContext, Statistics};
use tracing::{debug, error, info, warn};

use super::metrics;

/// Stands for "no statistics yet".
const UNKNOWN: u32 = u32::MAX;

/// Forwards to `tracing` and `metrics`, and remembers whether any broker is reachable.
#[derive(Clone)]
pub(super) struct KafkaContext {
    client: &'static str,
    brokers_up: Arc<AtomicU32>,
    is_stranded: Arc<AtomicBool>,
}

impl KafkaContext {
    /// `client` labels log lines and metrics.
    pub(super) fn new(client: &'static str) -> Self {
        Self { client, brokers_up: Arc::new(AtomicU32::new(UNKNOWN)), is_stranded: Arc::default() }
    }

    /// `Err` while no broker is connected, as of the latest statistics (one second old at most).
    pub(super) fn connected(&self) -> Result<(), String> {
        match self.brokers_up.load(Ordering::Relaxed) {
            0 => Err("no Kafka broker is reachable".to_owned()),
            UNKNOWN => Err("not connected to Kafka yet".to_owned()),
            _ => Ok(()),
        }
    }

    /// Why this client must be replaced, if it must. A cluster that has just come back can answer that it has
    /// no brokers yet; librdkafka then forgets all that it knew, its bootstrap servers included, and never
    /// connects again (its issue 5301).
    pub(super) fn stranded(&self) -> Option<String> {
        let is_stranded = self.is_stranded.load(Ordering::Relaxed);
        is_stranded.then(|| "librdkafka has forgotten every Kafka broker".to_owned())
    }
}

impl ClientContext for KafkaContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let client = self.client;
        if facility == "CONFWARN" {
            // The operator's properties go to all clients, whichever of them they are meant for.
            debug!(client, facility, "librdkafka: {message}");
            return;
        }
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => error!(client, facility, "librdkafka: {message}"),
            RDKafkaLogLevel::Warning => warn!(client, facility, "librdkafka: {message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                info!(client, facility, "librdkafka: {message}");
            }
            RDKafkaLogLevel::Debug => debug!(client, facility, "librdkafka: {message}"),
        }
    }

    fn stats(&self, statistics: Statistics) {
        // A connection that was opened but whose broker has not answered yet is in another state.
        let up = statistics.brokers.values().filter(|broker| broker.state == "UP").count();
        let up = u32::try_from(up).unwrap_or(UNKNOWN - 1);
        self.brokers_up.store(up, Ordering::Relaxed);
        let is_known = |source: &str| matches!(source, "configured" | "learned");
        let is_stranded = !statistics.brokers.values().any(|broker| is_known(&broker.source));
        self.is_stranded.store(is_stranded, Ordering::Relaxed);
        metrics::record_statistics(self.client, &statistics, up);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().map_or_else(|| "other".to_owned(), |code| format!("{code:?}"));
        warn!(client = self.client, code, "Kafka: {reason}");
        metrics::record_error(self.client, code);
    }
}

/// The log reader's: it is in no group, so nothing is ever rebalanced.
impl ConsumerContext for KafkaContext {}

impl ProducerContext for KafkaContext {
    type DeliveryOpaque = ();

    // The publisher's: a transaction with a failed record cannot be committed, so there is nothing to do.
    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
