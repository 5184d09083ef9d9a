//! When the group last confirmed that we are one of it. Must never take a moment for confirmed that is later than the
//! coordinator's own: what it has not heard for a session's time, it gives to others without telling us.
//!
//! librdkafka does not say when a heartbeat was answered, but how many were sent, and it sends the next one only after
//! it has dealt with the answer to the last. So of two heartbeats that were sent after a look at its counters, the
//! first was answered; and answered well where nothing was disturbed meanwhile: no connection to the coordinator lost,
//! no request timed out, the membership steady all along. The coordinator heard it no earlier than that first look.
//! The looks arrive while polling; where nobody polls, for whatever reason, what is confirmed grows old by itself.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::Statistics;

/// Looks that are kept while they wait for two heartbeats.
const LOOKS_MAX: usize = 256;

/// What librdkafka counted at one moment of its own clock.
#[derive(Clone, Copy, Debug)]
struct Look {
    at_micros: i64,
    heartbeats: i64,
    /// Lost connections to the coordinator and requests that timed out.
    disturbances: i64,
    /// How long the coordinator has been known and reachable; `None` while it is not, or the group is being
    /// rebalanced.
    steady_micros: Option<i64>,
}

impl Look {
    fn new(statistics: &Statistics) -> Self {
        let brokers = || statistics.brokers.values();
        let coordinator = || brokers().filter(|broker| broker.source == "logical");
        let disturbances = coordinator().map(|broker| {
            let timeouts = i64::try_from(broker.req_timeouts).unwrap_or(i64::MAX);
            broker.disconnects.unwrap_or(0).saturating_add(timeouts)
        });
        let group = statistics.cgrp.as_ref();
        let steady = group.filter(|group| group.state == "up" && group.join_state == "steady");
        Self {
            at_micros: statistics.ts,
            heartbeats: brokers().filter_map(|broker| broker.req.get("Heartbeat")).sum(),
            disturbances: disturbances.sum(),
            steady_micros: steady.map(|group| group.stateage.saturating_mul(1_000)),
        }
    }
}

/// What is known of one membership after another.
pub(super) struct Pulse {
    /// How long a confirmation is good for.
    good_for: Duration,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// When this membership began.
    began: Option<Instant>,
    /// One moment of librdkafka's clock and of ours, the former no earlier than the latter.
    clocks: Option<(i64, Instant)>,
    /// Undisturbed ever since, the oldest first.
    looks: VecDeque<Look>,
    confirmed: Option<Instant>,
}

impl Pulse {
    /// A tenth of the session's time is left for what is being answered meanwhile.
    pub(super) fn new(session: Duration) -> Self {
        Self { good_for: session - session / 10, known: Mutex::default() }
    }

    /// A new membership begins, with clocks and counters of its own.
    pub(super) fn begin(&self, now: Instant) {
        *self.lock() = Known { began: Some(now), ..Known::default() };
    }

    /// The group gave us partitions. It can only have done so after we had joined it.
    pub(super) fn given(&self) {
        let mut known = self.lock();
        known.looks.clear();
        known.confirmed = known.confirmed.or(known.began);
    }

    /// The group took partitions back; `lost` where it does not know us any more.
    pub(super) fn taken(&self, lost: bool) {
        let mut known = self.lock();
        known.looks.clear();
        if lost {
            known.confirmed = None;
            // What is given next was joined for later than the membership began; only heartbeats tell.
            known.began = None;
        }
    }

    /// librdkafka has counted.
    pub(super) fn counted(&self, statistics: &Statistics, now: Instant) {
        self.lock().look(Look::new(statistics), now);
    }

