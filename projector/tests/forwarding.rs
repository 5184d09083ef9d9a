//! Questions that reach an instance which cannot answer them itself. Must never ask a real group: who has what is
//! decided by the test.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod http;
mod log;
mod running;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;

use journal::Owner;
use running::Running;
use schema::{Provider, Subject};
use tempfile::TempDir;

use http::request;
use log::{Log, Partition};

const TOKEN: &str = "Authorization: Bearer letmein\r\n";

/// A subject of that partition of two, which nobody ever heard of.
fn path(partition: u32) -> String {
    let partitions = NonZeroU32::new(2).expect("more than none");
    let subject = |number: u32| Subject {
        tenant: "acme".to_owned(),
        provider: Provider::Shoc,
        kind: "work_order".to_owned(),
        id: format!("unheard of/{number}"),
    };
    let found = (0..).map(subject).find(|subject| subject.partition(partitions) == partition);
    format!("/v1/subjects/{}", found.expect("one of many").key())
}

/// An instance that has one partition of two.
struct Instance {
    log: Log,
    running: Running,
    other: u32,
    _store: TempDir,
}

impl Instance {
    fn start(partition: u32) -> Self {
        let (log, store, other) =
            (Log::new(&vec![Partition::default(); 2]), TempDir::new().expect("a folder"), 1 - partition);
        log.change(|state| drop(state.elsewhere.insert(other, Owner::Nobody)));
        let running = Running::start_with(store.path(), &log, |config| {
            config.token = Some("letmein".to_owned());
        });
        running.until_ready();
        Self { log, running, other, _store: store }
    }

    fn other_is_at(&self, address: impl ToString) {
        let owner = Owner::At(address.to_string());
        self.log.change(|state| drop(state.elsewhere.insert(self.other, owner)));
    }

    fn get(&self, path: &str, headers: &str) -> http::Answer {
        request(self.running.address, "GET", path, headers)
    }
}

/// Somebody who accepts one connection, reads a request's head, and answers what it is told, or nothing.
fn somebody(answer: Option<&'static str>) -> (SocketAddr, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound");
    let serve = move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        match answer {
            Some(answer) => stream.write_all(answer.as_bytes()).expect("is heard"),
            // Until the other side gives up.
            None => drop(stream.read(&mut byte)),
        }
        String::from_utf8(head).expect("text")
    };
    (address, std::thread::spawn(serve))
}

#[test]
fn either_instance_answers_for_both_partitions() {
    let (one, two) = (Instance::start(0), Instance::start(1));
    one.other_is_at(two.running.address);
    two.other_is_at(one.running.address);
    for partition in 0..2 {
        for part in ["", "/history?limit=1", "/facts"] {
            let path = path(partition) + part;
            let answers = [&one, &two].map(|instance| instance.get(&path, TOKEN));
            for answer in &answers {
                assert_eq!(answer.status, 404, "{}", answer.body);
                assert_eq!(answer.json()["code"], "unknown_subject");
                assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            }
            assert_eq!(answers[0].json()["detail"], answers[1].json()["detail"]);
            assert_ne!(answers[0].header("x-request-id"), answers[1].header("x-request-id"));
        }
        let wrong = format!("{}?nonsense=1", path(partition));
        assert_eq!([&one, &two].map(|instance| instance.get(&wrong, TOKEN).status), [400, 400]);
    }
    assert_eq!(one.get(&path(1), "").status, 401, "who may not ask here is not sent on");
    one.running.stop();
    two.running.stop();
}

#[test]
fn the_question_goes_on_as_it_came_and_the_answer_comes_back_as_it_was_given() {
    let one = Instance::start(0);
    let (address, served) = somebody(Some(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nWitness-Partition: 1\r\nWitness-Offset: 77\r\n\
         X-Request-Id: another\r\nServer: other\r\nContent-Length: 12\r\n\r\n{\"this\":\"1\"}",
    ));
    one.other_is_at(address);
    let target = format!("{}/history?limit=2&body=true", path(1));
    let answer = one.get(&target, TOKEN);
    let head = served.join().expect("it served");
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some(format!("GET {target} HTTP/1.1").as_str()));
    let mut lines = lines.filter(|line| !line.is_empty()).map(str::to_lowercase).collect::<Vec<_>>();
    lines.sort();
    assert_eq!(
        lines,
        [
            "authorization: bearer letmein".to_owned(),
            format!("host: {address}"),
            "witness-forwarded: 1".to_owned()
        ]
    );
    assert_eq!((answer.status, answer.body.as_str()), (200, "{\"this\":\"1\"}"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("witness-partition"), Some("1"));
    assert_eq!(answer.header("witness-offset"), Some("77"));
    assert_ne!(answer.header("x-request-id"), Some("another"));
    assert_eq!(answer.header("server"), None);
    one.running.stop();
}

#[test]
fn a_question_is_handed_on_once() {
    let (one, two) = (Instance::start(0), Instance::start(0));
    one.other_is_at(two.running.address);
    two.other_is_at(one.running.address);
    let answer = one.get(&path(1), TOKEN);
    assert_eq!((answer.status, answer.json()["code"].as_str()), (503, Some("not_caught_up")));
    assert_eq!(answer.header("retry-after"), Some("1"));
    one.running.stop();
    two.running.stop();
}

#[test]
fn nobody_to_ask_is_503() {
    let one = Instance::start(0);
    let code = || {
        let answer = one.get(&path(1), TOKEN);
        assert_eq!(answer.header("retry-after"), Some("1"));
        answer.code()
    };
    assert_eq!(code(), (503, "partition_moving".to_owned()));
    let gone =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address");
    one.other_is_at(gone);
    assert_eq!(code(), (503, "owner_unreachable".to_owned()));
    let (silent, served) = somebody(None);
    one.other_is_at(silent);
    assert_eq!(code(), (503, "owner_unreachable".to_owned()));
    served.join().expect("it was left");
    assert_eq!(one.get(&path(0), TOKEN).status, 404, "its own are answered all the while");
    one.running.stop();
}

#[test]
fn an_owner_that_the_group_does_not_confirm_answers_nothing() {
    let one = Instance::start(0);
    assert_eq!(one.get(&path(0), TOKEN).status, 404);
    one.log.change(|state| state.unconfirmed = Some("silence for 12 s".to_owned()));
    let answer = one.get(&path(0), TOKEN);
    assert_eq!(answer.code(), (503, "ownership_unconfirmed".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("1"));
    let ready = one.get("/health/ready", "");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("silence for 12 s"), "{}", ready.body);
    one.log.change(|state| state.unconfirmed = None);
    assert_eq!(one.get(&path(0), TOKEN).status, 404);
    one.running.stop();
}

#[test]
fn a_reader_that_has_ended_ends_the_projector() {
    let one = Instance::start(0);
    let why = "another process has our name";
    one.log.change(|state| state.problem = Some(journal::ReadError::Ended(why.to_owned())));
    let failure = one.running.failure();
    assert!(failure.ends_with(why), "{failure}");
}
