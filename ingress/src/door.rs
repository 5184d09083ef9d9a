//! The door: what all deliveries share, and how each is answered, counted and logged. Must never take
//! anything into a log line or a label that a caller can choose.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::header::EXPECT;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use journal::Appender;
use schema::Provider;
use serde::Serialize;
use service::clock::Clock;
use service::ids::Ids;
use service::problem::RequestId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::claims::Claims;
use crate::error::Refusal;
use crate::keys::KeySource;
use crate::rate::Bucket;
use crate::receive::{Received, receive};
use crate::{Config, Error, body, metrics};

/// What all deliveries share.
pub(crate) struct Door {
    receivers: HashMap<Arc<str>, Receiver>,
    pub(crate) journal: Arc<dyn Appender>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn Ids>,
    pub(crate) claims: Claims,
    places: Arc<Semaphore>,
    pub(crate) append_timeout: Duration,
    pub(crate) read_timeout: Duration,
    in_flight_max: u32,
}

/// One endpoint at work.
pub(crate) struct Receiver {
    pub(crate) id: Arc<str>,
    /// Its place in the configuration: its name in the claims.
    pub(crate) number: usize,
    pub(crate) provider: Provider,
    pub(crate) tenant: String,
    pub(crate) keys: KeySource,
    pub(crate) tolerance_seconds: u64,
    pub(crate) body_bytes_max: usize,
    pub(crate) bucket: Option<Bucket>,
}

/// A place among the deliveries in flight; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// The body of a 200.
#[derive(Serialize)]
struct Accepted {
    observation_id: Uuid,
}

impl Door {
    pub(crate) fn new(
        config: Config,
        journal: Arc<dyn Appender>,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> Result<Self, Error> {
        let mut receivers = HashMap::new();
        for (number, endpoint) in config.endpoints.into_iter().enumerate() {
            let id: Arc<str> = endpoint.id.as_str().into();
            let keys = KeySource::new(&endpoint, clock.clone());
            metrics::announce(&id);
            match receivers.entry(id.clone()) {
                Entry::Occupied(_) => return Err(Error::DuplicateEndpoint { id: endpoint.id }),
                Entry::Vacant(entry) => entry.insert(Receiver {
                    id,
                    number,
                    provider: endpoint.provider,
                    tenant: endpoint.tenant,
                    keys,
                    tolerance_seconds: endpoint.tolerance_seconds,
                    body_bytes_max: endpoint.body_bytes_max,
                    bucket: endpoint.rate.map(Bucket::new),
                }),
            };
        }
        // More places than a machine has memory for are as good as these.
        let in_flight_max = u32::try_from(config.in_flight_max).unwrap_or(u32::MAX).clamp(1, 1 << 20);
        Ok(Self {
            receivers,
            journal,
            clock,
            ids,
            claims: Claims::new(config.claims_max),
            places: Arc::new(Semaphore::new(in_flight_max as usize)),
            append_timeout: config.append_timeout,
            read_timeout: config.read_timeout,
            in_flight_max,
        })
    }

    /// Fetches every key document once.
    pub(crate) async fn load_keys(&self) {
        self.unloaded_key_sources().await;
    }

    /// The endpoints whose deliveries cannot be verified now, sorted.
    pub(crate) async fn unloaded_key_sources(&self) -> Vec<&str> {
        let checks = self.receivers.values().map(async |receiver| {
            let loaded = receiver.keys.is_loaded().await;
            (!loaded).then_some(&*receiver.id)
        });
        let mut unloaded: Vec<&str> = join_all(checks).await.into_iter().flatten().collect();
        unloaded.sort_unstable();
        unloaded
    }

    /// A place for one more delivery.
    pub(crate) fn place(&self) -> Result<Place, Refusal> {
        let permit = self.places.clone().try_acquire_owned().map_err(|_| Refusal::TooManyInFlight)?;
        metrics::in_flight(1.0);
        Ok(Place { _permit: permit })
    }

    /// Resolves when nothing is in flight, not even an append whose caller went away.
    pub(crate) async fn wait_until_idle(&self) {
        drop(self.places.acquire_many(self.in_flight_max).await);
    }

    /// Answers one request to a webhook path.
    pub(crate) async fn answer(
        State(door): State<Arc<Self>>,
        Extension(RequestId(request_id)): Extension<RequestId>,
        request: Request,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let mut body = body.into_data_stream();
        let receiver = parts.uri.path().strip_prefix("/webhooks/").and_then(|id| door.receivers.get(id));
        let received = match receiver {
            Some(receiver) => receive(&door, receiver, &parts, &mut body).await,
            None => Err(Refusal::UnknownEndpoint),
        };
        // A client that waited for our `100 Continue` sends nothing after a refusal: nothing to discard.
        if !parts.headers.contains_key(EXPECT) {
            body::discard(body, door.read_timeout);
        }
        report(request_id, receiver, &received);
        match received {
            Ok(Received { observation_id, .. }) => Json(Accepted { observation_id }).into_response(),
            Err(refusal) => refusal.problem().into_response(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::in_flight(-1.0);
    }
}

/// Counts an answer, and logs a refusal: once, with what it was refused for and nothing it carried.
fn report(request_id: Uuid, receiver: Option<&Receiver>, received: &Result<Received, Refusal>) {
    let outcome = match received {
        Ok(Received { is_repeat: false, .. }) => "accepted",
        Ok(Received { is_repeat: true, .. }) => "repeated",
        Err(refusal) => refusal.class(),
    };
    let id = receiver.map(|receiver| &receiver.id);
    metrics::delivery(id, outcome);
    if let (Some(id), Err(refusal)) = (id, received)
        && refusal.is_stale_signed()
    {
        metrics::stale_signed(id);
    }
    let endpoint = id.map(|id| &**id);
    match received {
        Ok(Received { observation_id, .. }) => {
            tracing::debug!(%request_id, endpoint, outcome, %observation_id, "delivery accepted");
        }
        Err(refusal) => {
            tracing::warn!(%request_id, endpoint, reason = outcome, detail = %refusal, "delivery refused");
        }
    }
}
