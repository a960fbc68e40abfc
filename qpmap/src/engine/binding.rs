//! What one end of a pair of QPs knows of the other, and what follows from what it is told.
//!
//! Two halves, one for each direction. As an *asker* an end says BIND, again and again with growing
//! pauses, until it hears BOUND (it may send) or that there is nobody (REFUSED, UNBIND): then what
//! it wants fails, and where it wants nothing it asks again when it does. As the *asked* it takes a
//! BIND and agrees to it. The last word of an end is its UNBIND, which says what it has executed;
//! it is state of its [`Flow`] until the peer has acknowledged it, and the next life of the QP
//! says nothing before that.
//!
//! Nothing here touches anything but the flow: what else is to be done is in the [`Effects`]. So
//! the model in `binding/tests.rs` can go through all that may happen.

use super::ending::Ending;
use super::qp::{Answer, FIRST_MSN, Flags, Flow};
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::{Control as ControlEntry, ControlKind, NakCode, Qpn, Syndrome};

/// Pause before a BIND is said again for the first time, in ns. Each one doubles it.
pub(super) const FIRST_PAUSE_NS: u64 = 50 * MILLISECOND;
/// The pause doubles so often: the longest is 3.2 s.
const DOUBLINGS: u8 = 6;

/// What follows from an entry, for the engine to do in the order of the fields.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Effects {
    /// It comes from, or speaks of, a life that is over: it counts for nothing.
    pub(crate) stale: bool,
    /// Whatever the peer began has no end: it starts anew, or has gone.
    pub(crate) forget: bool,
    /// The life that we talked to is over: what is wanted of it fails. If that is nothing, messages
    /// to the next life are counted anew.
    pub(crate) over: bool,
    /// The life that had agreed to our BIND is over, and there is a next one.
    pub(crate) replaced: bool,
    /// A last word: first message that was not executed, and the verdict on it.
    pub(crate) verdict: Option<(u32, Syndrome)>,
    /// Nobody answers any more: what is wanted fails.
    pub(crate) fail: bool,
    /// The peer's QP has left in order: what fails does so after a while.
    pub(crate) left: bool,
    /// The peer asks in this replay epoch, which is to be entered.
    pub(crate) enter: Option<u8>,
    /// The peer asks for the first time, in this replay epoch.
    pub(crate) first: Option<u8>,
    /// The flow may send from now on.
    pub(crate) bound: bool,
}

impl Flow {
    /// Whether BOUND or REFUSED is waited for. Nothing is by a flow that is over.
    pub(crate) const fn is_asking(&self) -> bool {
        self.asks > 0 && !self.flags.has(Flags::BOUND) && matches!(self.ending, Ending::No)
    }

    /// Whether a BIND is to be said, and none was yet.
    pub(crate) const fn is_to_ask_first(&self) -> bool {
        self.asks == 0 && self.flags.has(Flags::BIND_DUE)
    }

    /// Whether the flow neither may send nor asks for it.
    pub(crate) const fn has_lapsed(&self) -> bool {
        let asks = self.is_asking() || self.flags.has(Flags::BIND_DUE);
        !asks && !self.flags.has(Flags::BOUND) && matches!(self.ending, Ending::No)
    }

    /// The BIND was said; gives the pause after which it is said again, in ns.
    pub(crate) const fn asked(&mut self) -> u64 {
        let doublings = if self.asks < DOUBLINGS {
            self.asks
        } else {
            DOUBLINGS
        };
        self.asks = if self.asks == u8::MAX {
            128
        } else {
            self.asks + 1
        };
        FIRST_PAUSE_NS << doublings
    }

    /// Nothing is said in answer any more: it is to be asked for anew, and at once.
    pub(crate) const fn ask_anew(&mut self) {
        self.flags.clear(Flags::BOUND);
        self.flags.set(Flags::BIND_DUE);
        self.asks = 0;
    }

    /// The peer's QP expects the first message. Nothing is under way.
    pub(crate) const fn count_anew(&mut self) {
        self.next_msn = FIRST_MSN;
        self.acked_msn = FIRST_MSN;
        self.in_vain.end();
    }

    /// Nobody agrees: the flow asks again when there is something to send.
    pub(crate) const fn lapse(&mut self) {
        self.flags.clear(Flags::BOUND);
        self.flags.clear(Flags::BIND_DUE);
        self.asks = 0;
    }

