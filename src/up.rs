//! `witness up`, `witness ingress` and `witness projector`: both services in one process, or one of them, until a
//! signal. Must never say it is ready before the addresses are bound and the journal is open.

use std::io::Write;
use std::path::PathBuf;

use crate::config::{Config, Journal};
use crate::serve::{Services, Which};
use crate::{configuration, telemetry};

/// What each of the three is told.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration file; without it, ./witness.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs until SIGINT or SIGTERM.
pub(crate) fn run(arguments: &Arguments, which: Which) -> anyhow::Result<()> {
    telemetry::init("info")?;
    let config = configuration(arguments.config.as_deref())?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let shutdown = interrupted()?;
        let services = Services::open(&config, which, telemetry::metrics()?).await?;
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
    let mut out = std::io::stdout().lock();
    let partitions = config.journal.partitions();
    match &config.journal {
        Journal::Embedded(embedded) => {
            writeln!(out, "journal     {} ({partitions} partitions)", embedded.path.display())?;
        }
        Journal::Kafka(kafka) => {
            let (topic, brokers) = (&kafka.client.topics.observations, &kafka.client.brokers);
            writeln!(out, "journal     {topic} on {brokers} ({partitions} partitions)")?;
        }
    }
    if let Some(ingress) = services.ingress_address() {
        writeln!(out, "deliveries  http://{ingress}")?;
        for endpoint in &config.endpoints {
            let (id, provider, tenant) = (&endpoint.id, endpoint.provider.as_str(), &endpoint.tenant);
            writeln!(out, "  endpoint  POST /webhooks/{id}  ({provider}, tenant {tenant})")?;
        }
    }
    if let Some(projector) = services.projector_address() {
        match &config.journal {
            Journal::Embedded(_) => {}
            Journal::Kafka(kafka) => {
                let (instance_id, group) = (&kafka.client.instance_id, &kafka.client.group);
                writeln!(out, "member      {instance_id} of {group}, advertised as {}", kafka.advertise)?;
            }
        }
        writeln!(out, "store       {}", config.projector.store.display())?;
        writeln!(out, "queries     http://{projector}/v1/subjects")?;
        writeln!(out, "attention   http://{projector}/v1/attention")?;
    }
    writeln!(out, "Witness is up. Ctrl-C stops it.")?;
    Ok(out.flush()?)
}
