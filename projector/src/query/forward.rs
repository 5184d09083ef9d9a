//! Questions about a partition that is another instance's: handed on to it, once, and its answer handed back. Must
//! never hand on what was handed on already, and never to anyone but a member of our own group.
//!
//! The caller's `Authorization` goes along, after it was found good here: instances of one group share their token.
//! Who may join the group is told addresses by it, and gets the group's data anyway.

use std::net::SocketAddr;
use std::time::Duration;

use axum::RequestExt;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use journal::Owner;
use service::problem::Problem;
use tokio::net::{TcpStream, lookup_host};

use super::{OFFSET, PARTITION, PASSED, REPLAYING_RETRY_SECONDS, Source, SubjectPath, subject_of};

/// Says that a request was handed on.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("witness-forwarded");

/// How long the owner may take, from the question who it is to the last byte of its answer.
const FORWARD_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of a request's body, and of an answer's.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What of a request goes along, and what of an answer comes back.
const REQUEST_HEADERS: [HeaderName; 2] = [AUTHORIZATION, CONTENT_TYPE];
const ANSWER_HEADERS: [HeaderName; 5] = [CONTENT_TYPE, RETRY_AFTER, PARTITION, OFFSET, PASSED];

/// Lets a question about a subject pass where its partition is this instance's, and hands it on where it is not.
pub(super) async fn to_the_subjects_owner(
    State(source): State<Source>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.extract_parts::<SubjectPath>().await;
    // Where the path is wrong, every instance knows it.
    let Ok(subject) = path.map_err(|_| ()).and_then(|path| subject_of(path).map_err(|_| ())) else {
        return next.run(request).await;
    };
    let partition = subject.partition(source.partitions());
    if source.progress.of(partition).is_some() || request.headers().contains_key(FORWARDED) {
        return next.run(request).await;
    }
    match tokio::time::timeout(FORWARD_TIME_MAX, to_the_owner(&source, partition, request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => problem.into_response(),
        Err(_) => unreachable(partition, "its owner does not answer").into_response(),
    }
}

/// Hands a request on to whoever has the partition.
async fn to_the_owner(source: &Source, partition: u32, request: Request) -> Result<Response, Problem> {
    let turn = source.forwards.clone().acquire_owned().await;
    let group = source.group.clone();
    let asked = tokio::task::spawn_blocking(move || group.owner(partition)).await;
    let owner = asked.unwrap_or_else(|error| Err(error.to_string()));
    let owner =
        owner.map_err(|why| unknown(partition, &format!("the group does not say whose it is: {why}")));
    let answer = match owner? {
        Owner::At(address) => forward(&address, request).await.map_err(|why| {
            tracing::warn!(partition, address, why, "a query could not be handed on");
            unreachable(partition, &format!("its owner {address} {why}"))
        }),
        Owner::Ourselves => Err(unknown(partition, "it is being taken over by this instance")),
        Owner::Nobody => Err(unknown(partition, "it is nobody's at this moment")),
    };
    drop(turn);
    answer
}

/// Sends the request there as it is, and answers what is answered.
async fn forward(address: &str, request: Request) -> Result<Response, String> {
    let (parts, body) = request.into_parts();
    let body =
        to_bytes(body, REQUEST_BYTES_MAX).await.map_err(|error| format!("cannot be sent it: {error}"))?;
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut forwarded = hyper::Request::builder().method(parts.method).uri(target);
    for name in REQUEST_HEADERS {
        if let Some(value) = parts.headers.get(&name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let forwarded = forwarded
        .header(HOST, address)
        .header(FORWARDED, HeaderValue::from_static("1"))
        .body(Full::<Bytes>::new(body))
        .map_err(|error| format!("cannot be sent it: {error}"))?;

    let stream = connect(address).await.map_err(|error| format!("cannot be reached: {error}"))?;
    let broken = |error: hyper::Error| format!("does not answer: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let connection = AbortOnDrop(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to another projector ended early");
        }
    }));
    let (head, body) = sender.send_request(forwarded).await.map_err(broken)?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| format!("breaks off its answer: {error}"))?.to_bytes();
    drop(connection);

    let mut response = Response::new(Body::from(body));
    *response.status_mut() = head.status;
    for name in ANSWER_HEADERS {
        if let Some(value) = head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

async fn connect(address: &str) -> std::io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host(address).await?.collect();
    let mut failure = std::io::Error::other("its name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Ends what drives a connection when its question is over, answered or not.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn unknown(partition: u32, why: &str) -> Problem {
    unavailable("partition_moving", "The partition is between two instances", partition, why)
}

fn unreachable(partition: u32, why: &str) -> Problem {
    unavailable("owner_unreachable", "The instance that has the partition does not answer", partition, why)
}

fn unavailable(code: &'static str, title: &'static str, partition: u32, why: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, title)
        .detail(format!("partition {partition}: {why}"))
        .retry_after(REPLAYING_RETRY_SECONDS)
}
