//! Brokers that fall silent or die. Must never restart a process of ours: they recover by themselves, or the
//! proof fails.

use std::time::Duration;

use crate::checks::check;
use crate::finder::Cluster;
use crate::fleet::Fleet;
use crate::load::{seed, under_load};

/// How long the broker says nothing: longer than everybody's session.
const SILENCE: Duration = Duration::from_secs(30);
/// The design's 5 s, and what a busy machine may add.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(8);
/// Acknowledgements of each ingress before and after.
const MEANWHILE: usize = 100;

/// A broker that keeps its connections and answers nothing.
pub(crate) fn the_broker_falls_silent(cluster: &Cluster) {
    let seed = seed();
    let mut fleet = Fleet::start(cluster);
    let ledger = under_load(&mut fleet, seed, |fleet, load| {
        load.wait_for_more(MEANWHILE);
        let refusals = load.refusals();
        cluster.pause(1);
        std::thread::sleep(SILENCE);
        cluster.unpause(1);
        assert!(load.refusals() > refusals, "nobody noticed that the broker was silent");
        load.wait_for_more(MEANWHILE);
        fleet.assert_running();
    });
    let slowest = ledger.refusals.iter().max().copied().unwrap_or_default();
    assert!(slowest < REFUSAL_TIME_MAX, "a delivery waited {slowest:?} for its 503");
    fleet.wait_until_all_is_owned();
    check(&mut fleet, &ledger);
    fleet.stop_all();
}

/// One of three brokers, killed.
pub(crate) fn one_of_three_brokers_dies(cluster: &Cluster) {
    let seed = seed();
    let mut fleet = Fleet::start(cluster);
    let ledger = under_load(&mut fleet, seed, |fleet, load| {
        load.wait_for_more(MEANWHILE);
        cluster.kill(2);
        load.wait_for_more(5 * MEANWHILE);
        fleet.assert_running();
    });
    let slowest = ledger.refusals.iter().max().copied().unwrap_or_default();
    assert!(slowest < REFUSAL_TIME_MAX, "a delivery waited {slowest:?} for its 503");
    fleet.wait_until_all_is_owned();
    check(&mut fleet, &ledger);
    fleet.stop_all();
}
