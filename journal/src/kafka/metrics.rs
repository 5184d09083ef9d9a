//! Names and descriptions of the metrics that the Kafka adapter keeps. Must never label by anything that grows
//! with the data: clients, topics and partitions only.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use rdkafka::Statistics;

const BROKERS_UP: &str = "witness_kafka_brokers_up";
const QUEUE_RECORDS: &str = "witness_kafka_queue_records";
const QUEUE_BYTES: &str = "witness_kafka_queue_bytes";
const ROUND_TRIP_P99: &str = "witness_kafka_round_trip_p99_seconds";
const CONSUMER_LAG: &str = "witness_kafka_consumer_lag";
const ERRORS: &str = "witness_kafka_errors_total";
const APPENDS_FAILED: &str = "witness_kafka_appends_failed_total";
const TRANSACTIONS: &str = "witness_kafka_transactions_total";

/// Registers the descriptions with the recorder of the process.
pub fn describe() {
    describe_gauge!(BROKERS_UP, "Brokers that a client is connected to");
    describe_gauge!(QUEUE_RECORDS, "Records that wait for their acknowledgement");
    describe_gauge!(QUEUE_BYTES, Unit::Bytes, "Bytes that wait for their acknowledgement");
    describe_gauge!(ROUND_TRIP_P99, Unit::Seconds, "Slowest broker's 99th percentile of request round trips");
    describe_gauge!(CONSUMER_LAG, "Records that a reader has not taken in yet, by partition");
    describe_counter!(ERRORS, "Errors that librdkafka reported, by code");
    describe_counter!(APPENDS_FAILED, "Appends that were not acknowledged, by code");
    describe_counter!(TRANSACTIONS, "Publishing transactions by outcome");
}

/// Records what librdkafka measured. `client` is one of a few fixed words.
pub(super) fn record_statistics(client: &'static str, statistics: &Statistics, brokers_up: u32) {
    gauge!(BROKERS_UP, "client" => client).set(brokers_up);
    gauge!(QUEUE_RECORDS, "client" => client).set(statistics.msg_cnt as f64);
    gauge!(QUEUE_BYTES, "client" => client).set(statistics.msg_size as f64);
    let round_trip_p99_micros =
        statistics.brokers.values().filter_map(|broker| broker.rtt.as_ref()).map(|window| window.p99).max();
    gauge!(ROUND_TRIP_P99, "client" => client).set(round_trip_p99_micros.unwrap_or(0) as f64 / 1e6);
    if statistics.cgrp.is_none() {
        return;
    }
    for topic in statistics.topics.values() {
        for partition in topic.partitions.values() {
            // Of ours: librdkafka's own lag stands on offsets that it commits itself.
            if partition.hi_offset < 0 || partition.app_offset < 0 {
                continue;
            }
            let lag = (partition.hi_offset - partition.app_offset).max(0);
            let labels = [("topic", topic.topic.clone()), ("partition", partition.partition.to_string())];
            gauge!(CONSUMER_LAG, &labels).set(lag as f64);
        }
    }
}

pub(super) fn record_error(client: &'static str, code: String) {
    counter!(ERRORS, "client" => client, "code" => code).increment(1);
}

pub(super) fn record_append_failed(code: String) {
    counter!(APPENDS_FAILED, "code" => code).increment(1);
}

pub(super) fn record_transaction(outcome: &'static str) {
    counter!(TRANSACTIONS, "outcome" => outcome).increment(1);
}
