//! `/health/ready`. Must never say ready while an append or a verification cannot succeed, and never give
//! away more than the kind of what is wrong.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use service::server::readiness;

use crate::door::Door;

/// Ready when the journal takes appends and every key source has a usable document. A probe fetches a
/// document that grew old while no delivery came, within the bounds of every fetch.
pub(crate) async fn ready(State(door): State<Arc<Door>>) -> Response {
    let mut problems = Vec::new();
    if let Err(reason) = door.journal.health() {
        tracing::warn!(reason, "not ready: the journal takes no appends");
        problems.push("the journal takes no appends".to_owned());
    }
    let unloaded = door.unloaded_key_sources().await;
    problems.extend(unloaded.iter().map(|id| format!("the keys of endpoint {id} cannot be read")));
    readiness(&problems)
}
