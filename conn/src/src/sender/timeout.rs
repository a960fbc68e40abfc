//! What happens when nothing comes back: probes, and in the end death.

use super::super::config::Counters;
use super::{MAX_ATTEMPT, Sender};
use crate::control::Control;
use crate::time::Instant;

impl<I: Copy> Sender<I> {
    /// Returns whether the connection died of it.
    pub(in super::super) fn handle_timeout(
        &mut self,
        now: Instant,
        counters: &mut Counters,
    ) -> bool {
        self.pacer.handle_timeout(now);
        if self.dead || self.is_idle() {
            return false;
        }
        if now >= self.death_at() {
            self.dead = true;
            return true;
        }
        if now >= self.rack.deadline && self.detect_losses(now, counters) > 0 {
            self.refresh_control();
        }
        if now >= self.probe_at() {
            return self.probe(now, counters);
        }
        false
    }

    /// When `handle_timeout` has something to do, or [`Instant::FAR`].
    pub(in super::super) fn timeout(&self) -> Instant {
        if self.dead || self.is_idle() {
            return Instant::FAR;
        }
        let mut at = self.death_at().min(self.probe_at());
        if self.in_flight > 0 {
            at = at.min(self.rack.deadline);
        }
        at
    }

    /// When `ready` or `poll_retransmit` was held back by pacing: when to ask again.
    pub(in super::super) fn pacing_timeout(&self) -> Instant {
        if self.dead {
            Instant::FAR
        } else {
            self.pacer.timeout()
        }
    }

    pub(in super::super) fn is_dead(&self) -> bool {
        self.dead
    }

    fn death_at(&self) -> Instant {
        match self.limits.dead_after_ns {
            0 => Instant::FAR,
            after => self.timers.progress_at + after,
        }
    }

    fn probe_at(&self) -> Instant {
        if self.in_flight == 0 {
            return Instant::FAR;
        }
        self.timers.probe_at(
            &self.rtt,
            self.limits.max_ack_delay_ns,
            self.limits.dead_after_ns,
        )
    }

    /// Sends the newest packet again, and from the second time on the oldest: an answer to it lets
    /// loss detection judge everything sent before.
    fn probe(&mut self, now: Instant, counters: &mut Counters) -> bool {
        let tail = self.timers.probing(now);
        if !tail {
            self.control.on_timeout(now);
            self.refresh_control();
        }
        counters.probes += 1;
        self.probes = 1;
        let number = if tail {
            self.newest_in_flight()
        } else {
            self.oldest_in_flight()
        };
        if self.ring[self.index(number)].attempt == MAX_ATTEMPT {
            self.dead = true;
            return true;
        }
        self.lose(number, true);
        false
    }

    /// There is one: bytes are in flight.
    fn newest_in_flight(&self) -> u64 {
        let gone = |&number: &u64| self.settled.get(number) || self.lost.get(number);
        (self.una..self.next)
            .rev()
            .find(|number| !gone(number))
            .expect("bytes in flight belong to a packet")
    }

    fn oldest_in_flight(&self) -> u64 {
        let gone = |&number: &u64| self.settled.get(number) || self.lost.get(number);
        (self.una..self.next)
            .find(|number| !gone(number))
            .expect("bytes in flight belong to a packet")
    }
}
