//! What became of handshakes: which questions the network kept from being answered, so that it is
//! known which peers may be taken for silent.

use std::collections::BTreeMap;
use trunkline_cm::{Hello, HelloReply, Purpose};
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::Workers;
use trunkline_wire::cm::{CmMad, CommId, Message, Req};

/// How long a QP asks its peer at least before it ends, in ns: the grace that failover gets, 3 s,
/// less what a question may take to leave.
const PATIENCE: u64 = 2_950 * MILLISECOND;
/// Longest time between two REQs of one who goes on asking, in ns.
const PAUSE: u64 = 800 * MILLISECOND;

/// What is asked for. An answer to one question is none to another.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Line {
    /// A connection that the QPs of two workers share; each with its node, in order.
    Pool([(usize, u8); 2]),
    /// One for a single QP or program of a node, and its number.
    Own(usize, u32),
}

/// A REQ that left.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: u64,
    transaction: u64,
    /// Who asked, and whom.
    nodes: (usize, usize),
    /// Number of the QP or connection it is for.
    number: u32,
    /// Low byte of a number of the worker whose pool is to have it; `None`: it is for no pool.
    toward: Option<u8>,
}

impl Asked {
    fn new(at: u64, nodes: (usize, usize), transaction: u64, req: &Req) -> Self {
        let hello = Hello::parse(&req.private_data).ok();
        let shared = hello.filter(|hello| hello.purpose != Purpose::Private);
        Self {
            at,
            transaction,
            nodes,
            number: req.qpn.get(),
            toward: shared.map(|hello| hello.toward),
        }
    }

    fn line(&self, workers: &BTreeMap<usize, Workers>) -> Line {
        let (from, to) = self.nodes;
        let Some(toward) = self.toward else {
            return Line::Own(from, self.number);
        };
        let owner = |node, number| {
            let workers = workers.get(&node).copied().unwrap_or(Workers::ONE);
            (node, workers.owner(number))
        };
        let mut ends = [owner(from, self.number), owner(to, toward.into())];
        ends.sort_unstable();
        Line::Pool(ends)
    }
}

/// What two nodes asked each other.
#[derive(Debug, Default)]
struct Pair {
    /// In order of time.
    asked: Vec<Asked>,
    /// When answers arrive, of those that are not lost or spoilt, and to which transaction.
    answered: Vec<(u64, u64)>,
    /// By transaction, the connection that the one who asked confirmed.
    confirmed: BTreeMap<u64, CommId>,
}

impl Pair {
    /// Whether something was asked for without an answer, by who has waited since `since`. The
    /// question may be older than its wait.
    fn is_silent(&self, workers: &BTreeMap<usize, Workers>, since: u64, now: u64) -> bool {
        let lines = self.asked.iter().map(|asked| asked.line(workers));
        let lines: Vec<Line> = lines.collect();
        let of = self.asked.iter().zip(&lines);
        let of: BTreeMap<u64, Line> = of.map(|(asked, line)| (asked.transaction, *line)).collect();
        let mut begins = BTreeMap::new();
        for (at, transaction) in self.answered.iter().filter(|(at, _)| *at <= now) {
            let begin = begins.entry(of.get(transaction)).or_default();
            *begin = (*at + 1).max(*begin);
        }
        let mut firsts = BTreeMap::new();
        for (asked, line) in self.asked.iter().zip(&lines).rev() {
            let begin = begins.get(&Some(line)).copied().unwrap_or_default();
            let first = firsts.entry(line).or_insert(now);
            if asked.at >= begin && *first - asked.at <= PAUSE {
                *first = asked.at;
            }
        }
        let waits = |first: &u64| since.max(*first) + PATIENCE <= now;
        firsts.values().any(waits)
    }
}

/// All questions of a run, by who asks whom, the lower number first.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    pairs: BTreeMap<(usize, usize), Pair>,
    /// How many each node has said to have.
    workers: BTreeMap<usize, Workers>,
    twice: Option<String>,
}

impl Asks {
    /// A message left at `now`; it arrives whole at `heard`, or never.
    pub(super) fn said(
        &mut self,
        now: u64,
        (from, to): (usize, usize),
        mad: &CmMad,
        heard: Option<u64>,
    ) {
        if let Some(workers) = workers(mad) {
            self.workers.insert(from, workers);
        }
        let pair = self.pairs.entry((from.min(to), from.max(to))).or_default();
        let transaction = mad.transaction_id;
        match &mad.message {
            Message::Req(req) => {
                let asked = Asked::new(now, (from, to), transaction, req);
                pair.asked.push(asked);
            }
            Message::Rep(_) | Message::Rej(_) | Message::Mra(_) => {
                pair.answered.extend(heard.map(|at| (at, transaction)));
            }
            Message::Rtu(rtu) => {
                let confirmed = &mut pair.confirmed;
                let first = *confirmed.entry(mad.transaction_id).or_insert(rtu.remote);
                if first != rtu.remote {
                    self.twice = Some(format!(
                        "node {from} confirmed {first:?} and {:?} of node {to}, having asked once",
                        rtu.remote
                    ));
                }
            }
            _ => {}
        }
    }

