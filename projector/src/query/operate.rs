//! What an operator asks of the store: digests of what it holds, and deriving it anew beside itself. Must never hold
//! an answer up for longer than the partition in hand is read.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use service::problem::Problem;

use super::{RawParameters, Source, answered, internal, json};
use crate::store::PartitionDigest;

/// The digests of all partitions that this instance holds.
#[derive(Serialize)]
struct Verified {
    epoch: u32,
    partitions: Vec<PartitionDigest>,
}

/// Reads everything and answers its digests.
pub(super) async fn verify(State(source): State<Source>, query: RawParameters) -> Response {
    answered(source, query, &[], |source, _| {
        let store = source.store();
        let mut partitions = Vec::new();
        for partition in source.progress.held() {
            source.usable(partition)?;
            partitions.push(store.read().digest(partition)?);
        }
        Ok(json(&Verified { epoch: store.epoch(), partitions }))
    })
    .await
}

/// How far the rebuild is.
pub(super) async fn rebuild(State(source): State<Source>, query: RawParameters) -> Response {
    answered(source, query, &[], |source, _| Ok(json(&source.rebuild.status()?))).await
}

/// Starts a rebuild, or goes on with one.
pub(super) async fn start_rebuild(State(source): State<Source>, query: RawParameters) -> Response {
    answered(source, query, &["accept"], |source, parameters| {
        let accept = parameters.boolean("accept")?;
        let started = source.rebuild.start(&source.live, &source.progress, accept).map_err(|error| {
            tracing::error!(%error, "no rebuild can be started");
            internal()
        })?;
        if !started {
            return Err(Problem::new(StatusCode::CONFLICT, "rebuilding", "A rebuild is under way")
                .detail("ask GET /v1/rebuild how far it is"));
        }
        Ok((StatusCode::ACCEPTED, json(&source.rebuild.status()?)).into_response())
    })
    .await
}

/// Deletes the stores that were replaced.
pub(super) async fn discard_old(State(source): State<Source>, query: RawParameters) -> Response {
    answered(source, query, &[], |source, _| {
        source.rebuild.discard_old()?;
        Ok(json(&source.rebuild.status()?))
    })
    .await
}
