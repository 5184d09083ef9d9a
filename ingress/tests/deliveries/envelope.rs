//! Step 5: what a proven body must be before it is kept, and that everything else in it is kept as it is.
//! Must never expect an authentic delivery to be thrown away for its inside.

use crate::harness::{BODY_BYTES_MAX, House, Request, change, event, work_order};

#[tokio::test]
async fn a_body_without_an_envelope_is_refused_by_name() {
    let house = House::with(|config| {
        config.endpoints.iter_mut().for_each(|endpoint| endpoint.body_bytes_max = 300_000);
    })
    .await;
    let nested = |levels: usize| {
        format!(r#"{{"id":"e","type":"t.u","x":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1))
    };
    let long_id = "i".repeat(256);
    for (body, code) in [
        (b"".to_vec(), "invalid_json"),
        (b"{".to_vec(), "invalid_json"),
        (b"{} {}".to_vec(), "invalid_json"),
        (b"{'id':1}".to_vec(), "invalid_json"),
        (b"{\"id\":\"\xff\",\"type\":\"t.u\"}".to_vec(), "invalid_utf8"),
        (b"{\"id\":\"\xed\xa0\x80\",\"type\":\"t.u\"}".to_vec(), "invalid_utf8"),
        (b"\xef\xbb\xbf{\"id\":\"e\",\"type\":\"t.u\"}".to_vec(), "byte_order_mark"),
        (b"[]".to_vec(), "not_an_object"),
        (b"\"text\"".to_vec(), "not_an_object"),
        (b"null".to_vec(), "not_an_object"),
        (b"17".to_vec(), "not_an_object"),
        (br#"{"id":"e","type":"t.u","id":"f"}"#.to_vec(), "duplicate_key"),
        (br#"{"id":"e","type":"t.u","x":1,"\u0078":2}"#.to_vec(), "duplicate_key"),
        (nested(129).into_bytes(), "nested_too_deeply"),
        (nested(100_000).into_bytes(), "nested_too_deeply"),
        ("[".repeat(100_000).into_bytes(), "nested_too_deeply"),
        (br#"{"type":"t.u"}"#.to_vec(), "invalid_envelope"),
        (br#"{"id":"e"}"#.to_vec(), "invalid_envelope"),
        (br#"{"id":7,"type":"t.u"}"#.to_vec(), "invalid_envelope"),
        (br#"{"id":null,"type":"t.u"}"#.to_vec(), "invalid_envelope"),
        (br#"{"id":"","type":"t.u"}"#.to_vec(), "invalid_envelope"),
        (br#"{"id":"e","type":["t.u"]}"#.to_vec(), "invalid_envelope"),
        (format!(r#"{{"id":"{long_id}","type":"t.u"}}"#).into_bytes(), "invalid_envelope"),
    ] {
        let answer = house.send(&Request::ycloud(body.clone())).await;
        answer.is_problem(400, code);
        assert!(answer.json()["detail"].is_string());
    }
    for body in [
        work_order("d").replace("\"delivery_id\":\"d\",", ""),
        work_order("d").replace("\"d\"", "17"),
        work_order("d").replace("\"work_order.updated\"", "null"),
    ] {
        let request = Request::shoc_at(crate::harness::NOW, "july", body);
        house.send(&request).await.is_problem(400, "invalid_envelope");
    }
    for body in
        [change("c d"), change(""), change(&"c".repeat(257)), change("c").replace("\"connect_linked\"", "1")]
    {
        house.send(&Request::yutai(body)).await.is_problem(400, "invalid_envelope");
    }
    assert_eq!(house.journal.attempts(), 0, "what is refused is not in the journal");
    house.send(&Request::ycloud(nested(128))).await.observation_id();
}

#[tokio::test]
async fn only_schema_version_1_of_shoc_is_known() {
    let house = House::open().await;
    for version in ["2", "0", "\"1\"", "1.0", "null", "true"] {
        let body = work_order("d").replace("\"schema_version\":1", &format!("\"schema_version\":{version}"));
        let request = Request::shoc_at(crate::harness::NOW, "july", body);
        house.send(&request).await.is_problem(422, "unknown_schema_version");
    }
    let without = work_order("d").replace("\"schema_version\":1,", "");
    let request = Request::shoc_at(crate::harness::NOW, "july", without);
    house.send(&request).await.is_problem(422, "unknown_schema_version");
    assert_eq!(house.journal.attempts(), 0);
}

#[tokio::test]
async fn what_the_envelope_does_not_need_is_kept_byte_for_byte() {
    let house = House::open().await;
    let bodies = [
        event("trailing-newline") + "\n",
        event("white-space").replace("\":", "\" :\t").replace(",\"", "\r\n, \""),
        r#"{"id":"big","type":"t.u","n":[9007199254740993,1e999,-0,0.10,1E+2]}"#.to_owned(),
        r#"{"id":"surrogate","type":"t.u","x":"\ud800","\udfff":"\u00e9"}"#.to_owned(),
        r#"{"id":"inside","type":"t.u","x":{"a":1,"a":2}}"#.to_owned(),
        r#"{"type":"unheard.of","id":"unknown","whatsappMessage":17}"#.to_owned(),
        r#"{"id":"unreadable","type":"whatsapp.message.updated"}"#.to_owned(),
        format!("{}{}", event("padded"), " ".repeat(BODY_BYTES_MAX - event("padded").len())),
    ];
    for body in &bodies {
        house.send(&Request::ycloud(body.as_bytes())).await.observation_id();
    }
    let kept: Vec<Vec<u8>> =
        house.journal.observations().iter().map(|observation| observation.body.to_vec()).collect();
    assert_eq!(kept, bodies.map(String::into_bytes));
}
