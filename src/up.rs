//! `witness up`: both services in one process, until a signal. Must never say it is ready before both
//! addresses are bound and the journal is open.

use std::io::Write;
use std::path::PathBuf;

use crate::config::Config;
use crate::serve::Services;
use crate::{configuration, telemetry};

/// Receive deliveries, keep them, and answer questions about them, in one process.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration file; without it, ./witness.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs until SIGINT or SIGTERM.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    telemetry::init("info")?;
    let config = configuration(arguments.config.as_deref())?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let shutdown = interrupted()?;
        let services = Services::open(&config, telemetry::metrics()?).await?;
        announce(&config, &services)?;
        services.run(shutdown).await
    })
}

/// Resolves at the first SIGINT or SIGTERM.
pub(crate) fn interrupted() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn announce(config: &Config, services: &Services) -> anyhow::Result<()> {
    let (ingress, projector) = (services.ingress_address()?, services.projector_address()?);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "journal     {} ({} partitions)",
        config.journal.path.display(),
        config.journal.partitions
    )?;
    writeln!(out, "store       {}", config.projector.store.display())?;
    writeln!(out, "deliveries  http://{ingress}")?;
    for endpoint in &config.endpoints {
        let (id, provider, tenant) = (&endpoint.id, endpoint.provider.as_str(), &endpoint.tenant);
        writeln!(out, "  endpoint  POST /webhooks/{id}  ({provider}, tenant {tenant})")?;
    }
    writeln!(out, "queries     http://{projector}/v1/subjects")?;
    writeln!(out, "attention   http://{projector}/v1/attention")?;
    writeln!(out, "Witness is up. Ctrl-C stops it.")?;
    Ok(out.flush()?)
}
