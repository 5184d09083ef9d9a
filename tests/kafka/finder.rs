//! Finds a Kafka broker for a test binary: `KAFKA_BOOTSTRAP_SERVERS`, else Docker, else Java and the script
//! beside this file. Included by path into the test binaries that need one. Must never leave a broker of its
//! own running, and never touch one that it did not start.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt};

/// A cluster of one or three brokers.
pub(crate) struct Cluster {
    /// For `bootstrap.servers`.
    pub(crate) servers: String,
    /// How many brokers it has.
    pub(crate) brokers: u32,
    kind: Kind,
}

enum Kind {
    /// Somebody else's.
    Given,
    /// A container of ours, which goes when this does.
    Container(Box<Container<GenericImage>>),
    /// Processes of ours, and the folder with their data.
    Processes(PathBuf),
}

const NO_BROKER: &str = "no KAFKA_BOOTSTRAP_SERVERS, no Docker engine, and no java to run a broker with";

const IMAGE: (&str, &str) = ("apache/kafka", "4.2.0");

/// A cluster of one broker, or why there is none.
pub(crate) fn one() -> Result<Cluster, String> {
    if let Some(servers) = std::env::var("KAFKA_BOOTSTRAP_SERVERS").ok().filter(|servers| !servers.is_empty())
    {
        return Ok(Cluster { servers, brokers: 1, kind: Kind::Given });
    }
    if succeeds(Command::new("docker").arg("info")) {
        return container();
    }
    processes(1)
}

/// A cluster of three brokers of our own, or why there is none.
pub(crate) fn three() -> Result<Cluster, String> {
    processes(3)
}

/// Why [`three`] cannot work here, without trying.
pub(crate) fn why_not_three() -> Option<String> {
    (!has_java()).then(|| "no java to run three brokers with".to_owned())
}

impl Cluster {
    /// Stands in where a test needs no broker.
    pub(crate) fn none() -> Self {
        Self { servers: String::new(), brokers: 0, kind: Kind::Given }
    }

    /// Whether the brokers are ours to stop and continue.
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self.kind, Kind::Given)
    }

    /// Makes broker `number` (from 1) silent without closing its connections.
    pub(crate) fn pause(&self, number: u32) {
        self.signal("pause", "pause", number);
    }

    /// Ends a pause.
    pub(crate) fn unpause(&self, number: u32) {
        self.signal("continue", "unpause", number);
    }

    /// Kills broker `number` (from 1).
    pub(crate) fn kill(&self, number: u32) {
        self.signal("kill", "kill", number);
    }

    fn signal(&self, script_word: &str, docker_word: &str, number: u32) {
        let ok = match &self.kind {
            Kind::Given => panic!("this broker is not ours"),
            // By the command line, which answered before: a blocking container has no way of its own.
            Kind::Container(container) => {
                succeeds(Command::new("docker").args([docker_word, container.id()]))
            }
            Kind::Processes(folder) => {
                succeeds(script().arg(script_word).arg(folder).arg(number.to_string()))
            }
        };
        assert!(ok, "cannot {script_word} broker {number}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Given | Kind::Container(_) => {}
            Kind::Processes(folder) => {
                succeeds(script().arg("stop").arg(folder));
                if std::env::var_os("WITNESS_KEEP_BROKER_DATA").is_none() {
                    drop(fs::remove_dir_all(folder));
                }
            }
        }
    }
}

/// The mapped port must be known before the broker advertises it, so it is chosen here.
fn container() -> Result<Cluster, String> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("no free port: {error}"))?
        .port();
    let servers = format!("127.0.0.1:{port}");
    let advertised = format!("PLAINTEXT://{servers}");
    let settings = [
        ("KAFKA_NODE_ID", "1"),
        ("KAFKA_PROCESS_ROLES", "broker,controller"),
        ("KAFKA_LISTENERS", "PLAINTEXT://:9092,CONTROLLER://:9093"),
        ("KAFKA_ADVERTISED_LISTENERS", &advertised),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER"),
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9093"),
        ("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false"),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1"),
        ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "4"),
        ("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS", "4"),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
        ("KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS", "1000"),
    ];
    let (image, tag) = IMAGE;
    let request = GenericImage::new(image, tag)
        .with_wait_for(WaitFor::message_on_stdout("Kafka Server started"))
        .with_mapped_port(port, 9092.tcp())
        .with_startup_timeout(Duration::from_secs(60));
    let request = settings.iter().fold(request, |request, (name, value)| request.with_env_var(*name, *value));
    let container = request.start().map_err(|error| format!("{image}:{tag}: {error}"))?;
    Ok(Cluster { servers, brokers: 1, kind: Kind::Container(Box::new(container)) })
}

fn processes(brokers: u32) -> Result<Cluster, String> {
    if !has_java() {
        return Err(NO_BROKER.to_owned());
    }
    let folder = std::env::temp_dir().join(format!("witness-broker-{}-{brokers}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // Made first, so that whatever was started is stopped again when the rest fails.
    let mut cluster = Cluster { servers: String::new(), brokers, kind: Kind::Processes(folder.clone()) };
    // Into files: the brokers inherit the pipes, which then would never end.
    let (out, err) = (folder.join("servers"), folder.join("errors"));
    let file = |path: &Path| fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()));
    let status = script()
        .arg("start")
        .arg(&folder)
        .arg(brokers.to_string())
        .stdin(Stdio::null())
        .stdout(file(&out)?)
        .stderr(file(&err)?)
        .status()
        .map_err(|error| format!("tests/kafka/broker: {error}"))?;
    if !status.success() {
        let why = fs::read_to_string(&err).unwrap_or_default();
        return Err(format!("tests/kafka/broker start: {}", why.trim()));
    }
    cluster.servers = fs::read_to_string(&out).map_err(|error| error.to_string())?.trim().to_owned();
    Ok(cluster)
}

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(if env!("CARGO_PKG_NAME") == "witness" {
        "tests/kafka/broker"
    } else {
        "../tests/kafka/broker"
    }))
}

fn has_java() -> bool {
    succeeds(Command::new("java").arg("-version"))
}

fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
