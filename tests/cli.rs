//! The built program as a person uses it: the demo, a service that is sent to, asked, stopped and started
//! again. Must never look inside the program.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::Installation;
use serde_json::{Value, json};
use tempfile::TempDir;

const EVENT: &str = r#"{"id":"evt-cli-1","type":"whatsapp.message.updated","createTime":"2026-03-01T10:00:00.000Z","whatsappMessage":{"id":"m-cli-1","status":"read","updateTime":"2026-03-01T10:00:00.500Z"}}
"#;

fn witness(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_witness"));
    command
        .args(arguments)
        .current_dir(folder)
        .env("TMPDIR", folder)
        .env_remove("NO_COLOR")
        .env_remove("RUST_LOG");
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    witness(arguments, folder).output().expect("witness runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("the folder").next().is_none()
}

#[test]
fn the_demo_holds() {
    let folder = TempDir::new().expect("a folder");
    let output = run(&["demo", "--json"], folder.path());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let story: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(story["as_demanded"], true);

    let steps = |chapter: usize| story["chapters"][chapter]["steps"].as_array().expect("steps").clone();
    let statuses = |chapter: usize| -> Vec<u64> {
        steps(chapter).iter().map(|step| step["status"].as_u64().expect("a status")).collect()
    };
    assert_eq!(story["chapters"].as_array().expect("chapters").len(), 5);
    assert_eq!(statuses(0), [200; 7]);
    assert_eq!(statuses(1), [401, 401, 401, 404]);
    assert_eq!(statuses(2), [200, 200, 200, 200, 200, 200, 200, 422, 200]);
    assert_eq!(statuses(3), [200; 4]);
    assert_eq!(statuses(4), [200; 4]);

    let message = &steps(0)[6]["answer"];
    assert_eq!(message["certainty"], "settled");
    assert_eq!(message["status"], "delivered");
    assert_eq!(message["value"]["text"]["body"], "Your table for four is booked for 19:30.");
    assert_eq!(message["as_of"], "2026-07-16T09:00:04.000000Z");
    assert_eq!(message["basis"]["event_id"], "evt-2");
    assert_eq!(message["meta"]["observations"], json!({"total": 5, "new": 3, "duplicate": 1, "conflict": 1}));
    assert_eq!(steps(2)[1]["answer"]["certainty"], "skeleton");
    assert_eq!(steps(2)[8]["answer"]["value"]["wo_status"], "awaiting_parts");
    let link = &steps(3)[3]["answer"];
    assert_eq!(
        (&link["certainty"], &link["value"], &link["needs_refresh"]),
        (&json!("contested"), &Value::Null, &json!(true))
    );
    assert_eq!(link["contenders"]["total"], 2);

    // A caller must not learn from the answer which of the checks failed.
    let refusal = |step: &Value| {
        let mut answer = step["answer"].clone();
        answer.as_object_mut().expect("a problem").remove("instance").expect("an instance");
        answer
    };
    let refusals: Vec<Value> = steps(1)[..3].iter().map(refusal).collect();
    assert_eq!(refusals[0]["code"], "invalid_signature");
    assert_eq!((&refusals[0], &refusals[0]), (&refusals[1], &refusals[2]));

    assert!(is_empty(folder.path()), "the demo left something behind");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn the_demo_is_plain_in_a_pipe_and_coloured_where_that_is_wanted() {
    let folder = TempDir::new().expect("a folder");
    let output = run(&["demo"], folder.path());
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert!(!story.contains('\u{1b}'), "an escape code in a pipe");
    for sentence in [
        "message msg-7f3a is delivered (settled).",
        "the observation id of the answer before: nothing was written",
        "message msg-0bad: 404 (unknown_subject).",
        "work_order 11144580730 is known to exist, and no more (skeleton).",
        "The provider's own word for it is \"awaiting_parts\", kept as it came.",
        "bank_link customer-4471 has no answer (contested).",
        "Every answer was what the providers' contracts demand.",
    ] {
        assert!(story.contains(sentence), "{sentence:?} is missing in:\n{story}");
    }
    assert!(!story.contains('✗'));
    let widest =
        story.lines().filter(|line| !line.contains("/witness ")).map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|columns| columns <= 100), "{widest:?} columns");

    let coloured =
        witness(&["demo"], folder.path()).env("CLICOLOR_FORCE", "1").output().expect("witness runs");
    assert!(text(&coloured.stdout).contains('\u{1b}'));
    assert!(is_empty(folder.path()), "the demo left something behind");
}

