//! Transport claims: one append for one `(endpoint, timestamp, signature)`. Must never let a caller wait
//! for an append that nobody is making, never keep a claim whose append failed, and never refuse a
//! delivery because the map is full.
//!
//! The claims are an economy, not the authority: they are forgotten with the process. Which observation
//! counts is decided by the projector, to which identical bytes always come in one partition.

use std::collections::BTreeSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use crate::error::Refusal;

/// What an append came to: the observation's id once it is durable.
pub(crate) type Appended = Result<Uuid, Refusal>;

/// What is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// The endpoint's place in the configuration.
    pub(crate) endpoint: usize,
    /// As signed, in seconds.
    pub(crate) signed_at: i64,
    /// The signature's bytes.
    pub(crate) signature: [u8; 32],
}

/// The claims of one process. Cheap to clone; all clones are one map.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    held: Arc<Mutex<Held>>,
    claims_max: usize,
}

#[derive(Debug, Default)]
struct Held {
    claims: HashMap<Key, State>,
    /// The claims whose append succeeded, by the second after which they end.
    ends: BTreeSet<(i64, Key)>,
}

#[derive(Debug)]
enum State {
    InFlight(watch::Receiver<Option<Appended>>),
    Appended(Uuid),
}

/// What a delivery finds.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It is the first: its append must be made, and reported to the [`Lead`].
    Mine(Lead, Answer),
    /// An identical one is being appended; this is where its answer comes.
    InFlight(Answer),
    /// An identical one was appended.
    Appended(Uuid),
}

impl Claims {
    /// Room for `claims_max` claims.
    pub(crate) fn new(claims_max: usize) -> Self {
        Self { held: Arc::default(), claims_max }
    }

    /// Claims `key` until `max(now, signed at) + tolerance`, all in seconds. In a full map the delivery
    /// leads without holding a claim.
    pub(crate) fn claim(&self, key: Key, now_seconds: i64, tolerance_seconds: u64) -> Claim {
        let ends_at = now_seconds.max(key.signed_at).saturating_add_unsigned(tolerance_seconds);
        let (sender, receiver) = watch::channel(None);
        let mut held = lock(&self.held);
        held.forget_ended(now_seconds);
        let has_room = held.claims.len() < self.claims_max;
        match held.claims.entry(key) {
            Entry::Occupied(entry) => match entry.get() {
                State::InFlight(receiver) => return Claim::InFlight(Answer(receiver.clone())),
                State::Appended(observation_id) => return Claim::Appended(*observation_id),
            },
            Entry::Vacant(entry) if has_room => {
                entry.insert(State::InFlight(receiver.clone()));
            }
            Entry::Vacant(_) => {}
        }
        let claimed = has_room.then(|| (self.held.clone(), key, ends_at));
        Claim::Mine(Lead { claimed, sender }, Answer(receiver))
    }

    /// Claims held now.
    pub(crate) fn len(&self) -> usize {
        lock(&self.held).claims.len()
    }
}

impl Held {
    fn forget_ended(&mut self, now_seconds: i64) {
        while let Some(&(ends_at, key)) = self.ends.first()
            && ends_at < now_seconds
        {
            self.ends.pop_first();
            self.claims.remove(&key);
        }
    }
}

/// The duty to report an append. Dropped without a report (a panic, a runtime that stops), the claim is
/// released and everyone who waits is told.
#[derive(Debug)]
pub(crate) struct Lead {
    /// Where the claim is held, which one it is, and when it ends; `None` where the map was full.
    claimed: Option<(Arc<Mutex<Held>>, Key, i64)>,
    sender: watch::Sender<Option<Appended>>,
}

impl Lead {
    /// Reports the append: a durable one keeps the claim, a failed one releases it.
    pub(crate) fn report(mut self, appended: Appended) {
        // The claim is settled before anyone is told, so that a caller who was refused and comes again
        // at once finds it released.
        if let (Ok(observation_id), Some((held, key, ends_at))) = (&appended, &self.claimed) {
            let mut held = lock(held);
            held.claims.insert(*key, State::Appended(*observation_id));
            held.ends.insert((*ends_at, *key));
            drop(held);
            self.claimed = None;
        }
        self.release();
        self.sender.send_replace(Some(appended));
    }

