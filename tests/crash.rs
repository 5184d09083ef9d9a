//! `kill -9` of `witness up` with requests in flight, ten times at random moments, each time started again on
//! the same data: what was acknowledged is there once, nothing else got in, and the answers are those of a
//! store built from the journal alone. Must never count on a clean shutdown before a check is made.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use common::{Answer, Delivery, Installation, Random, Service, items};
use schema::Digest;
use service::clock::{Clock, SystemClock};

const ROUNDS: u64 = 10;
const SENDERS: u64 = 48;
/// Requests that must be unanswered at the moment of the kill.
const IN_FLIGHT_MIN: usize = 32;
/// Milliseconds of load before a kill: some kills come while the first batch is written, some well after.
const KILL_AFTER_MILLISECONDS_MAX: u64 = 1_000;

/// How long to wait at most until enough requests are in flight.
const LOAD_MAX: Duration = Duration::from_secs(20);

/// What the senders know.
#[derive(Default)]
struct Ledger {
    /// By the observation id of each 200, the event that was sent for it.
    acknowledged: BTreeMap<String, String>,
    /// By event id, the digest of the body that was sent, and how often it was.
    sent: BTreeMap<String, (String, usize)>,
    /// Sent and not acknowledged: a provider sends these again.
    unanswered: Vec<Delivery>,
    /// Event ids that only someone without the secret sent.
    forged: BTreeSet<String>,
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_else_gets_in() {
    let seed = std::env::var("WITNESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| SystemClock.now().0 as u64);
    println!("WITNESS_SEED={seed} repeats the same deliveries and the same moments");
    let installation = Installation::new();
    let ledger = Mutex::new(Ledger::default());
    for round in 0..ROUNDS {
        let mut service = installation.start("store");
        let in_flight = load_and_kill(&mut service, &ledger, Random(seed.wrapping_add(round)), round);
        let acknowledged = lock(&ledger).acknowledged.len();
        println!("round {round}: killed with {in_flight} in flight, {acknowledged} acknowledged so far");
        assert!(in_flight >= IN_FLIGHT_MIN, "only {in_flight} requests were in flight");
    }
    let ledger = ledger.into_inner().expect("no sender found a fault");
    assert!(ledger.acknowledged.len() > 100 && ledger.forged.len() > 10, "there was hardly any load");

    let service = installation.start("store");
    let answers = service.client.everything();
    ledger.check(&answers);
    service.stop();

    let rebuilt = installation.start("store-built-from-the-journal");
    let rebuilt_answers = rebuilt.client.everything();
    assert_eq!(
        answers.keys().collect::<Vec<_>>(),
        rebuilt_answers.keys().collect::<Vec<_>>(),
        "the two stores do not know the same subjects"
    );
    for (path, answer) in &answers {
        assert_eq!(
            answer, &rebuilt_answers[path],
            "{path} differs from a store built from the journal alone"
        );
    }
    rebuilt.stop();
    assert_eq!(installation.blob_files(), Vec::<PathBuf>::new(), "sled put values where it never syncs");
}

/// Posts from many threads and kills the process at a random moment. Answers how many requests were in
/// flight then.
fn load_and_kill(service: &mut Service, ledger: &Mutex<Ledger>, mut random: Random, round: u64) -> usize {
    let (stop, in_flight) = (AtomicBool::new(false), AtomicUsize::new(0));
    let again = std::mem::take(&mut lock(ledger).unanswered);
    std::thread::scope(|scope| {
        for number in 0..SENDERS {
            let mut random = Random(random.below(u64::MAX));
            let (stop, in_flight, client) = (&stop, &in_flight, service.client.clone());
            let mut again = again.iter().skip(number as usize).step_by(SENDERS as usize).cloned();
            scope.spawn(move || {
                for count in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (delivery, is_forged) = match again.next() {
                        Some(delivery) => (delivery, false),
                        None => (
                            Delivery::random(&mut random, format!("event-{round}-{number}-{count}")),
                            random.below(10) == 0,
                        ),
                    };
                    in_flight.fetch_add(1, Ordering::SeqCst);
                    let answer =
                        if is_forged { client.post_forged(&delivery) } else { client.post(&delivery) };
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    // Without an answer the process is gone.
                    let is_gone = answer.is_err();
                    lock(ledger).write_down(delivery, is_forged, answer);
                    if is_gone {
                        return;
                    }
                }
            });
        }
        let moment = Duration::from_millis(random.below(KILL_AFTER_MILLISECONDS_MAX));
        let started = Instant::now();
        let in_flight_at_kill = loop {
            std::thread::sleep(Duration::from_micros(200));
            let seen = in_flight.load(Ordering::SeqCst);
            if (started.elapsed() >= moment && seen >= IN_FLIGHT_MIN) || started.elapsed() > LOAD_MAX {
                break seen;
            }
        };
        service.assert_running();
        service.kill();
        stop.store(true, Ordering::SeqCst);
        in_flight_at_kill
    })
}

impl Ledger {
    fn write_down(&mut self, delivery: Delivery, is_forged: bool, answer: Result<Answer, String>) {
        if is_forged {
            if let Ok(answer) = answer {
                assert_eq!(
                    answer.status, 401,
                    "a forged delivery was answered {}: {}",
                    answer.status, answer.text
                );
            }
            self.forged.insert(delivery.event_id);
            return;
        }
        let digest = Digest::of(&delivery.body).to_string();
        self.sent.entry(delivery.event_id.clone()).or_insert_with(|| (digest, 0)).1 += 1;
        match answer {
            Ok(answer) if answer.status == 200 => {
                let id = answer.json()["observation_id"].as_str().expect("an observation id").to_owned();
                let other = self.acknowledged.insert(id.clone(), delivery.event_id);
                assert_eq!(other, None, "two deliveries were acknowledged as observation {id}");
            }
            Ok(Answer { status: 503, .. }) | Err(_) => self.unanswered.push(delivery),
            Ok(answer) => panic!("a genuine delivery was answered {}: {}", answer.status, answer.text),
        }
    }

