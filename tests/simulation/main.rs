//! Everything between a provider's request and a published projection, simulated: the services' own code with a
//! journal, providers, clocks and crashes that one seed decides. `WITNESS_SEED=7 just simulate` repeats a run exactly.
//! Must never use a second thread in one run, nor anything else that another run could not repeat.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

mod check;
mod cluster;
mod model;
#[path = "../../projector/tests/support/model.rs"]
mod naive;
mod provider;
#[path = "../common/random.rs"]
mod random;
mod troubles;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use troubles::Troubles;
use world::World;

/// Seeds that are run every time: some on their own, for a quick look and for the faults put in on purpose.
const SOME: std::ops::RangeInclusive<u64> = 1..=3;
const FIXED: std::ops::RangeInclusive<u64> = 4..=13;
/// Seeds that nobody has tried before.
const RANDOM: usize = 15;
/// HTTP requests of one run, at least.
const DELIVERIES: u64 = 800;
/// Within how many of them every kind of trouble must have happened.
const DELIVERIES_MAX: u64 = 5 * DELIVERIES;
/// Runs at a time.
const THREADS: usize = 2;

/// Says which seed it was, where a run ends badly.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("WITNESS_SEED={} repeats it: WITNESS_SEED={} just simulate", self.0, self.0);
        }
    }
}

/// One run, until every kind of trouble was in it; answers its deliveries and what went wrong.
fn run(seed: u64) -> (u64, Troubles) {
    let guard = Seed(seed);
    let mut world = World::new(seed);
    while world.deliveries < DELIVERIES || !world.troubles().missing().is_empty() {
        world.act();
        assert!(
            world.deliveries < DELIVERIES_MAX,
            "after {} deliveries there was no {:?}",
            world.deliveries,
            world.troubles().missing()
        );
    }
    world.settle();
    drop(guard);
    (world.deliveries, world.troubles())
}

/// Runs each seed on a thread of its own, some at a time.
fn run_all(seeds: &[u64]) {
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let all = Mutex::new((0, Troubles::default()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (deliveries, troubles) = run(*seed);
                    let mut all = all.lock().expect("no other run has failed");
                    all.0 += deliveries;
                    all.1.add(&troubles);
                }
            });
        }
    });
    let (deliveries, troubles) = all.into_inner().expect("no run has failed");
    println!("{} runs, {deliveries} deliveries in {:.1?}. {troubles}", seeds.len(), started.elapsed());
}

fn random_seed() -> u64 {
    getrandom::u64().expect("the machine has randomness")
}

/// With `WITNESS_SEED` that seed alone; with `WITNESS_SIMULATE`, as `just simulate` has it, on and on.
#[test]
fn fixed_and_random_seeds() {
    if let Some(seed) = std::env::var("WITNESS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run_all(&[seed]);
    }
    let random = || (0..RANDOM).map(|_| random_seed());
    run_all(&FIXED.chain(random()).collect::<Vec<_>>());
    while std::env::var_os("WITNESS_SIMULATE").is_some() {
        run_all(&random().collect::<Vec<_>>());
    }
}

#[test]
fn some_seeds() {
    run_all(&SOME.collect::<Vec<_>>());
}

#[test]
fn a_seed_repeats_a_run_exactly() {
    let trace = || {
        let mut world = World::new(1);
        (0..400).for_each(|_| world.act());
        world.settle();
        world.trace
    };
    assert_eq!(trace(), trace());
}
