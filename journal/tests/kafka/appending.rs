//! Appending: acknowledged means durable, and an answer comes in time whatever the broker does. Must never take an append for
//! lost because it was reported failed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use journal::kafka::{KafkaAppender, KafkaConfig, KafkaConsumer, KafkaLogReader};
use journal::{AppendError, Appender, Consumer, LogReader, NewRecord, Topic};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::contract::{self, PARTITIONS, record};
use crate::finder::Cluster;
use crate::support::{Keeper, PATIENCE, block_on, consumer, journal, names, unique};

/// The answer must come within this (the design's 5 s).
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

struct KafkaJournal {
    config: KafkaConfig,
    appender: KafkaAppender,
}

impl KafkaJournal {
    fn open(config: KafkaConfig) -> Self {
        let appender = KafkaAppender::open(config.clone()).unwrap();
        wait_until_healthy(&appender);
        Self { config, appender }
    }
}

impl contract::Journal for KafkaJournal {
    fn appender(&self) -> &dyn Appender {
        &self.appender
    }

    fn consumer(&self) -> Box<dyn Consumer> {
        let mut config = self.config.clone();
        config.group = unique("group");
        Box::new(KafkaConsumer::open(config, Topic::Observations).unwrap())
    }

    fn publisher(&self, topic: Topic) -> Box<dyn Consumer> {
        let mut config = self.config.clone();
        config.group = format!("{}-{topic}", config.group);
        Box::new(KafkaConsumer::open(config, topic).unwrap())
    }

    fn log_reader(&self, topic: Topic) -> Box<dyn LogReader> {
        Box::new(KafkaLogReader::open(self.config.clone(), topic).unwrap())
    }
}

