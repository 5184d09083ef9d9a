//! `witness verify` and `witness rebuild`: what an operator asks of a projector's store. Must never touch a store
//! that a service has open: they ask the service.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use projector::store::Folder;
use serde_json::{Value, json};

use crate::client::{Answer, Client, is_loopback, reachable};
use crate::config::Config;
use crate::wrong_use::WrongUse;
use crate::{configuration, telemetry};

/// How often a rebuild is asked how far it is.
const ASK_PERIOD: Duration = Duration::from_millis(500);

/// A running projector.
#[derive(clap::Args)]
struct Target {
    /// The configuration file; without it, ./witness.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the projector is, as in `http://projector-1:8081`. Without it, the address of `projector.listen`.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

/// Print a digest of everything each partition of the store holds.
#[derive(clap::Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    target: Target,
    /// Read the store's folder itself. The projector must be stopped.
    #[arg(long, conflicts_with = "url")]
    offline: bool,
}

/// Derive the store anew from the log, beside the live one, and put it in its place.
#[derive(clap::Args)]
pub(crate) struct Rebuild {
    #[command(flatten)]
    target: Target,
    /// Put the new store in place although its digests differ from the live one's.
    #[arg(long)]
    accept: bool,
    /// Delete the stores that were replaced, and nothing else.
    #[arg(long, conflicts_with = "accept")]
    discard_old: bool,
}

/// A client of one projector.
struct Projector {
    client: Client,
    url: String,
    token: Option<String>,
}

impl Projector {
    fn new(target: &Target, config: &Config) -> anyhow::Result<Self> {
        let url = match &target.url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("http://{}", reachable(config.projector.listen)),
        };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(WrongUse(format!("--url is {url:?}; it must be like http://projector-1:8081")).into());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let token = runtime.block_on(config.token())?;
        Ok(Self { client: Client::patient(is_loopback(&url)), url, token })
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        good(self.client.get_as(&format!("{}{path}", self.url), self.token.as_deref())?)
    }

    fn post(&self, path: &str) -> anyhow::Result<Value> {
        good(self.client.post_as(&format!("{}{path}", self.url), self.token.as_deref())?)
    }
}

fn good(answer: Answer) -> anyhow::Result<Value> {
    if (200..300).contains(&answer.status) {
        return Ok(answer.body);
    }
    let title = answer.text("title").unwrap_or("an answer that is not from Witness");
    let detail = answer.text("detail").map(|detail| format!(": {detail}")).unwrap_or_default();
    bail!("{} {title}{detail}", answer.status)
}

/// Prints the digests; `false` where there is no partition.
pub(crate) fn verify(arguments: &Verify) -> anyhow::Result<bool> {
    telemetry::init("warn")?;
    let config = configuration(arguments.target.config.as_deref())?;
    let verified = if arguments.offline {
        offline(&config)?
    } else {
        Projector::new(&arguments.target, &config)?.get("/v1/verify")?
    };
    let partitions = verified.get("partitions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut out = std::io::stdout().lock();
    if arguments.target.json {
        writeln!(out, "{verified:#}").context("cannot write")?;
    } else {
        for of in partitions {
            let number = |name: &str| of.get(name).and_then(Value::as_u64).unwrap_or_default();
            writeln!(
                out,
                "partition {:>3}  {}  {} observations, {} subjects, up to offset {}",
                number("partition"),
                of.get("digest").and_then(Value::as_str).unwrap_or_default(),
                number("observations"),
                number("subjects"),
                number("offset"),
            )
            .context("cannot write")?;
        }
    }
    out.flush().context("cannot write")?;
    Ok(!partitions.is_empty())
}

fn offline(config: &Config) -> anyhow::Result<Value> {
    let projector = config.projector_config();
    if !Path::new(&projector.store).exists() {
        return Err(WrongUse(format!("there is no store in {}", projector.store.display())).into());
    }
    let (_, store) = Folder::open(&projector.store, projector.partitions, projector.epoch())
        .context("the store cannot be read; is its projector running?")?;
    let digests = (0..store.partitions()).map(|partition| store.read().digest(partition));
    let digests = digests.collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "epoch": store.epoch(), "partitions": digests }))
}

/// Starts a rebuild, or joins one that is under way, and shows how far it is until it ends; `false` where it failed.
pub(crate) fn rebuild(arguments: &Rebuild) -> anyhow::Result<bool> {
    telemetry::init("warn")?;
    let config = configuration(arguments.target.config.as_deref())?;
    let projector = Projector::new(&arguments.target, &config)?;
    let mut out = std::io::stdout().lock();
    if arguments.discard_old {
        let before = projector.get("/v1/rebuild")?;
        projector.post("/v1/rebuild/discard")?;
        for path in before.get("old").and_then(Value::as_array).into_iter().flatten() {
            writeln!(out, "deleted {}", path.as_str().unwrap_or_default()).context("cannot write")?;
        }
        return Ok(true);
    }
    let phase = |status: &Value| status.get("phase").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut status = projector.get("/v1/rebuild")?;
    if !["replaying", "comparing", "swapping"].contains(&phase(&status).as_str()) {
        status = projector.post(&format!("/v1/rebuild?accept={}", arguments.accept))?;
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = "{wide_bar} {pos}/{len} records  {msg}";
    bar.set_style(ProgressStyle::with_template(style).context("the progress bar")?);
    loop {
        let number = |name: &str| status.get(name).and_then(Value::as_u64).unwrap_or_default();
        let rate = status.get("records_per_second").and_then(Value::as_f64).unwrap_or_default();
        let left = status.get("seconds_left").and_then(Value::as_f64);
        bar.set_length(number("records_total"));
        bar.set_position(number("records"));
        let left = left.map(|left| format!(", {left:.0} s left")).unwrap_or_default();
        bar.set_message(format!("{}, {rate:.0} records/s{left}", phase(&status)));
        if ["done", "failed"].contains(&phase(&status).as_str()) {
            break;
        }
        std::thread::sleep(ASK_PERIOD);
        status = projector.get("/v1/rebuild")?;
    }
    bar.finish_and_clear();
    if arguments.target.json {
        writeln!(out, "{status:#}").context("cannot write")?;
    } else {
        for line in in_words(&status) {
            writeln!(out, "{line}").context("cannot write")?;
        }
    }
    out.flush().context("cannot write")?;
    Ok(phase(&status) == "done")
}

fn in_words(status: &Value) -> Vec<String> {
    let text = |of: &Value, name: &str| of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for of in status.get("partitions").and_then(Value::as_array).into_iter().flatten() {
        let partition = of.get("partition").and_then(Value::as_u64).unwrap_or_default();
        let (live, rebuilt) = (text(of, "live"), text(of, "rebuilt"));
        let word = if live == rebuilt { "equal    " } else { "different" };
        lines.push(format!("partition {partition:>3}  {word}  live {live}  rebuilt {rebuilt}"));
    }
    match status.get("problem").and_then(Value::as_str) {
        Some(problem) => lines.push(format!("not rebuilt: {problem}")),
        None => lines.push("rebuilt: the new store is live".to_owned()),
    }
    for path in status.get("old").and_then(Value::as_array).into_iter().flatten() {
        let path = path.as_str().unwrap_or_default();
        lines.push(format!("kept {path}; `witness rebuild --discard-old` deletes it"));
    }
    lines
}
