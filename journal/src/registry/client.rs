//! The HTTP of a schema registry (Confluent's API, which others speak too). Must never put credentials into a
//! message, and never carry them to another address.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use thiserror::Error;
use ureq::Agent;

/// How long one request may take. The projector's thread waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;
const CONTENT_TYPE: &str = "application/vnd.schemaregistry.v1+json";

/// Where the registry is, and who asks.
#[derive(Clone)]
pub struct RegistryConfig {
    url: String,
    authorization: Option<String>,
}

/// Shows everything but the credentials.
impl fmt::Debug for RegistryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorization = self.authorization.as_ref().map(|_| "******");
        f.debug_struct("RegistryConfig")
            .field("url", &self.url)
            .field("authorization", &authorization)
            .finish()
    }
}

impl RegistryConfig {
    /// The registry at `url`, to which `/subjects` can be added. The reason for a refusal never holds the URL:
    /// a password may stand in it by mistake.
    pub fn new(url: &str) -> Result<Self, &'static str> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let Some(rest) = rest.filter(|rest| !rest.is_empty() && !rest.starts_with('/')) else {
            return Err(
                "must be http://host:port or https://host:port, with a path where the registry has one",
            );
        };
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.contains('@') {
            return Err("must not hold a user or password; they belong into `journal.schema_registry_auth`");
        }
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['?', '#']) {
            return Err("must be a URL without query, in ASCII and without spaces");
        }
        Ok(Self { url: url.trim_end_matches('/').to_owned(), authorization: None })
    }

    /// The same, asked as `user:password`.
    pub fn with_credentials(mut self, credentials: &str) -> Self {
        self.authorization = Some(format!("Basic {}", BASE64_STANDARD.encode(credentials)));
        self
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Why the registry did not answer what it was asked.
#[derive(Debug, Error)]
pub enum Error {
    /// It cannot be reached now, or cannot answer now.
    #[error("the schema registry at {url} cannot be asked: {reason}")]
    Unreachable {
        /// Where it is.
        url: String,
        /// What happened.
        reason: String,
    },
    /// It answered, and will not answer otherwise until something is changed.
    #[error("the schema registry at {url} refused {what}: {status} {reason}")]
    Refused {
        /// Where it is.
        url: String,
        /// What was asked.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The registry's own words.
        reason: String,
    },
}

/// Asks one registry; blocking.
pub(super) struct Client {
    agent: Agent,
    config: RegistryConfig,
}

struct Answer {
    status: u16,
    body: Value,
}

impl Client {
    pub(super) fn new(config: RegistryConfig) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("witness/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Self { agent, config }
    }

    /// The id of a schema under a subject; registers it where it is not known yet. Asked for first, because
    /// not everyone who may read may also register.
    pub(super) fn id(&self, subject: &str, schema: &str) -> Result<u32, Error> {
        let path = format!("/subjects/{subject}");
        let found = self.post(&path, schema)?;
        let answer =
            if found.status == 404 { self.post(&format!("{path}/versions"), schema)? } else { found };
        let id = answer.body.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        id.filter(|_| answer.status == 200)
            .ok_or_else(|| self.error(format!("the schema of {subject}"), &answer))
    }

    /// The schema that has an id; `None` where none has it.
    pub(super) fn schema(&self, id: u32) -> Result<Option<String>, Error> {
        let mut request = self.agent.get(format!("{}/schemas/ids/{id}", self.config.url));
        if let Some(authorization) = &self.config.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = self.answer(request.header("Accept", CONTENT_TYPE).call())?;
        if answer.status == 404 {
            return Ok(None);
        }
        let schema = answer.body.get("schema").and_then(Value::as_str).filter(|_| answer.status == 200);
        schema
            .map(|schema| Some(schema.to_owned()))
            .ok_or_else(|| self.error(format!("the schema with id {id}"), &answer))
    }

    fn post(&self, path: &str, schema: &str) -> Result<Answer, Error> {
        let mut request = self.agent.post(format!("{}{path}", self.config.url));
        if let Some(authorization) = &self.config.authorization {
            request = request.header("Authorization", authorization);
        }
        let request = request.header("Content-Type", CONTENT_TYPE).header("Accept", CONTENT_TYPE);
        self.answer(request.send(json!({ "schema": schema }).to_string()))
    }

    fn answer(
        &self,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Answer, Error> {
        let mut response = response.map_err(|error| self.unreachable(error))?;
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| self.unreachable(error))?;
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Ok(Answer { status: response.status().as_u16(), body })
    }

    fn unreachable(&self, reason: impl fmt::Display) -> Error {
        Error::Unreachable { url: self.config.url.clone(), reason: reason.to_string() }
    }

    fn error(&self, what: String, answer: &Answer) -> Error {
        let said = answer.body.get("message").and_then(Value::as_str);
        let reason = said.unwrap_or("without the answer that such a registry gives").to_owned();
        let (url, status) = (self.config.url.clone(), answer.status);
        match status {
            429 | 500.. => Error::Unreachable { url, reason: format!("{status} {reason}") },
            _ => Error::Refused { url, what, status, reason },
        }
    }
}
