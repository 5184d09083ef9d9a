//! Providers that go on sending while things happen: they send again what was not acknowledged, at another
//! ingress, and now and then what was acknowledged already. Must never take anything but a 200 for an
//! acknowledgement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use schema::Digest;
use serde_json::Value as Json;
use service::clock::{Clock, SystemClock};

use crate::common::{Answer, Client, Delivery, PATIENCE, Random};
use crate::fleet::{Fleet, LOOK_AGAIN};

/// Connections that send at the same time.
const SENDERS: u64 = 32;
/// Between two deliveries of one sender: some eighty deliveries a second in all, so that a proof of a
/// minute is a matter of thousands.
const PAUSE: Duration = Duration::from_millis(400);
/// One in so many deliveries was sent before, and one in so many has the event id of one sent before.
const ONE_IN: u64 = 20;

/// What the senders know.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By the observation id of each 200, the digest of the body it was for.
    pub(crate) acknowledged: BTreeMap<String, Digest>,
    /// Of every body that was ever sent.
    pub(crate) sent: BTreeSet<Digest>,
    /// How long each 503 took to come.
    pub(crate) refusals: Vec<Duration>,
    /// Deliveries without any answer, which is what a killed ingress leaves.
    pub(crate) unanswered: usize,
}

/// A running load, as seen by whoever makes things happen meanwhile.
pub(crate) struct Load<'a> {
    ledger: &'a Mutex<Ledger>,
    /// Deliveries that each ingress acknowledged.
    by_door: &'a [AtomicUsize],
}

impl Load<'_> {
    /// Waits until every ingress has acknowledged so many more.
    pub(crate) fn wait_for_more(&self, count: usize) {
        let before = self.by_door.iter().map(|door| door.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let started = Instant::now();
        for (number, (door, before)) in self.by_door.iter().zip(before).enumerate() {
            while door.load(Ordering::SeqCst) < before + count {
                assert!(started.elapsed() < PATIENCE, "ingress {} acknowledges no more", number + 1);
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }

    /// 503s so far.
    pub(crate) fn refusals(&self) -> usize {
        lock(self.ledger).refusals.len()
    }
}

/// A seed that says itself, so that a run can be repeated.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("WITNESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| SystemClock.now().0 as u64);
    eprintln!("\n  WITNESS_SEED={seed} repeats the same deliveries and the same choices");
    seed
}

/// Sends while `meanwhile` runs, and answers what came of it.
pub(crate) fn under_load(
    fleet: &mut Fleet,
    seed: u64,
    meanwhile: impl FnOnce(&mut Fleet, &Load<'_>),
) -> Ledger {
    let (ledger, stop, doors) = (Mutex::new(Ledger::default()), AtomicBool::new(false), fleet.doors());
    let by_door = doors.iter().map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        // Also where `meanwhile` fails: the scope waits for the senders.
        let _stop = StopOnDrop(&stop);
        for number in 0..SENDERS {
            let mut sender = Sender {
                number,
                random: Random(seed.wrapping_add(number)),
                doors: &doors,
                by_door: &by_door,
                ledger: &ledger,
                stop: &stop,
            };
            scope.spawn(move || sender.run());
        }
        meanwhile(fleet, &Load { ledger: &ledger, by_door: &by_door });
    });
    let ledger = ledger.into_inner().expect("no sender found a fault");
    let Ledger { acknowledged, sent, refusals, unanswered } = &ledger;
    eprintln!(
        "  {} bodies sent, {} acknowledgements, {} times 503 (the slowest after {:.1} s), {unanswered} unanswered",
        sent.len(),
        acknowledged.len(),
        refusals.len(),
        refusals.iter().max().copied().unwrap_or_default().as_secs_f64(),
    );
    ledger
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Sender<'a> {
    number: u64,
    random: Random,
    doors: &'a [Client],
    by_door: &'a [AtomicUsize],
    ledger: &'a Mutex<Ledger>,
    stop: &'a AtomicBool,
}

impl Sender<'_> {
    fn run(&mut self) {
        let mut before: Option<Delivery> = None;
        for count in 0.. {
            let event_id = format!("event-{}-{count}", self.number);
            let delivery = match (before.take(), self.random.below(ONE_IN)) {
                (Some(before), 0) => before,
                (Some(before), 1) => contradicting(before, count),
                (Some(_) | None, _) => Delivery::random(&mut self.random, event_id),
            };
            self.send_until_acknowledged(&delivery);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            before = Some(delivery);
            std::thread::sleep(PAUSE);
        }
    }

    fn send_until_acknowledged(&mut self, delivery: &Delivery) {
        lock(self.ledger).sent.insert(Digest::of(&delivery.body));
        loop {
            let door = self.random.below(self.doors.len() as u64) as usize;
            let started = Instant::now();
            let answer = self.doors[door].post(delivery);
            let elapsed = started.elapsed();
            let mut ledger = lock(self.ledger);
            match answer {
                Ok(answer @ Answer { status: 200, .. }) => {
                    self.by_door[door].fetch_add(1, Ordering::SeqCst);
                    ledger.acknowledge(&answer, Digest::of(&delivery.body));
                    return;
                }
                Ok(Answer { status: 503, .. }) => ledger.refusals.push(elapsed),
                Ok(answer) => panic!("a genuine delivery was answered {}: {}", answer.status, answer.text),
                Err(_) => ledger.unanswered += 1,
            }
            drop(ledger);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Ledger {
    /// Writes down a 200. The same request within the same second shares an observation; another must not.
    pub(crate) fn acknowledge(&mut self, answer: &Answer, digest: Digest) {
        let id = answer.json()["observation_id"].as_str().expect("an observation id").to_owned();
        let other = self.acknowledged.insert(id.clone(), digest);
        assert!(
            other.is_none_or(|other| other == digest),
            "two bodies were acknowledged as observation {id}"
        );
    }
}

/// The same event with other bytes: about the same subject, and a conflict.
fn contradicting(before: Delivery, count: u64) -> Delivery {
    let mut body = serde_json::from_slice::<Json>(&before.body).expect("a body is JSON");
    body["said_differently"] = count.into();
    Delivery { body: body.to_string().into_bytes(), ..before }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().expect("no sender found a fault")
}
