//! The services of this process on its journal: what `up`, `ingress`, `projector` and `demo` have in common. Must
//! never stop the journal before those who use it, and never go on when one of them has failed.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use metrics_exporter_prometheus::PrometheusHandle;
use service::clock::{Clock, SystemClock};
use service::ids::{Ids, RandomIds};
use service::problem::RequestIds;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::{Config, Journal};
use crate::opened::{Opened, make_folder};
use crate::wrong_use::WrongUse;

/// How often the journal is asked whether it can still write, and recorded durations are folded.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Which services a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Both,
    Ingress,
    Projector,
}

/// Everything opened and bound, and nothing running yet.
pub(crate) struct Services {
    ingress: Option<Bound<ingress::Config>>,
    projector: Option<Bound<projector::Config>>,
    journal: Opened,
    metrics: PrometheusHandle,
}

/// A service to be, and where it will be reached.
struct Bound<C> {
    config: C,
    listener: TcpListener,
    address: SocketAddr,
}

impl Services {
    /// Reads the secrets, binds the addresses, and opens the journal.
    pub(crate) async fn open(
        config: &Config,
        which: Which,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        let (has_ingress, has_projector) = match which {
            Which::Both => (true, true),
            Which::Ingress => (true, false),
            Which::Projector => (false, true),
        };
        let is_shared = match &config.journal {
            Journal::Embedded(_) => false,
            Journal::Kafka(_) => true,
        };
        if which != Which::Both && !is_shared {
            return Err(WrongUse(format!(
                "{}: `journal.kind` is \"embedded\", which one process has to itself; run `witness up`, or set kind = \"kafka\"",
                config.file.display()
            ))
            .into());
        }
        let ingress = if has_ingress { Some(Self::ingress(config).await?) } else { None };
        let projector = if has_projector {
            let mut projector = Self::projector(config).await?;
            // Where nobody else reads, publishing would be writing for nobody.
            projector.config.publish = is_shared;
            Some(projector)
        } else {
            None
        };
        let journal = Opened::open(&config.journal).await?;
        if projector.is_some() {
            make_folder(&config.projector.store)?;
        }
        Ok(Self { ingress, projector, journal, metrics })
    }

    async fn ingress(config: &Config) -> anyhow::Result<Bound<ingress::Config>> {
        let mut endpoints = Vec::with_capacity(config.endpoints.len());
        for endpoint in &config.endpoints {
            endpoints.push(endpoint.resolve().await?);
        }
        Bound::new(ingress::Config::new(endpoints), "ingress.listen", config.ingress_listen).await
    }

    async fn projector(config: &Config) -> anyhow::Result<Bound<projector::Config>> {
        let mut projector = config.projector_config();
        projector.token = config.token().await?;
        Bound::new(projector, "projector.listen", config.projector.listen).await
    }

    /// Where deliveries are received, if they are.
    pub(crate) fn ingress_address(&self) -> Option<SocketAddr> {
        self.ingress.as_ref().map(|ingress| ingress.address)
    }

    /// Where queries are answered, if they are.
    pub(crate) fn projector_address(&self) -> Option<SocketAddr> {
        self.projector.as_ref().map(|projector| projector.address)
    }

    /// Serves until `shutdown`, then stops in the order of the data: the ingress finishes what it has
    /// accepted, the projector its batch, the journal its queue. A service that ends by itself, or a
    /// journal that can no longer write, stops all of them and is the error.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { ingress, projector, mut journal, metrics } = self;
        let (clock, ids): (Arc<dyn Clock>, Arc<dyn Ids>) = (Arc::new(SystemClock), Arc::new(RandomIds));
        let request_ids = RequestIds { clock: clock.clone(), ids: ids.clone() };
        let appender = ingress.is_some().then(|| journal.appender()).transpose()?;
        let projectors = projector.is_some().then(|| journal.projectors()).transpose()?;
        let mut ingress = match ingress.zip(appender) {
            Some((Bound { config, listener, .. }, appender)) => {
                let metrics = metrics.clone();
                Some(Service::start("ingress", move |stopped| async move {
                    let stopped = async { drop(stopped.await) };
                    Ok(ingress::run(config, listener, appender, clock, ids, metrics, stopped).await?)
                }))
            }
            None => None,
        };
        let mut projector = match projector.zip(projectors) {
            Some((Bound { config, listener, .. }, journal)) => {
                let metrics = metrics.clone();
                Some(Service::start("projector", move |stopped| async move {
                    let stopped = async { drop(stopped.await) };
                    Ok(projector::run(config, listener, journal, request_ids, metrics, stopped).await?)
                }))
            }
            None => None,
        };
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            ended = ended(&mut ingress) => ended,
            ended = ended(&mut projector) => ended,
            problem = watch(&journal, &metrics) => Err(anyhow!(problem)),
        };
        let ended = ended.and(stop(&mut ingress).await).and(stop(&mut projector).await);
        let closed = tokio::task::spawn_blocking(move || journal.close()).await?;
        ended.and(closed)
    }
}

impl<C> Bound<C> {
    async fn new(config: C, key: &str, address: SocketAddr) -> anyhow::Result<Self> {
        let listener = bind(key, address).await?;
        let address = listener.local_addr()?;
        Ok(Self { config, listener, address })
    }
}

async fn bind(key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (`{key}`); is another program there already?"))
}

/// Resolves with what is wrong once the journal cannot write any more: its errors are for good.
async fn watch(journal: &Opened, metrics: &PrometheusHandle) -> String {
    let mut period = tokio::time::interval(WATCH_PERIOD);
    loop {
        period.tick().await;
        metrics.run_upkeep();
        if let Some(problem) = journal.failure() {
            return problem;
        }
    }
}

/// Resolves when the service ends by itself; never where there is none.
async fn ended(service: &mut Option<Service>) -> anyhow::Result<()> {
    match service {
        Some(service) => service.ended().await,
        None => pending().await,
    }
}

async fn stop(service: &mut Option<Service>) -> anyhow::Result<()> {
    match service {
        Some(service) => service.stop().await,
        None => Ok(()),
    }
}

/// A running service, and the way to stop it.
struct Service {
    name: &'static str,
    task: JoinHandle<anyhow::Result<()>>,
    stop: Option<oneshot::Sender<()>>,
    is_over: bool,
}

impl Service {
    fn start<F>(name: &'static str, run: impl FnOnce(oneshot::Receiver<()>) -> F) -> Self
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        Self { name, task: tokio::spawn(run(stopped)), stop: Some(stop), is_over: false }
    }

    /// Resolves when the service ends although nobody stopped it, which is always an error.
    async fn ended(&mut self) -> anyhow::Result<()> {
        self.join().await?;
        Err(anyhow!("the {} ended by itself", self.name))
    }

    /// Stops the service and waits for its end.
    async fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.stop.take());
        if self.is_over { Ok(()) } else { self.join().await }
    }

    async fn join(&mut self) -> anyhow::Result<()> {
        let ended = (&mut self.task).await;
        self.is_over = true;
        ended
            .with_context(|| format!("the {} broke down", self.name))?
            .with_context(|| format!("the {} failed", self.name))
    }
}
