//! Processes that come and go, politely and not. Must never wait for less than what is claimed: that others
//! have taken over, or that the one that came back works again.

use std::time::Duration;

use schema::Digest;
use serde_json::json;

use crate::checks::check;
use crate::common::{Delivery, Random};
use crate::finder::Cluster;
use crate::fleet::{Fleet, PARTITIONS};
use crate::load::{Ledger, seed, under_load};

/// Acknowledgements of each ingress between two events.
const MEANWHILE: usize = 100;
/// Milliseconds of load before a kill.
const KILL_AFTER_MILLISECONDS_MAX: u64 = 1_500;

/// Under load a projector is added, one is stopped, one is paused beyond its session timeout and wakes up as a
/// zombie, and each process is killed once.
pub(crate) fn services_come_and_go(cluster: &Cluster) {
    let seed = seed();
    let mut fleet = Fleet::start(cluster);
    let ledger = under_load(&mut fleet, seed, |fleet, load| {
        load.wait_for_more(MEANWHILE);
        fleet.add_projector(3);
        fleet.wait_until_it_owns_some("projector-3");
        load.wait_for_more(MEANWHILE);

        fleet.stop("projector-2");
        fleet.wait_until_all_is_owned();
        load.wait_for_more(MEANWHILE);

        let published = fleet.figure("projector-1", "witness_projector_published_total", "");
        fleet.pause("projector-1");
        fleet.wait_until_all_is_owned();
        load.wait_for_more(MEANWHILE);
        let said_before = fleet.log_of("projector-1").len();
        fleet.resume("projector-1");
        fleet.assert_it_answers_nothing("projector-1");
        fleet.wait_until_it_owns_some("projector-1");
        let log = fleet.log_of("projector-1");
        let said = &log[said_before..];
        // Whichever it notices first: that it may not publish, or that the group has given it up.
        let [fenced, revoked] = ["joining the group again", "revoked"].map(|word| said.contains(word));
        assert!(fenced || revoked, "projector-1 kept its partitions after it had been a zombie: {said}");
        eprintln!(
            "  projector-1 had published {published}; the zombie was fenced: {fenced}, revoked: {revoked}"
        );

        // Its store is a minute old by now.
        fleet.run("projector-2");
        fleet.wait_until_it_owns_some("projector-2");

        let mut random = Random(seed);
        let mut names = fleet.names();
        while !names.is_empty() {
            let name = names.swap_remove(random.below(names.len() as u64) as usize);
            std::thread::sleep(Duration::from_millis(random.below(KILL_AFTER_MILLISECONDS_MAX)));
            eprintln!("  kill -9 of {name}");
            fleet.kill(&name);
            fleet.run(&name);
        }
        fleet.wait_until_all_is_owned();
        load.wait_for_more(MEANWHILE);
    });
    assert!(ledger.acknowledged.len() > 1_000, "there was hardly any load");
    check(&mut fleet, &ledger);
    let owned = ["projector-1", "projector-2", "projector-3"].map(|name| fleet.owned_by(name));
    assert_eq!(owned.iter().sum::<usize>(), PARTITIONS as usize, "{owned:?}");
    fleet.stop_all();
}

/// The very first observations of a log, derived by projectors that die before they publish anything.
pub(crate) fn what_was_never_published(cluster: &Cluster) {
    let mut fleet = Fleet::start(cluster);
    let projectors = ["projector-1", "projector-2"];
    for name in projectors {
        fleet.pause(name);
    }
    let (door, mut ledger) = (fleet.doors().swap_remove(0), Ledger::default());
    for number in 0..3 * PARTITIONS {
        let event_id = format!("event-{number}");
        let message = json!({
            "id": format!("message-{number}"), "status": "sent", "updateTime": "2026-04-01T08:00:00.000Z",
        });
        let body = json!({"id": event_id, "type": "whatsapp.message.updated", "whatsappMessage": message});
        let delivery = Delivery { endpoint: 0, event_id, body: body.to_string().into_bytes() };
        let answer = door.post(&delivery).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let digest = Digest::of(&delivery.body);
        ledger.sent.insert(digest);
        ledger.acknowledge(&answer, digest);
    }
    for name in projectors {
        fleet.kill(name);
        fleet.run(name);
    }
    fleet.wait_until_all_is_owned();
    check(&mut fleet, &ledger);
    fleet.stop_all();
}
