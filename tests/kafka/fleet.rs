//! Several `witness ingress` and `witness projector` on topics and a group of their own, started, stopped and
//! asked by name. Must never ask a process that is paused: it would not answer.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use schema::{Provider, Subject};

use crate::common::{Answer, Client, Installation, PATIENCE, PROGRAM, Service, free_address};
use crate::finder::Cluster;
use crate::reader::Reader;
use crate::registry::Mock;

/// Partitions of every topic here.
pub(crate) const PARTITIONS: u32 = 12;
/// Between two looks at something that takes its time.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The group of the projectors.
const GROUP: &str = "projectors";
/// Lines of each log that a failure shows.
const LOG_LINES_SHOWN: usize = 40;

/// The processes, and what they have in common.
pub(crate) struct Fleet {
    /// First, so that the processes end before their folder goes.
    members: BTreeMap<String, Member>,
    installation: Installation,
    pub(crate) reader: Reader,
    /// Before the names of the topics and of the group.
    prefix: String,
    brokers: u32,
    /// Lines of the configuration's section, besides those that all have.
    journal: String,
}

/// One process, or the place of one that does not run now.
struct Member {
    kind: Kind,
    address: String,
    configuration: String,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ingress,
    Projector,
}

enum State {
    Gone,
    Running(Service),
    Paused(Service),
}

