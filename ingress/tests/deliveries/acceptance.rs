//! Steps 6 and 8, and the end: the rate, the append and what is in it, health, and a stop that loses
//! nothing. Must never count a 2xx whose record is not in the journal.

use std::num::NonZeroU32;
use std::time::Duration;

use ingress::Rate;
use journal::AppendError;
use schema::{Digest, Micros, Provider, Source, Subject};
use tokio::net::TcpStream;

use crate::harness::{
    Call, House, Mode, NOW, PARTITIONS, PATIENCE, Request, YCLOUD_SECRET, event, work_order,
};

#[tokio::test]
async fn the_record_says_what_was_received() {
    let house = House::open().await;
    house.clock.set(Micros(NOW * 1_000_000 + 5_250_001));
    let request =
        Request::ycloud(event("e")).header("X-Webhook-Endpoint-ID", "whe-17").header("X-Other", "x");
    let id = house.send(&request).await.observation_id();
    let records = house.journal.records();
    let observation = &house.journal.observations()[0];
    let subject = Subject {
        tenant: "acme".to_owned(),
        provider: Provider::YCloud,
        kind: "message".to_owned(),
        id: "msg-e".to_owned(),
    };
    assert_eq!(records[0].key, "acme/ycloud/message/msg-e");
    assert_eq!(records[0].partition, subject.partition(PARTITIONS));
    assert_eq!(observation.subject, subject);
    assert_eq!(observation.id.to_string(), id);
    assert_eq!(observation.id.get_version_num(), 7);
    assert_eq!(observation.endpoint, "ycloud-main");
    assert_eq!(observation.event_id, "e");
    assert_eq!(observation.event_type, "whatsapp.message.updated");
    assert_eq!(observation.source, Source::Webhook);
    assert!(!observation.replay);
    assert_eq!(observation.signed_at, NOW);
    assert_eq!(observation.received_at, Micros(NOW * 1_000_000 + 5_250_001));
    assert_eq!(observation.secret_label, "current");
    assert_eq!(observation.body, event("e"));
    assert_eq!(observation.body_digest, Digest::of(event("e").as_bytes()));
    assert_eq!(observation.content_type.as_deref(), Some("application/json"));
    assert_eq!(observation.webhook_endpoint_id.as_deref(), Some("whe-17"));
}

#[tokio::test]
async fn identity_and_tenant_never_come_from_the_delivery() {
    let house = House::open().await;
    let body =
        event("e").replace("{\"id\":\"e\"", "{\"tenant\":\"other\",\"endpoint\":\"other\",\"id\":\"e\"");
    let request = Request::ycloud(body)
        .header("X-Tenant", "other")
        .header("X-Request-Id", "mine")
        .header("X-YCloud-Mock-Event-Classification", "duplicate");
    let answer = house.send(&request).await;
    answer.observation_id();
    assert_ne!(answer.request_id(), "mine");
    let observation = &house.journal.observations()[0];
    assert_eq!((observation.subject.tenant.as_str(), observation.endpoint.as_str()), ("acme", "ycloud-main"));
}

#[tokio::test]
async fn a_correlation_header_that_is_no_id_is_left_out() {
    let house = House::open().await;
    let request = |id: &str| Request::ycloud(event(id));
    for request in [
        request("a").header("X-Webhook-Endpoint-ID", "x".repeat(256)),
        request("b").header("X-Webhook-Endpoint-ID", "x").header("X-Webhook-Endpoint-ID", "y"),
        request("c").header("X-Webhook-Endpoint-ID", b"\xff"),
    ] {
        house.send(&request).await.observation_id();
    }
    assert!(house.journal.observations().iter().all(|observation| observation.webhook_endpoint_id.is_none()));
}

#[tokio::test]
async fn a_journal_that_does_not_acknowledge_is_503() {
    let house = House::with(|config| config.append_timeout = Duration::from_millis(50)).await;
    for (mode, code) in [
        (Mode::Refuse(AppendError::QueueFull), "journal_queue_full"),
        (Mode::Refuse(AppendError::Unavailable("disk on fire".to_owned())), "journal_unavailable"),
        (Mode::Refuse(AppendError::TooLarge { bytes: 9, bytes_max: 8 }), "journal_unavailable"),
        (Mode::Hang, "journal_timeout"),
    ] {
        house.journal.does(mode);
        let answer = house.send(&Request::ycloud(event("e"))).await;
        answer.is_problem(503, code);
        assert!(!answer.body.contains("disk on fire"), "what is wrong inside stays inside");
    }
    assert_eq!(house.journal.records().len(), 0);
}

