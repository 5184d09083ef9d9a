//! What the engine's parts cost beside the least they could cost: `verify` beside HMAC-SHA256 alone, a store batch
//! beside a sled batch of the same bytes. Must never compare figures of two runs: ratios are of one run, one after
//! the other, and the absolute figures are only of the machine that printed them.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark stops at the first surprise, and prints"
)]

mod deliveries;

use std::fs;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use deliveries::{BODY_BYTES, KEY, body, secret};
use hmac::{Hmac, KeyInit, Mac};
use journal::Record;
use journal::disk::{Batch, Disk};
use projector::derive::{At, SubjectFold, derive};
use projector::project::{Projected, project};
use projector::store::{DERIVATION_EPOCH, Store};
use schema::signature::{Receipt, Secret};
use schema::{Micros, Observation, Provider, Unverified};
use service::ids::{Ids, RandomIds};
use sha2::Sha256;

const BATCH_RECORDS: u64 = 500;
const SUBJECTS: u64 = 100;
const NOW_SECONDS: i64 = 1_780_000_000;
const NOW: Micros = Micros(NOW_SECONDS * 1_000_000);

/// A figure and what it stands beside.
const RATIOS: [(&str, &str); 12] = [
    ("verify/ycloud", "verify/hmac_alone"),
    ("verify/shoc", "verify/hmac_alone"),
    ("verify/yutai", "verify/hmac_alone"),
    ("observe/ycloud", "verify/hmac_alone"),
    ("observe/shoc", "verify/hmac_alone"),
    ("observe/yutai", "verify/hmac_alone"),
    ("derive/fold", "verify/hmac_alone"),
    ("derive/read_and_fold", "verify/hmac_alone"),
    ("batch/store", "batch/sled_alone"),
    ("batch/project", "batch/sled_alone"),
    ("batch/decode", "batch/project"),
    ("batch/decode", "batch/store"),
];

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("criterion");
    let mut criterion = Criterion::default().output_directory(&folder).configure_from_args();
    verify_and_observe(&mut criterion);
    derive_one(&mut criterion);
    store_batch(&mut criterion);
    criterion.final_summary();
    for (part, least) in RATIOS {
        if let (Some(part_nanoseconds), Some(least_nanoseconds)) =
            (median(&folder, part), median(&folder, least))
        {
            let ratio = part_nanoseconds / least_nanoseconds;
            println!("{part:<22} {part_nanoseconds:>12.0} ns  = {ratio:>6.2} x {least}");
        }
    }
}

/// Nanoseconds, as criterion has just measured them; nothing for what the command line left out.
fn median(folder: &Path, name: &str) -> Option<f64> {
    let text = fs::read_to_string(folder.join(name).join("new").join("estimates.json")).ok()?;
    serde_json::from_str::<serde_json::Value>(&text).ok()?["median"]["point_estimate"].as_f64()
}

/// What the door does before it reads a body: the headers read strictly, the HMAC, the comparison.
fn verified(provider: Provider, headers: &[&[u8]], body: &Bytes, candidates: &[Secret]) -> schema::Verified {
    let header = provider.contract().parse_signature(headers).expect("well-formed headers");
    let unverified = Unverified::new(provider, header, body.clone());
    unverified.verify(candidates, NOW_SECONDS, 300).expect("a true signature")
}

fn receipt() -> Receipt {
    Receipt {
        observation_id: RandomIds.uuid_v7(NOW),
        endpoint: "main".to_owned(),
        tenant: "acme".to_owned(),
        received_at: NOW,
        content_type: Some("application/json".to_owned()),
        webhook_endpoint_id: None,
    }
}

fn observation(provider: Provider, number: u64) -> Observation {
    let body = body(provider, number, SUBJECTS);
    let headers = provider.contract().sign(&secret(), NOW_SECONDS, &body);
    let headers = headers.iter().map(|(_, value)| value.as_bytes()).collect::<Vec<_>>();
    verified(provider, &headers, &body, &[secret()]).observe(receipt()).expect("a good envelope")
}

