//! The HTTP server of both services: HTTP/1.1, bounded times, a drain at the end. Must never drop a
//! request it has begun to answer when asked to stop, unless the drain's own bound is over.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::problem::{Problem, RequestIds, finish};

/// How long a client may take to send its headers.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests that are being answered may take once the service is asked to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds what every service has: `/metrics`, `/health/live`, a problem for what is not there, and the
/// request id on every answer. `routes` brings `/health/ready` itself.
pub fn complete(routes: Router, ids: RequestIds, metrics: PrometheusHandle) -> Router {
    let text = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    routes
        .route("/metrics", get(async move || (text, metrics.render())))
        .route("/health/live", get(async || axum::Json(serde_json::json!({"live": true}))))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::method_not_allowed("GET, HEAD"))
        .layer(axum::middleware::from_fn_with_state(ids, finish))
}

/// What `/health/ready` answers: 200, or 503 with what is wrong.
pub fn readiness(problems: &[String]) -> axum::response::Response {
    if problems.is_empty() {
        axum::Json(serde_json::json!({"ready": true})).into_response()
    } else {
        Problem::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "not_ready", "The service is not ready")
            .detail(problems.join("; "))
            .retry_after(1)
            .into_response()
    }
}

/// Serves until `shutdown` resolves, then lets what is being answered finish.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, or a client that was gone already: neither is a reason to end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // An answer is small and complete: waiting to fill a packet only delays it.
        drop(stream.set_nodelay(true));
        let router = router.clone();
        let service = tower::service_fn(move |request: hyper::Request<Incoming>| {
            let router = router.clone();
            async move {
                Ok::<_, Infallible>(router.oneshot(request.map(axum::body::Body::new)).await.into_response())
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!(
            seconds = DRAIN_TIMEOUT.as_secs(),
            "requests were still unanswered when the drain ended"
        );
    }
}
