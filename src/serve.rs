//! Both services on one embedded journal, in this process: what `up` and `demo` have in common. Must
//! never stop the journal before those who use it, and never go on when one of them has failed.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use journal::embedded::{self, EmbeddedJournal};
use journal::{Appender, Topic};
use metrics_exporter_prometheus::PrometheusHandle;
use service::clock::{Clock, SystemClock};
use service::ids::{Ids, RandomIds};
use service::problem::RequestIds;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::Config;

/// How often the journal is asked whether it can still write, and recorded durations are folded.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Everything opened and bound, and nothing running yet.
pub(crate) struct Services {
    ingress: ingress::Config,
    ingress_listener: TcpListener,
    projector: projector::Config,
    projector_listener: TcpListener,
    journal: EmbeddedJournal,
    metrics: PrometheusHandle,
}

impl Services {
    /// Reads the secrets, opens the journal, and binds both addresses.
    pub(crate) async fn open(config: &Config, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        let token = config.token().await?;
        let mut endpoints = Vec::with_capacity(config.endpoints.len());
        for endpoint in &config.endpoints {
            endpoints.push(endpoint.resolve().await?);
        }
        let ingress_listener = bind("ingress.listen", config.ingress_listen).await?;
        let projector_listener = bind("projector.listen", config.projector.listen).await?;
        make_folder(&config.journal.path)?;
        make_folder(&config.projector.store)?;
        let journal = embedded::Config::new(&config.journal.path, config.journal.partitions);
        let journal = tokio::task::spawn_blocking(move || EmbeddedJournal::open(&journal)).await??;
        let mut projector = projector::Config::new(&config.projector.store, config.journal.partitions);
        projector.token = token;
        Ok(Self {
            ingress: ingress::Config::new(endpoints),
            ingress_listener,
            projector,
            projector_listener,
            journal,
            metrics,
        })
    }

    /// Where deliveries are received.
    pub(crate) fn ingress_address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.ingress_listener.local_addr()?)
    }

    /// Where queries are answered.
    pub(crate) fn projector_address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.projector_listener.local_addr()?)
    }

    /// Serves until `shutdown`, then stops in the order of the data: the ingress finishes what it has
    /// accepted, the projector its batch, the journal its queue. A service that ends by itself, or a
    /// journal that can no longer write, stops all of them and is the error.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { ingress, ingress_listener, projector, projector_listener, journal, metrics } = self;
        let (clock, ids): (Arc<dyn Clock>, Arc<dyn Ids>) = (Arc::new(SystemClock), Arc::new(RandomIds));
        let request_ids = RequestIds { clock: clock.clone(), ids: ids.clone() };
        let appender: Arc<dyn Appender> = Arc::new(journal.clone());
        let consumer = Box::new(journal.consumer(Topic::Observations));
        let mut ingress = {
            let metrics = metrics.clone();
            Service::start("ingress", move |stopped| async move {
                let stopped = async { drop(stopped.await) };
                Ok(ingress::run(ingress, ingress_listener, appender, clock, ids, metrics, stopped).await?)
            })
        };
        let mut projector = {
            let metrics = metrics.clone();
            Service::start("projector", move |stopped| async move {
                let stopped = async { drop(stopped.await) };
                Ok(projector::run(projector, projector_listener, consumer, request_ids, metrics, stopped)
                    .await?)
            })
        };
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            ended = ingress.ended() => ended,
            ended = projector.ended() => ended,
            problem = watch(&journal, &metrics) => Err(anyhow!(problem)),
        };
        let ended = ended.and(ingress.stop().await).and(projector.stop().await);
        tokio::task::spawn_blocking(move || journal.close()).await?;
        ended
    }
}

async fn bind(key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (`{key}`); is another program there already?"))
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Resolves with what is wrong once the journal cannot write any more: its errors are for good.
async fn watch(journal: &EmbeddedJournal, metrics: &PrometheusHandle) -> String {
    let mut period = tokio::time::interval(WATCH_PERIOD);
    loop {
        period.tick().await;
        metrics.run_upkeep();
        if let Err(problem) = journal.health() {
            return problem;
        }
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