    /// Why our partitions may be another's by now, if they may.
    pub(super) fn confirmed(&self, now: Instant) -> Result<(), String> {
        let Some(confirmed) = self.lock().confirmed else {
            return Err("the group has not confirmed this instance yet".to_owned());
        };
        let age = now.saturating_duration_since(confirmed);
        if age <= self.good_for {
            return Ok(());
        }
        let seconds = age.as_secs_f64();
        Err(format!("the group has not confirmed this instance for {seconds:.1} s"))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn look(&mut self, look: Look, now: Instant) {
        self.compare_clocks(look.at_micros, now);
        let Some(steady_micros) = look.steady_micros else {
            self.looks.clear();
            return;
        };
        let steady_since = look.at_micros.saturating_sub(steady_micros);
        self.looks
            .retain(|before| before.at_micros >= steady_since && before.disturbances == look.disturbances);
        while let Some(before) = self.looks.front().copied()
            && look.heartbeats >= before.heartbeats + 2
        {
            self.looks.pop_front();
            self.confirmed = self.confirmed.max(self.instant(before.at_micros));
        }
        self.looks.push_back(look);
        if self.looks.len() > LOOKS_MAX {
            self.looks.pop_front();
        }
    }

    /// A look may arrive late, never early: of all pairs the one that arrived soonest is nearest to the truth.
    fn compare_clocks(&mut self, at_micros: i64, now: Instant) {
        if self.instant(at_micros).is_none_or(|at| at > now) {
            self.clocks = Some((at_micros, now));
        }
    }

    fn instant(&self, at_micros: i64) -> Option<Instant> {
        let (known_micros, known) = self.clocks?;
        let apart = Duration::from_micros(at_micros.abs_diff(known_micros));
        if at_micros >= known_micros { known.checked_add(apart) } else { known.checked_sub(apart) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pulse with a session of 10 s, its clocks, and what librdkafka would count.
    struct Scene {
        pulse: Pulse,
        start: Instant,
        disturbances: i64,
    }

    impl Scene {
        fn new() -> Self {
            let (pulse, start) = (Pulse::new(Duration::from_secs(10)), Instant::now());
            pulse.begin(start);
            Self { pulse, start, disturbances: 0 }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// At `seconds` so many heartbeats were sent, and it is told at once.
        fn look(&self, seconds: u64, heartbeats: i64) {
            self.look_told_at(seconds, heartbeats, Some(1_000_000_000), seconds);
        }

        fn look_told_at(&self, seconds: u64, heartbeats: i64, steady_micros: Option<i64>, told: u64) {
            let at_micros = 7_000_000 + seconds as i64 * 1_000_000;
            let look = Look { at_micros, heartbeats, disturbances: self.disturbances, steady_micros };
            self.pulse.lock().look(look, self.at(told));
        }

        /// The last whole second at which we may answer.
        fn good_until(&self) -> Option<u64> {
            (0..100).filter(|seconds| self.pulse.confirmed(self.at(*seconds)).is_ok()).max()
        }
    }

    #[test]
    fn nothing_is_confirmed_before_the_group_gives_or_answers() {
        let scene = Scene::new();
        assert_eq!(scene.good_until(), None);
        scene.pulse.given();
        assert_eq!(scene.good_until(), Some(9));
    }

    #[test]
    fn a_heartbeat_counts_from_before_it_was_sent_once_the_next_one_is_sent() {
        let scene = Scene::new();
        scene.look(10, 5);
        scene.look(11, 6);
        assert_eq!(scene.good_until(), None, "the sixth may be unanswered");
        scene.look(12, 7);
        assert_eq!(scene.good_until(), Some(10 + 9));
        scene.look(13, 8);
        assert_eq!(scene.good_until(), Some(11 + 9));
    }

    #[test]
    fn a_silent_coordinator_confirms_nothing() {
        let scene = Scene::new();
        for seconds in 10..15 {
            scene.look(seconds, seconds as i64);
        }
        for seconds in 15..40 {
            scene.look(seconds, 15);
        }
        assert_eq!(scene.good_until(), Some(13 + 9));
    }

    #[test]
    fn what_was_disturbed_confirms_nothing() {
        let mut scene = Scene::new();
        scene.look(10, 5);
        scene.disturbances += 1;
        scene.look(11, 7);
        scene.look_told_at(12, 9, None, 12);
        // Steady again for half a second only.
        scene.look_told_at(13, 11, Some(500_000), 13);
        scene.look_told_at(14, 13, Some(500_000), 14);
        assert_eq!(scene.good_until(), None);
        scene.pulse.taken(false);
        scene.look(15, 15);
        scene.look(16, 17);
        assert_eq!(scene.good_until(), Some(15 + 9));
    }

    #[test]
    fn what_is_told_late_is_not_taken_for_news() {
        let scene = Scene::new();
        for (seconds, heartbeats) in [(10, 5), (11, 6), (12, 7)] {
            scene.look(seconds, heartbeats);
        }
        // Stopped from 13 to 60; what was counted before is told afterwards.
        scene.look_told_at(13, 8, Some(1_000_000_000), 60);
        assert!(scene.pulse.confirmed(scene.at(60)).is_err());
        scene.look(61, 10);
        assert!(scene.pulse.confirmed(scene.at(61)).is_err(), "they may all be from before");
    }

    #[test]
    fn a_lost_membership_is_over_at_once() {
        let scene = Scene::new();
        scene.pulse.given();
        scene.pulse.taken(true);
        scene.pulse.given();
        assert_eq!(scene.good_until(), None);
        scene.pulse.begin(scene.at(20));
        scene.pulse.given();
        assert_eq!(scene.good_until(), Some(20 + 9));
    }
}
