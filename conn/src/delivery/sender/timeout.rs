//! What happens when nothing comes back: probes, and in the end death.
//!
//! What has not left was not sent: while a probe waits for room in the port no other one is due,
//! the wait for its answer does not grow, and the clock of death stands still, up to
//! [`MOST_STALLED`] times its span.

use super::super::config::Counters;
use super::super::flight::Mark;
use super::Sender;
use crate::control::Control;
use crate::time::Instant;

/// So many times as long as silence would take, a port may refuse all retransmissions of a
/// connection before that dies of it.
const MOST_STALLED: u64 = 4;

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
        self.notice_stall(now);
        if now >= self.death_at() {
            self.dead = true;
            return true;
        }
        if now >= self.rack.deadline && self.detect_losses(now, counters) > 0 {
            self.refresh_control();
            self.notice_stall(now);
        }
        if now >= self.probe_at() {
            self.probe(now, counters);
        }
        self.dead = self.worn_out;
        self.dead
    }

    /// The link of this host is up again: what is in flight is asked about soon. Whether that is
    /// sooner than it would have been.
    pub(in super::super) fn link_up(&mut self, now: Instant) -> bool {
        self.timers.begin_anew(now)
    }

    /// Remembers since when nothing but a retransmission can bring news of the peer.
    fn notice_stall(&mut self, now: Instant) {
        self.stalled_at = match self.stalled_at {
            _ if !self.is_stalled() => None,
            None => Some(now),
            since => since,
        };
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

    /// When `ready` or `peek_retransmit` was held back by pacing: when to ask again.
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
            _ if self.worn_out => Instant::ZERO,
            0 => Instant::FAR,
            after if self.is_stalled() => {
                self.timers.progress_at + after.saturating_mul(MOST_STALLED)
            }
            after => self.timers.progress_at + after,
        }
    }

    fn probe_at(&self) -> Instant {
        if self.in_flight == 0 || self.is_stalled() {
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
    fn probe(&mut self, now: Instant, counters: &mut Counters) {
        let tail = self.timers.probing(now);
        let (probes, silence_ns) = (self.timers.probes(), now.since(self.timers.progress_at));
        let dead_after_ns = self.limits.dead_after_ns;
        self.large.silent(probes, silence_ns, dead_after_ns);
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
        self.lose(now, number, true);
        self.notice_stall(now);
    }

    /// There is one: bytes are in flight.
    fn newest_in_flight(&self) -> u64 {
        let gone = |&number: &u64| {
            self.flight.has(number, Mark::Settled) || self.flight.has(number, Mark::Lost)
        };
        (self.una..self.next)
            .rev()
            .find(|number| !gone(number))
            .expect("bytes in flight belong to a packet")
    }

    fn oldest_in_flight(&self) -> u64 {
        let gone = |&number: &u64| {
            self.flight.has(number, Mark::Settled) || self.flight.has(number, Mark::Lost)
        };
        (self.una..self.next)
            .find(|number| !gone(number))
            .expect("bytes in flight belong to a packet")
    }
}
