//! The door of Witness: an HTTP request comes in, is proven to come from its provider, is appended to the
//! journal, and only then answered.
//!
//! Owns the path of one delivery and the process that serves it. It must never answer 2xx before the
//! journal said the record is durable, never look into a body before its signature held, never take
//! identity or tenant from a delivery, and never know the projector.

mod body;
mod claims;
mod content;
mod door;
mod error;
mod health;
mod keys;
mod metrics;
mod rate;
mod receive;
pub mod secrets;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{any, get};
use journal::Appender;
use metrics_exporter_prometheus::PrometheusHandle;
use schema::Provider;
use schema::signature::Secret;
use service::clock::Clock;
use service::ids::Ids;
use service::problem::RequestIds;
use service::server;
use thiserror::Error;
use tokio::net::TcpListener;

pub use keys::KeyDocument;
pub use rate::Rate;

use door::Door;

/// What the door serves, and its bounds.
#[derive(Clone)]
pub struct Config {
    /// The configured receivers; no two have one id.
    pub endpoints: Vec<Endpoint>,
    /// Deliveries in flight at once; one more is answered 503.
    pub in_flight_max: usize,
    /// How long one append may take before it is answered 503.
    pub append_timeout: Duration,
    /// How long a body may take to arrive before it is answered 408. Not less than the 10 s that SHOC waits
    /// for an answer: it gives up first and tries again, whereas a 408 would park its delivery (SHOC
    /// contract §7).
    pub read_timeout: Duration,
    /// Transport claims held in memory, of some 200 bytes each; deliveries beyond it are appended without
    /// a claim.
    pub claims_max: usize,
}

impl Config {
    /// The usual bounds for these endpoints.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            in_flight_max: 1_024,
            append_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(10),
            claims_max: 262_144,
        }
    }
}

/// One configured receiver. Everything we know of a sender, but its signature, is written here.
#[derive(Clone)]
pub struct Endpoint {
    /// The last part of its path, `/webhooks/{id}`.
    pub id: String,
    /// Whose contract it follows.
    pub provider: Provider,
    /// Whose deliveries they are.
    pub tenant: String,
    /// What may sign for it.
    pub secrets: Secrets,
    /// Seconds a timestamp may differ from now, both directions, inclusive.
    pub tolerance_seconds: u64,
    /// Bytes a body may have.
    pub body_bytes_max: usize,
    /// How many verified deliveries it takes; `None` is no limit.
    pub rate: Option<Rate>,
}

/// Where an endpoint's secrets come from.
#[derive(Clone)]
pub enum Secrets {
    /// They were read at the start and stay. SHOC picks among them by label, which is then the key id.
    Fixed(Vec<Secret>),
    /// SHOC's key document, fetched again and again (SHOC contract §6.1).
    Document(Arc<dyn KeyDocument>),
}

/// Why the door cannot open.
#[derive(Debug, Error)]
pub enum Error {
    /// Two receivers on one path.
    #[error("two endpoints have the id `{id}`; every `[[endpoint]]` needs an id of its own")]
    DuplicateEndpoint {
        /// The id.
        id: String,
    },
}

/// Serves until `shutdown` resolves; then stops accepting, lets what is in flight finish, within a bound,
/// and returns. Key documents are fetched once before the first connection is accepted; one that cannot
/// be fetched does not stop the start, it makes the door unready.
pub async fn run(
    config: Config,
    listener: TcpListener,
    journal: Arc<dyn Appender>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    metrics: PrometheusHandle,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    metrics::describe();
    let append_timeout = config.append_timeout;
    let door = Arc::new(Door::new(config, journal, clock.clone(), ids.clone())?);
    door.load_keys().await;
    server::serve(listener, complete(&door, RequestIds { clock, ids }, metrics), shutdown).await;
    // What is left are appends whose callers went away, each of which ends in its own time.
    if tokio::time::timeout(append_timeout, door.wait_until_idle()).await.is_err() {
        tracing::warn!("some appends were still unanswered when the time to finish them was over");
    }
    Ok(())
}

/// What [`run`] serves, without a socket: for whoever owns the connections and the time. Key documents are not
/// fetched before the first delivery asks for them.
pub fn router(
    config: Config,
    journal: Arc<dyn Appender>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    metrics: PrometheusHandle,
) -> Result<Router, Error> {
    let door = Arc::new(Door::new(config, journal, clock.clone(), ids.clone())?);
    Ok(complete(&door, RequestIds { clock, ids }, metrics))
}

fn complete(door: &Arc<Door>, ids: RequestIds, metrics: PrometheusHandle) -> Router {
    let routes = Router::new()
        // Any method: that the endpoint is unknown is said before that the method is not its own.
        .route("/webhooks/{endpoint}", any(Door::answer))
        .route("/health/ready", get(health::ready))
        .with_state(door.clone());
    server::complete(routes, ids, metrics)
}
