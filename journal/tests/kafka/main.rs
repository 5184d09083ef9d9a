//! The Kafka journal: the common contract, and what is Kafka's own. Tests that need a real broker are named
//! skips where there is none, and failures with `WITNESS_REQUIRE_ALL=1`. Must never share a topic between tests.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test stops at the first surprise"
)]

mod appending;
#[path = "../contract/mod.rs"]
mod contract;
#[path = "../../../tests/kafka/finder.rs"]
mod finder;
mod group;
mod measuring;
mod members;
mod publishing;
mod support;
mod topics;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use finder::Cluster;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

/// What a test needs to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nothing outside of this process.
    Nothing,
    /// A real broker, shared with the other tests.
    Broker,
    /// A real broker that may be paused: no other test runs meanwhile.
    BrokerAlone,
    /// Three brokers of its own.
    ThreeBrokers,
    /// Figures, not judgements: run by name with `--ignored`.
    BrokerToMeasure,
}

type Test = fn(&Cluster);

const TESTS: &[(&str, Needs, Test)] = &[
    ("mock_keeps_the_contract", Needs::Nothing, |_| appending::mock_keeps_the_contract()),
    ("a_full_queue_refuses_at_once", Needs::Nothing, |_| appending::a_full_queue_refuses_at_once()),
    ("a_dead_producer_is_replaced", Needs::Nothing, |_| appending::a_dead_producer_is_replaced()),
    ("keeps_the_contract", Needs::Broker, appending::keeps_the_contract),
    ("a_closed_appender_has_delivered", Needs::Broker, appending::a_closed_appender_has_delivered),
    ("a_silent_broker_is_answered_for", Needs::BrokerAlone, appending::a_silent_broker_is_answered_for),
    ("one_of_three_brokers_may_die", Needs::ThreeBrokers, appending::one_of_three_brokers_may_die),
    ("partitions_move_and_resume", Needs::Broker, group::partitions_move_and_resume),
    ("an_instance_keeps_its_partitions", Needs::Broker, group::an_instance_keeps_its_partitions),
    ("a_second_process_of_one_instance", Needs::Broker, group::a_second_process_of_one_instance),
    (
        "a_group_confirms_its_members_and_names_them",
        Needs::Broker,
        members::a_group_confirms_its_members_and_names_them,
    ),
    ("a_log_that_begins_too_late", Needs::Broker, group::a_log_that_begins_too_late),
    ("a_log_that_is_cut_while_reading", Needs::Broker, group::a_log_that_is_cut_while_reading),
    ("a_log_that_ends_too_early", Needs::Broker, group::a_log_that_ends_too_early),
    ("publishes_all_or_nothing", Needs::Broker, publishing::publishes_all_or_nothing),
    ("committed_is_read_once_decided", Needs::Broker, publishing::committed_is_read_once_decided),
    ("a_slow_owner_is_fenced", Needs::Broker, publishing::a_slow_owner_is_fenced),
    ("a_stopped_process_is_fenced", Needs::Broker, publishing::a_stopped_process_is_fenced),
    ("a_new_generation_is_no_fence", Needs::Broker, publishing::a_new_generation_is_no_fence),
    (
        "a_nobody_with_an_instance_id_is_fenced",
        Needs::Broker,
        publishing::a_nobody_with_an_instance_id_is_fenced,
    ),
    (
        "a_silent_broker_publishes_nothing_twice",
        Needs::BrokerAlone,
        publishing::a_silent_broker_publishes_nothing_twice,
    ),
    ("topics_are_created_and_checked", Needs::Broker, topics::are_created_and_checked),
    ("topics_on_three_brokers_are_safe", Needs::ThreeBrokers, topics::on_three_brokers_are_safe),
    ("read_rates", Needs::BrokerToMeasure, measuring::read_rates),
    ("append_rates", Needs::BrokerToMeasure, measuring::append_rates),
];

fn main() -> ExitCode {
    if publishing::is_child() {
        publishing::child();
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    // Silent unless RUST_LOG says otherwise: `RUST_LOG=info` shows rebalances and what librdkafka says.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let wanted = |name: &str| arguments.filter.as_deref().is_none_or(|filter| name.contains(filter));
    let needs_broker = !arguments.list
        && TESTS.iter().any(|(name, needs, _)| {
            wanted(name) && matches!(needs, Needs::Broker | Needs::BrokerAlone | Needs::BrokerToMeasure)
        });
    let shared =
        Arc::new(if needs_broker { finder::one() } else { Err("no test asked for a broker".to_owned()) });
    let turn = Arc::new(RwLock::new(()));
    // Measurements are no tests: they are there only for whoever asks for them.
    let is_asked_for = |needs: &Needs| {
        *needs != Needs::BrokerToMeasure
            || arguments.ignored
            || arguments.include_ignored
            || arguments.filter.is_some()
    };
    let tests = TESTS.iter().filter(|(_, needs, _)| is_asked_for(needs));
    let trials = tests.map(|(name, needs, test)| trial(name, *needs, *test, &shared, &turn)).collect();
    let conclusion: Conclusion = libtest_mimic::run(&arguments, trials);
    // Before the process ends without unwinding: it stops our broker.
    drop(shared);
    conclusion.exit_code()
}

fn trial(
    name: &str,
    needs: Needs,
    test: Test,
    shared: &Arc<Result<Cluster, String>>,
    turn: &Arc<RwLock<()>>,
) -> Trial {
    let missing = match (needs, &**shared) {
        (Needs::Nothing | Needs::BrokerToMeasure, _) => None,
        (Needs::Broker | Needs::BrokerAlone, Err(why)) => Some(why.clone()),
        (Needs::BrokerAlone, Ok(cluster)) if !cluster.is_ours() => Some("the broker is not ours".to_owned()),
        (Needs::Broker | Needs::BrokerAlone, Ok(_)) => None,
        (Needs::ThreeBrokers, _) => finder::why_not_three(),
    };
    if let Some(why) = missing {
        let required = std::env::var_os("WITNESS_REQUIRE_ALL").is_some_and(|value| value == "1");
        let failure = why.clone();
        return Trial::test(name, move || Err(Failed::from(failure)))
            .with_kind(format!("needs a broker: {why}"))
            .with_ignored_flag(!required);
    }
    let (shared, turn) = (shared.clone(), turn.clone());
    Trial::test(name, move || {
        let run = |cluster: &Cluster| {
            let started = std::time::Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| test(cluster)));
            eprintln!("{:>6.1} s", started.elapsed().as_secs_f64());
            result.map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Failed::from(
                    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                        .unwrap_or_default(),
                )
            })
        };
        let shared_cluster = || shared.as_ref().as_ref().map_err(|why| Failed::from(why.clone()));
        match needs {
            Needs::Nothing => run(&Cluster::none()),
            Needs::Broker => {
                let _turn = turn.read();
                run(shared_cluster()?)
            }
            Needs::BrokerAlone | Needs::BrokerToMeasure => {
                let _turn = turn.write();
                run(shared_cluster()?)
            }
            Needs::ThreeBrokers => run(&finder::three().map_err(Failed::from)?),
        }
    })
    .with_ignored_flag(matches!(needs, Needs::BrokerToMeasure))
}
