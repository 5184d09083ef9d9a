//! A schema registry in this process, as far as Witness asks one: subjects, versions, ids. Ids are global, as in
//! Confluent's. Must never accept what a real one would refuse for want of a right.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

/// A running registry.
#[derive(Clone, Default)]
pub(crate) struct Mock(Arc<Mutex<Contents>>);

#[derive(Default)]
pub(crate) struct Contents {
    /// The text with id `n` is the `n`-th from one.
    pub(crate) schemas: Vec<String>,
    /// Subject and id, as registered.
    pub(crate) versions: Vec<(String, usize)>,
    /// Method and path of every request.
    pub(crate) requests: Vec<String>,
    /// The `Authorization` that every request must have.
    pub(crate) authorization: Option<String>,
}

impl Mock {
    /// Starts to answer, until the process ends. Where it is reached comes beside it.
    pub(crate) fn start() -> (Self, String) {
        let mock = Self::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let router = mock.router();
        std::thread::spawn(move || serve(listener, router));
        (mock, format!("http://{address}"))
    }

    pub(crate) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().expect("no request panicked")
    }

    /// Registers a schema, as somebody else would; answers its id.
    pub(crate) fn add(&self, subject: &str, schema: &str) -> u32 {
        let mut contents = self.contents();
        let id = contents.id_of(schema).unwrap_or_else(|| {
            contents.schemas.push(schema.to_owned());
            contents.schemas.len()
        });
        if !contents.versions.contains(&(subject.to_owned(), id)) {
            contents.versions.push((subject.to_owned(), id));
        }
        id as u32
    }

    fn router(&self) -> Router {
        Router::new()
            .route("/subjects/{subject}", post(look_up))
            .route("/subjects/{subject}/versions", post(register))
            .route("/schemas/ids/{id}", get(schema))
            .layer(from_fn_with_state(self.clone(), guard))
            .with_state(self.clone())
    }
}

impl Contents {
    fn id_of(&self, schema: &str) -> Option<usize> {
        self.schemas.iter().position(|known| known == schema).map(|index| index + 1)
    }
}

fn serve(listener: std::net::TcpListener, router: Router) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        listener.set_nonblocking(true).expect("settable");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        axum::serve(listener, router).await.expect("serves");
    });
}

async fn guard(State(mock): State<Mock>, request: Request, next: Next) -> Response {
    let is_let_in = {
        let mut contents = mock.contents();
        contents.requests.push(format!("{} {}", request.method(), request.uri().path()));
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        contents.authorization.is_none() || contents.authorization.as_deref() == given
    };
    if is_let_in { next.run(request).await } else { error(StatusCode::UNAUTHORIZED, 40101, "Unauthorized") }
}

async fn look_up(State(mock): State<Mock>, Path(subject): Path<String>, Json(body): Json<Value>) -> Response {
    let contents = mock.contents();
    let id = body["schema"].as_str().and_then(|schema| contents.id_of(schema));
    match id.filter(|id| contents.versions.contains(&(subject.clone(), *id))) {
        Some(id) => Json(json!({ "subject": subject, "id": id, "version": 1, "schema": body["schema"] }))
            .into_response(),
        None => error(StatusCode::NOT_FOUND, 40403, "Schema not found"),
    }
}

async fn register(
    State(mock): State<Mock>,
    Path(subject): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    match body["schema"].as_str() {
        Some(schema) => Json(json!({ "id": mock.add(&subject, schema) })).into_response(),
        None => error(StatusCode::UNPROCESSABLE_ENTITY, 42201, "Invalid schema"),
    }
}

async fn schema(State(mock): State<Mock>, Path(id): Path<usize>) -> Response {
    let contents = mock.contents();
    match id.checked_sub(1).and_then(|index| contents.schemas.get(index)) {
        Some(schema) => Json(json!({ "schema": schema })).into_response(),
        None => error(StatusCode::NOT_FOUND, 40403, "Schema not found"),
    }
}

fn error(status: StatusCode, code: u32, message: &str) -> Response {
    (status, Json(json!({ "error_code": code, "message": message }))).into_response()
}
