//! The HTTP queries: who may ask, what can be asked, from which partition it is answered. Must never
//! answer from a partition that is still replaying, and never scan without a bound.

mod answer;
mod attention;
mod forward;
mod list;
mod operate;
mod page;
mod parameters;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use journal::{Appender, Group};
use metrics_exporter_prometheus::PrometheusHandle;
use schema::{Provider, Subject};
use serde::Serialize;
use service::problem::{Problem, RequestIds};
use service::server;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::rebuild::Rebuild;
use crate::run::{Live, Progress, Runner};
use crate::store::{self, Store};
use parameters::Parameters;

/// The partition an answer comes from.
const PARTITION: HeaderName = HeaderName::from_static("witness-partition");
/// The offset up to which (exclusive) that partition was derived.
const OFFSET: HeaderName = HeaderName::from_static("witness-offset");
/// Whether the partition has passed the `known_at` that was asked for: if it has not, the answer may still change.
const PASSED: HeaderName = HeaderName::from_static("witness-known-at-passed");
/// Seconds a caller is asked to wait for a partition that is still replaying.
const REPLAYING_RETRY_SECONDS: u64 = 1;

/// Queries that are answered at the same time; more wait. Each can hold a page of some megabytes.
const QUERIES_AT_ONCE_MAX: usize = 32;

/// Queries that other instances answer for this one at the same time; more wait.
const FORWARDS_AT_ONCE_MAX: usize = 64;

/// What the handlers answer from.
#[derive(Clone)]
pub(crate) struct Source {
    live: Live,
    progress: Arc<Progress>,
    rebuild: Arc<Rebuild>,
    appender: Arc<dyn Appender>,
    ids: RequestIds,
    turns: Arc<Semaphore>,
    group: Arc<dyn Group>,
    forwards: Arc<Semaphore>,
}

/// An answer about one subject.
struct Answer<T> {
    value: T,
    /// Up to which offset its partition was derived.
    offset: u64,
    /// Whether the partition has passed the journal time that was asked for, where one was.
    has_passed: Option<bool>,
}

type RawParameters = Query<Vec<(String, String)>>;
type SubjectPath = Result<Path<(String, String, String, String)>, PathRejection>;

/// All routes of the projector.
pub(crate) fn router(
    source: Source,
    token: Option<String>,
    ids: RequestIds,
    metrics: PrometheusHandle,
) -> Router {
    let to_the_owner = axum::middleware::from_fn_with_state(source.clone(), forward::to_the_subjects_owner);
    let queries = Router::new()
        .route("/v1/subjects/{tenant}/{provider}/{kind}/{id}", get(subject))
        .route("/v1/subjects/{tenant}/{provider}/{kind}/{id}/history", get(history))
        .route("/v1/subjects/{tenant}/{provider}/{kind}/{id}/facts", get(facts))
        // These alone: what follows is asked of this instance.
        .route_layer(to_the_owner)
        .route("/v1/subjects", get(subjects))
        .route("/v1/attention", get(attention))
        .route("/v1/attention/{id}", get(attention::entry))
        .route("/v1/attention/{id}/acknowledge", post(attention::acknowledge))
        .route("/v1/verify", get(operate::verify))
        .route("/v1/rebuild", get(operate::rebuild).post(operate::start_rebuild))
        .route("/v1/rebuild/discard", post(operate::discard_old))
        .layer(axum::middleware::from_fn_with_state(token.map(Arc::from), authorize));
    let routes = queries.route("/health/ready", get(ready)).with_state(source);
    server::complete(routes, ids, metrics)
}

/// Lets a request pass that carries the token, where there is one.
async fn authorize(State(token): State<Option<Arc<str>>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
    });
    let passes = match (&token, given) {
        (None, _) => true,
        (Some(token), Some(given)) => token.as_bytes().ct_eq(given).into(),
        (Some(_), None) => false,
    };
    if passes {
        return next.run(request).await;
    }
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "A valid bearer token is needed")
        .header("www-authenticate", "Bearer")
        .into_response()
}

/// Ready when everything that is this instance's can be answered; other partitions are other instances'.
async fn ready(State(source): State<Source>) -> Response {
    let held = source.progress.held();
    let nothing = held.is_empty().then(|| "no partition is assigned yet".to_owned());
    let partitions = held.into_iter().filter_map(|partition| source.usable(partition).err()?.detail);
    let problems = source.progress.journal_problem().into_iter().chain(nothing).chain(partitions);
    server::readiness(&problems.chain(source.progress.claims_problems()).collect::<Vec<_>>())
}

async fn subject(State(source): State<Source>, path: SubjectPath, query: RawParameters) -> Response {
    about_subject(source, path, query, &["as_of", "known_at"], answer::projection).await
}

async fn history(State(source): State<Source>, path: SubjectPath, query: RawParameters) -> Response {
    let allowed = &["after", "limit", "body", "as_of", "known_at"];
    about_subject(source, path, query, allowed, answer::history).await
}

async fn facts(State(source): State<Source>, path: SubjectPath, query: RawParameters) -> Response {
    about_subject(source, path, query, &["after", "limit"], answer::facts).await
}

async fn subjects(State(source): State<Source>, query: RawParameters) -> Response {
    answered(source, query, &["tenant", "provider", "kind", "after", "limit"], |source, parameters| {
        source.all_usable()?;
        Ok(json(&list::subjects(source, parameters)?))
    })
    .await
}

