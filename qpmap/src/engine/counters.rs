//! What an engine counts: cells that it alone writes, and anybody reads at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one thread writes at a time, and others read without a lock. To count costs what
/// it costs in a plain word.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Counts `more`. For the one that writes.
    #[inline(always)]
    pub(crate) fn add(&self, more: u64) {
        self.0
            .store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    /// Returns the count so far.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an [`Engine`](super::Engine) counted since it was made; every dropped packet is in
        /// exactly one.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same as the engine counts it.
        #[derive(Debug, Default)]
        pub struct LiveCounters {
            $($(#[$doc])* pub $name: Count,)*
        }

        impl LiveCounters {
            /// Returns all counts. Those that change meanwhile may belong to different moments.
            pub fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.get(),)*
                }
            }
        }

        impl Counters {
            /// Adds what another engine counted.
            pub const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Every counter with its name, in the order of the fields.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Datagrams handed in.
    received,
    /// Those of them that went the way of the one before.
    streamed,
    /// Datagrams built.
    sent,
    /// Those of them that several messages, answers or control messages shared.
    packed_sent,
    /// Packets taken in that several shared.
    packed_received,
    /// Dropped: shorter than its headers say.
    malformed,
    /// Dropped: an opcode nobody defined.
    unknown_opcode,
    /// Dropped: the ICRC is wrong.
    bad_icrc,
    /// The ICRC was right with another IP identification than predicted.
    identification_solved,
    /// Dropped: no such connection.
    unknown_connection,
    /// Dropped: the connection's token is another.
    bad_token,
    /// Dropped: came from another address than the connection's peer.
    bad_source,
    /// Dropped: a packet number outside the window.
    outside_window,
    /// Dropped: acknowledges what was never sent.
    bad_acknowledgement,
    /// Seen before.
    duplicate,
    /// Dropped, to be sent again: no room to let it wait for an earlier one of its QP.
    staging_full,
    /// Waited for an earlier packet of its QP.
    staged,
    /// Acknowledged and ignored: an earlier incarnation of the QP, or an earlier replay epoch.
    stale,
    /// For a QP that does not exist or is bound elsewhere.
    unknown_qp,
    /// Answered receiver not ready.
    rnr_sent,
    /// Told that the receiver is not ready.
    rnr_received,
    /// Refused a peer's request for good.
    nak_sent,
    /// Had a request refused for good.
    nak_received,
    /// Answers, BINDs or responses that make no sense for their flow.
    bad_answer,
    /// Doorbells of programs in other processes that stand for no QP.
    bad_doorbell,
    /// Packets that stand for data that is gone.
    void_sent,
    /// Messages aborted because their data was gone at the sender.
    void_received,
    /// Dropped by an IBTA connection, UC or UD.
    ibta_dropped,
    /// Dropped: no QP of that number speaks IBTA RC, UC or UD.
    ibta_unknown_qp,
    /// Messages executed for peers.
    executed,
    /// Requests completed.
    completed,
    /// Times that a peer agreed to a BIND: the QP may send.
    bound,
    /// Flows that ended because their peer was silent, or its QP not ready, for their QP's time.
    timed_out,
    /// Routes of app-managed QPs that ended: closed by their programs, ended by their peers,
    /// failed.
    routes_ended,
    /// Routes that peers wanted beyond their share.
    routes_refused,
    /// Flows that moved because their connection died.
    failovers,
    /// Times that a path was found to carry no large packets any more.
    narrowed,
    /// Times that such a path was found to carry larger ones again.
    widened,
    /// Times that a connection went on to another UDP source port, as its packets came out at the
    /// wrong worker of the peer.
    source_port_changed,
    /// Flows that sent anew what packets had carried that became too large for their path.
    resegmented,
    /// Control messages that asked for too much at once.
    control_overflow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_read_what_an_engine_counts_and_see_no_count_fall() {
        const LAST: u64 = 100_000;
        let counters = LiveCounters::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..LAST).for_each(|_| counters.sent.add(1)));
            let mut before = 0;
            while before < LAST {
                let now = counters.read().sent;
                assert!((before..=LAST).contains(&now), "{before}, then {now}");
                before = now;
            }
        });
        let Counters { sent, received, .. } = counters.read();
        assert_eq!((sent, received), (LAST, 0));
    }
}
