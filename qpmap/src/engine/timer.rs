//! What the timers of an engine are for, and their keys in its wheel.

/// Why something of a connection, flow or peer has to be looked at later; of each there is one such
/// timer at most. It is cancelled when its owner goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Timer {
    /// A shared connection's own timer.
    Conn(u32),
    /// End of the wait of a connection's control messages.
    Control(u32),
    /// End of a flow's receiver-not-ready pause.
    Rnr(u32),
    /// The BIND of a flow is said again, if nobody has answered.
    Ask(u32),
    /// An IBTA connection's own timer.
    Ibta(u32),
    /// A larger size is to be tried on the path to a peer.
    Widen(u32),
    /// The clock of a flow has run down.
    Watch(u32),
    /// What connections needed while they were active may be freed.
    Trim,
    /// BINDs that were sent a while ago get timers of their own.
    RecentBinds,
    /// Idle connections are to be looked at.
    Calendar,
    /// What connections that do nothing have counted may be forgotten.
    ForgetCounts,
    /// Flows of routes that nothing happens on may become dormant.
    Dormancy,
}

/// Low bits of a key, for the index; those above say what the timer is for.
const INDEX_BITS: u32 = 29;

impl Timer {
    /// Its key in the wheel.
    ///
    /// # Panics
    /// The index has more than 29 bits: memory ends before that.
    #[inline]
    pub(super) const fn key(self) -> u32 {
        let (what, index) = match self {
            Self::Conn(conn) => (0, conn),
            Self::Control(conn) => (1, conn),
            Self::Rnr(flow) => (2, flow),
            Self::Ask(flow) => (3, flow),
            Self::Ibta(ibta) => (4, ibta),
            Self::Widen(peer) => (5, peer),
            Self::Watch(flow) => (6, flow),
            Self::Trim => (7, 0),
            Self::RecentBinds => (7, 1),
            Self::Calendar => (7, 2),
            Self::ForgetCounts => (7, 3),
            Self::Dormancy => (7, 4),
        };
        assert!(index >> INDEX_BITS == 0, "a slab has less than 2^29 values");
        what << INDEX_BITS | index
    }

    /// The timer with this key.
    pub(super) const fn from_key(key: u32) -> Self {
        let index = key & ((1 << INDEX_BITS) - 1);
        match key >> INDEX_BITS {
            0 => Self::Conn(index),
            1 => Self::Control(index),
            2 => Self::Rnr(index),
            3 => Self::Ask(index),
            4 => Self::Ibta(index),
            5 => Self::Widen(index),
            6 => Self::Watch(index),
            _ => match index {
                0 => Self::Trim,
                1 => Self::RecentBinds,
                2 => Self::Calendar,
                3 => Self::ForgetCounts,
                _ => Self::Dormancy,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_timer_has_a_key_of_its_own() {
        let last = (1 << INDEX_BITS) - 1;
        let of = |index| {
            [
                Timer::Conn(index),
                Timer::Control(index),
                Timer::Rnr(index),
                Timer::Ask(index),
                Timer::Ibta(index),
                Timer::Widen(index),
                Timer::Watch(index),
            ]
        };
        let timers = [0, 1, last]
            .into_iter()
            .flat_map(of)
            .chain([Timer::Trim, Timer::RecentBinds])
            .chain([Timer::Calendar, Timer::ForgetCounts, Timer::Dormancy]);
        for timer in timers {
            assert_eq!(Timer::from_key(timer.key()), timer);
        }
    }
}
