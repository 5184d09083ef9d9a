//! Steps 1 and 3: the path, the method, what the body is said to be, and how much of it there is. Must
//! never take a status for granted that only a well-behaved client would see.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::{BODY_BYTES_MAX, Call, Framing, House, Mode, Request, event};

#[tokio::test]
async fn an_unknown_endpoint_is_404_before_anything_else() {
    let house = House::open().await;
    for path in ["/webhooks/nobody", "/webhooks/ycloud%2Dmain", "/webhooks/YCLOUD-MAIN"] {
        for method in ["POST", "GET", "DELETE"] {
            let request =
                Request::ycloud(event("e")).path(path).method(method).with("Content-Type", "text/html");
            house.send(&request).await.is_problem(404, "unknown_endpoint");
        }
    }
    for path in ["/", "/webhooks", "/webhooks/", "/webhooks/ycloud-main/", "/webhooks/ycloud-main/x", "//"] {
        house.send(&Request::ycloud(event("e")).path(path)).await.is_problem(404, "not_found");
    }
    assert_eq!(house.journal.attempts(), 0);
}

#[tokio::test]
async fn another_method_is_405_with_allow() {
    let house = House::open().await;
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
        let answer = house.send(&Request::ycloud(event("e")).method(method).without("Content-Type")).await;
        answer.is_problem(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some("POST"));
    }
    let head = house.send(&Request::ycloud(event("e")).method("HEAD")).await;
    assert_eq!((head.status, head.header("allow"), head.body.as_str()), (405, Some("POST"), ""));
}

#[tokio::test]
async fn the_query_is_never_looked_at() {
    let house = House::open().await;
    let path = "/webhooks/ycloud-main?YCloud-Signature=t=1,s=0&secret=x";
    house.send(&Request::ycloud(event("e")).path(path)).await.observation_id();
    let signed = Request::ycloud(event("e2"));
    let value = signed.value("YCloud-Signature");
    let unsigned = signed
        .without("YCloud-Signature")
        .path(&format!("/webhooks/ycloud-main?YCloud-Signature={value}"))
        .header("Cookie", format!("YCloud-Signature={value}"));
    house.send(&unsigned).await.is_problem(401, "invalid_signature");
}

#[tokio::test]
async fn the_content_type_is_json_in_utf_8_once() {
    let house = House::open().await;
    let request = Request::ycloud(event("e"));
    for (content_type, code) in [
        ("text/plain", "unsupported_content_type"),
        ("application/x-www-form-urlencoded", "unsupported_content_type"),
        ("", "unsupported_content_type"),
        ("application/json; charset=iso-8859-1", "unsupported_charset"),
        ("application/json; charset=\"utf-16\"", "unsupported_charset"),
    ] {
        house.send(&request.clone().with("Content-Type", content_type)).await.is_problem(415, code);
    }
    let none = request.clone().without("Content-Type");
    house.send(&none).await.is_problem(415, "unsupported_content_type");
    let twice = request.clone().header("Content-Type", "application/json");
    house.send(&twice).await.is_problem(415, "unsupported_content_type");
    let not_ascii = request.clone().with("Content-Type", b"application/json; x=\xff");
    house.send(&not_ascii).await.is_problem(415, "unsupported_content_type");
    assert_eq!(house.journal.attempts(), 0);
    for (number, content_type) in
        ["Application/JSON", "application/json; charset=utf-8", "application/json;Charset=\"UTF-8\""]
            .into_iter()
            .enumerate()
    {
        let request = Request::ycloud(event(&number.to_string())).with("Content-Type", content_type);
        house.send(&request).await.observation_id();
        assert_eq!(house.journal.observations()[number].content_type.as_deref(), Some(content_type));
    }
}

#[tokio::test]
async fn yutai_may_send_no_content_type() {
    let house = House::open().await;
    let request = Request::yutai(crate::harness::change("c")).without("Content-Type");
    house.send(&request).await.observation_id();
    assert_eq!(house.journal.observations()[0].content_type, None);
}

#[tokio::test]
async fn an_encoded_body_is_415() {
    let house = House::open().await;
    for encoding in ["gzip", "br", "identity, gzip", "deflate", ""] {
        let request = Request::ycloud(event("e")).header("Content-Encoding", encoding);
        house.send(&request).await.is_problem(415, "unsupported_content_encoding");
    }
    let two = Request::ycloud(event("e")).header("Content-Encoding", "identity");
    let two = two.header("Content-Encoding", "gzip");
    house.send(&two).await.is_problem(415, "unsupported_content_encoding");
    let identity = Request::ycloud(event("e")).header("Content-Encoding", "identity");
    house.send(&identity).await.observation_id();
}

#[tokio::test]
async fn too_many_in_flight_is_503_and_ends_with_the_flight() {
    let house = House::with(|config| config.in_flight_max = 2).await;
    house.journal.does(Mode::Hold);
    let first = house.connect(&Request::ycloud(event("a"))).await;
    let second = house.connect(&Request::ycloud(event("b"))).await;
    house.journal.begun(2).await;
    let third = Request::ycloud(event("c"));
    house.send(&third).await.is_problem(503, "too_many_in_flight");
    // What step 1 refuses for another reason needs no place, and health is not a delivery.
    house.send(&third.clone().method("GET")).await.is_problem(405, "method_not_allowed");
    assert_eq!(house.send(&Request::get("/health/live")).await.status, 200);
    // A place is asked for before the signature is looked at.
    house.send(&third.clone().without("YCloud-Signature")).await.is_problem(503, "too_many_in_flight");
    house.journal.release(3);
    first.answer().await.observation_id();
    second.answer().await.observation_id();
    house.send(&third).await.observation_id();
}

