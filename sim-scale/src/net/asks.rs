//! What became of handshakes: which questions the network kept from being answered, so that it is
//! known which peers may be taken for silent.

use std::collections::BTreeMap;
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::cm::{CmMad, CommId, Message};

/// Times that a node asks a peer that it knows, and one that it does not.
const TRIES_KNOWN: u32 = 6;
const TRIES_UNKNOWN: u32 = 3;
/// The least time after which it gives up, in ns: 1.2 s and 200 ms less an eighth (jitter).
const PATIENCE_KNOWN: u64 = 1_050 * MILLISECOND;
const PATIENCE_UNKNOWN: u64 = 175 * MILLISECOND;

/// One question, from its first REQ on.
#[derive(Debug)]
struct Ask {
    /// When it was put first.
    at: u64,
    /// How often it was put.
    sent: u32,
    /// When the first answer arrived, of those that were not lost or spoilt.
    answered_at: Option<u64>,
    /// The connection that the one who asked confirmed.
    confirmed: Option<CommId>,
}

impl Ask {
    /// Whether it was put `tries` times and no answer came for so long: it is over at `now`.
    fn is_unheard(&self, now: u64, tries: u32, patience: u64) -> bool {
        let end = self.at + patience;
        self.sent >= tries && end <= now && self.answered_at.is_none_or(|at| at >= end)
    }
}

/// All questions of a run, by who asked, who was asked, and the transaction.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    asks: BTreeMap<(usize, usize), BTreeMap<u64, Ask>>,
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
        let transaction = mad.transaction_id;
        match &mad.message {
            Message::Req(_) => self.put(now, (from, to), transaction),
            Message::Rep(_) | Message::Rej(_) | Message::Mra(_) => {
                if let (Some(ask), Some(heard)) = (self.ask(to, from, transaction), heard) {
                    let first = ask.answered_at.map_or(heard, |at| at.min(heard));
                    ask.answered_at = Some(first);
                }
            }
            Message::Rtu(rtu) => {
                let Some(ask) = self.ask(from, to, transaction) else {
                    return;
                };
                let first = *ask.confirmed.get_or_insert(rtu.remote);
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

    fn put(&mut self, now: u64, ends: (usize, usize), transaction: u64) {
        let asks = self.asks.entry(ends).or_default();
        let ask = asks.entry(transaction).or_insert(Ask {
            at: now,
            sent: 0,
            answered_at: None,
            confirmed: None,
        });
        ask.sent += 1;
    }

    fn ask(&mut self, from: usize, to: usize, transaction: u64) -> Option<&mut Ask> {
        self.asks.get_mut(&(from, to))?.get_mut(&transaction)
    }

    /// Whether `a` or `b` has asked the other since `since` and may have given up by `now`, as none
    /// of its tries was answered by anything that arrived. A peer that is known is asked six times;
    /// one that has kept silent then is not known any more.
    pub(crate) fn kept_silent(&self, a: usize, b: usize, since: u64, now: u64) -> bool {
        [(a, b), (b, a)].into_iter().any(|pair| {
            let asks = || self.asks.get(&pair).into_iter().flat_map(BTreeMap::values);
            let silent = |ask: &Ask| ask.is_unheard(now, TRIES_KNOWN, PATIENCE_KNOWN);
            let known = asks().filter(|ask| silent(ask)).map(|ask| ask.at).min();
            known.is_some_and(|known| {
                asks().any(|ask| {
                    let again =
                        ask.at > known && ask.is_unheard(now, TRIES_UNKNOWN, PATIENCE_UNKNOWN);
                    ask.at >= since && (silent(ask) || again)
                })
            })
        })
    }

    /// What was set up twice.
    pub(crate) fn set_up_twice(&self) -> Option<&str> {
        self.twice.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::cm::{Answered, PrivateData, Rej, RejReason, Rtu};

    const REQ_EVERY: u64 = 150 * MILLISECOND;

    fn mad(message: Message) -> CmMad {
        CmMad {
            transaction_id: 7,
            message,
        }
    }

    fn ask(asks: &mut Asks, at: u64, transaction: u64, tries: u64) {
        for i in 0..tries {
            asks.put(at + i * REQ_EVERY, (0, 1), transaction);
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
    fn silence_is_only_what_no_answer_in_time_came_of() {
        let end = PATIENCE_KNOWN;
        let silent = |heard: Option<u64>, tries, now| {
            let mut asks = Asks::default();
            ask(&mut asks, 0, 7, tries);
            asks.said(1, (1, 0), &refusal(), heard);
            asks.kept_silent(1, 0, 0, now)
        };
        assert!(silent(None, 6, end));
        assert!(silent(Some(end), 6, end));
        assert!(!silent(Some(end - 1), 6, end));
        assert!(!silent(None, 5, end), "it was not asked as often");
        assert!(!silent(None, 6, end - 1), "it is still waited for");
        assert!(
            !silent(None, 3, end),
            "a stranger that is silent is an ordinary host"
        );
    }

    #[test]
    fn who_was_silent_before_is_asked_three_times() {
        let mut asks = Asks::default();
        ask(&mut asks, 0, 7, 6);
        let since = 2 * PATIENCE_KNOWN;
        ask(&mut asks, since, 8, 3);
        assert!(!asks.kept_silent(0, 1, since, since));
        assert!(asks.kept_silent(0, 1, since, since + PATIENCE_UNKNOWN));
        assert!(!asks.kept_silent(0, 1, since + 1, since + PATIENCE_UNKNOWN));
    }

    #[test]
    fn a_question_confirmed_for_two_connections_is_found_out() {
        let mut asks = Asks::default();
        ask(&mut asks, 0, 7, 1);
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
