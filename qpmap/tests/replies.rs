//! Where replies follow what comes, answers wait for them; nothing else waits for anything.

use crate::common::{Pair, RingMemory};
use crate::packs::{opcode, outcomes};
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_conn::time::{Instant, MICROSECOND, MILLISECOND};
use trunkline_conn::work::{SendOp, Status, WorkOpcode};
use trunkline_qpmap::QpQueues;
use trunkline_wire::{Opcode, Path};

/// The longest that an answer waits for a reply, and the rounds around it.
const DELAY: u64 = 50 * MICROSECOND;
const ROUNDS: u64 = 5 * MICROSECOND;
/// After so many trips replies are expected.
const WARM: u64 = 4;
/// Receives of each node.
const RECEIVES: u64 = 32;

/// Two programs that talk over one pair of QPs, a round of each node every microsecond.
struct Talk {
    pair: Pair,
    qps: [Arc<QpQueues<RingMemory>>; 2],
    /// Whether receives are posted anew.
    reposts: bool,
    /// How long after a message its receiver replies to it, if it does.
    thinks: [Option<u64>; 2],
    /// Replies to come: when, and from whom.
    due: VecDeque<(Instant, usize)>,
    next_id: u64,
    /// Datagrams sent, and messages received, by each node.
    sent: [u64; 2],
    received: [u64; 2],
    /// When each message of a node was posted, and how long its completion took.
    posted: Vec<Instant>,
    took: [Vec<u64>; 2],
    /// Datagrams of each node that are on their way, and those that get lost next.
    flying: [Vec<(Path, Vec<u8>)>; 2],
    lose: [u64; 2],
}

impl Talk {
    fn new(thinks: [Option<u64>; 2]) -> Self {
        Self::over(None, thinks)
    }

    /// Over ports of so many bits per second.
    fn over(rate: Option<u64>, thinks: [Option<u64>; 2]) -> Self {
        let mut pair = Pair::configured(0, 4096 + 80, |config| config.link_rate_bps = rate);
        pair.packs = true;
        pair.open();
        let qps = pair.connected();
        pair.run(20 * MILLISECOND);
        let talk = Self {
            pair,
            qps,
            reposts: true,
            thinks,
            due: VecDeque::new(),
            next_id: 0,
            sent: [0; 2],
            received: [0; 2],
            posted: Vec::new(),
            took: Default::default(),
            flying: Default::default(),
            lose: [0; 2],
        };
        for node in [0, 1] {
            (0..RECEIVES).for_each(|_| talk.receive(node));
        }
        talk
    }

    /// Two that have talked for a while. Node 1 has the last word.
    fn warm(think: u64) -> Self {
        let mut talk = Self::new([Some(think); 2]);
        talk.say(0);
        talk.trips(WARM);
        talk.thinks = [None; 2];
        talk.due.clear();
        talk.took = Default::default();
        talk
    }

    fn receive(&self, node: usize) {
        let bytes = self.pair.sge(node, 8192, 64);
        self.pair.receive(&self.qps[node], 0, &[bytes]);
    }

    fn say(&mut self, node: usize) {
        let bytes = self.pair.sge(node, 0, 64);
        self.pair
            .post(node, &self.qps[node], self.next_id, SendOp::Send, &[bytes]);
        self.posted.push(self.pair.now);
        self.next_id += 1;
    }

    fn tick(&mut self) {
        while let Some((at, node)) = self.due.front().copied()
            && at <= self.pair.now
        {
            self.due.pop_front();
            self.say(node);
        }
        for node in [0, 1] {
            let arriving = std::mem::take(&mut self.flying[1 - node]);
            self.pair.deliver(node, &arriving);
        }
        for node in [0, 1] {
            let mut datagrams = self.pair.sent_by(node);
            self.sent[node] += datagrams.len() as u64;
            let lost = self.lose[node].min(datagrams.len() as u64);
            self.lose[node] -= lost;
            datagrams.drain(..lost as usize);
            self.flying[node] = datagrams;
            self.reap(node);
        }
        self.pair.now = self.pair.now + MICROSECOND;
    }

    fn reap(&mut self, node: usize) {
        for done in self.pair.completions(node) {
            assert_eq!(done.status, Status::Success);
            if done.opcode == WorkOpcode::Send {
                let posted = self.posted[done.wr_id as usize];
                self.took[node].push(self.pair.now.since(posted));
                continue;
            }
            self.received[node] += 1;
            if self.reposts {
                self.receive(node);
            }
            if let Some(think) = self.thinks[node] {
                self.due.push_back((self.pair.now + think, node));
            }
        }
    }

    fn run(&mut self, span_ns: u64) {
        let end = self.pair.now + span_ns;
        while self.pair.now < end {
            self.tick();
        }
    }

    /// Until node 0 has heard so many replies.
    fn trips(&mut self, count: u64) {
        let all = self.received[0] + count;
        while self.received[0] < all {
            self.tick();
        }
    }
}