#[tokio::test]
async fn a_body_at_the_limit_is_taken_and_one_byte_more_is_413_however_it_is_framed() {
    let house = House::open().await;
    for (number, framing) in
        [None, Some(Framing::Chunks(1_000)), Some(Framing::Chunks(1)), Some(Framing::Chunks(BODY_BYTES_MAX))]
            .into_iter()
            .enumerate()
    {
        let sized = |bytes: usize| {
            let mut body = event(&number.to_string());
            body.push_str(&" ".repeat(bytes - body.len()));
            let request = Request::ycloud(body);
            match framing {
                Some(framing) => request.framed(framing),
                None => request,
            }
        };
        house.send(&sized(BODY_BYTES_MAX + 1)).await.is_problem(413, "body_too_large");
        assert_eq!(house.journal.attempts(), number, "never truncated and accepted");
        house.send(&sized(BODY_BYTES_MAX)).await.observation_id();
    }
}

#[tokio::test]
async fn an_announced_length_over_the_limit_is_refused_unread() {
    let house = House::open().await;
    // Nothing of the body is ever sent.
    let request = Request::ycloud(event("e")).framed(Framing::Length(50_000_000));
    let request = Request { body: Vec::new(), ..request };
    let answer = house.connect(&request.header("Expect", "100-continue")).await.answer().await;
    answer.is_problem(413, "body_too_large");
    assert_eq!(
        answer.json()["detail"],
        format!("the body has more than {BODY_BYTES_MAX} bytes"),
        "and no `100 Continue` came before"
    );
}

#[tokio::test]
async fn a_client_that_is_still_sending_can_finish_and_read_its_413() {
    let house = House::open().await;
    for framing in [Framing::Length(1_000_000), Framing::Chunks(8 * 1024)] {
        let bytes = Request::ycloud(vec![b' '; 1_000_000]).framed(framing).bytes();
        let mut call = Call { stream: TcpStream::connect(house.address).await.unwrap() };
        let (first, rest) = bytes.split_at(16 * 1024);
        call.write(first).await;
        // The answer is there before the body is.
        call.stream.readable().await.unwrap();
        for piece in rest.chunks(16 * 1024) {
            call.stream.write_all(piece).await.expect("the connection is not reset under the client");
            tokio::task::yield_now().await;
        }
        call.answer().await.is_problem(413, "body_too_large");
    }
}

#[tokio::test]
async fn headers_are_judged_before_the_body() {
    let house = House::open().await;
    let large = vec![b' '; BODY_BYTES_MAX + 1];
    // A malformed signature header and a body too large: the header is said.
    let malformed = Request::ycloud(large.clone()).with("YCloud-Signature", "nonsense");
    house.send(&malformed).await.is_problem(401, "invalid_signature");
    // A wrong signature and a body too large: the body is said, for it was never verified.
    house.send(&Request::ycloud_at(1, "wrong", large.clone())).await.is_problem(413, "body_too_large");
    // A content type comes before both.
    let typed = malformed.with("Content-Type", "text/plain");
    house.send(&typed).await.is_problem(415, "unsupported_content_type");
    // A wrong signature comes before a body that is no JSON.
    house.send(&Request::ycloud_at(1, "wrong", "no JSON")).await.is_problem(401, "invalid_signature");
    assert_eq!(house.journal.attempts(), 0);
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_never_accepted() {
    let house = House::open().await;
    let body = event("e");
    for framing in [Framing::Length(body.len() + 1), Framing::Raw] {
        let request = Request::ycloud(body.clone()).framed(framing);
        let request = match framing {
            // One chunk, and then no end of the body.
            Framing::Raw => {
                let body = format!("{:x}\r\n{body}\r\n", body.len()).into_bytes();
                Request { body, ..request }.header("Transfer-Encoding", "chunked")
            }
            Framing::Length(_) | Framing::Chunks(_) => request,
        };
        let mut call = house.connect(&request).await;
        call.stream.shutdown().await.unwrap();
        call.answer().await.is_problem(400, "body_incomplete");
    }
    let broken = Request::ycloud(b"zz\r\n{}\r\n0\r\n\r\n".to_vec()).framed(Framing::Raw);
    let broken = broken.header("Transfer-Encoding", "chunked");
    house.send(&broken).await.is_problem(400, "body_incomplete");
    assert_eq!(house.journal.attempts(), 0);
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_408() {
    let house = House::with(|config| config.read_timeout = Duration::from_millis(50)).await;
    let body = event("e");
    let length = Framing::Length(body.len() + 1);
    let answer = house.send(&Request::ycloud(body).framed(length)).await;
    answer.is_problem(408, "body_timeout");
    assert_eq!(house.journal.attempts(), 0);
}

#[tokio::test]
async fn what_is_not_http_is_not_a_delivery() {
    let house = House::open().await;
    for bytes in [&b"\x16\x03\x01\x02\x00"[..], b"POST\r\n\r\n", b"POST / HTTP/1.1\r\nA B: c\r\n\r\n"] {
        let mut call = house.connect(&Request::get("/health/live")).await;
        call.write(bytes).await;
        drop(call);
        let request = Request { body: bytes.to_vec(), ..Request::get("/health/live") };
        assert_eq!(house.send(&request).await.status, 200);
    }
    assert_eq!(house.journal.attempts(), 0);
}