#[test]
fn the_demo_stays_up_when_asked_to() {
    let folder = TempDir::new().expect("a folder");
    let mut demo =
        witness(&["demo", "--keep"], folder.path()).stdout(Stdio::piped()).spawn().expect("witness runs");
    let mut lines =
        BufReader::new(demo.stdout.take().expect("its output")).lines().map(|line| line.expect("text"));
    let question = lines.find(|line| line.starts_with("  curl -s http")).expect("a question to ask");
    let send = lines.find(|line| line.contains(" send --endpoint ")).expect("something to send");

    let url = question.rsplit(' ').next().expect("a URL");
    let mut answer = ureq::get(url).call().expect("an answer");
    let answer: Value =
        serde_json::from_str(&answer.body_mut().read_to_string().expect("text")).expect("JSON");
    assert_eq!(answer["status"], "delivered");

    let mut words = send.split_whitespace();
    assert_eq!(words.next(), Some(env!("CARGO_BIN_EXE_witness")));
    let sent = run(&words.collect::<Vec<_>>(), folder.path());
    assert_eq!(sent.status.code(), Some(0), "{}", text(&sent.stderr));
    assert!(text(&sent.stdout).contains("ycloud.json  200  "), "{}", text(&sent.stdout));

    let signal = Command::new("kill").arg("-INT").arg(demo.id().to_string()).status().expect("kill runs");
    assert!(signal.success());
    assert_eq!(demo.wait().expect("its end").code(), Some(0));
    assert!(is_empty(folder.path()), "the demo left something behind");
}

