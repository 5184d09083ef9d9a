//! How fast a store is derived anew from a log, and how the cost grows: `cargo bench -p witness --bench rebuild --
//! RECORDS SUBJECTS`. Must never read the log from anywhere but a generator whose own cost is measured in the same
//! run: what is measured is deriving and storing.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark stops at the first surprise, and prints"
)]

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use bytes::Bytes;
use journal::Record;
use projector::project::{Projected, project};
use projector::store::{DERIVATION_EPOCH, Store};
use schema::signature::{Receipt, Secret};
use schema::{Micros, Observation, Provider, Unverified};
use serde_json::json;
use uuid::Uuid;

/// As a rebuild takes them.
const BATCH_RECORDS: u64 = 5_000;
const PARTITIONS: NonZeroU32 = NonZeroU32::new(12).unwrap();
const NOW_SECONDS: i64 = 1_780_000_000;

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (records, subjects) = match numbers[..] {
        [records, subjects] => (records, subjects),
        _ => (100_000, 5_000),
    };
    let secret = Secret::new("env:SECRET", b"whsec_0123456789abcdef".to_vec()).expect("not empty");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let store = Store::open(&folder.path().join("store"), PARTITIONS, DERIVATION_EPOCH).expect("opens");
    println!(
        "{records} observations of {subjects} subjects, {PARTITIONS} partitions, batches of {BATCH_RECORDS}"
    );
    println!("{:>12} {:>12} {:>10} {:>12} {:>10}", "records", "records/s", "MB/s", "on disk, MB", "RSS, MB");

    let mut waiting: Vec<Vec<Record>> = vec![Vec::new(); PARTITIONS.get() as usize];
    let mut offsets = vec![0_u64; PARTITIONS.get() as usize];
    let (mut generating, mut projecting, mut storing) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut bytes = 0_u64;
    let step = (records / 10).max(1);
    let (mut shown, mut shown_bytes, mut shown_busy) = (0, 0, Duration::ZERO);
    for number in 0..records {
        let started = Instant::now();
        let observation = observation(&secret, number, subjects);
        let partition = observation.subject.partition(PARTITIONS) as usize;
        let value = Bytes::from(schema::avro::encode(&observation).expect("encodes"));
        bytes += value.len() as u64;
        waiting[partition].push(Record { offset: offsets[partition], key: Bytes::new(), value });
        offsets[partition] += 1;
        generating += started.elapsed();
        let is_last = number + 1 == records;
        for (partition, batch) in (0..).zip(&mut waiting) {
            if batch.len() as u64 >= BATCH_RECORDS || (is_last && !batch.is_empty()) {
                let started = Instant::now();
                let Projected { changes, .. } = project(&store.read(), partition, batch).expect("readable");
                projecting += started.elapsed();
                let started = Instant::now();
                store.commit(partition, changes).expect("durable");
                storing += started.elapsed();
                batch.clear();
            }
        }
        if (number + 1) % step == 0 {
            let busy = projecting + storing;
            let seconds = (busy - shown_busy).as_secs_f64();
            println!(
                "{:>12} {:>12.0} {:>10.1} {:>12.0} {:>10.0}",
                number + 1,
                (number + 1 - shown) as f64 / seconds,
                (bytes - shown_bytes) as f64 / seconds / 1e6,
                store.size_bytes().expect("readable") as f64 / 1e6,
                resident_bytes() as f64 / 1e6,
            );
            (shown, shown_bytes, shown_busy) = (number + 1, bytes, busy);
        }
    }
    let busy = (projecting + storing).as_secs_f64();
    println!(
        "in all {:.0} records/s, {:.1} MB/s; projecting {:.0} %, storing {:.0} % of the time; {:.2} bytes on disk a byte of the log",
        records as f64 / busy,
        bytes as f64 / busy / 1e6,
        100.0 * projecting.as_secs_f64() / busy,
        100.0 * storing.as_secs_f64() / busy,
        store.size_bytes().expect("readable") as f64 / bytes as f64,
    );
    println!("generating the log, beside it: {:.0} records/s", records as f64 / generating.as_secs_f64());
    let started = Instant::now();
    for partition in 0..PARTITIONS.get() {
        store.read().digest(partition).expect("readable");
    }
    println!("digests of everything: {:.0} records/s", records as f64 / started.elapsed().as_secs_f64());
}

/// One delivery of a message's life: every message is told of as often as every other, in turn.
fn observation(secret: &Secret, number: u64, subjects: u64) -> Observation {
    let (subject, life) = (number % subjects, number / subjects);
    // Words that compress as real ones do: not at all, and very well.
    let noise = format!(
        "{:016x}{:016x}",
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        subject.wrapping_mul(0xff51_afd7_ed55_8ccd)
    );
    let status = ["accepted", "sent", "delivered", "read"][(life % 4) as usize];
    let body = json!({
        "id": format!("evt_{noise}_{number}"),
        "type": "whatsapp.message.updated",
        "apiVersion": "v2",
        "createTime": "2026-03-01T10:00:00.000Z",
        "whatsappMessage": {
            "id": format!("{subject:012x}{}", &noise[16..]),
            "wamid": format!("wamid.{noise}{noise}"),
            "status": status,
            "from": "+16315551111",
            "to": format!("+5255{:08}", subject),
            "wabaId": "whatsapp-business-account-id",
            "type": "template",
            "template": {"name": "order_update", "language": {"code": "es", "policy": "deterministic"},
                "components": [{"type": "body", "parameters": [{"type": "text", "text": noise}, {"type": "text", "text": "su pedido va en camino"}]}]},
            "createTime": "2026-03-01T10:00:00.000Z",
            "updateTime": format!("2026-03-{:02}T10:{:02}:{:02}.000Z", 1 + life / 3600 % 28, life / 60 % 60, life % 60),
            "externalId": format!("order-{subject}"),
            "totalPrice": 0.0436, "currency": "USD", "regionCode": "MX", "pricingCategory": "utility",
        },
    })
    .to_string();
    let contract = Provider::YCloud.contract();
    let headers = contract.sign(secret, NOW_SECONDS, body.as_bytes());
    let values: Vec<&[u8]> = headers.iter().map(|(_, value)| value.as_bytes()).collect();
    let header = contract.parse_signature(&values).expect("the contract's shape");
    let unverified = Unverified::new(Provider::YCloud, header, Bytes::from(body));
    let verified =
        unverified.verify(std::slice::from_ref(secret), NOW_SECONDS, 300).expect("our own signature");
    let received_at = Micros(NOW_SECONDS * 1_000_000 + number as i64);
    verified
        .observe(Receipt {
            observation_id: Uuid::from_u128(u128::from(number) << 64 | 0x8000_0000_0000_0000),
            endpoint: "ycloud-main".to_owned(),
            tenant: "acme".to_owned(),
            received_at,
            content_type: Some("application/json".to_owned()),
            webhook_endpoint_id: None,
        })
        .expect("the envelope holds")
}

/// Bytes of memory that this process has now.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4096
}
