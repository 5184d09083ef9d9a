//! Steps 2 and 4: the signature headers, the time window and the HMAC. Must never let two failures be told
//! apart by a caller.

use serde_json::Value as Json;

use crate::harness::{
    Answer, House, NOW, Request, YCLOUD_PREVIOUS, YCLOUD_SECRET, change, event, work_order,
};

/// An answer's body without what differs between any two answers.
fn shape(answer: &Answer) -> Json {
    let mut json = answer.json();
    assert!(json.as_object_mut().unwrap().remove("instance").is_some());
    json
}

/// All of these are the same 401.
async fn refused(house: &House, requests: &[Request]) {
    let expected = serde_json::json!({
        "type": "urn:witness:problem:invalid_signature",
        "title": "The signature does not hold",
        "status": 401,
        "code": "invalid_signature",
        "retryable": false,
    });
    for request in requests {
        let answer = house.send(request).await;
        answer.is_problem(401, "invalid_signature");
        assert_eq!(shape(&answer), expected, "{request:?}");
        assert_eq!(answer.headers.len(), house.send(request).await.headers.len());
    }
    assert_eq!(house.journal.attempts(), 0, "what is forged leaves no trace");
}

#[tokio::test]
async fn the_ycloud_header_has_exactly_one_shape() {
    let house = House::open().await;
    let good = Request::ycloud(event("e"));
    let value = good.value("YCloud-Signature");
    let hex = value.split_once("s=").unwrap().1.to_owned();
    let values = [
        String::new(),
        hex.clone(),
        format!("t={NOW}"),
        format!("s={hex}"),
        format!("s={hex},t={NOW}"),
        format!("t={NOW},s={}", hex.to_uppercase()),
        format!("t={NOW},s={hex},s={hex}"),
        format!("t={NOW},t={NOW},s={hex}"),
        format!("t={NOW},s={hex},"),
        format!("t={NOW}, s={hex}"),
        format!("t= {NOW},s={hex}"),
        format!("t={NOW} ,s={hex}"),
        format!("t=+{NOW},s={hex}"),
        format!("t=-{NOW},s={hex}"),
        format!("t=0{NOW},s={hex}"),
        format!("t=0,s={hex}"),
        format!("t={NOW}.0,s={hex}"),
        format!("t={NOW}000,s={hex}"),
        format!("t={},s={hex}", "9".repeat(40)),
        format!("t=,s={hex}"),
        format!("t={NOW},s={}", &hex[1..]),
        format!("t={NOW},s={hex}0"),
        format!("t={NOW},s=0x{}", &hex[2..]),
        format!("t={NOW},v1={hex}"),
        format!("T={NOW},S={hex}"),
        format!("t={NOW};s={hex}"),
    ];
    let mut requests: Vec<Request> =
        values.iter().map(|value| good.clone().with("YCloud-Signature", value)).collect();
    requests.push(good.clone().without("YCloud-Signature"));
    requests.push(good.clone().header("YCloud-Signature", &value));
    requests.push(good.clone().header("ycloud-signature", "t=1,s=0"));
    let not_ascii = [value.as_bytes(), "é".as_bytes()].concat();
    requests.push(good.clone().with("YCloud-Signature", &not_ascii));
    let mut not_ascii_digit = format!("t=\u{0661},s={hex}").into_bytes();
    requests.push(good.clone().with("YCloud-Signature", &not_ascii_digit));
    not_ascii_digit.push(0xff);
    requests.push(good.clone().with("YCloud-Signature", &not_ascii_digit));
    refused(&house, &requests).await;
    house.send(&good).await.observation_id();
}

#[tokio::test]
async fn the_shoc_headers_stand_once_each() {
    let house = House::open().await;
    let good = Request::shoc_at(NOW, "july", work_order("d"));
    let signature = good.value("X-SH-Signature");
    let hex = signature.strip_prefix("v1=").unwrap().to_owned();
    let mut requests = Vec::new();
    for name in ["X-SH-Timestamp", "X-SH-Key-Id", "X-SH-Signature"] {
        requests.push(good.clone().without(name));
        requests.push(good.clone().header(name, good.value(name)));
        requests.push(good.clone().with(name, ""));
    }
    for value in [
        hex.clone(),
        format!("{signature},{signature}"),
        format!("v1={}", hex.to_uppercase()),
        format!("V1={hex}"),
        format!("v2={hex}"),
    ] {
        requests.push(good.clone().with("X-SH-Signature", value));
    }
    for value in
        [format!("{NOW},{NOW}"), format!("{NOW}000"), format!("0{NOW}"), format!("+{NOW}"), "9".repeat(40)]
    {
        requests.push(good.clone().with("X-SH-Timestamp", value));
    }
    requests.push(good.clone().with("X-SH-Key-Id", b"jul\xffy"));
    // A known key, but not the one that signed.
    requests.push(good.clone().with("X-SH-Key-Id", "june"));
    refused(&house, &requests).await;
    house.send(&good).await.observation_id();
}

