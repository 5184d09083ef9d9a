//! `witness topics`: creates the topics on Kafka, and says what is wrong with those that exist. Must never change
//! a topic that exists, and never let a service start on topics whose findings were not accepted.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use journal::Topic;
use journal::kafka::KafkaConfig;
use journal::kafka::topics::{self, Finding, Weight};
use serde_json::{Value, json};

use crate::config::{Journal, Kafka};
use crate::wrong_use::WrongUse;
use crate::{configuration, telemetry};

/// Create the topics on Kafka, or check those that exist.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Create the topics that are missing, and check those that exist.
    Create(Options),
    /// Compare the topics with what Witness needs; exits with 1 where a service would refuse to start.
    Check(Options),
}

#[derive(clap::Args)]
struct Options {
    /// The configuration file; without it, ./witness.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

/// Does it; `false` where a service would refuse to start.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    telemetry::init("warn")?;
    let (options, creates) = match &arguments.action {
        Action::Create(options) => (options, true),
        Action::Check(options) => (options, false),
    };
    let config = configuration(options.config.as_deref())?;
    let kafka = match &config.journal {
        Journal::Kafka(kafka) => kafka,
        Journal::Embedded(_) => {
            let file = config.file.display();
            return Err(WrongUse(format!(
                "{file}: `journal.kind` is \"embedded\", which has no topics; topics are for kind = \"kafka\""
            ))
            .into());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(kafka.resolve())?;
    let asked = runtime.block_on(async {
        let created = if creates { topics::create(&client, kafka.replicas).await? } else { Vec::new() };
        let mut findings = Vec::new();
        if created.len() < Topic::ALL.len() {
            findings = topics::check(&client).await?;
            // A broker may not have heard of a new topic yet, and there is nothing to find in one.
            findings.retain(|finding| !created.contains(&finding.topic));
        }
        Ok((created, findings))
    });
    let (created, findings) = asked.map_err(failure)?;
    let is_good = !findings.iter().any(|finding| kafka.refuses(finding));
    let mut out = std::io::stdout().lock();
    if options.json {
        let line = as_json(kafka, &created, &findings, is_good);
        writeln!(out, "{line:#}").context("cannot write")?;
    } else {
        for line in in_words(kafka, &created, &findings) {
            writeln!(out, "{line}").context("cannot write")?;
        }
    }
    out.flush().context("cannot write")?;
    Ok(is_good)
}

/// Refuses topics that a service must not start on, and names in the log what was accepted all the same.
pub(crate) async fn demand(kafka: &Kafka, client: &KafkaConfig) -> anyhow::Result<()> {
    let findings = topics::check(client).await.map_err(failure)?;
    let (refused, accepted): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| kafka.refuses(finding));
    for finding in accepted {
        tracing::warn!("accepted, because allow_unsafe_topics is set: {finding}");
    }
    if refused.is_empty() {
        return Ok(());
    }
    let mut message = format!("the topics on {} are not as Witness needs them:", kafka.client.brokers);
    for finding in &refused {
        message += &format!("\n  {finding}");
    }
    if refused.iter().any(|finding| finding.weight == Weight::Unsafe) {
        message +=
            "\n`journal.allow_unsafe_topics = true` accepts settings that can lose data, if that is meant";
    }
    Err(WrongUse(message).into())
}

/// Some properties are only refused together, when a client is made of them.
fn failure(error: topics::Error) -> anyhow::Error {
    match error {
        topics::Error::Config(error) => WrongUse(format!("`journal.kafka`: {error}")).into(),
        topics::Error::Unreachable { .. } | topics::Error::Refused { .. } => error.into(),
    }
}

impl Kafka {
    /// Whether no service starts on it.
    fn refuses(&self, finding: &Finding) -> bool {
        match finding.weight {
            Weight::Unsafe => !self.allow_unsafe_topics,
            Weight::Refused => true,
        }
    }

    /// The topics' names on the broker.
    fn names(&self) -> [&str; 3] {
        Topic::ALL.map(|topic| self.client.topics.of(topic))
    }
}

fn in_words(kafka: &Kafka, created: &[String], findings: &[Finding]) -> Vec<String> {
    let mut lines = Vec::new();
    for name in kafka.names() {
        let (partitions, replicas) = (kafka.client.partitions, kafka.replicas);
        if created.iter().any(|topic| topic == name) {
            lines.push(format!("created  {name}  ({partitions} partitions, {replicas} replicas)"));
        } else if !findings.iter().any(|finding| finding.topic == name) {
            lines.push(format!("good     {name}"));
        }
        for finding in findings.iter().filter(|finding| finding.topic == name) {
            let word = if kafka.refuses(finding) { "refused" } else { "allowed" };
            lines.push(format!("{word}  {finding}"));
        }
    }
    lines
}

fn as_json(kafka: &Kafka, created: &[String], findings: &[Finding], is_good: bool) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let Finding { topic, setting, found, wanted, why, fix, weight: _ } = finding;
            json!({
                "topic": topic,
                "setting": setting,
                "found": found,
                "wanted": wanted,
                "why": why,
                "fix": fix,
                "refused": kafka.refuses(finding),
            })
        })
        .collect();
    json!({ "topics": kafka.names(), "created": created, "findings": findings, "good": is_good })
}
