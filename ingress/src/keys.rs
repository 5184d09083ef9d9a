//! Which secrets may have signed: fixed ones, or SHOC's key document in a cache. Must never use a document
//! older than 300 s, never call a key unknown before a fetch that began after the request arrived, and
//! never fetch twice at once or twice within 5 s (SHOC contract §6.1).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use schema::Micros;
use schema::provider::parse_key_document;
use schema::signature::Secret;
use service::clock::Clock;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::error::Refusal;
use crate::metrics::{self, Fetched};
use crate::{Endpoint, Secrets};

/// How long one fetch may take; then it has failed. Together with the append it stays below the 10 s
/// after which SHOC gives up on an answer.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// A document older than this is never used.
const AGE_SECONDS_MAX: i64 = 300;
/// A document older than this is fetched anew while it is still used, so that a short outage of the key
/// source is not one of ours.
const REFRESH_AGE_SECONDS: i64 = 240;
/// Seconds from the beginning of one fetch to the beginning of the next.
const FETCH_INTERVAL_SECONDS: i64 = 5;

/// Where SHOC's key document is kept.
pub trait KeyDocument: Send + Sync + 'static {
    /// Fetches the document's JSON anew, or says why it cannot, without anything secret in the reason.
    fn fetch(&self) -> BoxFuture<'_, Result<String, String>>;
}

/// The secrets of one endpoint.
pub(crate) enum KeySource {
    Fixed(Vec<Secret>),
    Document(Arc<Cache>),
}

/// The moment a request arrived, as the number of fetches begun before it. Unlike times of day, these
/// cannot be equal by chance or run backwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival(u64);

impl KeySource {
    pub(crate) fn new(endpoint: &Endpoint, clock: Arc<dyn Clock>) -> Self {
        match &endpoint.secrets {
            Secrets::Fixed(secrets) => Self::Fixed(secrets.clone()),
            Secrets::Document(source) => Self::Document(Arc::new(Cache {
                endpoint: endpoint.id.as_str().into(),
                source: source.clone(),
                clock,
                state: Mutex::default(),
            })),
        }
    }

    /// Marks the arrival of a request.
    pub(crate) fn arrival(&self) -> Arrival {
        match self {
            Self::Fixed(_) => Arrival(0),
            Self::Document(cache) => Arrival(cache.lock().fetches_begun),
        }
    }

    /// The secrets that may have signed under `key_id` (all, where the provider names none); empty where
    /// the key is truly unknown. Fetches the key document where it must.
    pub(crate) async fn candidates(
        &self,
        key_id: Option<&str>,
        arrival: Arrival,
    ) -> Result<Vec<Secret>, Refusal> {
        match self {
            Self::Fixed(secrets) => Ok(named(secrets, key_id)),
            Self::Document(cache) => {
                let decides = |document: &Document| {
                    document.fetch_number > arrival.0 || !named(&document.secrets, key_id).is_empty()
                };
                let document = cache.document(arrival, decides).await?;
                Ok(named(&document.secrets, key_id))
            }
        }
    }

    /// What [`KeySource::candidates`] would answer from memory alone.
    pub(crate) fn cached(&self, key_id: Option<&str>) -> Vec<Secret> {
        match self {
            Self::Fixed(secrets) => named(secrets, key_id),
            Self::Document(cache) => {
                let document = cache.lock().usable(cache.clock.now());
                document.map_or_else(Vec::new, |document| named(&document.secrets, key_id))
            }
        }
    }

    /// Whether a delivery could be verified now, fetching the key document where it must.
    pub(crate) async fn is_loaded(&self) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Document(cache) => cache.document(self.arrival(), |_| true).await.is_ok(),
        }
    }
}

/// The secrets of that key id, which is their label; all of them where no key id is named.
fn named(secrets: &[Secret], key_id: Option<&str>) -> Vec<Secret> {
    let is_named = |secret: &&Secret| key_id.is_none_or(|key_id| secret.label() == key_id);
    secrets.iter().filter(is_named).cloned().collect()
}

/// One key document, and the fetches of it.
pub(crate) struct Cache {
    endpoint: Arc<str>,
    source: Arc<dyn KeyDocument>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    document: Option<Document>,
    fetches_begun: u64,
    last_fetch_began_at: Option<Micros>,
    in_flight: Option<Flight>,
}

#[derive(Clone)]
struct Document {
    secrets: Arc<[Secret]>,
    /// Its age counts from here: what it says may have been true only then.
    fetch_began_at: Micros,
    fetch_number: u64,
}

/// A fetch that others can wait for.
#[derive(Clone)]
struct Flight {
    number: u64,
    /// `true` once it brought a document, `false` once it failed.
    ended: watch::Receiver<Option<bool>>,
}

