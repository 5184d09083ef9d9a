//! Publishing: all or nothing, by the current owner alone. Must never
//! read what was not committed and call it published.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use journal::kafka::{KafkaConfig, KafkaConsumer, TopicNames};
use journal::{Committed, Consumer, Polled, Publication, PublishError, Topic};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::finder::Cluster;
use crate::support::{Keeper, append, committed_values, consumer, instance, journal, publication};

/// Polls until 5 records of partition 0 are held.
fn with_five_records(config: &KafkaConfig) -> (KafkaConsumer, Keeper) {
    let (mut consumer, mut keeper) = (consumer(config), Keeper::default());
    keeper.until(&mut consumer, "5 records", |keeper| keeper.read(0) == 5);
    (consumer, keeper)
}

pub(crate) fn publishes_all_or_nothing(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let (mut first, keeper) = with_five_records(&config);
    assert_eq!(keeper.assigned[0].committed, None);
    first.publish(vec![]).unwrap();
    first.publish(vec![publication(3, "3")]).unwrap();
    first.publish(vec![publication(5, "5")]).unwrap();

    // A record that no broker takes: the whole publication comes to nothing, and the next one works.
    let mut huge = publication(5, "never");
    huge.claims[0].value = vec![0; config.record_bytes_max * 2].into();
    let refused = first.publish(vec![huge]);
    assert!(matches!(refused, Err(PublishError::Fatal(_))), "{refused:?}");
    first.publish(vec![publication(5, "5 again")]).unwrap();

    let foreign = first.publish(vec![Publication { partition: 7, ..publication(5, "foreign") }]);
    assert!(matches!(foreign, Err(PublishError::Fenced(_))), "{foreign:?}");
    drop(first);

    let of = |topic| committed_values(&config.brokers, config.topics.of(topic));
    assert_eq!(of(Topic::Projections), ["projection 3", "projection 5", "projection 5 again"]);
    assert_eq!(of(Topic::Claims), ["claim 3", "claim 5", "claim 5 again"]);

    let (mut second, mut keeper) = (consumer(&config), Keeper::default());
    keeper.until(&mut second, "assigned again", |keeper| !keeper.assigned.is_empty());
    assert_eq!(
        keeper.assigned[0].committed,
        Some(Committed { offset: 5, metadata: "metadata 5 again".to_owned() })
    );
    assert_eq!((keeper.assigned[0].log_start, keeper.assigned[0].log_end), (0, 5));

    // Transaction markers and aborted records leave gaps, which are no loss.
    let mut claims = config.clone();
    claims.group = crate::support::unique("claims");
    let (mut reader, mut keeper) = (KafkaConsumer::open(claims, Topic::Claims).unwrap(), Keeper::default());
    keeper.until(&mut reader, "the claims", |keeper| keeper.read(0) == 3);
    let offsets: Vec<_> = keeper.records[&0].iter().map(|record| record.offset).collect();
    assert!(offsets[0] == 0 && offsets[1] == 2 && offsets[2] >= 4, "{offsets:?}");
    assert_eq!(keeper.errors, []);
}

/// While an earlier owner's transaction is undecided, nobody is told an offset that it may change.
pub(crate) fn committed_is_read_once_decided(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let earlier: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &config.brokers)
        .set("group.id", &config.group)
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    earlier.subscribe(&[&config.topics.observations]).unwrap();
    let started = Instant::now();
    while !matches!(earlier.poll(Duration::from_millis(100)), Some(Ok(_))) {
        assert!(started.elapsed() < crate::support::PATIENCE);
    }
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &config.brokers)
        .set("transactional.id", crate::support::unique("earlier"))
        .create()
        .unwrap();
    producer.init_transactions(Duration::from_secs(10)).unwrap();
    producer.begin_transaction().unwrap();
    producer
        .send(BaseRecord::to(&config.topics.projections).partition(0).key("key").payload("earlier"))
        .map_err(|(error, _)| error)
        .unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&config.topics.observations, 0, Offset::Offset(4)).unwrap();
    let member = earlier.group_metadata().unwrap();
    producer.send_offsets_to_transaction(&offsets, &member, Duration::from_secs(10)).unwrap();
    drop(earlier);

    let (mut later, mut keeper) = (consumer(&config), Keeper::default());
    let undecided = Instant::now();
    while undecided.elapsed() < Duration::from_secs(5) {
        keeper.turn(&mut later);
    }
    assert_eq!(keeper.assigned, [], "told of an undecided offset");
    producer.commit_transaction(Duration::from_secs(10)).unwrap();
    keeper.until(&mut later, "assigned", |keeper| !keeper.assigned.is_empty());
    assert_eq!(keeper.assigned[0].committed, Some(Committed { offset: 4, metadata: String::new() }));
}