    /// The QP leaves in order, unless it has failed before: that is what the peer hears when the
    /// flow [ends](Self::end).
    pub(crate) fn leave(&mut self) {
        if self.ending == Ending::No && !matches!(self.answer, Answer::Nak(_)) {
            self.answer = Answer::Left;
        }
    }

    /// The QP is in error (or gone, if `last`): the peer has to hear it, and nothing else but what
    /// the QP has executed before.
    pub(crate) const fn end(&mut self, last: bool) {
        self.ending = match (self.ending, last) {
            (Ending::No | Ending::Due, false) => Ending::Due,
            (Ending::No | Ending::Due, true) => Ending::LastDue,
            (Ending::Sent, true) => Ending::LastSent,
            (other, _) => other,
        };
        self.lapse();
        self.flags.clear(Flags::BOUND_DUE);
    }

    /// The peer's QP is in life `generation`, as one of its entries says.
    ///
    /// A life's last word is heard before any word of the next one, but where no connection to the
    /// peer was left to carry it.
    const fn hear_of(&mut self, generation: u32, begun: bool) -> Effects {
        let mut effects = Effects {
            stale: false,
            forget: false,
            over: false,
            replaced: false,
            verdict: None,
            fail: false,
            left: false,
            enter: None,
            first: None,
            bound: false,
        };
        let heard = self.has_heard();
        if heard && generation == self.remote_generation {
            effects.stale = self.flags.has(Flags::UNBOUND);
            return effects;
        }
        if heard && !is_newer(generation, self.remote_generation) {
            effects.stale = true;
            return effects;
        }
        self.remote_generation = generation;
        effects.replaced = self.flags.has(Flags::AGREED);
        self.flags.clear(Flags::AGREED);
        self.flags.clear(Flags::PEER_BOUND);
        self.flags.clear(Flags::UNBOUND);
        // What was due to the last life is not due to this one, whose BIND may be under way yet.
        self.flags.clear(Flags::BOUND_DUE);
        effects.forget = true;
        if heard && begun {
            // Whoever we talked to is gone, and took what it has executed with it.
            effects.over = true;
            self.lapse();
        } else if effects.replaced {
            // Whoever agreed to our BIND is gone. One that names it may be under way.
            self.ask_anew();
        }
        effects
    }

    /// The peer asks. `begun`: something was sent to the life of it that we know of.
    pub(crate) const fn hear_bind(&mut self, entry: &ControlEntry, begun: bool) -> Effects {
        let mut effects = self.hear_of(entry.generation, begun);
        if effects.stale {
            // It was held up on its way.
            return effects;
        }
        if self.flags.has(Flags::PEER_BOUND) {
            effects.enter = Some(entry.replay_epoch);
        } else {
            // Nothing of this life was executed yet. It may have begun an epoch before it was
            // heard: where consent came in the handshake and the connection died at once.
            self.flags.set(Flags::PEER_BOUND);
            effects.first = Some(entry.replay_epoch);
        }
        self.flags.set(Flags::BOUND_DUE);
        if self.asks > 1 && self.is_asking() {
            // It was not ready when we asked, but is now, and may have forgotten that.
            self.flags.set(Flags::BIND_DUE);
        }
        effects
    }

    /// The peer agrees.
    pub(crate) const fn hear_bound(&mut self, entry: &ControlEntry, begun: bool) -> Effects {
        let mut effects = self.hear_of(entry.status, begun);
        if entry.replay_epoch != self.replay_epoch {
            // Consent to an earlier epoch does not allow this one, which has its own BIND under
            // way. Of a life that was not heard before it tells all the same.
            effects.stale |= !effects.forget;
            return effects;
        }
        if !effects.stale && !effects.over {
            // Said again, it is no news. Consent that came in the handshake spares the question.
            effects.bound = !self.flags.has(Flags::BOUND);
            self.flags.set(Flags::BOUND);
            self.flags.set(Flags::AGREED);
            self.flags.clear(Flags::BIND_DUE);
            self.asks = 0;
        }
        effects
    }

