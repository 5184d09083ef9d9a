//! A client for the projector's tests that shows all of an answer. Must never follow, retry or repair
//! anything.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a module of several test binaries, and a test stops at the first surprise"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value as Json;

/// An answer: status, headers in lower case, body.
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Status and code of a problem, whose other members are checked.
    pub fn code(&self) -> (u16, String) {
        let body = self.json();
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(body["status"], self.status);
        assert_eq!(body["type"], format!("urn:witness:problem:{}", body["code"].as_str().expect("a code")));
        assert_eq!(
            body["instance"],
            format!("urn:uuid:{}", self.header("x-request-id").expect("a request id"))
        );
        (self.status, body["code"].as_str().expect("a code").to_owned())
    }
}

/// One request on a connection of its own; `headers` are lines, each with its `\r\n`.
pub fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    request_with(address, method, path, headers, "")
}

/// As [`request`], with a body, whose length is one of the headers.
pub fn request_with(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n{body}")
        .expect("sends");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("receives");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status").parse().expect("a number");
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    Answer { status, headers: headers.collect(), body: body.to_owned() }
}
