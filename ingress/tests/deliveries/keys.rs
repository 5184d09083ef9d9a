//! SHOC's keys as a sender meets them: rotation, unknown keys, a source that is down. Must never see a 401
//! where only we do not know.

use crate::harness::{House, NOW, Request, work_order};

/// A delivery that SHOC signs with that key, `seconds` after the start.
fn signed(key_id: &str, seconds: i64, delivery_id: &str) -> Request {
    Request::shoc_at(NOW + seconds, key_id, work_order(delivery_id))
}

#[tokio::test]
async fn all_listed_keys_are_accepted_from_one_fetch() {
    let house = House::open().await;
    house.send(&signed("july", 0, "a")).await.observation_id();
    house.send(&signed("june", 0, "b")).await.observation_id();
    assert_eq!(house.keys.fetches(), 1);
    let observations = house.journal.observations();
    let labels: Vec<&str> =
        observations.iter().map(|observation| observation.secret_label.as_str()).collect();
    assert_eq!(labels, ["july", "june"]);
}

#[tokio::test]
async fn a_rotated_key_is_accepted_at_its_first_delivery() {
    let house = House::open().await;
    house.send(&signed("july", 0, "a")).await.observation_id();
    house.keys.lists(&["august", "july"]);
    house.after(5);
    house.send(&signed("august", 5, "b")).await.observation_id();
    assert_eq!(house.keys.fetches(), 2);
}

#[tokio::test]
async fn an_unknown_key_is_401_after_a_fetch_and_503_where_none_may_begin() {
    let house = House::open().await;
    house.send(&signed("july", 0, "a")).await.observation_id();
    house.after(2);
    let answer = house.send(&signed("forged", 2, "b")).await;
    answer.is_problem(503, "key_source_unavailable");
    assert_eq!(answer.retry_after(), 3);
    house.after(5);
    house.send(&signed("forged", 5, "b")).await.is_problem(401, "invalid_signature");
    for _ in 0..20 {
        house.send(&signed("forged", 5, "b")).await.is_problem(503, "key_source_unavailable");
    }
    assert_eq!(house.keys.fetches(), 2, "at most one fetch in 5 s");
    house.send(&signed("july", 5, "c")).await.observation_id();
}

#[tokio::test]
async fn a_source_that_is_down_is_503_once_the_document_is_old() {
    let house = House::open().await;
    house.send(&signed("july", 0, "a")).await.observation_id();
    house.keys.is(Err("down".to_owned()));
    house.after(300);
    house.send(&signed("july", 300, "b")).await.observation_id();
    house.after(310);
    house.send(&signed("july", 310, "c")).await.is_problem(503, "key_source_unavailable");
    house.after(316);
    house.send(&signed("august", 316, "d")).await.is_problem(503, "key_source_unavailable");
    house.keys.lists(&["july"]);
    house.after(322);
    house.send(&signed("july", 322, "c")).await.observation_id();
}

#[tokio::test]
async fn a_source_that_is_down_at_the_start_is_503_and_not_ready() {
    let house = House::open().await;
    // The document of the start is forgotten by going far into the future.
    house.keys.is(Err("down".to_owned()));
    house.after(1_000);
    house.send(&signed("july", 1_000, "a")).await.is_problem(503, "key_source_unavailable");
    let ready = house.send(&Request::get("/health/ready")).await;
    ready.is_problem(503, "not_ready");
    assert!(ready.json()["detail"].as_str().unwrap().contains("shoc-main"), "{ready:?}");
    house.keys.lists(&["july"]);
    house.after(1_006);
    assert_eq!(house.send(&Request::get("/health/ready")).await.status, 200);
    house.send(&signed("july", 1_006, "a")).await.observation_id();
}

#[tokio::test]
async fn the_source_is_never_asked_outside_the_window() {
    let house = House::open().await;
    house.send(&signed("july", 0, "a")).await.observation_id();
    house.after(1_000);
    house.send(&signed("july", 0, "a")).await.is_problem(401, "invalid_signature");
    house.send(&signed("forged", 2_000, "a")).await.is_problem(401, "invalid_signature");
    let malformed = signed("july", 1_000, "a").with("X-SH-Signature", "v1=0");
    house.send(&malformed).await.is_problem(401, "invalid_signature");
    assert_eq!(house.keys.fetches(), 1);
}
