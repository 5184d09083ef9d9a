//! `witness send`: signs the exact bytes of files as an endpoint's provider would, now, and posts them.
//! Must never alter a byte of a file, nor show a secret.

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use schema::signature::Secret;
use serde_json::{Value, json};
use service::clock::{Clock, SystemClock};

use crate::client::{Answer, Client, is_loopback, reachable};
use crate::config::{Config, Endpoint};
use crate::wrong_use::WrongUse;
use crate::{configuration, telemetry};

/// Sign files as an endpoint's provider would, and post them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The endpoint, as the configuration names it.
    #[arg(long, value_name = "ID")]
    endpoint: String,
    /// The configuration file; without it, ./witness.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where Witness is, as in `https://hooks.example.com`; `/webhooks/ID` is added unless the URL has a
    /// path. Without it, the address of `ingress.listen`.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// One JSON object a line instead of words.
    #[arg(long)]
    json: bool,
    /// The bodies to send; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Sends the files in their order; `false` where any was not accepted.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    telemetry::init("warn")?;
    let config = configuration(arguments.config.as_deref())?;
    let endpoint = config.endpoint(&arguments.endpoint)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let secret = runtime.block_on(endpoint.signing_secret())?;
    let url = url(arguments.url.as_deref(), &config, endpoint)?;
    // All files are read before the first is sent: a mistyped name stops everything, not half of it.
    let bodies = arguments.files.iter().map(body).collect::<Result<Vec<_>, WrongUse>>()?;
    let client = if is_loopback(&url) { Client::local() } else { Client::new() };
    let mut all_accepted = true;
    let mut out = std::io::stdout().lock();
    for (file, body) in arguments.files.iter().zip(&bodies) {
        let sent = send(&client, &url, endpoint, &secret, body);
        all_accepted &= sent.as_ref().is_ok_and(|answer| (200..300).contains(&answer.status));
        let file = file.display().to_string();
        let line = if arguments.json { as_json(&file, &sent).to_string() } else { in_words(&file, &sent) };
        writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write")?;
    }
    Ok(all_accepted)
}

fn send(
    client: &Client,
    url: &str,
    endpoint: &Endpoint,
    secret: &Secret,
    body: &[u8],
) -> anyhow::Result<Answer> {
    client.deliver(url, endpoint.provider, secret, SystemClock.now().seconds(), body)
}

fn body(file: &PathBuf) -> Result<Vec<u8>, WrongUse> {
    let read = if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    read.map_err(|error| WrongUse(format!("cannot read {}: {error}", file.display())))
}

fn url(named: Option<&str>, config: &Config, endpoint: &Endpoint) -> Result<String, WrongUse> {
    let Some(named) = named else {
        return Ok(format!("http://{}/webhooks/{}", reachable(config.ingress_listen), endpoint.id));
    };
    let refuse = || WrongUse(format!("--url is {named:?}; it must be like https://hooks.example.com"));
    let rest = named.strip_prefix("http://").or_else(|| named.strip_prefix("https://")).ok_or_else(refuse)?;
    match rest.split_once('/') {
        _ if rest.is_empty() => Err(refuse()),
        None => Ok(format!("{named}/webhooks/{}", endpoint.id)),
        Some((_, "")) => Ok(format!("{named}webhooks/{}", endpoint.id)),
        Some((_, _)) => Ok(named.to_owned()),
    }
}

fn in_words(file: &str, sent: &anyhow::Result<Answer>) -> String {
    match sent {
        Ok(answer) => match (answer.text("observation_id"), answer.text("code")) {
            (Some(observation_id), _) => format!("{file}  {}  {observation_id}", answer.status),
            (None, Some(code)) => {
                let detail = answer.text("detail").or(answer.text("title")).unwrap_or_default();
                format!("{file}  {}  {code}  {detail}", answer.status)
            }
            (None, None) => format!("{file}  {}  (an answer that is not from Witness)", answer.status),
        },
        Err(error) => format!("{file}  not sent: {error:#}"),
    }
}

fn as_json(file: &str, sent: &anyhow::Result<Answer>) -> Value {
    match sent {
        Ok(answer) => json!({
            "file": file,
            "status": answer.status,
            "observation_id": answer.body.get("observation_id"),
            "code": answer.body.get("code"),
            "retryable": answer.body.get("retryable"),
            "error": null,
        }),
        Err(error) => json!({
            "file": file,
            "status": null,
            "observation_id": null,
            "code": null,
            "retryable": true,
            "error": format!("{error:#}"),
        }),
    }
}