    fn release(&mut self) {
        if let Some((held, key, _)) = self.claimed.take() {
            lock(&held).claims.remove(&key);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.release();
    }
}

/// Where the answer of an append comes.
#[derive(Clone, Debug)]
pub(crate) struct Answer(watch::Receiver<Option<Appended>>);

impl Answer {
    /// Waits for it.
    pub(crate) async fn wait(mut self) -> Appended {
        let answer = self.0.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| Err(Refusal::JournalUnavailable("the append was abandoned".to_owned())))
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    // No code that holds the lock can panic half-way through a change.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: i64 = 1_784_642_602;
    const ID: Uuid = Uuid::from_u128(7);

    fn key(signature: u8) -> Key {
        Key { endpoint: 0, signed_at: T, signature: [signature; 32] }
    }

    fn lead(claims: &Claims, key: Key, now: i64) -> Lead {
        match claims.claim(key, now, 300) {
            Claim::Mine(lead, _) => lead,
            other @ (Claim::InFlight(_) | Claim::Appended(_)) => panic!("expected to lead: {other:?}"),
        }
    }

    #[tokio::test]
    async fn an_identical_delivery_in_flight_shares_the_answer() {
        for answer in [Ok(ID), Err(Refusal::JournalTimeout)] {
            let claims = Claims::new(10);
            let lead = lead(&claims, key(1), T);
            let Claim::InFlight(follower) = claims.claim(key(1), T, 300) else { panic!("not in flight") };
            lead.report(answer.clone());
            assert_eq!(follower.wait().await, answer);
        }
    }

    #[test]
    fn endpoint_time_and_signature_are_all_part_of_it() {
        let claims = Claims::new(10);
        lead(&claims, key(1), T).report(Ok(ID));
        for other in [Key { endpoint: 1, ..key(1) }, Key { signed_at: T + 1, ..key(1) }, key(2)] {
            lead(&claims, other, T);
        }
        assert!(matches!(claims.claim(key(1), T, 300), Claim::Appended(ID)));
    }

    #[test]
    fn a_failed_append_releases_its_claim() {
        let claims = Claims::new(10);
        lead(&claims, key(1), T).report(Err(Refusal::JournalQueueFull));
        assert_eq!(claims.len(), 0);
        lead(&claims, key(1), T).report(Ok(ID));
        assert_eq!(claims.len(), 1);
    }

    #[tokio::test]
    async fn an_abandoned_append_releases_its_claim_and_tells_who_waits() {
        let claims = Claims::new(10);
        let lead = lead(&claims, key(1), T);
        let Claim::InFlight(follower) = claims.claim(key(1), T, 300) else { panic!("not in flight") };
        drop(lead);
        assert!(matches!(follower.wait().await, Err(Refusal::JournalUnavailable(_))));
        assert_eq!(claims.len(), 0);
    }

    #[test]
    fn a_claim_lasts_while_its_timestamp_can_be_inside_the_window() {
        for (now, signed_at, last) in [(T + 100, T, T + 400), (T - 100, T, T + 300)] {
            let claims = Claims::new(10);
            let key = Key { signed_at, ..key(1) };
            lead(&claims, key, now).report(Ok(ID));
            assert!(matches!(claims.claim(key, last, 300), Claim::Appended(ID)));
            lead(&claims, key, last + 1);
        }
    }

    #[test]
    fn a_full_map_means_append_and_ended_claims_make_room() {
        let claims = Claims::new(2);
        lead(&claims, key(1), T).report(Ok(ID));
        let in_flight = lead(&claims, key(2), T);
        lead(&claims, key(3), T).report(Ok(ID));
        lead(&claims, key(3), T).report(Ok(ID));
        assert_eq!(claims.len(), 2);
        assert!(matches!(claims.claim(key(1), T, 300), Claim::Appended(ID)));
        lead(&claims, key(3), T + 301).report(Ok(ID));
        assert!(matches!(claims.claim(key(3), T + 301, 300), Claim::Appended(ID)));
        assert!(matches!(claims.claim(key(2), T + 301, 300), Claim::InFlight(_)), "in flight never ends");
        drop(in_flight);
        assert_eq!(claims.len(), 1);
    }
}
