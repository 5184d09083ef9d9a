//! `witness journal`: moves the log to a file, and from a file into an empty journal. Must never change the log
//! that it reads, and never add to one that holds anything else.

mod export;
mod file;
mod import;
mod progress;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use journal::embedded::OpenError;
use journal::{Topic, disk};
use serde_json::{Value, json};

use crate::config::{Config, Journal};
use crate::opened::Opened;
use crate::wrong_use::WrongUse;
use crate::{configuration, telemetry};
use export::{Exported, export};
use import::{Import, Imported};

/// The topics that are sources of truth. The projections are derived, and published again by who derives them.
const TOPICS: [Topic; 2] = [Topic::Observations, Topic::Claims];

/// How long a log may take to answer, before the copy stops and is gone on with by hand.
const READ_TIME_MAX: Duration = Duration::from_secs(60);

/// Milliseconds that an import lets Kafka take for a record. A door must answer soon; here nobody waits, and an
/// append that is reported failed may still arrive.
const DELIVERY_MILLISECONDS_MAX: u32 = 120_000;

/// Move the log: to a file, and from there into an empty journal of either kind.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Write all of the log, as it is now, to a file. An export that was interrupted is gone on with.
    Export(ExportArguments),
    /// Append what a file holds to an empty journal. An import that was interrupted is gone on with.
    Import(ImportArguments),
}

#[derive(clap::Args)]
struct Options {
    /// The configuration that names the journal; without it, ./witness.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ExportArguments {
    #[command(flatten)]
    options: Options,
    /// The file to write; until it is whole, it has `.partial` at the end of its name.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

#[derive(clap::Args)]
struct ImportArguments {
    #[command(flatten)]
    options: Options,
    /// The file that `witness journal export` wrote.
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Move observations that an earlier release could not read to the subjects that this one reads in them.
    /// Claims and verdicts are left out: they are made anew.
    #[arg(long)]
    rekey: bool,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    telemetry::init("warn,witness=info")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = match &arguments.action {
        Action::Export(arguments) => &arguments.options,
        Action::Import(arguments) => &arguments.options,
    };
    let config = configuration(options.config.as_deref())?;
    let partitions = config.journal.partitions();
    let (lines, json) = match &arguments.action {
        Action::Export(arguments) => {
            refuse_missing_folder(&config)?;
            let source = open(&config, &runtime)?;
            let exported = export(&source, &name_of(&config), partitions, &arguments.to);
            source.close()?;
            told_of_export(arguments, &exported?)
        }
        Action::Import(arguments) => {
            if !arguments.from.is_file() {
                return Err(WrongUse(format!("there is no file {}", arguments.from.display())).into());
            }
            let target = open(&config, &runtime)?;
            let import = Import { file: &arguments.from, rekey: arguments.rekey, partitions };
            let (target, imported) = import.run(target, &runtime);
            target.close()?;
            told_of_import(arguments, &name_of(&config), &imported?)
        }
    };
    let mut out = std::io::stdout().lock();
    if options.json {
        writeln!(out, "{json:#}").context("cannot write")?;
    } else {
        for line in lines {
            writeln!(out, "{line}").context("cannot write")?;
        }
    }
    out.flush().context("cannot write")
}

fn open(config: &Config, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Opened> {
    let opened = runtime.block_on(Opened::open(&config.journal));
    let mut opened = opened.map_err(|error| match error.downcast_ref() {
        Some(OpenError::Disk(disk::Error::InUse { .. })) => {
            error.context("the log of an embedded journal can be moved only while Witness is stopped")
        }
        _ => error,
    })?;
    match &mut opened {
        Opened::Embedded(_) => {}
        Opened::Kafka { client, .. } => client.delivery_milliseconds_max = DELIVERY_MILLISECONDS_MAX,
    }
    Ok(opened)
}

/// Opening the journal would make it, and what was meant stands elsewhere.
fn refuse_missing_folder(config: &Config) -> Result<(), WrongUse> {
    match &config.journal {
        Journal::Embedded(embedded) if !embedded.path.join("db").exists() => {
            let (file, path) = (config.file.display(), embedded.path.display());
            Err(WrongUse(format!("{file}: there is no journal in `journal.path` ({path})")))
        }
        Journal::Embedded(_) | Journal::Kafka(_) => Ok(()),
    }
}

/// Which log it is, in words.
fn name_of(config: &Config) -> String {
    match &config.journal {
        Journal::Embedded(embedded) => {
            let path = embedded.path.canonicalize().unwrap_or_else(|_| embedded.path.clone());
            format!("embedded in {}", path.display())
        }
        Journal::Kafka(kafka) => {
            let names = &kafka.client.topics;
            format!("{} and {} on {}", names.observations, names.claims, kafka.client.brokers)
        }
    }
}

fn told_of_export(arguments: &ExportArguments, exported: &Exported) -> (Vec<String>, Value) {
    let Exported { records, resumed, digest, header } = exported;
    let (file, digest) = (arguments.to.display(), hex::encode(digest));
    let mut lines = vec![format!("exported  {records} records to {file}")];
    if *resumed > 0 {
        lines.push(format!("resumed   {resumed} of them had been written before"));
    }
    lines.push(format!("from      {} ({} partitions)", header.source, header.partitions));
    lines.push(format!("digest    {digest}"));
    lines.push("What was appended after the export began is not in it.".to_owned());
    let json = json!({
        "file": arguments.to,
        "source": header.source,
        "partitions": header.partitions,
        "records": records,
        "resumed": resumed,
        "digest": digest,
        "logs": header.logs.iter().map(|log| json!({
            "topic": log.topic.name(), "partition": log.partition, "start": log.start, "end": log.end,
        })).collect::<Vec<_>>(),
    });
    (lines, json)
}

fn told_of_import(arguments: &ImportArguments, target: &str, imported: &Imported) -> (Vec<String>, Value) {
    let Imported { records, resumed, moved, dropped, unreadable, file_digest, topics } = imported;
    let file = arguments.from.display();
    let mut lines = vec![format!("imported  {records} records from {file} into {target}")];
    if *resumed > 0 {
        lines.push(format!("resumed   {resumed} of them had been there before"));
    }
    if arguments.rekey {
        lines.push(format!("rekeyed   {moved} observations are about another subject now"));
        lines.push(format!("left out  {dropped} claims and verdicts, which are made anew"));
    }
    if *unreadable > 0 {
        lines.push(format!("as it was {unreadable} records that are no observations this release can read"));
    }
    for topic in topics {
        let digest = hex::encode(topic.digest);
        lines.push(format!("verified  {}: {} records, digest {digest}", topic.topic, topic.records));
    }
    let json = json!({
        "file": arguments.from,
        "file_digest": hex::encode(file_digest),
        "target": target,
        "records": records,
        "resumed": resumed,
        "rekeyed": moved,
        "left_out": dropped,
        "unreadable": unreadable,
        "topics": topics.iter().map(|topic| json!({
            "topic": topic.topic.name(), "records": topic.records, "digest": hex::encode(topic.digest),
        })).collect::<Vec<_>>(),
    });
    (lines, json)
}
