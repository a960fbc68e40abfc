//! What became of handshakes: which questions the network kept from being answered, so that it is
//! known which peers may be taken for silent.

use std::collections::BTreeMap;
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::cm::{CmMad, CommId, Message};

/// How long a QP asks its peer at least before it ends, in ns: the grace that failover gets, 3 s,
/// less what a question may take to leave.
const PATIENCE: u64 = 2_950 * MILLISECOND;
/// Longest time between two REQs of one who goes on asking, in ns.
const PAUSE: u64 = 800 * MILLISECOND;

/// What two nodes asked each other.
#[derive(Debug, Default)]
struct Pair {
    /// When REQs left, in order.
    asked: Vec<u64>,
    /// When answers arrive, of those that are not lost or spoilt.
    answered: Vec<u64>,
    /// By transaction, the connection that the one who asked confirmed.
    confirmed: BTreeMap<u64, CommId>,
}

/// All questions of a run, by who asks whom, the lower number first.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    pairs: BTreeMap<(usize, usize), Pair>,
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
        let pair = self.pairs.entry((from.min(to), from.max(to))).or_default();
        match &mad.message {
            Message::Req(_) => pair.asked.push(now),
            Message::Rep(_) | Message::Rej(_) | Message::Mra(_) => pair.answered.extend(heard),
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

    /// Whether `a` or `b` has asked the other for as long as a QP of theirs has to wait, since
    /// `since` at the earliest, and nothing that arrived has answered it by `now`.
    pub(crate) fn kept_silent(&self, a: usize, b: usize, since: u64, now: u64) -> bool {
        let Some(pair) = self.pairs.get(&(a.min(b), a.max(b))) else {
            return false;
        };
        let answers = pair.answered.iter().filter(|at| **at <= now);
        let begin = since.max(answers.max().map_or(0, |at| at + 1));
        let mut first = now;
        for &asked in pair.asked.iter().rev() {
            if asked < begin || first - asked > PAUSE {
                break;
            }
            first = asked;
        }
        first + PATIENCE <= now
    }

    /// What was set up twice.
    pub(crate) fn set_up_twice(&self) -> Option<&str> {
        self.twice.as_deref()
    }
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
        assert!(!silent(&asked[..4], Some(end), 0, end), "it was answered");
        assert!(silent(&asked[..4], Some(end + 1), 0, end), "not in time");
        assert!(!silent(&asked[..2], None, 0, end), "it was asked no more");
        assert!(!silent(&[10, asked[3]], None, 0, end), "not all the while");
        assert!(!silent(&asked[..4], Some(10), 0, end));
        assert!(silent(&asked[..5], Some(10), 0, asked[1] + PATIENCE));
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
