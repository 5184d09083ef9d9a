//! What a person asks of a projector that is running: how it was at a moment, whether it is what the log says,
//! a store derived anew, an attention entry that may rest. Must never look into the store to find out what an
//! answer should have said.

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

use bytes::Bytes;
use journal::Record;
use log::{Log, Partition};
use running::Running;
use schema::{Observation, Provider};
use serde_json::{Value as Json, json};
use support::{comment, message, observe, work_order, yutai};

fn log_of(observations: &[Observation]) -> Log {
    let records = (0..).zip(observations).map(|(offset, observation)| {
        let value = schema::avro::encode(observation).expect("encodes").into();
        Record { offset, key: Bytes::new(), value }
    });
    let end = observations.len() as u64;
    Log::new(&[Partition { start: 0, end, records: records.collect(), committed: None }])
}

/// Journal time of the observation with that number, as a query parameter has it.
fn journal_time(number: u32) -> String {
    format!("2025-10-09T08:53:20.{number:06}Z")
}

fn statuses(history: &Json, name: &str) -> Vec<String> {
    let items = history["items"].as_array().expect("items").iter();
    items.map(|item| item[name].as_str().unwrap_or("null").to_owned()).collect()
}

#[test]
fn a_message_as_it_was_at_a_moment() {
    let tell = |number, event: &str, status: &str, time: Option<&str>| {
        observe(Provider::YCloud, "main", number, message(event, "m", status, time).to_string().as_bytes())
    };
    let log = log_of(&[
        tell(1, "e1", "sent", Some("2026-01-01T10:00:00Z")),
        tell(2, "e3", "read", Some("2026-01-01T12:00:00Z")),
        // Late: it happened between the two, and was told after both.
        tell(3, "e2", "delivered", Some("2026-01-01T11:00:00Z")),
        tell(4, "e4", "failed", None),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    let subject = "/v1/subjects/acme/ycloud/message/m";
    let status = |query: &str| {
        let answer = running.get(&format!("{subject}?{query}"));
        (answer.status, answer.json()["status"].as_str().map(str::to_owned))
    };
    let known = |status: &str| (200, Some(status.to_owned()));
    assert_eq!(status("as_of=2026-01-01T11:30:00Z"), known("delivered"));
    assert_eq!(status(&format!("as_of=2026-01-01T11:30:00Z&known_at={}", journal_time(2))), known("sent"));
    assert_eq!(status(&format!("known_at={}", journal_time(1))), known("sent"));
    assert_eq!(status(&format!("known_at={}", journal_time(3))), known("read"));
    assert_eq!(status("as_of=2026-01-01T10:00:00Z"), known("sent"), "both times are inclusive");
    assert_eq!(running.get(subject).json()["unplaced"]["total"], 1);
    let then = running.get(&format!("{subject}?as_of=2027-01-01T00:00:00Z"));
    assert_eq!(then.json()["unplaced"]["total"], 0, "what has no time is left out");

    let before = running.get(&format!("{subject}?known_at={}", journal_time(0)));
    assert_eq!(before.code(), (404, "not_known_then".to_owned()));
    assert!(before.body.contains(&journal_time(1)), "{}", before.body);
    let earlier = running.get(&format!("{subject}?as_of=2025-12-31T00:00:00Z"));
    assert_eq!(earlier.code(), (404, "not_known_then".to_owned()));
    let passed = |number| {
        let answer = running.get(&format!("{subject}?known_at={}", journal_time(number)));
        answer.header("witness-known-at-passed").map(str::to_owned)
    };
    assert_eq!((passed(3).as_deref(), passed(4).as_deref()), (Some("true"), Some("false")));
    assert_eq!(running.get(subject).header("witness-known-at-passed"), None);

    let history = running.get(&format!("{subject}/history?known_at={}", journal_time(3))).json();
    assert_eq!(statuses(&history, "outcome"), ["applied", "applied", "out_of_order"]);
    let history = running.get(&format!("{subject}/history?as_of=2026-01-01T11:30:00Z&limit=1")).json();
    assert_eq!(statuses(&history, "event_id"), ["e1"]);
    let next = history["next"].as_str().expect("more").to_owned();
    let history = running.get(&format!("{subject}/history?as_of=2026-01-01T11:30:00Z&after={next}")).json();
    assert_eq!(
        (statuses(&history, "event_id"), statuses(&history, "outcome")),
        (vec!["e2".to_owned()], vec!["applied".to_owned()]),
        "as if nothing later had been told"
    );
    for wrong in ["as_of=yesterday", "known_at=2026-01-01T00:00:00", "known_at="] {
        assert_eq!(running.get(&format!("{subject}?{wrong}")).code(), (400, "invalid_parameter".to_owned()));
    }
    running.stop();
}

#[test]
fn a_work_order_and_a_bank_link_as_they_were() {
    let order = |number, delivery: &str, status: &str| {
        let body = work_order(delivery, "7", status, Some("2026-04-01T08:00:00+02:00"), false);
        observe(Provider::Shoc, "shoc", number, body.to_string().as_bytes())
    };
    let link = |number, event: &str, kind: &str| {
        let body = yutai(event, kind, json!({"external_ref": "r"}));
        observe(Provider::Yutai, "yutai", number, body.to_string().as_bytes())
    };
    let note = comment("d0", "7", "c", "hello").to_string();
    let log = log_of(&[
        observe(Provider::Shoc, "shoc", 1, note.as_bytes()),
        order(2, "d1", "new"),
        order(3, "d2", "assigned"),
        link(4, "y1", "connect_linked"),
        link(5, "y2", "connect_revoked"),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    let ask =
        |subject: &str, query: &str| running.get(&format!("/v1/subjects/acme/{subject}?{query}")).json();
    let work_order = "shoc/work_order/7";
    assert_eq!(ask(work_order, "")["status"], "assigned");
    let then = ask(work_order, &format!("known_at={}", journal_time(2)));
    assert_eq!((&then["status"], &then["contenders"]["total"]), (&json!("new"), &json!(0)), "no tie yet");
    assert_eq!(ask(work_order, &format!("known_at={}", journal_time(1)))["certainty"], "skeleton");
    assert_eq!(ask(work_order, "as_of=2026-04-01T06:00:00Z")["status"], "assigned");
    assert_eq!(ask(work_order, "as_of=2026-04-01T05:59:59Z")["code"], "not_known_then");
    let bank_link = "yutai/bank_link/r";
    assert_eq!(ask(bank_link, "")["certainty"], "contested");
    assert_eq!(ask(bank_link, &format!("known_at={}", journal_time(4)))["certainty"], "unordered");
    assert_eq!(ask(bank_link, "as_of=2030-01-01T00:00:00Z")["code"], "not_known_then");
    running.stop();
}

fn trouble() -> Vec<Observation> {
    let mut observations = Vec::new();
    for number in 0..90_u32 {
        let body = match number % 6 {
            0 => message(&format!("e{number}"), &format!("m{}", number % 4), "sent", None),
            1 => message(&format!("e{}", number / 12), "m", "read", Some("2026-01-01T00:00:00Z")),
            2 | 3 => work_order(
                &format!("d{}", number / 2),
                "7",
                ["new", "assigned"][number as usize % 2],
                Some("2026-01-01T00:00:00Z"),
                false,
            ),
            _ => comment(&format!("c{number}"), "7", &format!("c{}", number % 5), &format!("{}", number % 7)),
        };
        let provider = if number % 6 < 2 { Provider::YCloud } else { Provider::Shoc };
        observations.push(observe(provider, "main", number, body.to_string().as_bytes()));
    }
    observations
}

/// What is told, and the verdicts on two event ids that two messages share.
const RECORDS: u64 = 92;

fn verified(running: &Running) -> String {
    let settled = |answer: &http::Answer| answer.json()["partitions"][0]["observations"] == RECORDS;
    let answer = running.until("/v1/verify", settled).json();
    answer["partitions"][0]["digest"].as_str().expect("a digest").to_owned()
}

#[test]
fn a_store_is_derived_anew_beside_the_live_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = log_of(&trouble());
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    let digest = verified(&running);
    let before = running.get("/v1/subjects/acme/shoc/work_order/7").json();
    let started = running.post("/v1/rebuild", &json!({}));
    assert_eq!(started.status, 202, "{}", started.body);
    let ended = running.until("/v1/rebuild", |answer| answer.json()["phase"] == "done").json();
    let compared = &ended["partitions"][0];
    assert_eq!((&compared["live"], &compared["rebuilt"]), (&json!(digest), &json!(digest)));
    assert_eq!(ended["records"], RECORDS);
    assert_eq!(verified(&running), digest);
    assert_eq!(running.get("/v1/subjects/acme/shoc/work_order/7").json(), before);
    let old = ended["old"][0].as_str().expect("kept").to_owned();
    assert!(std::path::Path::new(&old).exists());
    // What comes after goes to the new one.
    let later = work_order("late", "7", "completed", Some("2026-02-01T00:00:00Z"), false).to_string();
    let later = observe(Provider::Shoc, "main", 500, later.as_bytes());
    let value = schema::avro::encode(&later).expect("encodes").into();
    log.append(0, Record { offset: RECORDS, key: Bytes::new(), value });
    running.until("/v1/subjects/acme/shoc/work_order/7", |answer| answer.json()["status"] == "completed");
    assert_eq!(running.post("/v1/rebuild/discard", &json!({})).json()["old"], json!([]));
    assert!(!std::path::Path::new(&old).exists());
    running.stop();
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    assert_eq!(running.get("/v1/subjects/acme/shoc/work_order/7").json()["status"], "completed");
    running.stop();
}

#[test]
fn a_live_store_that_is_not_what_the_log_says_stays_until_that_is_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut observations = trouble();
    let log = log_of(&observations);
    let running = Running::start(folder.path(), &log);
    running.until_ready();
    let digest = verified(&running);
    // The log changes under the store; the last record, by which a log is recognized, stays.
    let other = message("e0", "m0", "another word", None).to_string();
    observations[0] = observe(Provider::YCloud, "main", 0, other.as_bytes());
    let changed = log_of(&observations).records().swap_remove(0);
    log.change(|state| state.partitions[0].records[0] = changed);
    running.post("/v1/rebuild", &json!({}));
    let failed = running.until("/v1/rebuild", |answer| answer.json()["phase"] == "failed").json();
    assert!(failed["problem"].as_str().expect("a problem").contains("partition 0 differ"), "{failed}");
    assert_eq!(verified(&running), digest);
    running.post("/v1/rebuild?accept=true", &json!({}));
    running.until("/v1/rebuild", |answer| answer.json()["phase"] == "done");
    assert_ne!(verified(&running), digest);
    running.stop();
}

#[test]
fn an_acknowledged_entry_shows_who_and_why_also_after_a_rebuild() {
    let folder = tempfile::tempdir().expect("a folder");
    let bodies = [message("e", "m", "sent", Some("2026-01-01T00:00:00Z")), message("e", "m", "read", None)];
    let tell =
        |(number, body): (u32, &Json)| observe(Provider::YCloud, "main", number, body.to_string().as_bytes());
    let observations: Vec<_> = (1..).zip(&bodies).map(tell).collect();
    let log = log_of(&observations);
    log.append(0, Record { offset: 2, key: Bytes::new(), value: Bytes::from_static(b"no observation") });
    let running = Running::start(folder.path(), &log);
    running.until("/v1/attention", |answer| {
        answer.status == 200 && answer.json()["items"].as_array().is_some_and(|items| items.len() == 2)
    });
    let list = running.get("/v1/attention").json();
    let id = |kind: &str| {
        let items = list["items"].as_array().expect("items").iter();
        let entry = items.clone().find(|item| item["kind"] == kind).expect("one");
        entry["id"].as_str().expect("an id").to_owned()
    };
    let conflict = running.get(&format!("/v1/attention/{}?body=true", id("conflict"))).json();
    let evidence = conflict["evidence"].as_array().expect("evidence");
    for (shown, observation) in evidence.iter().zip(&observations) {
        assert_eq!(shown["body_digest"], json!(observation.body_digest));
        let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &observation.body);
        assert_eq!(shown["body"], json!(body));
    }
    assert_eq!(evidence.len(), 2);
    for kind in ["conflict", "malformed"] {
        let path = format!("/v1/attention/{}/acknowledge", id(kind));
        let said = json!({"by": "ana", "reason": "asked the provider"});
        assert_eq!(running.post(&path, &said).status, 202);
        running.until(&format!("/v1/attention/{}", id(kind)), |answer| {
            answer.json()["acknowledged"]["by"] == "ana"
        });
        assert_eq!(running.post(&path, &said).code(), (409, "acknowledged".to_owned()));
    }
    let history = running.get("/v1/subjects/acme/ycloud/message/m/history").json();
    assert_eq!(statuses(&history, "source"), ["webhook", "webhook", "operator"]);
    assert_eq!(statuses(&history, "outcome")[2], "applied");
    let counts = &running.get("/v1/subjects/acme/ycloud/message/m").json()["meta"]["observations"];
    assert_eq!(counts["total"], 2, "what we say ourselves is not counted");
    for (id, body, wanted) in [
        (id("conflict"), json!({"by": "", "reason": "x"}), (400, "invalid_parameter")),
        (id("conflict"), json!({"by": "x"}), (400, "invalid_parameter")),
        ("nothing".to_owned(), json!({"by": "x", "reason": "x"}), (404, "unknown_attention")),
    ] {
        let answer = running.post(&format!("/v1/attention/{id}/acknowledge"), &body);
        assert_eq!(answer.code(), (wanted.0, wanted.1.to_owned()));
    }
    running.stop();
    let fresh = tempfile::tempdir().expect("a folder");
    let running = Running::start(fresh.path(), &log);
    running.until_ready();
    for kind in ["conflict", "malformed"] {
        let entry = running.get(&format!("/v1/attention/{}", id(kind))).json();
        assert_eq!(entry["acknowledged"]["reason"], "asked the provider");
    }
    running.stop();
}
