//! Log lines to standard error, and the process's metrics. Must never write to standard output, which
//! belongs to what a command answers.

use std::io::IsTerminal;

use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::wrong_use::WrongUse;

/// Starts logging: for people, or as JSON with `WITNESS_LOG_FORMAT=json`; as much as `RUST_LOG` says,
/// else `filter_default`. Lines of libraries that log through `log` come along.
pub(crate) fn init(filter_default: &str) -> anyhow::Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(&filter).map_err(|_| {
            WrongUse(format!("RUST_LOG is {filter:?}, which is no filter; use a level such as info"))
        })?,
        Ok(_) | Err(_) => EnvFilter::new(filter_default),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    // `try_init` also starts the bridge from `log`.
    if std::env::var("WITNESS_LOG_FORMAT").is_ok_and(|format| format == "json") {
        registry.with(lines.json()).try_init()
    } else {
        let colour =
            std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        registry.with(lines.with_ansi(colour)).try_init()
    }
    .context("cannot start logging")
}

/// Starts recording metrics; the handle renders them for `/metrics`.
pub(crate) fn metrics() -> anyhow::Result<PrometheusHandle> {
    PrometheusBuilder::new().install_recorder().context("cannot start recording metrics")
}
