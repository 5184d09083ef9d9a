//! Figures for choosing settings; never a judgement.

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use journal::kafka::KafkaAppender;
use journal::{Appender, Topic};

use crate::contract::record;
use crate::finder::Cluster;
use crate::support::{Keeper, block_on, consumer, journal, unique};

/// Appends with 1 and 64 in flight, by lingering and compression.
pub(crate) fn append_rates(cluster: &Cluster) {
    let body: String = (0..40).map(|n| format!("{{\"id\":\"{:x}\",\"n\":{n}}}", n * 7_919 % 1_009)).collect();
    let value = body.as_bytes()[..600].to_vec();
    eprintln!(
        "{:>6} {:>6} {:>9} {:>10} {:>9} {:>9}",
        "linger", "codec", "in flight", "records/s", "p50", "p99"
    );
    for (linger, codec) in
        [("0", "none"), ("0", "lz4"), ("0", "zstd"), ("1", "lz4"), ("2", "lz4"), ("5", "lz4"), ("1", "zstd")]
    {
        for in_flight in [1, 64, 256] {
            let mut config = journal(cluster, 12);
            config.properties.insert("linger.ms".to_owned(), linger.to_owned());
            config.properties.insert("compression.type".to_owned(), codec.to_owned());
            let appender = KafkaAppender::open(config).unwrap();
            let one = |number: u32| {
                let appending = appender.append(
                    Topic::Observations,
                    record(number % 12, &format!("key {number}"), value.clone()),
                );
                let started = Instant::now();
                async move {
                    appending.await.unwrap();
                    started.elapsed()
                }
            };
            let (mut times, elapsed) = block_on(async {
                for number in 0..200 {
                    one(number).await;
                }
                let mut running = FuturesUnordered::new();
                let mut times = Vec::new();
                let started = Instant::now();
                let mut number = 0;
                while started.elapsed() < Duration::from_secs(3) {
                    while running.len() < in_flight {
                        running.push(one(number));
                        number += 1;
                    }
                    times.extend(running.next().await);
                }
                times.extend(running.collect::<Vec<_>>().await);
                (times, started.elapsed())
            });
            times.sort_unstable();
            eprintln!(
                "{linger:>6} {codec:>6} {in_flight:>9} {:>10.0} {:>9.2?} {:>9.2?}",
                times.len() as f64 / elapsed.as_secs_f64(),
                times[times.len() / 2],
                times[times.len() * 99 / 100]
            );
        }
    }
}

/// Reading through the adapter against librdkafka's plain consumer of the same topic.
pub(crate) fn read_rates(cluster: &Cluster) {
    const COUNT: u32 = 200_000;
    let config = journal(cluster, 4);
    let appender = KafkaAppender::open(config.clone()).unwrap();
    block_on(async {
        let mut running = FuturesUnordered::new();
        for number in 0..COUNT {
            running.push(appender.append(Topic::Observations, record(number % 4, "key", vec![7; 600])));
            while running.len() >= 5_000 {
                running.next().await.unwrap().unwrap();
            }
        }
        while let Some(answer) = running.next().await {
            answer.unwrap();
        }
    });
    for _ in 0..2 {
        let plain: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &config.brokers)
            .set("group.id", unique("plain"))
            .set("auto.offset.reset", "earliest")
            .set("fetch.queue.backoff.ms", "10")
            .create()
            .unwrap();
        plain.subscribe(&[&config.topics.observations]).unwrap();
        let (mut read, mut started) = (0, Instant::now());
        while read < COUNT {
            if let Some(Ok(_)) = plain.poll(Duration::from_millis(100)) {
                if read == 0 {
                    started = Instant::now();
                }
                read += 1;
            }
        }
        let plain_rate = f64::from(COUNT) / started.elapsed().as_secs_f64();

        let mut ours = config.clone();
        ours.group = unique("ours");
        let (mut consumer, mut keeper) = (consumer(&ours), Keeper::default());
        keeper.until(&mut consumer, "assigned", |keeper| keeper.held.len() == 4);
        let total = |keeper: &Keeper| (0..4).map(|partition| keeper.read(partition)).sum::<usize>();
        let started = Instant::now();
        let before = total(&keeper);
        let mut batches = 0;
        while total(&keeper) < COUNT as usize {
            keeper.turn(&mut consumer);
            batches += 1;
        }
        let rate = (COUNT as usize - before) as f64 / started.elapsed().as_secs_f64();
        eprintln!("plain {plain_rate:.0}/s, ours {rate:.0}/s in {batches} batches");
    }
}