fn wait_until_healthy(appender: &KafkaAppender) {
    let started = Instant::now();
    while let Err(why) = appender.health() {
        assert!(started.elapsed() < PATIENCE, "{why}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn keeps_the_contract(cluster: &Cluster) {
    let open = || KafkaJournal::open(journal(cluster, PARTITIONS.get()));
    block_on(contract::appends_are_read_back_in_order(&open()));
    block_on(contract::many_appends_at_once(&open()));
    block_on(contract::readers_own_their_place(&open()));
    block_on(contract::odd_appends(&open()));
    contract::publications_are_remembered(&open());
    block_on(contract::a_log_reader_reads_the_log_as_it_stands(&open()));
    contract::a_log_reader_gets_over_transactions(&open());
}

/// librdkafka's own imitation of a broker: less than the real thing, but always there.
pub(crate) fn mock_keeps_the_contract() {
    let mock = MockCluster::new(1).unwrap();
    let open = || KafkaJournal::open(mock_journal(&mock, PARTITIONS.get()));
    block_on(contract::appends_are_read_back_in_order(&open()));
    block_on(contract::many_appends_at_once(&open()));
    block_on(contract::readers_own_their_place(&open()));
    block_on(contract::odd_appends(&open()));
    block_on(contract::a_log_reader_reads_the_log_as_it_stands(&open()));
}

fn mock_journal<C: rdkafka::ClientContext>(mock: &MockCluster<'_, C>, partitions: u32) -> KafkaConfig {
    let config = names(&mock.bootstrap_servers(), partitions);
    for topic in Topic::ALL {
        mock.create_topic(config.topics.of(topic), partitions as i32, 1).unwrap();
    }
    config
}

/// With no broker at all the queue fills, refuses without waiting, and every append has its answer in time.
pub(crate) fn a_full_queue_refuses_at_once() {
    let mut config = names("127.0.0.1:1", 1);
    config.queue_records_max = 10;
    let appender = KafkaAppender::open(config).unwrap();
    let started = Instant::now();
    let answers: Vec<_> =
        (0..15).map(|_| appender.append(Topic::Observations, record(0, "key", "value"))).collect();
    assert!(started.elapsed() < Duration::from_millis(500), "appending waited {:?}", started.elapsed());
    let answers = block_on(join_all(answers));
    assert!(started.elapsed() < ANSWER_TIME_MAX, "answered after {:?}", started.elapsed());
    let full = answers.iter().filter(|answer| **answer == Err(AppendError::QueueFull)).count();
    let unavailable =
        answers.iter().filter(|answer| matches!(answer, Err(AppendError::Unavailable(_)))).count();
    assert_eq!((unavailable, full), (10, 5), "{answers:?}");
    assert!(appender.health().is_err());
}

/// librdkafka disables an idempotent producer for good when sequence numbers contradict each other.
pub(crate) fn a_dead_producer_is_replaced() {
    let mock = MockCluster::new(1).unwrap();
    let config = mock_journal(&mock, 1);
    let appender = KafkaAppender::open(config).unwrap();
    let append =
        |text: &str| block_on(appender.append(Topic::Observations, record(0, "key", text.to_owned())));
    append("before").unwrap();
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    let failed = append("during");
    assert!(matches!(failed, Err(AppendError::Unavailable(_))), "{failed:?}");
    append("after").unwrap();
    wait_until_healthy(&appender);
}

pub(crate) fn a_closed_appender_has_delivered(cluster: &Cluster) {
    let config = journal(cluster, 1);
    let appender = KafkaAppender::open(config.clone()).unwrap();
    let answers: Vec<_> =
        (0..100).map(|_| appender.append(Topic::Observations, record(0, "key", "value"))).collect();
    appender.close(PATIENCE).unwrap();
    drop(answers);
    drop(appender);
    Keeper::default().until(&mut consumer(&config), "all 100", |keeper| keeper.read(0) == 100);
}

/// A broker that holds its connections and says nothing: appends are answered in time, the appender says what
/// is wrong, and goes on by itself afterwards. What was reported failed may have been written all the same;
/// what was acknowledged is there once.
pub(crate) fn a_silent_broker_is_answered_for(cluster: &Cluster) {
    let config = journal(cluster, 1);
    let appender = KafkaAppender::open(config.clone()).unwrap();
    let append = |text: String| block_on(appender.append(Topic::Observations, record(0, "key", text)));
    let mut acknowledged = BTreeSet::new();
    let mut failed = BTreeSet::new();
    for number in 0..10 {
        append(format!("before {number}")).unwrap();
        acknowledged.insert(format!("before {number}"));
    }
    for round in 0..8 {
        cluster.pause(1);
        let paused = Instant::now();
        let mut slowest = Duration::ZERO;
        while paused.elapsed() < Duration::from_secs(6) {
            let text = format!("paused {round} at {:?}", paused.elapsed());
            let started = Instant::now();
            match append(text.clone()) {
                Ok(_) => acknowledged.insert(text),
                Err(AppendError::Unavailable(_)) => failed.insert(text),
                Err(other) => panic!("{other}"),
            };
            slowest = slowest.max(started.elapsed());
        }
        let health = appender.health();
        cluster.unpause(1);
        assert!(slowest < ANSWER_TIME_MAX, "answered after {slowest:?}");
        assert!(!failed.is_empty());
        assert!(health.is_err(), "no broker answers, but {health:?}");
        let continued = Instant::now();
        let (mut number, after) = (0, format!("after {round}, "));
        while acknowledged.iter().filter(|text| text.starts_with(&after)).count() < 10 {
            assert!(continued.elapsed() < PATIENCE, "no recovery");
            let text = format!("{after}{number}");
            number += 1;
            match append(text.clone()) {
                Ok(_) => acknowledged.insert(text),
                Err(_) => failed.insert(text),
            };
        }
        wait_until_healthy(&appender);
        eprintln!("slowest answer {slowest:?}, back after {:?}", continued.elapsed());

        let mut keeper = Keeper::default();
        let last = format!("{after}{}", number - 1);
        keeper.until(&mut consumer(&config), "the last record", |keeper| {
            keeper
                .records
                .get(&0)
                .is_some_and(|records| records.iter().any(|record| record.value == last.as_bytes()))
        });
        let written: Vec<String> = keeper.records[&0]
            .iter()
            .map(|record| String::from_utf8(record.value.to_vec()).unwrap())
            .collect();
        for text in &acknowledged {
            assert_eq!(written.iter().filter(|found| *found == text).count(), 1, "{text} is there once");
        }
        let late: Vec<_> = written.iter().filter(|text| failed.contains(*text)).collect();
        eprintln!("{} reported failed, of these written all the same: {late:?}", failed.len());
        assert!(late.len() + acknowledged.len() == written.len(), "nothing else is there: {written:?}");
        // The first append after a pause is on its way when the broker falls silent, or still in our own hands.
        if !late.is_empty() {
            return;
        }
    }
    panic!("of everything reported failed nothing was written: {failed:?}");
}

/// Appends go on while one of three brokers is dead, and nothing acknowledged is lost with it.
pub(crate) fn one_of_three_brokers_may_die(cluster: &Cluster) {
    let config = journal(cluster, 6);
    let appender = KafkaAppender::open(config.clone()).unwrap();
    let mut acknowledged = Vec::new();
    let mut failures = 0;
    let mut killed = None;
    for number in 0..600_u32 {
        if number == 200 {
            cluster.kill(2);
            killed = Some(Instant::now());
        }
        // As a provider does: again until it is acknowledged.
        let started = Instant::now();
        loop {
            let record = NewRecord { partition: number % 6, ..record(0, "key", number.to_string()) };
            match block_on(appender.append(Topic::Observations, record)) {
                Ok(position) => {
                    acknowledged.push((number, position));
                    break;
                }
                Err(_) => failures += 1,
            }
            assert!(started.elapsed() < PATIENCE, "{number} was never acknowledged");
        }
    }
    eprintln!("{failures} failed tries, all acknowledged {:?} after the kill", killed.map(|at| at.elapsed()));
    let mut keeper = Keeper::default();
    keeper.until(&mut consumer(&config), "all 600", |keeper| {
        (0..6).map(|partition| keeper.read(partition)).sum::<usize>() >= 600
    });
    for (number, position) in acknowledged {
        let record =
            keeper.records[&position.partition].iter().find(|record| record.offset == position.offset);
        assert_eq!(record.unwrap().value, number.to_string().as_bytes());
    }
}