/// A holds records past its time; B takes over and publishes; what A publishes then is never seen.
pub(crate) fn a_slow_owner_is_fenced(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let (mut slow, mut of_slow) = with_five_records(&instance(&config, "slow"));
    slow.publish(vec![publication(2, "slow, in time")]).unwrap();

    let (mut quick, of_quick) = with_five_records_from(&instance(&config, "quick"), 2);
    quick.publish(vec![publication(5, "quick")]).unwrap();

    let late = slow.publish(vec![publication(5, "slow, too late")]);
    assert!(matches!(late, Err(PublishError::Fenced(_))), "{late:?}");
    assert!(of_slow.revoked.is_empty(), "the owner is told while polling only");
    of_slow.until(&mut slow, "the partition is given up", |keeper| keeper.revoked == [0]);
    assert!(matches!(slow.poll(&mut of_slow, Duration::from_millis(200)), Ok(Polled::Nothing)));

    // It is a member again, and takes over when the other goes.
    drop((quick, of_quick));
    of_slow.until(&mut slow, "the partition comes back", |keeper| keeper.held.contains(&0));
    let committed = of_slow.assigned[1].committed.clone();
    assert_eq!(committed, Some(Committed { offset: 5, metadata: "metadata quick".to_owned() }));
    slow.publish(vec![publication(5, "slow again")]).unwrap();
    assert_eq!(
        committed_values(&config.brokers, &config.topics.projections),
        ["projection slow, in time", "projection quick", "projection slow again"]
    );
}

/// A consumer that owns partition 0, committed at `committed`, with all records from there read.
fn with_five_records_from(config: &KafkaConfig, committed: u64) -> (KafkaConsumer, Keeper) {
    let (mut consumer, mut keeper) = (consumer(config), Keeper::default());
    keeper.until(&mut consumer, "the rest of 5 records", |keeper| keeper.read(0) as u64 == 5 - committed);
    assert_eq!(keeper.assigned[0].committed.as_ref().map(|committed| committed.offset), Some(committed));
    (consumer, keeper)
}

/// The same with a process that is stopped by a signal and wakes up believing that no time has passed.
pub(crate) fn a_stopped_process_is_fenced(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let mut zombie = Zombie::start(&config);
    assert_eq!(zombie.says(), "HOLDING");
    signal(&zombie.child, "STOP");

    let (mut quick, _of_quick) = {
        let (mut consumer, mut keeper) = (consumer(&instance(&config, "quick")), Keeper::default());
        keeper.until(&mut consumer, "5 records", |keeper| keeper.read(0) == 5);
        (consumer, keeper)
    };
    quick.publish(vec![publication(5, "quick")]).unwrap();

    signal(&zombie.child, "CONT");
    zombie.tell("PUBLISH");
    let answer = zombie.says();
    assert!(answer.starts_with("FENCED"), "{answer}");
    let of = |topic| committed_values(&config.brokers, config.topics.of(topic));
    assert_eq!(of(Topic::Projections), ["projection quick"]);
    assert_eq!(of(Topic::Claims), ["claim quick"]);
    quick.publish(vec![publication(5, "quick again")]).unwrap();
}

