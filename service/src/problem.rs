//! Errors as RFC 9457 problems, and the request id on every answer. Must never put anything into a
//! problem that the caller did not already know: no secret, no signature, no body, no file of ours.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use uuid::Uuid;

use crate::clock::Clock;
use crate::ids::Ids;

/// The header that names a request in its answer and in the logs.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// An error as a caller sees it. Its `type` is `urn:witness:problem:` and the code, its `instance` the
/// request id as a URN; the route that every answer passes ([`finish`]) writes both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status; the body repeats it and never contradicts it.
    pub status: StatusCode,
    /// What happened, for programs; stable.
    pub code: &'static str,
    /// What happened, for people; the same for every problem of this code.
    pub title: &'static str,
    /// What was wrong with this request, and what to do.
    pub detail: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Seconds to wait before trying again.
    pub retry_after_seconds: Option<u64>,
    /// One more header that the status demands, its name in lower case (`allow`, `www-authenticate`).
    pub header: Option<(&'static str, &'static str)>,
}

impl Problem {
    /// A problem that trying again does not mend.
    pub fn new(status: StatusCode, code: &'static str, title: &'static str) -> Self {
        Self { status, code, title, detail: None, retryable: false, retry_after_seconds: None, header: None }
    }

    /// With what was wrong with this request.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    /// Worth trying again after that many seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retryable: true, retry_after_seconds: Some(seconds), ..self }
    }

    /// With one more header.
    #[must_use]
    pub fn header(self, name: &'static str, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    /// The problem of a path that leads nowhere.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "There is nothing at this path")
    }

    /// The problem of a method that a path does not have.
    pub fn method_not_allowed(allowed: &'static str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This path has no such method")
            .header("allow", allowed)
    }

    fn body(&self, request_id: Uuid) -> String {
        let mut body = json!({
            "type": format!("urn:witness:problem:{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "instance": format!("urn:uuid:{request_id}"),
            "code": self.code,
            "retryable": self.retryable,
        });
        if let (Some(detail), Some(body)) = (&self.detail, body.as_object_mut()) {
            body.insert("detail".to_owned(), detail.clone().into());
        }
        body.to_string()
    }
}

impl IntoResponse for Problem {
    /// Carries the problem as an extension: [`finish`] knows the request id and writes the body.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// The request id, as handlers find it among the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct RequestId(pub Uuid);

/// What [`finish`] makes request ids from.
#[derive(Clone)]
pub struct RequestIds {
    /// The time in them.
    pub clock: Arc<dyn Clock>,
    /// The rest of them.
    pub ids: Arc<dyn Ids>,
}

/// The outermost layer of both services: gives the request an id, which no client can choose, writes it
/// on the answer, and writes problems out.
pub async fn finish(State(source): State<RequestIds>, mut request: Request, next: Next) -> Response {
    let request_id = source.ids.uuid_v7(source.clock.now());
    request.extensions_mut().insert(RequestId(request_id));
    let mut response = next.run(request).await;
    if let Some(problem) = response.extensions_mut().remove::<Arc<Problem>>() {
        *response.body_mut() = problem.body(request_id).into();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = problem.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some((name, value)) = problem.header {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
    if let Ok(value) = HeaderValue::try_from(request_id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
