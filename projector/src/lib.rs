//! The projector: reads observations, derives what is known, stores it, answers questions. Must never write to the
//! observations anything but what it judged and what an operator said, and never answer from a place in the log
//! that it does not name.

mod claims;
pub mod derive;
mod metrics;
pub mod project;
mod publish;
pub mod query;
pub mod rebuild;
pub mod run;
pub mod store;

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use journal::{Appender, Consumer};
use metrics_exporter_prometheus::PrometheusHandle;
use service::problem::RequestIds;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use rebuild::Readers;
use run::Runner;
use store::DERIVATION_EPOCH;

/// What the projector is told.
#[derive(Clone)]
pub struct Config {
    /// The folder of its stores.
    pub store: PathBuf,
    /// Partitions of the journal.
    pub partitions: NonZeroU32,
    /// The bearer token that queries must carry; without one, none is asked for, and the caller sees to
    /// it that only this machine can ask.
    pub token: Option<String>,
    /// Records one batch folds at most.
    pub batch_records_max: usize,
    /// Whether projections are published to the journal: where others can read it. Claims always are.
    pub publish: bool,
    /// Added to the epoch of this release's derivation: raised by an operator when the log was imported or
    /// reset, so that versions rise.
    pub epoch: u32,
}

impl Config {
    /// The usual bounds for a store's folder.
    pub fn new(store: impl Into<PathBuf>, partitions: NonZeroU32) -> Self {
        Self {
            store: store.into(),
            partitions,
            token: None,
            batch_records_max: 1_000,
            publish: false,
            epoch: 0,
        }
    }

    /// The epoch of what is derived.
    pub fn epoch(&self) -> u32 {
        DERIVATION_EPOCH.saturating_add(self.epoch)
    }
}

/// Shows everything but the token.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("store", &self.store)
            .field("partitions", &self.partitions)
            .field("token", &self.token.as_ref().map(|_| "******"))
            .field("batch_records_max", &self.batch_records_max)
            .field("publish", &self.publish)
            .field("epoch", &self.epoch)
            .finish()
    }
}

/// The journal as the projector uses it.
pub struct Journal {
    /// Reads the observations, and publishes what is made of them.
    pub observations: Box<dyn Consumer>,
    /// Reads the claims.
    pub claims: Box<dyn Consumer>,
    /// Writes verdicts and what operators say.
    pub appender: Arc<dyn Appender>,
    /// Reads the log beside the group, to derive a store anew.
    pub readers: Readers,
}

/// Why the projector ended.
#[derive(Debug, Error)]
pub enum Error {
    /// The store cannot be opened, or failed.
    #[error("the store failed: {0}")]
    Store(#[from] store::Error),
    /// Its place in the group was taken from it for good.
    #[error("{0}")]
    Ended(String),
    /// The thread could not be started, or panicked.
    #[error("the projector's thread failed: {0}")]
    Thread(String),
}

/// Runs the projector until `shutdown` resolves or its store fails. The batch in hand is finished.
pub async fn run(
    config: Config,
    listener: TcpListener,
    journal: Journal,
    ids: RequestIds,
    metrics: PrometheusHandle,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    metrics::describe();
    let stop = StopOnDrop::default();
    let (clock, stopping) = (ids.clock.clone(), stop.0.clone());
    let (opening, token) = (config.clone(), config.token);
    let appender = journal.appender.clone();
    let opened = tokio::task::spawn_blocking(move || Runner::open(&opening, journal, clock, stopping)).await;
    let runner = opened.map_err(|error| Error::Thread(error.to_string()))??;
    let source = query::Source::new(&runner, appender, ids.clone());
    let (ended, mut has_ended) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("projector".to_owned())
        .spawn(move || {
            let result = runner.run();
            // Nobody listens once the service has been asked to stop.
            let _ = ended.send(());
            result
        })
        .map_err(|error| Error::Thread(error.to_string()))?;
    let router = query::router(source, token, ids, metrics);
    // A projector whose thread has ended, by failure or by panic, has nothing true to answer any more.
    let until = async {
        tokio::select! {
            () = shutdown => {}
            _ = &mut has_ended => {}
        }
    };
    service::server::serve(listener, router, until).await;
    drop(stop);
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    match joined {
        Ok(Ok(result)) => Ok(result?),
        Ok(Err(_)) => Err(Error::Thread("it panicked".to_owned())),
        Err(error) => Err(Error::Thread(error.to_string())),
    }
}

/// Asks the thread to stop, also where [`run`] itself is dropped before its end.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
