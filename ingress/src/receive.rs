//! The path of one delivery, from its headers to its durable observation, in the one order that is right.
//! Must never look at a query parameter or a cookie, never parse what is not verified, and never return
//! before the journal acknowledged.

use std::sync::Arc;
use std::time::Instant;

use axum::body::BodyDataStream;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use bytes::Bytes;
use journal::{AppendError, Appender, NewRecord, Topic};
use schema::provider::Contract;
use schema::signature::{MalformedSignature, Receipt, SignatureHeader};
use schema::{Micros, Observation, Unverified, Verified, avro};
use uuid::Uuid;

use crate::claims::{Appended, Claim, Key};
use crate::door::{Door, Receiver};
use crate::error::{InvalidSignature, Refusal};
use crate::keys::Arrival;
use crate::{body, content, metrics};

/// Bytes of `X-Webhook-Endpoint-ID` that are kept; a longer one is no id.
const WEBHOOK_ENDPOINT_ID_BYTES_MAX: usize = 255;

/// A delivery that is in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) observation_id: Uuid,
    /// Whether another, identical request made the append.
    pub(crate) is_repeat: bool,
}

/// Takes one delivery; the first check that fails answers.
pub(crate) async fn receive(
    door: &Door,
    receiver: &Receiver,
    parts: &Parts,
    body: &mut BodyDataStream,
) -> Result<Received, Refusal> {
    let arrival = receiver.keys.arrival();
    let contract = receiver.provider.contract();

    // 1. The method, what the body is said to be, and a place for it, held until the answer.
    if parts.method != Method::POST {
        return Err(Refusal::MethodNotAllowed);
    }
    let content_type = content::check(&parts.headers, contract.content_type_is_optional())?;
    let place = Arc::new(door.place()?);

    // 2. The signature headers, strictly.
    let header = signature_header(contract, &parts.headers).map_err(InvalidSignature::from)?;

    // 3. The body, cut off at its limit.
    let raw = body::read(body, receiver.body_bytes_max, door.read_timeout).await?;
    let received_at = door.clock.now();

    // 4. The time window, and the signature under every secret that may have made it.
    let signature = header.signature;
    let unverified = Unverified::new(receiver.provider, header, raw);
    let verified = verify(receiver, unverified, received_at, arrival).await?;

    // 5. Only now the envelope.
    let observation = verified.observe(Receipt {
        observation_id: door.ids.uuid_v7(received_at),
        endpoint: receiver.id.to_string(),
        tenant: receiver.tenant.clone(),
        received_at,
        content_type,
        webhook_endpoint_id: webhook_endpoint_id(&parts.headers),
    })?;

    // 6. The endpoint's rate.
    if let Some(bucket) = &receiver.bucket {
        bucket
            .take(received_at)
            .map_err(|retry_after_seconds| Refusal::RateLimited { retry_after_seconds })?;
    }

    // 7. The transport claim: one append for identical requests.
    let key = Key { endpoint: receiver.number, signed_at: observation.signed_at, signature };
    let (answer, is_repeat) = match door.claims.claim(key, received_at.seconds(), receiver.tolerance_seconds)
    {
        Claim::Mine(lead, answer) => {
            // 8. The append, in a task of its own: a caller that goes away must neither cancel it half
            // way nor leave others waiting for it. The task keeps the place until the journal answered.
            let (journal, append_timeout, place) = (door.journal.clone(), door.append_timeout, place.clone());
            tokio::spawn(async move {
                let began = Instant::now();
                let append = append(&*journal, &observation);
                let appended = tokio::time::timeout(append_timeout, append).await;
                metrics::append(began.elapsed());
                lead.report(appended.unwrap_or(Err(Refusal::JournalTimeout)));
                drop(place);
            });
            (answer, false)
        }
        Claim::InFlight(answer) => (answer, true),
        Claim::Appended(observation_id) => return Ok(Received { observation_id, is_repeat: true }),
    };
    let appended = answer.wait().await;
    metrics::claims(door.claims.len());
    Ok(Received { observation_id: appended?, is_repeat })
}

/// The contract's signature headers, each of which stands exactly once.
fn signature_header(
    contract: &dyn Contract,
    headers: &HeaderMap,
) -> Result<SignatureHeader, MalformedSignature> {
    let mut values = Vec::new();
    for name in contract.signature_headers() {
        let mut lines = headers.get_all(*name).iter();
        match (lines.next(), lines.next()) {
            (Some(value), None) => values.push(value.as_bytes()),
            (None, _) | (Some(_), Some(_)) => return Err(MalformedSignature),
        }
    }
    contract.parse_signature(&values)
}

/// Verifies the delivery. The key source is asked only for a delivery inside the window; outside of it
/// the secrets at hand tell whether it is a real one that came late.
async fn verify(
    receiver: &Receiver,
    unverified: Unverified,
    now: Micros,
    arrival: Arrival,
) -> Result<Verified, Refusal> {
    let key_id = unverified.header().key_id.as_deref();
    let candidates = if unverified.is_inside_window(now.seconds(), receiver.tolerance_seconds) {
        let candidates = receiver.keys.candidates(key_id, arrival).await?;
        if candidates.is_empty() {
            return Err(InvalidSignature::UnknownKey.into());
        }
        candidates
    } else {
        receiver.keys.cached(key_id)
    };
    let verified = unverified.verify(&candidates, now.seconds(), receiver.tolerance_seconds);
    verified.map_err(|rejection| InvalidSignature::from(rejection).into())
}

/// Appends the observation and waits until it is durable.
async fn append(journal: &dyn Appender, observation: &Observation) -> Appended {
    let value = avro::encode(observation).map_err(|error| Refusal::JournalUnavailable(error.to_string()))?;
    let record = NewRecord {
        partition: observation.subject.partition(journal.partitions()),
        key: Bytes::from(observation.subject.key()),
        value: Bytes::from(value),
    };
    match journal.append(Topic::Observations, record).await {
        Ok(_) => Ok(observation.id),
        Err(AppendError::QueueFull) => Err(Refusal::JournalQueueFull),
        Err(error @ (AppendError::Unavailable(_) | AppendError::TooLarge { .. })) => {
            Err(Refusal::JournalUnavailable(error.to_string()))
        }
    }
}

/// The correlation header, where it stands once and is text. It is not signed, so nothing rests on it.
fn webhook_endpoint_id(headers: &HeaderMap) -> Option<String> {
    let mut lines = headers.get_all("x-webhook-endpoint-id").iter();
    let value = lines.next().filter(|value| value.len() <= WEBHOOK_ENDPOINT_ID_BYTES_MAX)?;
    if lines.next().is_some() { None } else { value.to_str().ok().map(str::to_owned) }
}
