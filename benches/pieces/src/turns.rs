//! The scheduler alone: many flows of one connection with something to send, into a port that
//! merely gives room. What was sent is delivered between the measured parts.

use crate::pair::{End, Ends, PairConfig, send};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::time::{Instant, MICROSECOND};
use trunkline_conn::work::Completion;
use trunkline_qpmap::wqe::RecvWr;
use trunkline_wire::Path;

/// Bytes of a message.
const SMALL: u32 = 64;

/// Flows that take turns.
#[derive(Debug)]
pub struct Turns {
    ends: Ends,
    flows: usize,
    each: usize,
    /// Time is a count of rounds.
    now: Instant,
}

/// Longer than acknowledgements wait for company.
const ROUND_NS: u64 = 200 * MICROSECOND;

/// Passes packets on to a port, up to a limit.
struct Limited<'a, E> {
    port: &'a mut E,
    left: u64,
}

impl<E: Egress> Egress for Limited<'_, E> {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if self.left == 0 {
            return None;
        }
        self.port.reserve(path, length)
    }

    fn commit(&mut self) {
        self.left -= 1;
        self.port.commit();
    }
}

impl Turns {
    /// `flows` QPs on one connection, each with `each` messages to send in every round.
    ///
    /// # Panics
    /// When memory runs out.
    pub fn new(flows: usize, each: usize) -> Self {
        let config = PairConfig {
            qps: flows,
            window: 4096,
            // What is counted is packets, one a message.
            packs: false,
            ..PairConfig::default()
        };
        let ends = Ends::new(&config);
        let now = ends.start();
        Self {
            ends,
            flows,
            each,
            now,
        }
    }

    /// One round of both ends.
    fn turn(&mut self) {
        self.now = self.now + ROUND_NS;
        self.ends.turn_at(self.now);
    }

    /// Messages of a round.
    pub const fn round(&self) -> u64 {
        (self.flows * self.each) as u64
    }

    fn post_all(&self) {
        let (from, to) = (
            [self.ends.nodes[0].sge(0, SMALL)],
            [self.ends.nodes[1].sge(0, SMALL)],
        );
        for qp in 0..self.flows {
            for _ in 0..self.each {
                self.ends.post_recv(
                    1,
                    qp,
                    &[RecvWr {
                        wr_id: 0,
                        sges: &to,
                    }],
                );
            }
            let requests = [send(qp, &from); 16];
            self.ends.post_send(0, qp, &requests[..self.each]);
        }
    }

    /// Posts a round.
    ///
    /// # Panics
    /// When the round before was not delivered.
    pub fn post(&mut self) {
        self.post_all();
        self.ends.nodes[0].engine.handle_all_doorbells();
    }

    /// Sends `count` packets of a round that was posted.
    ///
    /// # Panics
    /// When a round has fewer packets, or the connection does not take them all at once.
    pub fn packets(&mut self, count: u64) {
        let End { engine, port, .. } = &mut self.ends.nodes[0];
        let mut port = Limited { port, left: count };
        while port.left > 0 {
            let sent = engine.poll_transmit(self.now, &mut port);
            assert!(sent > 0, "{} of {count} packets are missing", port.left);
        }
    }

    /// Lets all of a round arrive.
    ///
    /// # Panics
    /// When a message gets lost.
    pub fn deliver(&mut self) {
        let mut done = [Completion::BLANK; 256];
        let (mut left, mut turns) = (self.round(), 0);
        while left > 0 {
            self.turn();
            left -= self.ends.nodes[0]
                .cq
                .poll(&mut done)
                .expect("room in the CQ") as u64;
            while self.ends.nodes[1]
                .cq
                .poll(&mut done)
                .expect("room in the CQ")
                > 0
            {}
            turns += 1;
            assert!(turns < 10_000, "{left} messages got lost");
        }
    }

    /// A whole round, so that all rings are there.
    ///
    /// # Panics
    /// When a message gets lost.
    pub fn go_round(&mut self) {
        self.post();
        self.packets(self.round());
        self.deliver();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_gets_its_turn() {
        let mut turns = Turns::new(100, 2);
        for _ in 0..3 {
            assert_eq!(turns.round(), 200);
            turns.go_round();
        }
    }
}
