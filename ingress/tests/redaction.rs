//! What the door says about deliveries to its operator: log lines and metrics. Must never find a secret, a
//! signature or a body in them, nor in an answer. One test alone in its process, because it listens to
//! everything that the process logs.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test stops at the first surprise"
)]

#[path = "deliveries/harness.rs"]
mod harness;

use std::io::Write;
use std::sync::{Arc, Mutex};

use journal::AppendError;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value as Json;
use tracing_subscriber::filter::LevelFilter;

use harness::{
    Answer, BODY_BYTES_MAX, Framing, House, Mode, NOW, Request, YCLOUD_PREVIOUS, YCLOUD_SECRET, YUTAI_SECRET,
    event, shoc_secret, work_order,
};

/// Stands in every body, and in one header that is none of our business.
const BODY_MARK: &str = "body-mark-4711";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn nothing_secret_is_said_and_every_refusal_is() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .json()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let house = House::with_metrics(metrics.clone(), |_| {}).await;

    let body = event(BODY_MARK);
    let mut requests: Vec<(&str, &str, Request)> = vec![
        ("", "unknown_endpoint", Request::ycloud(body.clone()).path("/webhooks/body-mark-4711")),
        ("ycloud-main", "method_not_allowed", Request::ycloud(body.clone()).method("PUT")),
        (
            "ycloud-main",
            "unsupported_content_type",
            Request::ycloud(body.clone()).with("Content-Type", BODY_MARK),
        ),
        (
            "ycloud-main",
            "malformed_signature",
            Request::ycloud(body.clone()).header("YCloud-Signature", BODY_MARK),
        ),
        (
            "ycloud-main",
            "body_too_large",
            Request::ycloud(BODY_MARK.repeat(BODY_BYTES_MAX / BODY_MARK.len() + 1))
                .framed(Framing::Chunks(99)),
        ),
        ("ycloud-main", "wrong_signature", Request::ycloud_at(NOW, "wrong-secret-for-tests", body.clone())),
        (
            "ycloud-main",
            "outside_window",
            Request::ycloud_at(NOW - 301, "wrong-secret-for-tests", body.clone()),
        ),
        ("ycloud-main", "stale_signed", Request::ycloud_at(NOW - 301, YCLOUD_PREVIOUS, body.clone())),
        ("ycloud-main", "invalid_json", Request::ycloud(format!("{body}}}"))),
        ("ycloud-main", "invalid_envelope", Request::ycloud(body.replace("\"id\"", "\"xx\""))),
        ("yutai-main", "invalid_envelope", Request::yutai(harness::change("not an id body-mark-4711"))),
        (
            "shoc-main",
            "unknown_schema_version",
            Request::shoc_at(NOW, "july", work_order(BODY_MARK).replace("version\":1", "version\":2")),
        ),
        ("shoc-main", "stale_signed", Request::shoc_at(NOW + 301, "june", work_order(BODY_MARK))),
    ];
    let mut refusals: Vec<(&str, &str, Answer)> = Vec::new();
    for (endpoint, class, request) in &requests {
        refusals.push((endpoint, class, house.send(request).await));
    }
    let accepted = Request::ycloud(body.clone());
    let mut answers = vec![house.send(&accepted).await, house.send(&accepted).await];
    answers.iter().for_each(|answer| assert_eq!(answer.status, 200));

    house.journal.does(Mode::Refuse(AppendError::Unavailable("disk on fire".to_owned())));
    let failing = Request::shoc_at(NOW, "july", work_order(BODY_MARK));
    refusals.push(("shoc-main", "journal_unavailable", house.send(&failing).await));
    // A key document that is broken in the middle of its secrets.
    house.keys.is(Ok(format!(r#"{{"keys":[{{"kid":"july","secret":"{}"}},7]}}"#, shoc_secret("july"))));
    house.after(5);
    let unknown = Request::shoc_at(NOW, "july-2", work_order(BODY_MARK));
    refusals.push(("shoc-main", "key_source_unavailable", house.send(&unknown).await));
    house.keys.lists(&["july", "june"]);
    house.after(10);
    refusals.push(("shoc-main", "unknown_key", house.send(&unknown).await));
    requests.extend([("", "", accepted), ("", "", failing), ("", "", unknown)]);

    // One line for every refusal, and it has the request id, the endpoint and the class.
    let text = lines.text();
    let refused: Vec<Json> = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap())
        .filter(|line| line["fields"]["message"] == "delivery refused")
        .collect();
    assert_eq!(refused.len(), refusals.len());
    for ((endpoint, class, answer), line) in refusals.iter().zip(&refused) {
        let fields = &line["fields"];
        assert_eq!(fields["reason"], *class, "{line}");
        assert_eq!(fields["request_id"], answer.request_id());
        assert_eq!(fields["endpoint"].as_str().unwrap_or(""), *endpoint);
    }
    assert!(text.contains("disk on fire"), "the operator is told what the caller is not");

    let exposition = house.send(&Request::get("/metrics")).await;
    assert_eq!(exposition.status, 200);
    for line in [
        r#"witness_ingress_deliveries_total{endpoint="ycloud-main",outcome="accepted"} 1"#,
        r#"witness_ingress_deliveries_total{endpoint="ycloud-main",outcome="repeated"} 1"#,
        r#"witness_ingress_deliveries_total{endpoint="ycloud-main",outcome="wrong_signature"} 1"#,
        r#"witness_ingress_deliveries_total{endpoint="shoc-main",outcome="unknown_key"} 1"#,
        r#"witness_ingress_deliveries_total{endpoint="",outcome="unknown_endpoint"} 1"#,
        r#"witness_ingress_stale_signed_total{endpoint="ycloud-main"} 1"#,
        r#"witness_ingress_stale_signed_total{endpoint="shoc-main"} 1"#,
        r#"witness_ingress_stale_signed_total{endpoint="yutai-main"} 0"#,
        r#"witness_ingress_key_fetches_total{endpoint="shoc-main",outcome="succeeded"} 2"#,
        r#"witness_ingress_key_fetches_total{endpoint="shoc-main",outcome="failed"} 1"#,
        "witness_ingress_in_flight 0",
        "witness_ingress_claims 1",
    ] {
        assert!(exposition.body.lines().any(|found| found == line), "{line} is not in {}", exposition.body);
    }

    // Nothing of what must stay unsaid is anywhere.
    answers.extend(refusals.into_iter().map(|(_, _, answer)| answer));
    answers.push(exposition);
    let mut said = vec![text, metrics.render()];
    said.extend(answers.iter().map(|answer| format!("{:?} {}", answer.headers, answer.body)));
    let mut unsaid: Vec<String> =
        [YCLOUD_SECRET, YCLOUD_PREVIOUS, YUTAI_SECRET, "wrong-secret-for-tests", BODY_MARK, "for-tests-only"]
            .map(str::to_owned)
            .to_vec();
    for (_, _, request) in &requests {
        for name in ["YCloud-Signature", "X-SH-Signature", "Yutai-Signature"] {
            if let Some((_, value)) = request.headers.iter().find(|(found, _)| found == name) {
                let value = String::from_utf8(value.clone()).unwrap();
                unsaid.push(value[value.len() - 64..].to_owned());
            }
        }
    }
    for text in &said {
        for unsaid in &unsaid {
            assert!(!text.contains(unsaid.as_str()), "{unsaid} is said in {text}");
        }
    }
}
