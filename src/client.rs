//! The HTTP client of `send` and `demo`: signs as a provider would, posts, and asks. Must never change a
//! body after it was signed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use schema::Provider;
use schema::signature::Secret;
use serde_json::Value;
use ureq::Agent;

/// How long one request may take; longer than Witness takes to give up on its journal.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Null where the body was no JSON.
    pub(crate) body: Value,
}

impl Answer {
    /// A text at the top of the body.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }
}

/// A client; cheap to share.
pub(crate) struct Client(Agent);

impl Client {
    /// One that reports every status as an answer, and follows no redirect: what was signed for one
    /// address is not carried to another.
    pub(crate) fn new() -> Self {
        Self::with(Agent::config_builder())
    }

    /// One for this machine alone, that no proxy comes between.
    pub(crate) fn local() -> Self {
        Self::with(Agent::config_builder().proxy(None))
    }

    fn with(builder: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>) -> Self {
        let config = builder
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("witness/", env!("CARGO_PKG_VERSION")))
            .build();
        Self(config.new_agent())
    }

    /// Posts `body` as `provider` would, signed with `secret` at `signed_at` (seconds).
    pub(crate) fn deliver(
        &self,
        url: &str,
        provider: Provider,
        secret: &Secret,
        signed_at: i64,
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        self.post(url, provider, provider.contract().sign(secret, signed_at, body), body)
    }

    /// Posts `body` with whatever `signature` headers there are.
    pub(crate) fn post(
        &self,
        url: &str,
        provider: Provider,
        signature: Vec<(&'static str, String)>,
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        let mut request = self.0.post(url).header("Content-Type", content_type(provider));
        for (name, value) in signature {
            request = request.header(name, value);
        }
        let response = request.send(body).with_context(|| format!("cannot post to {url}"))?;
        answer(response, url)
    }

    /// Asks.
    pub(crate) fn get(&self, url: &str) -> anyhow::Result<Answer> {
        let response = self.0.get(url).call().with_context(|| format!("cannot ask {url}"))?;
        answer(response, url)
    }
}

fn answer(mut response: ureq::http::Response<ureq::Body>, url: &str) -> anyhow::Result<Answer> {
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.with_context(|| format!("the answer of {url} broke off"))?;
    let status = response.status().as_u16();
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}

fn content_type(provider: Provider) -> &'static str {
    match provider {
        Provider::YCloud | Provider::Yutai => "application/json",
        // SHOC contract §2.
        Provider::Shoc => "application/json; charset=utf-8",
    }
}

/// The address at which this machine reaches a service that listens on `listen`.
pub(crate) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, listen.port())
}
