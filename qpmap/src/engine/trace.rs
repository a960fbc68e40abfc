//! What an engine's connections and flows go through, for those who only watch.

use super::{ConnId, Engine, Platform};
use trunkline_conn::time::Instant;
use trunkline_wire::{Gid, Qpn};

/// Why a shared connection went down. The numbers are part of the interface: watchers from outside
/// the process get them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Cause {
    /// This node closed it.
    Local = 0,
    /// The peer closed it.
    Peer = 1,
    /// The peer acknowledged nothing for too long.
    Dead = 2,
    /// The pool had no use for it.
    Reclaimed = 3,
    /// The peer failed, or is another incarnation of itself.
    PeerGone = 4,
    /// The peer has ended in order.
    PeerLeft = 5,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trace {
    /// A shared connection stands.
    Opened {
        /// The connection.
        conn: ConnId,
        /// Address of its peer.
        peer: Gid,
        /// Opened by a program for itself.
        private: bool,
    },
    /// A shared connection is gone.
    Down {
        /// The connection.
        conn: ConnId,
        /// Address of its peer.
        peer: Gid,
        /// Why.
        cause: Cause,
        /// Flows that were on it.
        flows: u32,
    },
    /// A flow lost its connection and goes on with another, or waits for one.
    Failover {
        /// As of [`Trace::BindSent`].
        flow: u32,
        /// Its QP.
        qpn: Qpn,
        /// The connection that is gone.
        from: ConnId,
        /// The connection that it goes on with; `None` while there is none.
        to: Option<ConnId>,
    },
    /// A flow asked its peer for consent (BIND). It may do so again where that was lost, and does
    /// on each new connection.
    BindSent {
        /// When.
        now: Instant,
        /// The flow: a small number, free for another when the flow is gone.
        flow: u32,
        /// Its QP.
        qpn: Qpn,
        /// The peer's QP.
        remote: Qpn,
        /// The connection that carries it.
        conn: ConnId,
        /// 0 at first, then counted up with each replay epoch; a connection that died with
        /// nothing under way begins none.
        replay_epoch: u8,
    },
    /// A BIND of a peer came.
    BindReceived {
        /// QP that it is for; there need be none.
        qpn: Qpn,
        /// The peer's QP.
        remote: Qpn,
        /// The connection that carried it.
        conn: ConnId,
        /// As of [`Trace::BindSent`].
        replay_epoch: u8,
    },
    /// The peer consented (BOUND): the flow may send.
    Bound {
        /// When.
        now: Instant,
        /// As of [`Trace::BindSent`].
        flow: u32,
        /// Its QP.
        qpn: Qpn,
        /// The peer's QP.
        remote: Qpn,
        /// The connection that carried the consent.
        conn: ConnId,
        /// As of [`Trace::BindSent`].
        replay_epoch: u8,
    },
    /// The peer refused a BIND.
    BindRefused {
        /// As of [`Trace::BindSent`].
        flow: u32,
        /// The QP that asked.
        qpn: Qpn,
        /// The peer's QP.
        remote: Qpn,
        /// The connection that carried the refusal.
        conn: ConnId,
    },
    /// A flow is gone, or dormant: its number is free.
    Ended {
        /// As of [`Trace::BindSent`].
        flow: u32,
    },
    /// A live QP moved to another connection because its program wanted that.
    Moved {
        /// The QP.
        qpn: Qpn,
        /// Where it is now.
        conn: ConnId,
    },
}

impl<P: Platform> Engine<P> {
    /// From now on `watch` is told what connections and flows go through, within the call that
    /// brings it about.
    pub fn observe(&mut self, watch: impl FnMut(&Trace) + Send + 'static) {
        self.events.observe(watch);
    }

    /// Reports what `describe` makes of the engine, if somebody watches.
    #[inline]
    pub(crate) fn emit(&mut self, describe: impl FnOnce(&Self) -> Trace) {
        if let Some(mut observer) = self.events.take_observer() {
            observer.emit(|| describe(self));
            self.events.give_back(observer);
        }
    }
}