    /// The peer does not agree: what was wanted of it fails. An answer to a BIND that named another
    /// life says nothing of the present one.
    pub(crate) const fn hear_refused(&mut self, entry: &ControlEntry) -> Effects {
        let current = entry.replay_epoch == self.replay_epoch && entry.msn == self.agreed();
        let answers = self.is_asking() && current;
        if answers {
            self.lapse();
            self.flags.clear(Flags::AGREED);
        }
        Effects {
            stale: !answers,
            forget: false,
            over: false,
            replaced: false,
            verdict: None,
            fail: answers,
            left: false,
            enter: None,
            first: None,
            bound: false,
        }
    }

    /// The peer's QP is gone or in error, and says what it has executed.
    pub(crate) fn hear_unbind(&mut self, entry: &ControlEntry, begun: bool) -> Effects {
        let mut effects = self.hear_of(entry.generation, begun);
        if effects.stale {
            return effects;
        }
        self.flags.clear(Flags::PEER_BOUND);
        self.flags.clear(Flags::BOUND_DUE);
        self.flags.set(Flags::UNBOUND);
        effects.forget = true;
        // Whether this life has taken our BIND. If not, our BIND is still on its way: to the next
        // life, or to nobody. A life that we first hear of now was sent nothing, and says so.
        let took = entry.status == self.generation && !effects.over;
        if took {
            let verdict = Syndrome::from_byte(entry.replay_epoch);
            let verdict = verdict.unwrap_or(Syndrome::ACK_WITHOUT_CREDITS);
            effects.verdict = Some((entry.msn, verdict));
        }
        if took || self.flags.has(Flags::AGREED) {
            self.lapse();
            self.flags.clear(Flags::AGREED);
            effects.fail = true;
        }
        effects.left = entry.replay_epoch == ControlEntry::LEFT;
        effects
    }

    /// The peer's node has left in order, and all its QPs with it. The flow has no connection any
    /// more, and waits for none: no entry reaches it.
    pub(crate) const fn hear_node_left(&mut self) {
        self.lapse();
        self.flags.clear(Flags::AGREED);
        self.flags.clear(Flags::PEER_BOUND);
        self.flags.clear(Flags::BOUND_DUE);
    }

    /// The life of the peer's QP that has agreed to a BIND of ours; 0 if none has.
    const fn agreed(&self) -> u32 {
        if self.flags.has(Flags::AGREED) {
            self.remote_generation
        } else {
            0
        }
    }

    /// What the peer has to be told of it, of the QP `number`. `begun`: something was sent to the
    /// life of the peer's QP that we know of.
    pub(crate) const fn control_entry(
        &self,
        number: Qpn,
        kind: ControlKind,
        begun: bool,
    ) -> ControlEntry {
        let (generation, status, replay_epoch, msn) = match kind {
            // Consent names the life it is given to, and the one that gives it.
            ControlKind::Bound => (
                self.remote_generation,
                self.generation,
                self.remote_replay_epoch,
                0,
            ),
            // What has begun can only go on with the life that has its beginning. What has not may
            // go on with the next one, but hears that the life which agreed is over.
            ControlKind::Bind => {
                let begun = if begun { self.remote_generation } else { 0 };
                (self.generation, begun, self.replay_epoch, self.agreed())
            }
            ControlKind::Unbind | ControlKind::Refused => {
                let verdict = match self.answer {
                    Answer::Nak(code) => Syndrome::Nak(NakCode::from_code(code)).byte(),
                    Answer::Ack | Answer::Rnr(_) => Syndrome::ACK_WITHOUT_CREDITS.byte(),
                    Answer::Left => ControlEntry::LEFT,
                };
                let taken = if self.flags.has(Flags::PEER_BOUND) {
                    self.remote_generation
                } else {
                    0
                };
                (self.generation, taken, verdict, self.expected_msn)
            }
        };
        ControlEntry {
            kind,
            src_qp: number,
            replay_epoch,
            dest_qp: self.remote,
            generation,
            status,
            msn,
        }
    }
}

/// Whether circular `generation` comes after `other`. 2^31 lives of one QP that its peer heard
/// nothing of would look like none: at a million a second, half an hour of them.
pub(crate) const fn is_newer(generation: u32, other: u32) -> bool {
    generation.wrapping_sub(other).cast_signed() > 0
}

#[cfg(test)]
mod tests;