impl Fleet {
    /// Creates the topics, through the program, and starts two of each.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        Self::start_on(cluster, None, String::new())
    }

    /// The same, with records in the wire format of that registry.
    pub(crate) fn start_with_registry(cluster: &Cluster, registry: Mock, url: String) -> Self {
        Self::start_on(cluster, Some(registry), format!("schema_registry = \"{url}\"\n"))
    }

    fn start_on(cluster: &Cluster, registry: Option<Mock>, journal: String) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("w{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut fleet = Self {
            members: BTreeMap::new(),
            installation: Installation::new(),
            reader: Reader::new(&cluster.servers, &prefix, GROUP, registry),
            prefix,
            brokers: cluster.brokers,
            journal,
        };
        fleet.create_topics();
        for number in 1..=2 {
            fleet.add_ingress(number);
            fleet.add_projector(number);
        }
        // Until the group has divided the partitions among the two, they are about to move.
        for number in 1..=2 {
            fleet.wait_until_it_owns_some(&format!("projector-{number}"));
        }
        fleet.wait_until_all_is_owned();
        fleet.wait_until_publishing_has_begun();
        fleet
    }

    fn create_topics(&self) {
        let file = self.installation.path().join("topics.toml");
        let text = self.configuration(&free_address(), &free_address(), "nobody");
        std::fs::write(&file, text).expect("the configuration is written");
        let create = Command::new(PROGRAM).args(["topics", "create", "--config"]).arg(file).output();
        let create = create.expect("`witness topics create` runs");
        let said = [create.stdout, create.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(create.status.success(), "{said:?}");
    }

    fn configuration(&self, ingress: &str, projector: &str, name: &str) -> String {
        let Self { prefix, brokers, journal, .. } = self;
        let (servers, folder) = (&self.reader.servers, self.installation.path().display());
        let replicas = if *brokers < 3 { 1 } else { 3 };
        let allow_unsafe_topics = *brokers < 3;
        format!(
            r#"[journal]
kind = "kafka"
brokers = "{servers}"
partitions = {PARTITIONS}
replication_factor = {replicas}
allow_unsafe_topics = {allow_unsafe_topics}
{journal}[journal.topics]
observations = "{prefix}.observations"
projections = "{prefix}.projections"
claims = "{prefix}.claims"
[journal.kafka]
"session.timeout.ms" = 6000
"heartbeat.interval.ms" = 500
[ingress]
listen = "{ingress}"
[projector]
listen = "{projector}"
store = "{folder}/store-of-{name}"
group = "{prefix}-{GROUP}"
instance_id = "{name}"
{endpoints}"#,
            endpoints = self.installation.endpoints()
        )
    }

    fn add_ingress(&mut self, number: u32) {
        let (name, address) = (format!("ingress-{number}"), free_address());
        let configuration = self.configuration(&address, &free_address(), &name);
        self.add(name, Kind::Ingress, address, configuration);
    }

    /// One more projector with an empty store.
    pub(crate) fn add_projector(&mut self, number: u32) {
        let (name, address) = (format!("projector-{number}"), free_address());
        let configuration = self.configuration(&free_address(), &address, &name);
        self.add(name, Kind::Projector, address, configuration);
    }

    /// Has every projector derive its store anew, from the log.
    pub(crate) fn rebuild_all(&self) {
        self.projectors().for_each(|(_, client)| client.rebuild());
    }

    fn add(&mut self, name: String, kind: Kind, address: String, configuration: String) {
        let member = Member { kind, address, configuration, state: State::Gone };
        assert!(self.members.insert(name.clone(), member).is_none(), "{name} is there already");
        self.run(&name);
    }

    /// Starts what is gone, on the address and the store it had.
    pub(crate) fn run(&mut self, name: &str) {
        let Member { kind, address, configuration, state } =
            self.members.get_mut(name).expect("a name of the fleet");
        assert!(matches!(state, State::Gone), "{name} runs already");
        let subcommand = match kind {
            Kind::Ingress => "ingress",
            Kind::Projector => "projector",
        };
        let mut service = self.installation.spawn(&[], subcommand, name, configuration, Client::of(address));
        let path = match kind {
            Kind::Ingress => "/health/ready",
            // Ready is one that owns all partitions; here several share them.
            Kind::Projector => "/health/live",
        };
        service.wait_for(address, path);
        *state = State::Running(service);
    }

    fn take(&mut self, name: &str) -> Service {
        let member = self.members.get_mut(name).expect("a name of the fleet");
        match std::mem::replace(&mut member.state, State::Gone) {
            State::Gone => panic!("{name} does not run"),
            State::Running(service) | State::Paused(service) => service,
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) {
        let mut service = self.take(name);
        service.assert_running();
        service.kill();
    }

    /// SIGTERM, and the graceful end is waited for.
    pub(crate) fn stop(&mut self, name: &str) {
        self.take(name).stop();
    }

    /// SIGSTOP.
    pub(crate) fn pause(&mut self, name: &str) {
        let service = self.take(name);
        service.signal("STOP");
        self.members.get_mut(name).expect("a name of the fleet").state = State::Paused(service);
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self, name: &str) {
        let service = self.take(name);
        service.signal("CONT");
        self.members.get_mut(name).expect("a name of the fleet").state = State::Running(service);
    }

    /// Stops everything gracefully.
    pub(crate) fn stop_all(mut self) {
        let running = self.members.iter().filter(|(_, member)| matches!(member.state, State::Running(_)));
        for name in running.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.stop(&name);
        }
    }

    /// All that were started, running or not.
    pub(crate) fn names(&self) -> Vec<String> {
        self.members.keys().cloned().collect()
    }

    /// Where deliveries are received, running or not.
    pub(crate) fn doors(&self) -> Vec<Client> {
        let ingresses = self.members.values().filter(|member| member.kind == Kind::Ingress);
        ingresses.map(|member| Client::of(&member.address)).collect()
    }

    /// The projectors of the group that can be asked now.
    fn projectors(&self) -> impl Iterator<Item = (&str, &Client)> {
        self.members.iter().filter_map(|(name, member)| match &member.state {
            State::Running(service) if member.kind == Kind::Projector => {
                Some((name.as_str(), &service.client))
            }
            State::Running(_) | State::Paused(_) | State::Gone => None,
        })
    }

    /// What every projector that can be asked answers by itself; no answer counts as 503.
    fn ask_all(&self, path: &str) -> Vec<(&str, Answer)> {
        let nothing = |error| Answer { status: 503, text: error, offset: None };
        let ask = |(name, client): (_, &Client)| (name, client.try_get_own(path).unwrap_or_else(nothing));
        self.projectors().map(ask).collect()
    }

    /// Waits until every projector, whichever has the subject, answers 200 and `text`.
    pub(crate) fn everybody_answers(&self, path: &str, text: &str) {
        let started = Instant::now();
        for (name, client) in self.projectors() {
            loop {
                let answer = client.try_get(path);
                if answer.as_ref().is_ok_and(|answer| answer.status == 200 && answer.text == text) {
                    break;
                }
                assert!(started.elapsed() < PATIENCE, "{path}: {name} answers {answer:?} and not {text}");
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }

    /// Fails where that projector answers by itself for any partition.
    pub(crate) fn assert_it_answers_nothing(&self, name: &str) {
        for path in probes() {
            let answers = self.ask_all(&path);
            let (_, answer) = answers.iter().find(|(of, _)| *of == name).expect("it can be asked");
            assert_eq!(answer.status, 503, "{path}: {}", answer.text);
        }
    }

    /// What that process has said so far.
    pub(crate) fn log_of(&self, name: &str) -> String {
        let Some(Member { state: State::Running(service) | State::Paused(service), .. }) =
            self.members.get(name)
        else {
            panic!("{name} does not run");
        };
        service.log_text()
    }

    /// The one that answers a path now, if there is one. Another's answer may only be that it cannot answer,
    /// or the same one.
    pub(crate) fn owner(&self, path: &str) -> Option<(&Client, Answer)> {
        let mut found: Option<(&Client, Answer)> = None;
        for ((name, answer), (_, client)) in self.ask_all(path).into_iter().zip(self.projectors()) {
            match (answer.status, &found) {
                (503, _) => {}
                (200 | 404, None) => found = Some((client, answer)),
                (200 | 404, Some((_, other))) => {
                    assert_eq!(answer.text, other.text, "{path}: {name} says something else");
                }
                (status, _) => panic!("{path}: {name} answers {status}: {}", answer.text),
            }
        }
        found
    }

    /// How many partitions that projector answers for.
    pub(crate) fn owned_by(&self, name: &str) -> usize {
        let is_owned = |path: &String| {
            let answers = self.ask_all(path);
            answers.iter().any(|(of, answer)| *of == name && answer.status != 503)
        };
        probes().iter().filter(|path| is_owned(path)).count()
    }

    /// Waits until every partition is answered for.
    pub(crate) fn wait_until_all_is_owned(&self) {
        let started = Instant::now();
        for path in probes() {
            while self.ask_all(&path).iter().all(|(_, answer)| answer.status == 503) {
                let answers = self.ask_all(&path);
                assert!(started.elapsed() < PATIENCE, "nobody answers {path}: {answers:?}");
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }

    /// Waits until every partition has a committed offset: what comes after it will be published.
    fn wait_until_publishing_has_begun(&self) {
        let started = Instant::now();
        while self.reader.committed().is_none_or(|committed| committed.len() < PARTITIONS as usize) {
            assert!(
                started.elapsed() < PATIENCE,
                "publishing begins with {:?} only",
                self.reader.committed()
            );
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until that projector answers for at least one partition.
    pub(crate) fn wait_until_it_owns_some(&self, name: &str) {
        let started = Instant::now();
        while self.owned_by(name) == 0 {
            assert!(started.elapsed() < PATIENCE, "{name} is given no partition");
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// A figure of a member's metrics, summed over its labels that contain `label`.
    pub(crate) fn figure(&self, name: &str, metric: &str, label: &str) -> f64 {
        let Some(Member { state: State::Running(service), .. }) = self.members.get(name) else { return 0.0 };
        let Ok(answer) = service.client.try_get("/metrics") else { return 0.0 };
        let lines = answer.text.lines().filter(|line| line.starts_with(metric) && line.contains(label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Fails where a process has ended by itself.
    pub(crate) fn assert_running(&mut self) {
        for member in self.members.values_mut() {
            match &mut member.state {
                State::Running(service) | State::Paused(service) => service.assert_running(),
                State::Gone => {}
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (name, member) in &self.members {
                let (State::Running(service) | State::Paused(service)) = &member.state else { continue };
                let log = service.log_text();
                let lines = log.lines().collect::<Vec<_>>();
                let last = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
                eprintln!("--- the log of {name}\n{}", last.join("\n"));
            }
        }
    }
}

/// For each partition the path of a subject in it, which nobody ever heard of.
fn probes() -> Vec<String> {
    let partitions = NonZeroU32::new(PARTITIONS).expect("more than none");
    let mut found = BTreeMap::new();
    for number in 0.. {
        let id = format!("unheard-of-{number}");
        let subject = Subject {
            tenant: "acme".to_owned(),
            provider: Provider::Shoc,
            kind: "work_order".to_owned(),
            id,
        };
        found
            .entry(subject.partition(partitions))
            .or_insert_with(|| format!("/v1/subjects/{}", subject.key()));
        if found.len() == PARTITIONS as usize {
            break;
        }
    }
    found.into_values().collect()
}
