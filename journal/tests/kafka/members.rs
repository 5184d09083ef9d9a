//! The group as those see it who answer from its partitions. Must never wait for a moment instead of for what it
//! expects.

use std::sync::Arc;
use std::time::Instant;

use journal::{Consumer, Group, Owner};

use crate::finder::Cluster;
use crate::support::{Keeper, PATIENCE, append, consumer, instance, journal};

/// Two members know of each other who has what, and where the other is reached. One that is not polled is confirmed
/// no longer than its session lasts, and is again when it goes on.
pub(crate) fn a_group_confirms_its_members_and_names_them(cluster: &Cluster) {
    let config = journal(cluster, 4);
    append(&config, 0, 1);
    let member = |id: &str| {
        let mut config = instance(&config, id);
        config.advertise = Some(format!("{id}.example:8081"));
        consumer(&config)
    };
    let (mut a, mut b) = (member("a"), member("b"));
    let (mut of_a, mut of_b) = (Keeper::default(), Keeper::default());
    let groups: [Arc<dyn Group>; 2] = [a.group(), b.group()];
    assert!(groups.iter().all(|group| group.confirmed().is_err()), "nobody has joined yet");

    let started = Instant::now();
    let knows = |group: &Arc<dyn Group>, own: &Keeper, others: &Keeper, at: &str| {
        let is = |partition: &u32, owner: &Owner| group.owner(*partition).as_ref() == Ok(owner);
        own.held.iter().all(|partition| is(partition, &Owner::Ourselves))
            && others.held.iter().all(|partition| is(partition, &Owner::At(at.to_owned())))
    };
    while of_a.held.len() != 2
        || of_b.held.len() != 2
        || groups.iter().any(|group| group.confirmed().is_err())
        || !knows(&groups[0], &of_a, &of_b, "b.example:8081")
        || !knows(&groups[1], &of_b, &of_a, "a.example:8081")
    {
        of_a.turn(&mut a);
        of_b.turn(&mut b);
        let owners = groups.each_ref().map(|group| (group.confirmed(), group.owner(0)));
        assert!(started.elapsed() < PATIENCE, "{:?} {:?} {owners:?}", of_a.held, of_b.held);
    }

    // Nothing is revoked from one that does not look; so its age alone must tell.
    let started = Instant::now();
    while groups[0].confirmed().is_ok() {
        of_b.turn(&mut b);
        assert!(started.elapsed() < PATIENCE, "confirmed for ever");
    }
    let revoked = of_a.revoked.len();
    while groups[0].confirmed().is_err() || of_a.held.is_empty() {
        of_a.turn(&mut a);
        of_b.turn(&mut b);
        assert!(started.elapsed() < PATIENCE, "{:?} {:?}", groups[0].confirmed(), of_a.errors);
    }
    eprintln!("  {} partitions were revoked meanwhile", of_a.revoked.len() - revoked);
}
