//! What a program sends when it has got a message reaches its peer behind the news that the message
//! is done. perftest relies on that: it waits for the completion of a SEND, and only then for the
//! reply (`ib_send_lat -e`).

use crate::common::Pair;
use crate::packs::{Qp, outcomes, remote};
use trunkline_conn::time::MICROSECOND;
use trunkline_conn::work::{SendOp, Status};

/// What the programs of a case do.
#[derive(Clone, Copy, Debug)]
struct Case {
    packs: bool,
    /// Bytes of a reply.
    reply: u32,
    /// QPs beside it whose WRITEs of 64 KiB go the way of the replies, and SENDs of 64 bytes either
    /// way.
    beside: usize,
}

const ROUNDS: u64 = 40;
/// Numbers of requests: of the message, its receive, the reply, its receive, and of all others.
const SENT: u64 = 0;
const GOT: u64 = 1;
const REPLIED: u64 = 2;
const HEARD: u64 = 3;
const OTHER: u64 = 4;
/// Completions of what [`busy`] posts.
const OF_OTHERS: usize = 5;

fn busy(pair: &Pair, [a, b]: &[Qp; 2]) {
    let there = remote(pair, 0, 1 << 19);
    let large = [pair.sge(1, 1 << 18, 65_536)];
    pair.post(1, b, OTHER, SendOp::Write(there), &large);
    for (node, from, to) in [(0, a, b), (1, b, a)] {
        let sge = [pair.sge(node, 4096, 64)];
        pair.receive(to, OTHER, &[pair.sge(1 - node, 8192, 64)]);
        pair.post(node, from, OTHER, SendOp::Send, &sge);
    }
}

/// What succeeded at either node, in its order, and how many others did at both.
#[derive(Debug, Default)]
struct Done {
    of: [Vec<u64>; 2],
    others: usize,
}

impl Done {
    fn look(&mut self, pair: &Pair) {
        for node in [0, 1] {
            for (wr_id, status) in outcomes(pair, node) {
                assert_eq!(status, Status::Success, "{wr_id}");
                match wr_id {
                    OTHER => self.others += 1,
                    own => self.of[node].push(own),
                }
            }
        }
    }

    /// Both nodes take a round, until the request of this number has ended at `node`.
    fn until(&mut self, pair: &mut Pair, node: usize, wanted: u64) {
        for _ in 0..10_000 {
            self.look(pair);
            if self.of[node].contains(&wanted) {
                return;
            }
            pair.step(0);
            pair.step(1);
            pair.now = pair.now + 2 * MICROSECOND;
        }
        panic!("{wanted} did not end: {self:?}");
    }
}

fn exchange(case: Case) {
    let mut pair = Pair::with(0, 4096 + 80);
    pair.packs = case.packs;
    pair.open();
    let [a, b] = pair.connected();
    let others: Vec<[Qp; 2]> = (0..case.beside).map(|_| pair.connected()).collect();
    let (mut begun, mut ended) = (0, 0);
    for round in 0..ROUNDS {
        while begun - ended < 4 * OF_OTHERS * case.beside {
            others.iter().for_each(|qps| busy(&pair, qps));
            begun += OF_OTHERS * case.beside;
        }
        pair.receive(&b, GOT, &[pair.sge(1, 0, 64)]);
        pair.receive(&a, HEARD, &[pair.sge(0, 1 << 17, case.reply)]);
        pair.post(0, &a, SENT, SendOp::Send, &[pair.sge(0, 0, 64)]);
        let mut done = Done::default();
        done.until(&mut pair, 1, GOT);
        let reply = [pair.sge(1, 1 << 17, case.reply)];
        pair.post(1, &b, REPLIED, SendOp::Send, &reply);
        done.until(&mut pair, 0, HEARD);
        assert_eq!(done.of[0], [SENT, HEARD], "{case:?}, round {round}");
        ended += done.others;
    }
    assert_eq!(ended > 0, case.beside > 0, "{case:?}");
}

#[test]
fn a_program_hears_of_its_message_before_the_reply_to_it() {
    for packs in [false, true] {
        for reply in [8, 512, 3000, 65_536] {
            for beside in [0, 1, 40] {
                exchange(Case {
                    packs,
                    reply,
                    beside,
                });
            }
        }
    }
}