    /// Holds the histories against what was sent and answered.
    fn check(&self, answers: &BTreeMap<String, Vec<String>>) {
        let histories = answers.iter().filter(|(path, _)| path.ends_with("/history"));
        let entries = histories.flat_map(|(_, pages)| items(pages)).collect::<Vec<_>>();
        let mut found = BTreeSet::new();
        let mut by_event = BTreeMap::<&str, (usize, usize)>::new();
        for entry in &entries {
            let field = |name: &str| entry[name].as_str().unwrap_or_else(|| panic!("no {name} in {entry}"));
            let (id, event_id) = (field("observation_id"), field("event_id"));
            assert!(found.insert(id), "observation {id} is there twice");
            let Some((digest, _)) = self.sent.get(event_id) else {
                panic!("nobody sent {event_id} (forged: {})", self.forged.contains(event_id));
            };
            assert_eq!(field("body_digest"), digest, "{event_id} is not what was sent");
            if let Some(acknowledged) = self.acknowledged.get(id) {
                assert_eq!(acknowledged, event_id, "observation {id} is another delivery");
            }
            let (total, new) = by_event.entry(event_id).or_default();
            *total += 1;
            *new += usize::from(field("inbox") == "new");
        }
        for (id, event_id) in &self.acknowledged {
            assert!(
                found.contains(id.as_str()),
                "observation {id} of {event_id} was acknowledged and is lost"
            );
        }
        for (event_id, (total, new)) in by_event {
            let sent = self.sent[event_id].1;
            assert!(total <= sent, "{event_id} was sent {sent} times and is there {total} times");
            assert_eq!(new, 1, "{event_id} was accepted {new} times");
        }
        println!("{} observations, {} of them acknowledged", entries.len(), self.acknowledged.len());
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().expect("no sender found a fault")
}
