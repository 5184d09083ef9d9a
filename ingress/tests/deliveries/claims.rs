//! Step 7: identical requests, together and one after another, and callers that go away. Must never find a
//! second append where one was durable, or a lost one where it was not.

use std::time::Duration;

use futures_util::future::join_all;
use journal::AppendError;

use crate::harness::{House, Mode, NOW, PATIENCE, Request, YCLOUD_SECRET, event};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identical_requests_in_flight_share_one_append_and_one_answer() {
    let house = House::open().await;
    house.journal.does(Mode::Hold);
    let request = Request::ycloud(event("e"));
    let calls = join_all((0..40).map(|_| house.connect(&request))).await;
    house.journal.begun(1).await;
    house.journal.release(40);
    let answers = join_all(calls.into_iter().map(|call| call.answer())).await;
    let id = answers[0].observation_id();
    assert!(answers.iter().all(|answer| answer.observation_id() == id));
    assert_eq!(house.journal.attempts(), 1);
    assert_eq!(house.journal.observations()[0].id.to_string(), id);
    let mut request_ids: Vec<String> = answers.iter().map(|answer| answer.request_id()).collect();
    request_ids.sort();
    request_ids.dedup();
    assert_eq!(request_ids.len(), 40, "every request has an id of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identical_requests_in_flight_share_a_refusal_too() {
    let house = House::with(|config| config.append_timeout = Duration::from_millis(500)).await;
    house.journal.does(Mode::Hang);
    let request = Request::ycloud(event("e"));
    let answers = join_all((0..10).map(|_| house.send(&request))).await;
    assert!(answers.iter().all(|answer| answer.status == 503));
    answers.iter().for_each(|answer| answer.is_problem(503, "journal_timeout"));
    house.journal.does(Mode::Accept);
    house.send(&request).await.observation_id();
}

#[tokio::test]
async fn an_identical_request_later_is_answered_without_an_append() {
    let house = House::open().await;
    let request = Request::ycloud(event("e"));
    let id = house.send(&request).await.observation_id();
    house.after(300);
    assert_eq!(house.send(&request).await.observation_id(), id);
    assert_eq!(house.journal.attempts(), 1);
    // The provider signs a retry anew: another transport, and the same event for the projector to see.
    let again = Request::ycloud_at(NOW + 300, YCLOUD_SECRET, event("e"));
    assert_ne!(house.send(&again).await.observation_id(), id);
    assert_eq!(house.journal.attempts(), 2);
    house.after(301);
    house.send(&request).await.is_problem(401, "invalid_signature");
}

#[tokio::test]
async fn a_failed_append_releases_the_claim() {
    let house = House::open().await;
    let request = Request::ycloud(event("e"));
    house.journal.does(Mode::Refuse(AppendError::Unavailable("no leader".to_owned())));
    for _ in 0..3 {
        house.send(&request).await.is_problem(503, "journal_unavailable");
    }
    assert_eq!(house.journal.attempts(), 3);
    house.journal.does(Mode::Panic);
    house.send(&request).await.is_problem(503, "journal_unavailable");
    house.journal.does(Mode::Accept);
    house.send(&request).await.observation_id();
    assert_eq!(house.journal.observations().len(), 1);
}

#[tokio::test]
async fn a_full_map_appends() {
    let house = House::with(|config| config.claims_max = 1).await;
    let (first, second) = (Request::ycloud(event("a")), Request::ycloud(event("b")));
    let id = house.send(&first).await.observation_id();
    let second_ids = [house.send(&second).await.observation_id(), house.send(&second).await.observation_id()];
    assert_ne!(second_ids[0], second_ids[1]);
    assert_eq!(house.send(&first).await.observation_id(), id);
    assert_eq!(house.journal.attempts(), 3);
}

#[tokio::test]
async fn a_caller_that_goes_away_neither_cancels_the_append_nor_strands_the_others() {
    let house = House::open().await;
    house.journal.does(Mode::Hold);
    let request = Request::ycloud(event("e"));
    let leader = house.connect(&request).await;
    house.journal.begun(1).await;
    leader.hang_up();
    let follower = house.connect(&request).await;
    house.journal.release(1);
    let id = tokio::time::timeout(PATIENCE, follower.answer()).await.unwrap().observation_id();
    assert_eq!(house.send(&request).await.observation_id(), id);
    assert_eq!(house.journal.attempts(), 1);
    assert_eq!(house.journal.observations()[0].id.to_string(), id);
}

#[tokio::test]
async fn an_append_whose_caller_went_away_keeps_its_place() {
    let house = House::with(|config| config.in_flight_max = 1).await;
    house.journal.does(Mode::Hold);
    let leader = house.connect(&Request::ycloud(event("a"))).await;
    house.journal.begun(1).await;
    leader.hang_up();
    let other = Request::ycloud(event("b"));
    house.send(&other).await.is_problem(503, "too_many_in_flight");
    house.journal.release(2);
    let answered = async {
        while house.send(&other).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.unwrap();
}
