//! The consumer group: who reads what, and from where. Must never wait for a moment instead of for what it expects.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use journal::kafka::KafkaConfig;
use journal::{Consumer, ReadError};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::finder::Cluster;
use crate::support::{Keeper, PATIENCE, append, block_on, consumer, instance, journal};

/// A second instance takes over some partitions where its own store stands; the first keeps reading the rest.
pub(crate) fn partitions_move_and_resume(cluster: &Cluster) {
    let config = journal(cluster, 4);
    for partition in 0..4 {
        append(&config, partition, 10);
    }
    let (mut a, mut of_a) = (consumer(&instance(&config, "a")), Keeper::default());
    of_a.until(&mut a, "a reads everything", |of_a| (0..4).all(|partition| of_a.read(partition) == 10));
    assert_eq!(of_a.assigned.iter().map(|assigned| assigned.log_end).collect::<Vec<_>>(), [10; 4]);
    let mut b = consumer(&instance(&config, "b"));
    let mut of_b = Keeper { from: (0..4).map(|partition| (partition, 7)).collect(), ..Keeper::default() };
    for _ in 0..600 {
        of_a.turn(&mut a);
        of_b.turn(&mut b);
        if of_b.held.len() == 2 && of_a.held.len() == 2 && of_b.held.iter().all(|of| of_b.read(*of) == 3) {
            break;
        }
    }
    assert_eq!((of_a.held.len(), of_b.held.len()), (2, 2), "{:?} {:?}", of_a.errors, of_b.errors);
    assert_eq!(of_a.held.union(&of_b.held).copied().collect::<BTreeSet<_>>(), (0..4).collect());
    // Cooperative: only what moves is revoked.
    assert_eq!(of_a.revoked.iter().copied().collect::<BTreeSet<_>>(), of_b.held);
    assert_eq!(of_a.revoked.len(), 2);
    for partition in &of_b.held {
        let offsets: Vec<_> = of_b.records[partition].iter().map(|record| record.offset).collect();
        assert_eq!(offsets, [7, 8, 9], "resumed where its store stands");
    }
    for partition in of_a.held.clone() {
        append(&config, partition, 5);
        of_a.until(&mut a, "a goes on", |of_a| of_a.read(partition) == 15);
    }
    assert_eq!((of_a.errors, of_b.errors), (vec![], vec![]));
}

/// A restart within the session timeout keeps the partitions, and nobody else notices.
pub(crate) fn an_instance_keeps_its_partitions(cluster: &Cluster) {
    let config = journal(cluster, 4);
    let patient = |id: &str| {
        let mut config = instance(&config, id);
        config.properties.insert("session.timeout.ms".to_owned(), "20000".to_owned());
        config.properties.insert("max.poll.interval.ms".to_owned(), "20000".to_owned());
        config
    };
    let (mut a, mut b) = (consumer(&patient("a")), consumer(&patient("b")));
    let (mut of_a, mut of_b) = (Keeper::default(), Keeper::default());
    for _ in 0..600 {
        of_a.turn(&mut a);
        of_b.turn(&mut b);
        if of_a.held.len() == 2 && of_b.held.len() == 2 {
            break;
        }
    }
    let (held, before) = (of_a.held.clone(), (of_b.assigned.len(), of_b.revoked.len()));
    assert_eq!((held.len(), of_b.held.len()), (2, 2));
    drop(a);
    let mut a = consumer(&patient("a"));
    let mut of_a = Keeper::default();
    for _ in 0..600 {
        of_a.turn(&mut a);
        of_b.turn(&mut b);
        if of_a.held == held {
            break;
        }
    }
    assert_eq!(of_a.held, held, "{:?}", of_a.errors);
    assert_eq!((of_b.assigned.len(), of_b.revoked.len()), before, "the other instance noticed");
}

