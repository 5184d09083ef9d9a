//! A projector on a log in memory, with its HTTP. Must never sleep in the hope that something has happened by
//! then: it waits for what it expects to see.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "a module of several test binaries, and a test stops at the first surprise"
)]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use projector::Config;
use serde_json::Value as Json;
use service::clock::SystemClock;
use service::ids::RandomIds;
use service::problem::RequestIds;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::http::{Answer, request, request_with};
use crate::log::Log;

/// How long a test waits for what it expects.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// All tests of this program share one recorder: there is one of a process.
pub fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || PrometheusBuilder::new().install_recorder().expect("the first");
    HANDLE.get_or_init(install).clone()
}

/// A projector on a log, and a runtime of its own.
pub struct Running {
    runtime: Runtime,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    pub task: tokio::task::JoinHandle<Result<(), projector::Error>>,
}

impl Running {
    pub fn start(store: &Path, log: &Log) -> Self {
        Self::start_with(store, log, |_| {})
    }

    pub fn start_with(store: &Path, log: &Log, change: impl FnOnce(&mut Config)) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("binds");
        let address = listener.local_addr().expect("bound");
        let partitions = log.0.0.lock().expect("not poisoned").partitions.len() as u32;
        let mut config = Config::new(store, NonZeroU32::new(partitions).expect("at least one"));
        config.publish = true;
        change(&mut config);
        let ids = RequestIds { clock: Arc::new(SystemClock), ids: Arc::new(RandomIds) };
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(projector::run(config, listener, log.journal(), ids, metrics(), async {
            drop(stopped.await);
        }));
        Self { runtime, address, stop: Some(stop), task }
    }

    pub fn get(&self, path: &str) -> Answer {
        request(self.address, "GET", path, "")
    }

    /// Asks for something to be done, with a body of JSON.
    pub fn post(&self, path: &str, body: &Json) -> Answer {
        let body = body.to_string();
        let headers = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        request_with(self.address, "POST", path, &headers, &body)
    }

    /// Asks again until the answer is what the test waits for.
    pub fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let started = Instant::now();
        loop {
            let answer = self.get(path);
            if holds(&answer) {
                return answer;
            }
            assert!(started.elapsed() < PATIENCE, "{path}: {} {}", answer.status, answer.body);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn until_ready(&self) {
        self.until("/health/ready", |answer| answer.status == 200);
    }

    pub fn stop(mut self) {
        drop(self.stop.take());
        self.runtime.block_on(self.task).expect("no panic").expect("ended well");
    }

    /// Waits for the end that comes by itself.
    pub fn failure(self) -> String {
        self.runtime.block_on(self.task).expect("no panic").expect_err("it cannot run").to_string()
    }
}
