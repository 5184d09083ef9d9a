//! Witness on a real Kafka, end to end: two kinds of processes that come and go, and a broker that does, too.
//! Without a broker each proof is skipped by name, and fails with `WITNESS_REQUIRE_ALL=1`. Must never let two
//! proofs share a topic or a group, nor run side by side: some of them stop the broker.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test stops at the first surprise"
)]

mod changes;
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod finder;
mod fleet;
mod load;
mod main_job;
mod moving;
mod outages;
mod reader;
#[path = "../../journal/tests/registry/mock.rs"]
mod registry;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use finder::Cluster;
use libtest_mimic::{Arguments, Failed, Trial};

/// What a proof needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Any broker.
    Broker,
    /// A broker that may be stopped for a while.
    BrokerOfOurs,
    /// Three brokers of its own.
    ThreeBrokers,
}

type Proof = fn(&Cluster);

const PROOFS: &[(&str, Needs, Proof)] = &[
    ("the_main_job", Needs::Broker, main_job::the_main_job),
    ("the_main_job_with_a_registry", Needs::Broker, main_job::the_main_job_with_a_registry),
    ("a_log_moves_to_kafka_and_back", Needs::Broker, moving::a_log_moves_to_kafka_and_back),
    ("what_was_never_published_is_after_a_crash", Needs::Broker, changes::what_was_never_published),
    ("services_come_and_go_under_load", Needs::Broker, changes::services_come_and_go),
    ("the_broker_falls_silent", Needs::BrokerOfOurs, outages::the_broker_falls_silent),
    ("one_of_three_brokers_dies", Needs::ThreeBrokers, outages::one_of_three_brokers_dies),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let is_wanted = |name: &str| {
        let matches =
            |filter: &String| if arguments.exact { name == filter } else { name.contains(filter.as_str()) };
        arguments.filter.as_ref().is_none_or(matches) && !arguments.skip.iter().any(matches)
    };
    let asks = |(name, needs, _): &(&str, Needs, Proof)| *needs != Needs::ThreeBrokers && is_wanted(name);
    let shared = Arc::new(if !arguments.list && PROOFS.iter().any(asks) {
        finder::one()
    } else {
        Err("no proof asked for a broker".to_owned())
    });
    let trials = PROOFS.iter().map(|(name, needs, proof)| trial(name, *needs, *proof, &shared)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Before the process ends without unwinding: it stops our broker.
    drop(shared);
    conclusion.exit_code()
}

fn trial(name: &str, needs: Needs, proof: Proof, shared: &Arc<Result<Cluster, String>>) -> Trial {
    let missing = match (needs, &**shared) {
        (Needs::ThreeBrokers, _) => finder::why_not_three(),
        (Needs::Broker | Needs::BrokerOfOurs, Err(why)) => Some(why.clone()),
        (Needs::BrokerOfOurs, Ok(cluster)) if !cluster.is_ours() => {
            Some("the broker is not ours to stop".to_owned())
        }
        (Needs::Broker | Needs::BrokerOfOurs, Ok(_)) => None,
    };
    if let Some(why) = missing {
        let is_required = std::env::var_os("WITNESS_REQUIRE_ALL").is_some_and(|value| value == "1");
        let failure = Failed::from(why.clone());
        return Trial::test(name, || Err(failure))
            .with_kind(format!("needs a broker: {why}"))
            .with_ignored_flag(!is_required);
    }
    let shared = shared.clone();
    Trial::test(name, move || match (needs, &*shared) {
        (Needs::ThreeBrokers, _) => run(proof, &finder::three()?),
        (Needs::Broker | Needs::BrokerOfOurs, Ok(cluster)) => run(proof, cluster),
        (Needs::Broker | Needs::BrokerOfOurs, Err(why)) => Err(Failed::from(why)),
    })
}

fn run(proof: Proof, cluster: &Cluster) -> Result<(), Failed> {
    let started = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| proof(cluster)));
    eprintln!("  in {:.1} s", started.elapsed().as_secs_f64());
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Failed::from(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
    })
}