#[tokio::test]
async fn the_yutai_header_has_one_t_and_one_v1_and_may_have_more() {
    let house = House::open().await;
    let good = Request::yutai(change("c"));
    let value = good.value("Yutai-Signature");
    let (t, v1) = value.split_once(',').unwrap();
    let requests = [
        good.clone().without("Yutai-Signature"),
        good.clone().header("Yutai-Signature", &value),
        good.clone().with("Yutai-Signature", format!("{t},{t},{v1}")),
        good.clone().with("Yutai-Signature", format!("{value},{v1}")),
        good.clone().with("Yutai-Signature", format!("{value},nonsense")),
        good.clone().with("Yutai-Signature", format!("{value},x={}", "y".repeat(1_024))),
        good.clone().with("Yutai-Signature", value.to_uppercase()),
    ];
    refused(&house, &requests).await;
    house.send(&good.clone().with("Yutai-Signature", format!("{v1},v2=later,{t}"))).await.observation_id();
}

#[tokio::test]
async fn the_window_is_300_seconds_in_both_directions_inclusive() {
    let house = House::open().await;
    for (number, offset) in [-300, 300].into_iter().enumerate() {
        let request = Request::ycloud_at(NOW + offset, YCLOUD_SECRET, event(&number.to_string()));
        house.send(&request).await.observation_id();
        assert_eq!(house.journal.observations()[number].signed_at, NOW + offset);
    }
    for offset in [-301, 301, -NOW + 1, i64::MAX / 10 - NOW] {
        let request = Request::ycloud_at(NOW + offset, YCLOUD_SECRET, event("late"));
        house.send(&request).await.is_problem(401, "invalid_signature");
    }
    assert_eq!(house.journal.attempts(), 2);
}

#[tokio::test]
async fn the_configured_tolerance_counts() {
    let house = House::with(|config| config.endpoints[0].tolerance_seconds = 10).await;
    house.send(&Request::ycloud_at(NOW - 10, YCLOUD_SECRET, event("a"))).await.observation_id();
    let late = Request::ycloud_at(NOW - 11, YCLOUD_SECRET, event("b"));
    house.send(&late).await.is_problem(401, "invalid_signature");
}

#[tokio::test]
async fn every_candidate_secret_is_tried_and_named() {
    let house = House::open().await;
    house.send(&Request::ycloud_at(NOW, YCLOUD_SECRET, event("a"))).await.observation_id();
    house.send(&Request::ycloud_at(NOW, YCLOUD_PREVIOUS, event("b"))).await.observation_id();
    let observations = house.journal.observations();
    let labels: Vec<&str> =
        observations.iter().map(|observation| observation.secret_label.as_str()).collect();
    assert_eq!(labels, ["current", "previous"]);
}

#[tokio::test]
async fn another_byte_another_time_or_another_secret_does_not_hold() {
    let house = House::open().await;
    let good = Request::ycloud(event("e"));
    let hex = good.value("YCloud-Signature").split_once("s=").unwrap().1.to_owned();
    let mut flipped = hex.clone().into_bytes();
    flipped[63] = if flipped[63] == b'0' { b'1' } else { b'0' };
    let flipped = String::from_utf8(flipped).unwrap();
    let with_body = |body: String| Request {
        framing: crate::harness::Framing::Length(body.len()),
        body: body.into_bytes(),
        ..good.clone()
    };
    refused(
        &house,
        &[
            Request::ycloud_at(NOW, "wrong", event("e")),
            Request::ycloud_at(NOW, &YCLOUD_SECRET[6..], event("e")),
            good.clone().with("YCloud-Signature", format!("t={NOW},s={flipped}")),
            good.clone().with("YCloud-Signature", format!("t={},s={hex}", NOW + 1)),
            with_body(event("f")),
            with_body(event("e") + "\n"),
            with_body(event("e").replace(':', ": ")),
            with_body(String::new()),
            Request::yutai(change("c")).path("/webhooks/ycloud-main"),
            Request::ycloud(event("e")).path("/webhooks/yutai-main"),
        ],
    )
    .await;
}