#[test]
fn up_send_ask_and_start_again() {
    let installation = Installation::new();
    let folder = installation.path();
    fs::write(folder.join("event.json"), EVENT).expect("written");
    fs::write(folder.join("array.json"), "[]").expect("written");
    let subject = "/v1/subjects/acme/ycloud/message/m-cli-1";

    let service = installation.start("store");
    let sent = run(&["send", "--endpoint", "ycloud-main", "event.json", "array.json"], folder);
    assert_eq!(sent.status.code(), Some(1), "one was refused");
    let words = text(&sent.stdout);
    let lines: Vec<&str> = words.lines().collect();
    assert_eq!(lines.len(), 2, "{words}");
    let observation_id = lines[0].strip_prefix("event.json  200  ").expect("accepted");
    assert!(lines[1].starts_with("array.json  400  not_an_object  "), "{words}");

    let history = until(|| {
        let answer = service.client.get(&format!("{subject}/history?body=true"));
        (answer.status == 200).then(|| answer.json())
    });
    let entry = &history["items"][0];
    assert_eq!(entry["observation_id"], observation_id);
    assert_eq!(
        (&entry["event_id"], &entry["inbox"], &entry["outcome"]),
        (&json!("evt-cli-1"), &json!("new"), &json!("applied"))
    );
    let before = service.client.get(subject);
    assert_eq!((&before.json()["status"], &before.json()["certainty"]), (&json!("read"), &json!("settled")));
    service.stop();

    // The same folder, a new process: everything is there, and a repeat is known as one.
    let service = installation.start("store");
    assert_eq!(service.client.get(subject).text, before.text);
    let mut child = witness(&["send", "--json", "--endpoint", "ycloud-main", "-"], folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("witness runs");
    child.stdin.take().expect("its input").write_all(EVENT.as_bytes()).expect("written");
    let sent = child.wait_with_output().expect("its end");
    assert_eq!(sent.status.code(), Some(0));
    let answer: Value = serde_json::from_slice(&sent.stdout).expect("one JSON object");
    assert_eq!(
        (&answer["file"], &answer["status"], &answer["code"]),
        (&json!("-"), &json!(200), &Value::Null)
    );
    let history = until(|| {
        let history = service.client.get(&format!("{subject}/history")).json();
        (history["items"].as_array()?.len() == 2).then_some(history)
    });
    assert_eq!(
        (&history["items"][1]["inbox"], &history["items"][1]["outcome"]),
        (&json!("duplicate"), &json!("not_run"))
    );
    service.stop();
}

#[test]
fn send_signs_as_each_provider_and_is_refused_with_another_secret() {
    let installation = Installation::new();
    let folder = installation.path();
    let service = installation.start("store");
    let work_order = json!({
        "schema_version": 1, "delivery_id": "d-cli-1", "event_type": "work_order.created", "replay": false,
        "data": { "work_order_id": "wo-cli-1", "wo_status": "new", "updated_at": "2026-03-01T10:00:00+01:00" },
    });
    let link =
        json!({ "eventId": "y-cli-1", "kind": "connect_linked", "payload": { "external_ref": "c-1" } });
    fs::write(folder.join("shoc.json"), work_order.to_string()).expect("written");
    fs::write(folder.join("yutai.json"), link.to_string()).expect("written");
    for (endpoint, file) in [("shoc-main", "shoc.json"), ("yutai-main", "yutai.json")] {
        let sent = run(&["send", "--json", "--endpoint", endpoint, file], folder);
        assert_eq!(sent.status.code(), Some(0), "{endpoint}: {}", text(&sent.stdout));
    }

    // The first key of the document signs: put before the known one, an unknown one is refused.
    let good = fs::read_to_string(folder.join("shoc-main")).expect("the key document");
    let other = good.replacen("[{", r#"[{"kid":"other","secret":"not-known-there"},{"#, 1);
    fs::write(folder.join("other.keys"), other).expect("written");
    fs::write(folder.join("other.secret"), "not the secret").expect("written");
    let url = format!("http://{}", listen(folder));
    let config = fs::read_to_string(folder.join("witness.toml")).expect("the configuration");
    let config = config.replace("/shoc-main\"", "/other.keys\"").replace("/yutai-main\"", "/other.secret\"");
    fs::write(folder.join("other.toml"), config).expect("written");
    let arguments = ["send", "--json", "--config", "other.toml", "--url", &url, "--endpoint"];
    let sent = run(&[&arguments[..], &["yutai-main", "yutai.json"]].concat(), folder);
    assert_eq!(sent.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&sent.stdout).expect("one JSON object");
    assert_eq!(
        (&answer["status"], &answer["code"], &answer["retryable"]),
        (&json!(401), &json!("invalid_signature"), &json!(false))
    );
    let sent = run(&[&arguments[..], &["shoc-main", "shoc.json"]].concat(), folder);
    assert_eq!(sent.status.code(), Some(1), "{}", text(&sent.stdout));
    service.stop();

    let sent = run(&["send", "--endpoint", "yutai-main", "yutai.json"], folder);
    assert_eq!(sent.status.code(), Some(1), "nobody listens any more");
    assert!(text(&sent.stdout).starts_with("yutai.json  not sent: cannot post to http://127.0.0.1:"));
}

#[test]
fn an_address_that_is_taken_is_a_failure() {
    let folder = TempDir::new().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    fs::write(folder.path().join("secret"), "s").expect("written");
    let config = format!(
        "[ingress]\nlisten = \"{address}\"\n[[endpoint]]\nid = \"y\"\nprovider = \"yutai\"\ntenant = \"t\"\nsecrets = [\"file:secret\"]\n"
    );
    fs::write(folder.path().join("witness.toml"), config).expect("written");
    let output = run(&["up"], folder.path());
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains(&format!("cannot listen on {address} (`ingress.listen`)")), "{message}");
}

/// The ingress's address in an installation's configuration.
fn listen(folder: &Path) -> String {
    let config = fs::read_to_string(folder.join("witness.toml")).expect("the configuration");
    let line = config.lines().find_map(|line| line.strip_prefix("listen = \"")).expect("an address");
    line.trim_end_matches('"').to_owned()
}

/// Asks until there is an answer.
fn until<T>(ask: impl Fn() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no answer in time");
}