struct Zombie {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

const CHILD: &str = "WITNESS_TEST_KAFKA_CHILD";

impl Zombie {
    fn start(config: &KafkaConfig) -> Self {
        let TopicNames { observations, projections, claims } = &config.topics;
        let what = [&config.brokers, &config.group, observations, projections, claims];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(CHILD, what.map(String::as_str).join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn says(&mut self) -> String {
        self.lines.next().expect("the child lives").unwrap()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Zombie {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The stopped process: reads, says so, and publishes when told.
pub(crate) fn child() {
    let what = std::env::var(CHILD).unwrap();
    let [brokers, group, observations, projections, claims] = what.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{what}");
    };
    let mut config = KafkaConfig::new(brokers, std::num::NonZeroU32::MIN, group, "zombie");
    config.topics = TopicNames {
        observations: observations.to_owned(),
        projections: projections.to_owned(),
        claims: claims.to_owned(),
    };
    let (mut consumer, _keeper) = with_five_records(&instance(&config, "zombie"));
    println!("HOLDING");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let result = consumer.publish(vec![publication(5, "zombie")]);
    match result {
        Err(PublishError::Fenced(why)) => println!("FENCED {why}"),
        other => println!("{other:?}"),
    }
}

/// A member that joins makes a new generation, but takes nothing from an owner that has not let go: what the
/// owner publishes meanwhile is published, at the second try at the latest.
pub(crate) fn a_new_generation_is_no_fence(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let patient = |id: &str| {
        let mut config = instance(&config, id);
        config.properties.insert("max.poll.interval.ms".to_owned(), "60000".to_owned());
        config
    };
    let (mut owner, mut keeper) = with_five_records(&patient("owner"));
    // The newcomer joins in its own time; the owner polls just enough to let it.
    let (mut newcomer, mut of_newcomer) = (consumer(&patient("newcomer")), Keeper::default());
    let mut aborted = 0;
    for number in 0..40 {
        of_newcomer.turn(&mut newcomer);
        match owner.publish(vec![publication(5, &number.to_string())]) {
            Ok(()) => {}
            Err(PublishError::Aborted(why)) => {
                aborted += 1;
                owner
                    .publish(vec![publication(5, &number.to_string())])
                    .unwrap_or_else(|error| panic!("after {why}: {error}"));
            }
            Err(other) => panic!("{other}"),
        }
        if number % 5 == 4 {
            keeper.turn(&mut owner);
        }
    }
    eprintln!("{aborted} of 40 publications needed a second try");
    assert_eq!((keeper.revoked.len(), of_newcomer.assigned.len()), (0, 0));
    let values = committed_values(&config.brokers, &config.topics.projections);
    assert_eq!(values, (0..40).map(|number| format!("projection {number}")).collect::<Vec<_>>());
}

/// Why an instance id is not optional: the broker lets anybody commit in a transaction who names no member, which
/// is what librdkafka does just after a membership expired. With an instance id it does not.
pub(crate) fn a_nobody_with_an_instance_id_is_fenced(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let (_owner, _keeper) = with_five_records(&config);
    let commit_as_nobody = |instance: Option<&str>| {
        let mut nobody = ClientConfig::new();
        nobody.set("bootstrap.servers", &config.brokers).set("group.id", &config.group);
        if let Some(instance) = instance {
            nobody.set("group.instance.id", instance);
        }
        // Never joins, so it has no member id and no generation.
        let nobody: BaseConsumer = nobody.create().unwrap();
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &config.brokers)
            .set("transactional.id", crate::support::unique("nobody"))
            .create()
            .unwrap();
        producer.init_transactions(Duration::from_secs(10)).unwrap();
        producer.begin_transaction().unwrap();
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&config.topics.observations, 0, Offset::Offset(5)).unwrap();
        let sent = producer.send_offsets_to_transaction(
            &offsets,
            &nobody.group_metadata().unwrap(),
            Duration::from_secs(10),
        );
        producer.abort_transaction(Duration::from_secs(10)).unwrap();
        sent.map_err(|error| error.rdkafka_error_code())
    };
    assert_eq!(commit_as_nobody(None), Ok(()));
    assert_eq!(commit_as_nobody(Some("one")), Err(Some(RDKafkaErrorCode::FencedInstanceId)));
    assert_eq!(commit_as_nobody(Some("expired")), Err(Some(RDKafkaErrorCode::UnknownMemberId)));
}

/// A broker that is silent for longer than a transaction lives: every publication comes about once, in order.
pub(crate) fn a_silent_broker_publishes_nothing_twice(cluster: &Cluster) {
    let config = journal(cluster, 1);
    append(&config, 0, 5);
    let mut patient = instance(&config, "patient");
    patient.properties.insert("max.poll.interval.ms".to_owned(), "60000".to_owned());
    let (mut consumer, mut keeper) = with_five_records(&patient);
    let (mut aborted, mut fenced, mut number) = (0, 0, 0);
    std::thread::scope(|scope| {
        while number < 20 {
            if number == 5 && aborted + fenced == 0 {
                cluster.pause(1);
                // From another thread: librdkafka may not come back before the broker does.
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_secs(17));
                    cluster.unpause(1);
                });
            }
            match consumer.publish(vec![publication(5, &number.to_string())]) {
                Ok(()) => number += 1,
                Err(PublishError::Aborted(_)) => aborted += 1,
                Err(PublishError::Fenced(_)) => {
                    fenced += 1;
                    let before = keeper.assigned.len();
                    keeper.until(&mut consumer, "a new assignment", |keeper| keeper.assigned.len() > before);
                    // What was published, if that was not known, is told by the committed offset.
                    let committed = keeper.assigned.last().unwrap().committed.clone().unwrap();
                    let last = committed.metadata.strip_prefix("metadata ").unwrap().to_owned();
                    number = last.parse::<u32>().unwrap() + 1;
                }
                Err(other) => panic!("{other}"),
            }
            assert!(aborted < 100, "never published again");
        }
    });
    eprintln!("{aborted} aborted, {fenced} fenced");
    assert!(aborted + fenced > 0, "the pause went unnoticed");
    let values = committed_values(&config.brokers, &config.topics.projections);
    assert_eq!(values, (0..20).map(|number| format!("projection {number}")).collect::<Vec<_>>());
}