#[test]
fn a_request_and_its_reply_take_one_datagram_each() {
    // The latter has room for one packet at a time.
    for (think, rate) in [1, 2, 7, 20, 40]
        .into_iter()
        .flat_map(|think| [(think, None), (think, Some(1_000_000_000))])
    {
        let mut talk = Talk::over(rate, [Some(think * MICROSECOND); 2]);
        talk.say(0);
        talk.trips(WARM);
        let before = talk.sent;
        // More than are acknowledged only as their sender asks for it.
        talk.trips(1000);
        let sent = [0, 1].map(|node| talk.sent[node] - before[node]);
        assert_eq!(sent, [1000; 2], "{think} us, {rate:?}");
        let slowest = talk.took.iter().flatten().max();
        assert!(slowest < Some(&(DELAY + ROUNDS)), "{think} us: {slowest:?}");
    }
}

#[test]
fn what_goes_one_way_is_answered_at_once() {
    // A word comes back now and then, as those do that grant credits.
    for back in [u64::MAX, 16, 5] {
        for pause in [1, 10, 100, 1000] {
            let mut talk = Talk::new([None; 2]);
            for message in 1..200 {
                talk.say(0);
                talk.run(pause * MICROSECOND);
                if message % back == 0 {
                    talk.say(1);
                }
            }
            talk.run(MILLISECOND);
            assert_eq!(talk.took[0].len(), 199);
            let slowest = talk.took[0].iter().max();
            assert!(slowest <= Some(&ROUNDS), "{back}, {pause} us: {slowest:?}");
        }
    }
}

#[test]
fn a_reply_that_never_comes_delays_one_completion_and_no_more() {
    for think in [1, 10, 30] {
        let mut talk = Talk::warm(think * MICROSECOND);
        for _ in 0..5 {
            talk.say(0);
            talk.run(200 * MICROSECOND);
        }
        let took = &talk.took[0];
        assert_eq!(took.len(), 5);
        assert!((DELAY / 2..=DELAY + ROUNDS).contains(&took[0]), "{took:?}");
        assert!(took[1..].iter().all(|took| *took <= ROUNDS), "{took:?}");
    }
}

#[test]
fn replies_that_come_late_are_not_waited_for() {
    let mut talk = Talk::new([Some(2 * MICROSECOND), Some(70 * MICROSECOND)]);
    talk.say(0);
    talk.trips(20);
    let slowest = talk.took[0].iter().max();
    assert!(slowest <= Some(&ROUNDS), "{slowest:?}");
}

#[test]
fn many_answers_wait_for_no_reply() {
    let mut talk = Talk::warm(10 * MICROSECOND);
    (0..8).for_each(|_| talk.say(0));
    talk.run(ROUNDS);
    assert_eq!(talk.took[0].len(), 8);
}

#[test]
fn a_refusal_waits_for_no_reply() {
    let mut talk = Talk::new([Some(2 * MICROSECOND); 2]);
    talk.reposts = false;
    talk.say(0);
    talk.trips(RECEIVES);
    // There is no receive left for what node 0 says next.
    talk.run(2 * MICROSECOND + ROUNDS);
    assert_eq!(talk.received, [RECEIVES; 2]);
    assert_eq!(talk.pair.nodes[0].engine.counters().rnr_received, 1);
}

/// A packet that is sent again takes along the acknowledgement that the answers waited with, and
/// nothing is heard of node 0 after that.
#[test]
fn answers_leave_though_the_acknowledgement_has_left_without_them() {
    let mut joined = 0;
    for after in 1..400 {
        let mut talk = Talk::warm(2 * MICROSECOND);
        talk.lose[1] = 1;
        talk.say(1);
        talk.run(after * MICROSECOND);
        talk.took = Default::default();
        let before = talk.sent[1];
        talk.say(0);
        talk.tick();
        talk.lose[0] = u64::MAX;
        talk.run(200 * MICROSECOND);
        let took = &talk.took[0];
        assert_eq!(took.len(), 1, "after {after} us");
        assert!(took[0] <= DELAY + ROUNDS, "after {after} us: {took:?}");
        joined += u64::from(talk.sent[1] > before + 1);
    }
    assert!(joined > 10, "{joined}");
}

#[test]
fn an_answer_that_waits_leaves_with_any_data() {
    let mut talk = Talk::warm(2 * MICROSECOND);
    talk.say(0);
    talk.run(5 * MICROSECOND);
    assert_eq!(outcomes(&talk.pair, 0), []);
    talk.say(1);
    let sent = talk.pair.sent_by(1);
    assert_eq!(sent.len(), 1);
    assert_eq!(opcode(&sent[0].1), Opcode::SRC_PACKED);
    talk.pair.deliver(0, &sent);
    assert_eq!(outcomes(&talk.pair, 0).len(), 2);
}
