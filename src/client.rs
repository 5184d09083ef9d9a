//! The HTTP client of the commands: signs as a provider would, posts, and asks. Must never change a
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
/// How long one may take whose answer is made of everything there is.
const PATIENCE: Duration = Duration::from_secs(3_600);
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

    /// One for answers that take as long as reading everything.
    pub(crate) fn patient(is_local: bool) -> Self {
        let builder = Agent::config_builder().timeout_global(Some(PATIENCE));
        Self::build(if is_local { builder.proxy(None) } else { builder })
    }

    fn with(builder: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>) -> Self {
        Self::build(builder.timeout_global(Some(TIMEOUT)))
    }

    fn build(builder: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>) -> Self {
        let config = builder
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
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
        self.get_as(url, None)
    }

    /// Asks as who has the token.
    pub(crate) fn get_as(&self, url: &str, token: Option<&str>) -> anyhow::Result<Answer> {
        let mut request = self.0.get(url);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        answer(request.call().with_context(|| format!("cannot ask {url}"))?, url)
    }

    /// Asks for something to be done, as who has the token.
    pub(crate) fn post_as(&self, url: &str, token: Option<&str>) -> anyhow::Result<Answer> {
        let mut request = self.0.post(url);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        answer(request.send_empty().with_context(|| format!("cannot ask {url}"))?, url)
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

/// Whether a URL is of this machine: a proxy never stands between a machine and itself.
pub(crate) fn is_loopback(url: &str) -> bool {
    ["http://127.", "http://[::1]", "http://localhost"].iter().any(|start| url.starts_with(start))
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