/// Two living processes with one instance id: one of them gives up, and says why; the other goes on.
pub(crate) fn a_second_process_of_one_instance(cluster: &Cluster) {
    let config = journal(cluster, 1);
    let mut config = instance(&config, "same");
    config.properties.insert("max.poll.interval.ms".to_owned(), "30000".to_owned());
    let mut members = [consumer(&config), consumer(&config)];
    let mut keepers = [Keeper::default(), Keeper::default()];
    let gave_up = |keeper: &Keeper| {
        let ended = |error: &&ReadError| error.to_string().contains("may run with the instance id \"same\"");
        keeper.errors.iter().filter(ended).count() > 0
    };
    let started = Instant::now();
    loop {
        for (member, keeper) in members.iter_mut().zip(&mut keepers) {
            keeper.turn(member);
        }
        if keepers.iter().any(&gave_up) && keepers.iter().any(|keeper| keeper.held.len() == 1) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{:?} {:?}", keepers[0].errors, keepers[1].errors);
    }
    let stable = Instant::now();
    while stable.elapsed() < Duration::from_secs(3) {
        for (member, keeper) in members.iter_mut().zip(&mut keepers) {
            keeper.turn(member);
        }
    }
    let state = keepers.each_ref().map(|keeper| (gave_up(keeper), keeper.held.len()));
    assert!(state == [(true, 0), (false, 1)] || state == [(false, 1), (true, 0)], "{state:?}");
}

/// Our offset has expired: that partition stops and says what is lost, the other goes on.
pub(crate) fn a_log_that_begins_too_late(cluster: &Cluster) {
    let config = journal(cluster, 2);
    append(&config, 0, 10);
    append(&config, 1, 10);
    delete_before(&config, 0, 5);
    let mut consumer = consumer(&config);
    let mut keeper = Keeper { from: [(0, 2), (1, 2)].into(), ..Keeper::default() };
    keeper.until(&mut consumer, "partition 1 is read", |keeper| {
        keeper.read(1) == 8 && !keeper.errors.is_empty()
    });
    assert_eq!(keeper.errors, [ReadError::Lost { partition: 0, log_start: 5, wanted: 2 }]);
    assert_eq!(
        keeper.errors[0].to_string(),
        "partition 0 begins at offset 5, but reading stands at 2: 3 records are lost"
    );
    assert_eq!(keeper.read(0), 0);
    for _ in 0..20 {
        keeper.turn(&mut consumer);
    }
    assert_eq!(
        (keeper.errors.len(), keeper.read(0), keeper.read(1)),
        (1, 0, 8),
        "said once, and stands still"
    );
}

/// The log expires under a reader that is slower than its retention.
pub(crate) fn a_log_that_is_cut_while_reading(cluster: &Cluster) {
    let mut config = journal(cluster, 2);
    // One record at a time, so that the rest is not already on this side.
    config.properties.insert("fetch.message.max.bytes".to_owned(), "1000".to_owned());
    config.properties.insert("fetch.max.bytes".to_owned(), "2200000".to_owned());
    config.properties.insert("queued.min.messages".to_owned(), "1".to_owned());
    config.properties.insert("queued.max.messages.kbytes".to_owned(), "1".to_owned());
    config.batch_records_max = 1;
    let appender = journal::kafka::KafkaAppender::open(config.clone()).unwrap();
    block_on(async {
        for number in 0..20_u8 {
            let record = crate::contract::record(0, "key", vec![number; 200_000]);
            journal::Appender::append(&appender, journal::Topic::Observations, record).await.unwrap();
        }
    });
    append(&config, 1, 10);
    let mut consumer = consumer(&config);
    let mut keeper = Keeper::default();
    keeper.until(&mut consumer, "the first record", |keeper| keeper.read(0) >= 1);
    delete_before(&config, 0, 18);
    keeper.until(&mut consumer, "the loss", |keeper| !keeper.errors.is_empty());
    let ReadError::Lost { partition: 0, log_start: 18, wanted } = keeper.errors[0] else {
        panic!("{:?}", keeper.errors);
    };
    assert_eq!(wanted as usize, keeper.read(0), "every record before was handed out");
    keeper.until(&mut consumer, "partition 1 goes on", |keeper| keeper.read(1) == 10);
}

/// A store that is ahead of the log belongs to another log.
pub(crate) fn a_log_that_ends_too_early(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 3);
    let mut consumer = consumer(&config);
    let mut keeper = Keeper { from: [(0, 4)].into(), ..Keeper::default() };
    keeper.until(&mut consumer, "the refusal", |keeper| !keeper.errors.is_empty());
    let text = keeper.errors[0].to_string();
    assert!(text.contains("partition 0 ends at offset 3, but reading stands at 4"), "{text}");
    assert!(matches!(consumer.poll(&mut keeper, Duration::from_millis(200)), Ok(journal::Polled::Nothing)));
}

fn delete_before(config: &KafkaConfig, partition: i32, offset: i64) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &config.brokers).create().unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&config.topics.observations, partition, Offset::Offset(offset)).unwrap();
    block_on(admin.delete_records(&offsets, &AdminOptions::new())).unwrap();
}