async fn attention(State(source): State<Source>, query: RawParameters) -> Response {
    answered(source, query, &["kind", "after", "limit"], |source, parameters| {
        source.all_usable()?;
        Ok(json(&list::attention(source, parameters)?))
    })
    .await
}

/// Answers about one subject, with the partition and offset it is answered from.
async fn about_subject<T: Serialize + 'static>(
    source: Source,
    path: SubjectPath,
    query: RawParameters,
    allowed: &'static [&'static str],
    answer: impl FnOnce(&Source, u32, &Subject, &Parameters) -> Result<Answer<T>, Problem> + Send + 'static,
) -> Response {
    answered(source, query, allowed, move |source, parameters| {
        let subject = subject_of(path)?;
        let partition = subject.partition(source.partitions());
        source.usable(partition)?;
        let Answer { value, offset, has_passed } = answer(source, partition, &subject, parameters)?;
        // It was ours when it was read only if it still is.
        source.usable(partition)?;
        let mut response = json(&value);
        response.headers_mut().insert(PARTITION, HeaderValue::from(partition));
        response.headers_mut().insert(OFFSET, HeaderValue::from(offset));
        if let Some(has_passed) = has_passed {
            let word = if has_passed { "true" } else { "false" };
            response.headers_mut().insert(PASSED, HeaderValue::from_static(word));
        }
        Ok(response)
    })
    .await
}

/// Checks the parameters and runs a query where blocking is allowed.
async fn answered(
    source: Source,
    Query(raw): RawParameters,
    allowed: &'static [&'static str],
    answer: impl FnOnce(&Source, &Parameters) -> Result<Response, Problem> + Send + 'static,
) -> Response {
    let parameters = match Parameters::read(raw, allowed) {
        Ok(parameters) => parameters,
        Err(problem) => return problem.into_response(),
    };
    // The semaphore is never closed. The turn ends with the query, also where nobody waits for it any more.
    let turn = source.turns.clone().acquire_owned().await;
    let answered = tokio::task::spawn_blocking(move || {
        let answered = answer(&source, &parameters);
        drop(turn);
        answered
    });
    match answered.await {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => problem.into_response(),
        Err(error) => {
            tracing::error!(%error, "a query failed");
            internal().into_response()
        }
    }
}

fn subject_of(path: SubjectPath) -> Result<Subject, Problem> {
    let Path((tenant, provider, kind, id)) = path.map_err(|_| {
        parameters::invalid(
            "the path",
            "must be percent-encoded UTF-8: /v1/subjects/{tenant}/{provider}/{kind}/{id}",
        )
    })?;
    let provider = Provider::from_name(&provider)
        .ok_or_else(|| parameters::invalid("`provider` in the path", "must be ycloud, shoc or yutai"))?;
    Ok(Subject { tenant, provider, kind, id })
}

impl Source {
    pub(crate) fn new(runner: &Runner, appender: Arc<dyn Appender>, ids: RequestIds) -> Self {
        let (live, progress) = (runner.store.clone(), runner.progress.clone());
        let (rebuild, turns) = (runner.rebuild.clone(), Arc::new(Semaphore::new(QUERIES_AT_ONCE_MAX)));
        let (group, forwards) = (runner.group(), Arc::new(Semaphore::new(FORWARDS_AT_ONCE_MAX)));
        Self { live, progress, rebuild, appender, ids, turns, group, forwards }
    }

    /// The store as it is live now; one answer is made of one.
    fn store(&self) -> Arc<Store> {
        self.live.load_full()
    }

    fn partitions(&self) -> std::num::NonZeroU32 {
        std::num::NonZeroU32::new(self.store().partitions()).unwrap_or(std::num::NonZeroU32::MIN)
    }

    /// Whether a partition can be answered from: it is this instance's, which the group still confirms, and was
    /// derived up to the log's end as it was when it was assigned.
    fn usable(&self, partition: u32) -> Result<(), Problem> {
        let unavailable = |code, title, detail: String| {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, title)
                .detail(detail)
                .retry_after(REPLAYING_RETRY_SECONDS))
        };
        match self.progress.of(partition) {
            None => unavailable(
                "not_caught_up",
                "The log is still being replayed",
                format!("partition {partition} is not assigned yet"),
            ),
            Some(place) => match place.stopped {
                Some(reason) => unavailable(
                    "partition_stopped",
                    "The partition is stopped and needs an operator",
                    format!("partition {partition}: {reason}"),
                ),
                None if place.to_recognize.is_some() || place.next_offset < place.log_end => unavailable(
                    "not_caught_up",
                    "The log is still being replayed",
                    format!("partition {partition} is at offset {} of {}", place.next_offset, place.log_end),
                ),
                None => self.group.confirmed().or_else(|why| {
                    unavailable(
                        "ownership_unconfirmed",
                        "The partition may be another instance's by now",
                        format!("partition {partition}: {why}"),
                    )
                }),
            },
        }
    }

    /// A list that misses a partition is no list.
    fn all_usable(&self) -> Result<(), Problem> {
        (0..self.store().partitions()).try_for_each(|partition| self.usable(partition))
    }
}

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Self {
        tracing::error!(%error, "a query could not be answered");
        internal()
    }
}

fn internal() -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "The query could not be answered")
        .detail("see the service's log under this request id")
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], bytes).into_response(),
        Err(error) => unwritable(&error).into_response(),
    }
}

fn unwritable(error: &serde_json::Error) -> Problem {
    tracing::error!(%error, "an answer could not be written");
    internal()
}