fn verify_and_observe(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("verify");
    group.throughput(Throughput::Bytes(BODY_BYTES as u64));
    let (alone, timestamp) = (body(Provider::YCloud, 1, SUBJECTS), NOW_SECONDS.to_string());
    group.bench_function("hmac_alone", |bencher| {
        bencher.iter(|| {
            let mut mac = Hmac::<Sha256>::new_from_slice(KEY).expect("any length");
            mac.update(timestamp.as_bytes());
            mac.update(b".");
            mac.update(&alone);
            mac.finalize()
        });
    });
    for provider in Provider::ALL {
        let (body, candidates) = (body(provider, 1, SUBJECTS), [secret()]);
        let headers = provider.contract().sign(&candidates[0], NOW_SECONDS, &body);
        let headers = headers.iter().map(|(_, value)| value.as_bytes()).collect::<Vec<_>>();
        group.bench_function(BenchmarkId::from_parameter(provider.as_str()), |bencher| {
            bencher.iter(|| verified(provider, &headers, &body, &candidates));
        });
    }
    group.finish();
    // The envelope, the subject, and the two digests that an observation carries.
    let mut group = criterion.benchmark_group("observe");
    for provider in Provider::ALL {
        let (body, candidates) = (body(provider, 1, SUBJECTS), [secret()]);
        let headers = provider.contract().sign(&candidates[0], NOW_SECONDS, &body);
        let headers = headers.iter().map(|(_, value)| value.as_bytes()).collect::<Vec<_>>();
        group.bench_function(BenchmarkId::from_parameter(provider.as_str()), |bencher| {
            bencher.iter_batched(
                || (verified(provider, &headers, &body, &candidates), receipt()),
                |(verified, receipt)| verified.observe(receipt).expect("a good envelope"),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn derive_one(criterion: &mut Criterion) {
    let at = |offset| At { offset, epoch: DERIVATION_EPOCH, journal_time: NOW };
    let [earlier, later] = [1, 101].map(|number| observation(Provider::YCloud, number));
    let [earlier_reading, later_reading] = [&earlier, &later].map(schema::provider::read);
    let mut known = SubjectFold::new(at(0));
    derive(&mut known, None, None, &earlier, &earlier_reading, at(0));
    let mut group = criterion.benchmark_group("derive");
    group.bench_function("fold", |bencher| {
        bencher.iter_batched_ref(
            || known.clone(),
            |known| derive(known, None, None, &later, &later_reading, at(1)),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("read_and_fold", |bencher| {
        bencher.iter_batched_ref(
            || known.clone(),
            |known| derive(known, None, None, &later, &schema::provider::read(&later), at(1)),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// One batch from records as read to durable and visible, beside what sled needs for the same bytes under a key
/// each. Both databases grow from batch to batch, as they do in life.
fn store_batch(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let records = |first: u64| {
        let record = |offset| {
            let value =
                schema::avro::encode(&observation(Provider::YCloud, offset)).expect("it can be written");
            Record { offset, key: Vec::new().into(), value: value.into() }
        };
        (first..first + BATCH_RECORDS).map(record).collect::<Vec<_>>()
    };
    let bytes = records(0).iter().map(|record| record.value.len() as u64).sum();
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Bytes(bytes)).sample_size(30);

    let disk = Disk::open(&folder.path().join("sled")).expect("opens");
    let tree = disk.tree("records").expect("a tree");
    let mut first = 0;
    let mut next = || {
        first += BATCH_RECORDS;
        records(first - BATCH_RECORDS)
    };
    group.bench_function("sled_alone", |bencher| {
        bencher.iter_batched(
            &mut next,
            |records| {
                let mut batch = Batch::default();
                for record in &records {
                    batch.insert_new(&record.offset.to_be_bytes(), &record.value);
                }
                tree.apply(batch).expect("applies");
                disk.sync().expect("syncs");
            },
            BatchSize::PerIteration,
        );
    });
    let store = Store::open(&folder.path().join("store"), NonZeroU32::MIN, DERIVATION_EPOCH).expect("opens");
    let mut first = 0;
    let mut next = || {
        first += BATCH_RECORDS;
        records(first - BATCH_RECORDS)
    };
    // The part of it before anything is written: decode, read, fold; and of that part decoding alone.
    let same = records(0);
    group.bench_function("decode", |bencher| {
        bencher.iter(|| {
            for record in &same {
                black_box(schema::avro::decode(&record.value).expect("it was encoded"));
            }
        });
    });
    group.bench_function("project", |bencher| {
        bencher.iter(|| project(&store.read(), 0, &same).expect("the store is readable"));
    });
    group.bench_function("store", |bencher| {
        bencher.iter_batched(
            &mut next,
            |records| {
                let Projected { changes, stop, claims: _ } =
                    project(&store.read(), 0, &records).expect("the store is readable");
                assert!(stop.is_none(), "{stop:?}");
                store.commit(0, changes).expect("commits");
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}