    /// Whether a worker of `a` or `b` has asked one of the other for as long as a QP of theirs has
    /// to wait that waits since `since`, and nothing that arrived has answered it by `now`.
    pub(crate) fn kept_silent(&self, a: usize, b: usize, since: u64, now: u64) -> bool {
        let Some(pair) = self.pairs.get(&(a.min(b), a.max(b))) else {
            return false;
        };
        pair.is_silent(&self.workers, since, now)
    }

    /// What was set up twice.
    pub(crate) fn set_up_twice(&self) -> Option<&str> {
        self.twice.as_deref()
    }
}

/// How many workers the sender says to have.
fn workers(mad: &CmMad) -> Option<Workers> {
    let end = match &mad.message {
        Message::Req(req) => Hello::parse(&req.private_data).ok()?.end,
        Message::Rep(rep) => HelloReply::parse(&rep.private_data).ok()?.end,
        _ => return None,
    };
    Some(end.workers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::cm::{Answered, PrivateData, Rej, RejReason, Req, Rtu};

    fn mad(message: Message) -> CmMad {
        CmMad {
            transaction_id: 7,
            message,
        }
    }

    fn refusal() -> CmMad {
        mad(Message::Rej(Rej {
            local: CommId(0),
            remote: CommId(1),
            refused: Answered::Req,
            reason: RejReason::InvalidCommId,
            info_length: 0,
            info: [0; 72],
            private_data: PrivateData::default(),
        }))
    }

    #[test]
    fn silence_is_what_no_answer_came_of_for_as_long_as_a_qp_waits() {
        let silent = |asked: &[u64], heard: Option<u64>, since, now| {
            let mut asks = Asks::default();
            for at in asked {
                asks.said(*at, (0, 1), &mad(Message::Req(Req::default())), None);
            }
            asks.said(1, (1, 0), &refusal(), heard);
            asks.kept_silent(1, 0, since, now)
        };
        let asked: Vec<u64> = (0..10).map(|n| 10 + n * PAUSE).collect();
        let end = 10 + PATIENCE;
        assert!(silent(&asked[..4], None, 0, end));
        assert!(!silent(&asked[..4], None, 0, end - 1), "not for so long");
        assert!(!silent(&asked[..4], None, 11, end), "no QP waited so long");
        assert!(
            silent(&asked[..4], None, 11, end + 1),
            "it was asked before"
        );
        assert!(!silent(&asked[..4], Some(end), 0, end), "it was answered");
        assert!(silent(&asked[..4], Some(end + 1), 0, end), "not in time");
        assert!(!silent(&asked[..2], None, 0, end), "it was asked no more");
        assert!(!silent(&[10, asked[3]], None, 0, end), "not all the while");
        assert!(!silent(&asked[..4], Some(10), 0, end));
        assert!(silent(&asked[..5], Some(10), 0, asked[1] + PATIENCE));
    }

    #[test]
    fn an_answer_to_one_question_is_none_to_another() {
        let two = Workers::new(2).expect("two workers may be");
        let workers = BTreeMap::from([(0, two), (1, two)]);
        let asked = |transaction, nodes, number, toward, at| Asked {
            at,
            transaction,
            nodes,
            number,
            toward,
        };
        // Worker 0 of node 0 asks worker 0 of node 1, and nobody answers. What else is answered?
        for (nodes, number, toward, silent) in [
            ((0, 1), 0, Some(0), false),
            ((0, 1), 2, Some(4), false),
            ((1, 0), 0, Some(0), false),
            ((0, 1), 1, Some(0), true),
            ((0, 1), 0, Some(1), true),
            ((1, 0), 0, Some(1), true),
            ((0, 1), 0, None, true),
        ] {
            let end = 10 + PATIENCE;
            let times = (0..4).map(|n| 10 + n * PAUSE);
            let asked = times.flat_map(|at| {
                let other = asked(2, nodes, number, toward, at);
                [asked(1, (0, 1), 0, Some(0), at), other]
            });
            let pair = Pair {
                asked: asked.collect(),
                answered: vec![(end, 2)],
                ..Pair::default()
            };
            let found = pair.is_silent(&workers, 0, end);
            assert_eq!(found, silent, "{nodes:?} {number} {toward:?}");
        }
    }

    #[test]
    fn a_question_confirmed_for_two_connections_is_found_out() {
        let mut asks = Asks::default();
        let rtu = |remote| {
            mad(Message::Rtu(Rtu {
                local: CommId(1),
                remote: CommId(remote),
                private_data: PrivateData::default(),
            }))
        };
        asks.said(1, (0, 1), &rtu(2), None);
        asks.said(2, (0, 1), &rtu(2), Some(3));
        assert_eq!(asks.set_up_twice(), None);
        asks.said(4, (0, 1), &rtu(3), None);
        assert!(asks.set_up_twice().is_some());
    }
}