#[tokio::test]
async fn no_2xx_before_the_journal_acknowledged() {
    let house = House::open().await;
    house.journal.does(Mode::Hold);
    let call = house.connect(&Request::ycloud(event("e"))).await;
    house.journal.begun(1).await;
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(100), call.stream.peek(&mut byte)).await;
    assert!(early.is_err(), "nothing is answered while the append is under way");
    house.journal.release(1);
    call.answer().await.observation_id();
}

#[tokio::test]
async fn the_rate_is_spent_by_verified_deliveries_alone() {
    let number = |n| NonZeroU32::new(n).unwrap();
    let house = House::with(|config| {
        config.endpoints[0].rate = Some(Rate { per_second: number(1), burst: number(2) });
    })
    .await;
    for _ in 0..5 {
        let forged = Request::ycloud_at(NOW, "wrong", event("e"));
        house.send(&forged).await.is_problem(401, "invalid_signature");
        house.send(&Request::ycloud("{}")).await.is_problem(400, "invalid_envelope");
    }
    house.send(&Request::ycloud(event("a"))).await.observation_id();
    house.send(&Request::ycloud(event("b"))).await.observation_id();
    let answer = house.send(&Request::ycloud(event("c"))).await;
    answer.is_problem(429, "rate_limited");
    assert_eq!(answer.retry_after(), 1);
    // A bad envelope is said before the rate; and the rate before the claim, so that even a repeat waits.
    house.send(&Request::ycloud("{}")).await.is_problem(400, "invalid_envelope");
    house.send(&Request::ycloud(event("a"))).await.is_problem(429, "rate_limited");
    house.send(&Request::shoc_at(NOW, "july", work_order("d"))).await.observation_id();
    house.after(1);
    house.send(&Request::ycloud(event("c"))).await.observation_id();
    assert_eq!(house.journal.attempts(), 4);
}

#[tokio::test]
async fn health_tells_whether_a_delivery_could_be_taken() {
    let house = House::open().await;
    for path in ["/health/live", "/health/ready"] {
        let answer = house.send(&Request::get(path)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.request_id();
    }
    house.journal.is(Err("fsync failed: /secret/path".to_owned()));
    let answer = house.send(&Request::get("/health/ready")).await;
    answer.is_problem(503, "not_ready");
    assert!(!answer.body.contains("/secret/path"));
    assert_eq!(house.send(&Request::get("/health/live")).await.status, 200);
    let answer = house.send(&Request::get("/health/ready").method("POST")).await;
    answer.is_problem(405, "method_not_allowed");
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let house = House::open().await;
    let mut requests = Vec::new();
    for id in ["a", "b"] {
        let request = Request::ycloud(event(id)).bytes();
        let kept = String::from_utf8(request).unwrap().replace("Connection: close\r\n", "");
        requests.extend_from_slice(kept.as_bytes());
    }
    requests.extend_from_slice(&Request::ycloud_at(NOW, "wrong", event("c")).bytes());
    let mut call = Call { stream: TcpStream::connect(house.address).await.unwrap() };
    call.write(&requests).await;
    let body = call.answer().await.body;
    assert_eq!(body.matches("HTTP/1.1 200 OK").count(), 1, "the second of them: {body}");
    assert_eq!(body.matches("HTTP/1.1 401 Unauthorized").count(), 1, "and the third: {body}");
    assert_eq!(house.journal.attempts(), 2);
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight_and_takes_nothing_new() {
    let mut house = House::open().await;
    house.journal.does(Mode::Hold);
    let waiting = house.connect(&Request::ycloud(event("a"))).await;
    let gone = house.connect(&Request::ycloud_at(NOW, YCLOUD_SECRET, event("b"))).await;
    house.journal.begun(2).await;
    gone.hang_up();
    house.close();
    let refused = async { while TcpStream::connect(house.address).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, refused).await.unwrap();
    house.journal.release(2);
    waiting.answer().await.observation_id();
    let journal = house.journal.clone();
    tokio::time::timeout(PATIENCE, house.closed()).await.unwrap();
    assert_eq!(journal.records().len(), 2, "the append whose caller went away was waited for, too");
}

#[tokio::test]
async fn two_endpoints_of_one_id_do_not_start() {
    let house = House::with(|config| config.endpoints[1].id = config.endpoints[0].id.clone()).await;
    let error = house.failed().await.to_string();
    assert!(error.contains("`ycloud-main`"), "{error}");
}
