//! Receivers that were not ready: how often each message was refused, and before which time it must
//! not come again.

use super::flow::{Flow, Shared};
use std::collections::BTreeMap;
use trunkline_wire::{Answer, NakCode, Opcode, Syndrome, rnr_timer_ns};

/// A replay epoch in which a message was refused.
#[derive(Clone, Copy, Debug)]
struct Pause {
    replay_epoch: u8,
    /// When its requester hears of it, and before when the next replay epoch must not begin.
    heard: u64,
    until: u64,
}

/// The requests of a flow in one of its lives.
#[derive(Debug, Default)]
struct Requests {
    /// Of the last packet that left.
    replay_epoch: Option<u8>,
    /// Responses were lost: another replay epoch may begin at once.
    free: bool,
    /// The last message that its receiver was not ready for.
    msn: u32,
    pauses: Vec<Pause>,
}

/// All of a run.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// By flow and generation.
    requests: BTreeMap<(Flow, u16), Requests>,
    /// The replay epoch that a flow asked for last, which its peer agrees to.
    asked: BTreeMap<Flow, u8>,
    too_soon: Option<String>,
}

/// Whether message `a` comes before message `b`.
const fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

impl Refusals {
    /// A packet leaves, that arrives whole at `heard`, or never. `content` is what follows its
    /// headers.
    pub(super) fn left(&mut self, now: u64, packet: &Shared, content: &[u8], heard: Option<u64>) {
        match packet.opcode {
            Opcode::SRC_CONTROL => self.asked.extend(packet.binds(content)),
            Opcode::SRC_ANSWERS => {
                for entry in Answer::entries(content).into_iter().flatten().flatten() {
                    let qps = (entry.responder, entry.requester);
                    let flow = Flow { qps, ..packet.flow }.reverse();
                    self.answered(flow, &entry, heard);
                }
            }
            _ if packet.is_request() && packet.ext.attempt == 0 => self.requested(now, packet),
            _ => {}
        }
    }

    fn answered(&mut self, flow: Flow, answer: &Answer, heard: Option<u64>) {
        let requests = self.requests.entry((flow, answer.generation)).or_default();
        let Some(heard) = heard else { return };
        let timer = match answer.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => {
                requests.free = true;
                return;
            }
            Syndrome::RnrNak { timer } => timer,
            _ => return,
        };
        if requests.pauses.is_empty() || before(requests.msn, answer.msn) {
            (requests.msn, requests.pauses) = (answer.msn, Vec::new());
        } else if requests.msn != answer.msn {
            return;
        }
        let pause = Pause {
            replay_epoch: answer.replay_epoch,
            heard,
            until: heard + rnr_timer_ns(timer),
        };
        let mut known = requests.pauses.iter_mut();
        match known.find(|known| known.replay_epoch == pause.replay_epoch) {
            Some(known) if known.heard <= heard => {}
            Some(known) => *known = pause,
            None => requests.pauses.push(pause),
        }
    }

    fn requested(&mut self, now: u64, packet: &Shared) {
        let (flow, round) = (packet.flow, packet.ext.replay_epoch);
        let requests = self
            .requests
            .entry((flow, packet.ext.generation))
            .or_default();
        let last = requests.replay_epoch.replace(round);
        if last.is_none_or(|last| last == round) || self.asked.get(&flow) == Some(&round) {
            return;
        }
        if std::mem::take(&mut requests.free) || before(packet.ext.msn, requests.msn) {
            return;
        }
        let early = |pause: &&Pause| {
            Some(pause.replay_epoch) == last && (pause.heard..pause.until).contains(&now)
        };
        if let Some(pause) = requests.pauses.iter().find(early) {
            self.too_soon = Some(format!(
                "message {} of {flow:?} came again {} ns before its receiver, which was heard at \
                 {} us, said that it would be ready",
                packet.ext.msn,
                pause.until - now,
                pause.heard / 1000
            ));
        }
    }

    /// How often a message of a flow was refused, of those that its requester heard of between two
    /// times; the most of all.
    pub(crate) fn most(&self, flow: Flow, since: u64, now: u64) -> usize {
        let lives = self.requests.range((flow, 0)..=(flow, u16::MAX));
        let heard = |pause: &&Pause| (since..=now).contains(&pause.heard);
        let counts = lives.map(|(_, requests)| requests.pauses.iter().filter(heard).count());
        counts.max().unwrap_or(0)
    }

    /// What came again too soon.
    pub(crate) fn too_soon(&self) -> Option<&str> {
        self.too_soon.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::{Qpn, SrcExt};

    const FLOW: Flow = Flow {
        nodes: (0, 1),
        qps: (Qpn::from_wire(5), Qpn::from_wire(6)),
    };
    /// Code of 40 us.
    const TIMER: u8 = 4;

    fn request(msn: u32, replay_epoch: u8) -> Shared {
        Shared {
            opcode: Opcode::SRC_SEND,
            conn: Qpn::from_wire(7),
            flow: FLOW,
            ext: SrcExt {
                msn,
                replay_epoch,
                ..SrcExt::default()
            },
            length: 100,
        }
    }

    fn answer(msn: u32, replay_epoch: u8, syndrome: Syndrome) -> Answer {
        Answer {
            requester: FLOW.qps.0,
            responder: FLOW.qps.1,
            syndrome,
            msn,
            generation: 0,
            replay_epoch,
        }
    }

    /// Message 9 was sent in replay epoch 0, refused, and comes again in replay epoch 1 at `again`.
    fn refused(again: u64, also: impl FnOnce(&mut Refusals)) -> Option<String> {
        let mut refusals = Refusals::default();
        refusals.left(0, &request(9, 0), &[], Some(1));
        let content = answer(9, 0, Syndrome::RnrNak { timer: TIMER }).to_bytes();
        let packet = Shared {
            opcode: Opcode::SRC_ANSWERS,
            flow: FLOW.reverse(),
            ..request(0, 0)
        };
        refusals.left(1000, &packet, &content, Some(2000));
        also(&mut refusals);
        refusals.left(again, &request(9, 1), &[], None);
        refusals.too_soon().map(str::to_owned)
    }

    #[test]
    fn what_comes_again_before_its_receiver_said_is_found() {
        assert!(refused(41_999, |_| {}).is_some());
        assert_eq!(refused(42_000, |_| {}), None);
        // Nobody had heard of it.
        assert_eq!(refused(1_999, |_| {}), None);
    }

    #[test]
    fn a_round_that_begins_for_another_reason_may_begin_at_once() {
        let lost = answer(9, 0, Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(
            refused(3000, |all| all.answered(FLOW, &lost, Some(1))),
            None
        );
        assert_eq!(refused(3000, |all| all.asked.extend([(FLOW, 1)])), None);
    }

    #[test]
    fn refusals_count_by_message_round_and_time() {
        let mut refusals = Refusals::default();
        let not_ready = Syndrome::RnrNak { timer: TIMER };
        let mut say = |msn, round, heard| {
            refusals.answered(FLOW, &answer(msn, round, not_ready), heard);
            refusals.most(FLOW, 10, 100)
        };
        assert_eq!(say(9, 0, Some(20)), 1);
        assert_eq!(say(9, 0, Some(30)), 1, "said again");
        assert_eq!(say(9, 1, None), 1, "lost");
        assert_eq!(say(9, 1, Some(40)), 2);
        assert_eq!(say(9, 2, Some(5)), 2, "before that life");
        assert_eq!(say(9, 3, Some(101)), 2, "not yet");
        assert_eq!(say(10, 4, Some(50)), 1, "another message");
        assert_eq!(say(9, 3, Some(60)), 1, "late");
    }
}