impl Cache {
    /// A usable document that `decides`, from memory or from as many fetches as the bounds allow; the
    /// refusal when a fetch that began after `arrival` failed, or none may begin now.
    async fn document(
        self: &Arc<Self>,
        arrival: Arrival,
        decides: impl Fn(&Document) -> bool,
    ) -> Result<Document, Refusal> {
        loop {
            let mut flight = {
                let mut state = self.lock();
                // The clock is read under the lock, so that no document seems to come from the future
                // merely because another request fetched it meanwhile.
                let now = self.clock.now();
                if let Some(document) = state.usable(now).filter(&decides) {
                    if seconds_since(document.fetch_began_at, now) > REFRESH_AGE_SECONDS {
                        // In the background; a refusal only means that it is too early to try again.
                        drop(self.join_or_begin(&mut state, now));
                    }
                    return Ok(document);
                }
                self.join_or_begin(&mut state, now)?
            };
            let succeeded =
                flight.ended.wait_for(Option::is_some).await.is_ok_and(|ended| *ended == Some(true));
            if !succeeded && flight.number > arrival.0 {
                return Err(unavailable(FETCH_INTERVAL_SECONDS));
            }
        }
    }

    /// The fetch in flight, or a new one, or the refusal when it is too early for one.
    fn join_or_begin(self: &Arc<Self>, state: &mut State, now: Micros) -> Result<Flight, Refusal> {
        if let Some(flight) = &state.in_flight {
            return Ok(flight.clone());
        }
        if let Some(began_at) = state.last_fetch_began_at {
            let interval_micros = FETCH_INTERVAL_SECONDS * 1_000_000;
            // A clock that was put back must not forbid fetches until it has caught up again.
            let passed_micros = now.0.saturating_sub(began_at.0);
            if (0..interval_micros).contains(&passed_micros) {
                let left_micros = interval_micros - passed_micros;
                return Err(unavailable((left_micros + 999_999).div_euclid(1_000_000)));
            }
        }
        state.fetches_begun += 1;
        state.last_fetch_began_at = Some(now);
        let (sender, ended) = watch::channel(None);
        let flight = Flight { number: state.fetches_begun, ended };
        state.in_flight = Some(flight.clone());
        let landing = Landing { cache: self.clone(), number: flight.number, began_at: now, sender };
        // In a task of its own: a caller that goes away neither stops the fetch nor leaves it hanging.
        tokio::spawn(async move {
            let fetched = tokio::time::timeout(FETCH_TIMEOUT, landing.cache.source.fetch()).await;
            let secrets = match fetched {
                Ok(Ok(text)) => parse_key_document(&Zeroizing::new(text)).map_err(|error| error.to_string()),
                Ok(Err(reason)) => Err(reason),
                Err(_) => Err(format!("no answer within {} s", FETCH_TIMEOUT.as_secs())),
            };
            landing.land(secrets);
        });
        Ok(flight)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole before anything in it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn usable(&self, now: Micros) -> Option<Document> {
        // A document from the future means that the clock was put back: its age is not known.
        let is_usable = |document: &&Document| {
            let age_micros = now.0.saturating_sub(document.fetch_began_at.0);
            (0..=AGE_SECONDS_MAX * 1_000_000).contains(&age_micros)
        };
        self.document.as_ref().filter(is_usable).cloned()
    }
}

/// The end of a fetch. Dropped without one (a panic in the source), it ends as a failed one.
struct Landing {
    cache: Arc<Cache>,
    number: u64,
    began_at: Micros,
    sender: watch::Sender<Option<bool>>,
}

impl Landing {
    fn land(self, secrets: Result<Vec<Secret>, String>) {
        let endpoint = &self.cache.endpoint;
        let succeeded = secrets.is_ok();
        match secrets {
            Ok(secrets) => {
                metrics::key_fetch(endpoint, Fetched::Succeeded);
                self.cache.lock().document = Some(Document {
                    secrets: secrets.into(),
                    fetch_began_at: self.began_at,
                    fetch_number: self.number,
                });
            }
            Err(reason) => {
                metrics::key_fetch(endpoint, Fetched::Failed);
                tracing::error!(endpoint = &**endpoint, reason, "the key document could not be fetched");
            }
        }
        self.cache.lock().in_flight = None;
        self.sender.send_replace(Some(succeeded));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        if state.in_flight.as_ref().is_some_and(|flight| flight.number == self.number) {
            state.in_flight = None;
        }
    }
}

fn seconds_since(then: Micros, now: Micros) -> i64 {
    now.0.saturating_sub(then.0).div_euclid(1_000_000)
}

fn unavailable(retry_after_seconds: i64) -> Refusal {
    Refusal::KeySourceUnavailable {
        retry_after_seconds: u64::try_from(retry_after_seconds).unwrap_or(1).max(1),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use service::clock::ManualClock;
    use tokio::sync::Semaphore;

    use super::*;

    /// A key document that counts its fetches, each of which waits for a permit.
    struct Source {
        answer: Mutex<Result<String, String>>,
        begun: Semaphore,
        permits: Semaphore,
    }

    impl KeyDocument for Source {
        fn fetch(&self) -> BoxFuture<'_, Result<String, String>> {
            async {
                self.begun.add_permits(1);
                self.permits.acquire().await.expect("open").forget();
                self.answer.lock().expect("no panic").clone()
            }
            .boxed()
        }
    }

    struct Bench {
        source: Arc<Source>,
        clock: Arc<ManualClock>,
        keys: Arc<KeySource>,
    }

    const START_SECONDS: i64 = 1_784_642_602;

    impl Bench {
        /// A source whose fetches all answer at once with these key ids.
        fn new(key_ids: &[&str]) -> Self {
            let source = Arc::new(Source {
                answer: Mutex::new(Ok(document(key_ids))),
                begun: Semaphore::new(0),
                permits: Semaphore::new(1_000),
            });
            let clock = Arc::new(ManualClock::new(Micros::from_seconds(START_SECONDS)));
            let keys = Arc::new(KeySource::Document(Arc::new(Cache {
                endpoint: "shoc-main".into(),
                source: source.clone(),
                clock: clock.clone(),
                state: Mutex::default(),
            })));
            Self { source, clock, keys }
        }

        fn after(&self, seconds: i64) {
            self.clock.set(Micros::from_seconds(START_SECONDS + seconds));
        }

        fn answers(&self, answer: Result<String, String>) {
            *self.source.answer.lock().expect("no panic") = answer;
        }

        fn fetches(&self) -> usize {
            self.source.begun.available_permits()
        }

        /// What a request that arrives now is told: how many candidates there are.
        async fn ask(&self, key_id: &str) -> Result<usize, Refusal> {
            let arrival = self.keys.arrival();
            self.keys.candidates(Some(key_id), arrival).await.map(|secrets| secrets.len())
        }

        /// Holds back the fetches from now on.
        fn hold(&self) {
            self.source.permits.forget_permits(1_000);
        }

        fn let_one_go(&self) {
            self.source.permits.add_permits(1);
        }

        /// Waits until as many fetches have begun.
        async fn begun(&self, fetches: u32) {
            drop(self.source.begun.acquire_many(fetches).await);
        }
    }

    fn document(key_ids: &[&str]) -> String {
        let keys = key_ids.iter().map(|id| format!(r#"{{"kid":"{id}","secret":"secret of {id}"}}"#));
        format!(r#"{{"keys":[{}]}}"#, keys.collect::<Vec<_>>().join(","))
    }

    fn wait(retry_after_seconds: u64) -> Result<usize, Refusal> {
        Err(Refusal::KeySourceUnavailable { retry_after_seconds })
    }

    #[tokio::test]
    async fn a_document_serves_for_300_seconds_and_never_longer() {
        let bench = Bench::new(&["july", "june"]);
        assert_eq!(bench.ask("july").await, Ok(1));
        assert_eq!(bench.ask("june").await, Ok(1));
        bench.answers(Err("gone".to_owned()));
        bench.after(240);
        assert_eq!(bench.ask("july").await, Ok(1));
        assert_eq!(bench.fetches(), 1);
        bench.after(300);
        assert_eq!(bench.ask("july").await, Ok(1));
        bench.clock.set(Micros(Micros::from_seconds(START_SECONDS + 300).0 + 1));
        assert_eq!(bench.ask("july").await, wait(5), "the refresh of a moment ago failed");
        assert_eq!(bench.keys.cached(Some("july")).len(), 0);
        bench.answers(Ok(document(&["july"])));
        bench.after(306);
        assert_eq!(bench.ask("july").await, Ok(1));
    }

    #[tokio::test]
    async fn a_document_is_refreshed_before_it_is_too_old() {
        let bench = Bench::new(&["july"]);
        assert_eq!(bench.ask("july").await, Ok(1));
        bench.answers(Ok(document(&["august", "july"])));
        bench.after(241);
        assert_eq!(bench.ask("july").await, Ok(1), "answered from memory, while the fetch runs");
        bench.begun(2).await;
        while bench.keys.cached(Some("august")).is_empty() {
            tokio::task::yield_now().await;
        }
        bench.after(541);
        assert_eq!(bench.ask("august").await, Ok(1));
        bench.begun(3).await;
    }

    #[tokio::test]
    async fn an_unknown_key_is_unknown_only_after_a_fetch_of_its_own() {
        let bench = Bench::new(&["july"]);
        assert_eq!(bench.ask("july").await, Ok(1));
        bench.after(2);
        assert_eq!(bench.ask("august").await, wait(3), "the last fetch began 2 s ago");
        bench.after(5);
        bench.answers(Ok(document(&["august", "july"])));
        assert_eq!(bench.ask("august").await, Ok(1));
        bench.after(10);
        assert_eq!(bench.ask("forged").await, Ok(0));
        assert_eq!(bench.ask("forged").await, wait(5), "it arrived after that fetch began");
        assert_eq!(bench.fetches(), 3);
        bench.after(15);
        bench.answers(Err("gone".to_owned()));
        assert_eq!(bench.ask("forged").await, wait(5), "a failed fetch leaves it unanswered");
        assert_eq!(bench.ask("july").await, Ok(1), "known keys are not harmed");
    }

    #[tokio::test]
    async fn many_requests_share_one_fetch() {
        let bench = Bench::new(&["july"]);
        bench.hold();
        let asking = join_all((0..50).map(|_| bench.ask("july")));
        let going = async {
            bench.begun(1).await;
            bench.let_one_go();
        };
        let (answers, ()) = tokio::join!(asking, going);
        assert_eq!(answers, vec![Ok(1); 50]);
        assert_eq!(bench.fetches(), 1);
    }

    #[tokio::test]
    async fn a_fetch_that_began_before_the_request_does_not_condemn_its_key() {
        let bench = Bench::new(&["july"]);
        bench.hold();
        let early = bench.keys.clone();
        let early_arrival = early.arrival();
        let early = tokio::spawn(async move { early.candidates(Some("august"), early_arrival).await });
        bench.begun(1).await;
        bench.after(1);
        // It arrives while the first fetch runs, joins it, and is then not told 401 by it.
        let late = bench.ask("august");
        let going = async {
            tokio::task::yield_now().await;
            bench.let_one_go();
        };
        let (late, ()) = tokio::join!(late, going);
        assert_eq!(early.await.expect("no panic").map(|secrets| secrets.len()), Ok(0));
        assert_eq!(late, wait(4));
        assert_eq!(bench.fetches(), 1);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_stop_the_fetch() {
        let bench = Bench::new(&["july"]);
        bench.hold();
        let caller = tokio::spawn({
            let keys = bench.keys.clone();
            async move { keys.candidates(Some("july"), keys.arrival()).await }
        });
        bench.begun(1).await;
        caller.abort();
        assert!(caller.await.is_err_and(|error| error.is_cancelled()));
        bench.let_one_go();
        assert_eq!(bench.ask("july").await, Ok(1));
        assert_eq!(bench.fetches(), 1);
    }

    #[tokio::test]
    async fn a_source_that_panics_has_failed() {
        struct Broken;
        impl KeyDocument for Broken {
            fn fetch(&self) -> BoxFuture<'_, Result<String, String>> {
                panic!("broken")
            }
        }
        let clock = Arc::new(ManualClock::new(Micros::from_seconds(START_SECONDS)));
        let keys = KeySource::Document(Arc::new(Cache {
            endpoint: "shoc-main".into(),
            source: Arc::new(Broken),
            clock: clock.clone(),
            state: Mutex::default(),
        }));
        for seconds in [0, 5] {
            clock.set(Micros::from_seconds(START_SECONDS + seconds));
            assert!(!keys.is_loaded().await);
        }
    }

    #[tokio::test]
    async fn a_clock_put_back_neither_keeps_a_document_nor_forbids_a_fetch() {
        let bench = Bench::new(&["july"]);
        assert_eq!(bench.ask("july").await, Ok(1));
        bench.after(-1_000);
        assert_eq!(bench.ask("july").await, Ok(1));
        assert_eq!(bench.fetches(), 2);
    }

    #[tokio::test]
    async fn a_document_that_makes_no_sense_is_a_failed_fetch() {
        let bench = Bench::new(&["july"]);
        for nonsense in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kid":"july","secret":""}]}"#] {
            bench.answers(Ok(nonsense.to_owned()));
            assert_eq!(bench.ask("july").await, wait(5), "{nonsense}");
            bench.after(5 * (bench.fetches() as i64));
        }
    }

    #[tokio::test]
    async fn fixed_secrets_are_chosen_by_label_where_a_key_is_named() {
        let secret = |label: &str| Secret::new(label, b"s".to_vec()).expect("not empty");
        let keys = KeySource::Fixed(vec![secret("july"), secret("june")]);
        let candidates = async |key_id| keys.candidates(key_id, keys.arrival()).await.map(|keys| keys.len());
        assert_eq!(candidates(None).await, Ok(2));
        assert_eq!(candidates(Some("june")).await, Ok(1));
        assert_eq!(candidates(Some("May")).await, Ok(0));
        assert!(keys.is_loaded().await);
    }
}
