//! How long answers wait for company, or for data that goes the same way.

use trunkline_conn::time::MICROSECOND;

/// How long answers may wait. They cost a packet, and a program that gets data seldom waits for the
/// end of its request too; but others do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckDelay {
    /// Answers owed; `u8::MAX` when they must not wait.
    owed: u8,
    flags: u8,
}

impl AckDelay {
    /// They have waited one round for company.
    const WAITED: u8 = 1;
    /// Data went without them: a timer ends their wait.
    const DEFERRED: u8 = 2;
    /// The timer is armed.
    const ARMED: u8 = 4;

    /// Their wait is over, but there was no room for them.
    const BLOCKED: u8 = 8;

    /// Answers owed from which on they go with data.
    const WITH_DATA: u8 = 4;
    /// Answers owed from which on they do not wait for data.
    const MANY: u8 = 8;
    /// Longest they wait, in ns.
    pub(super) const MOST_NS: u64 = 50 * MICROSECOND;

    const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Something is owed, perhaps something that somebody waits for.
    pub(super) const fn owe(&mut self, urgent: bool) {
        self.owed = if urgent {
            u8::MAX
        } else {
            self.owed.saturating_add(1)
        };
    }

    /// Whether they are owed since the last round.
    #[inline]
    pub(super) const fn is_new(self) -> bool {
        self.owed > 0 && !self.has(Self::WAITED | Self::DEFERRED | Self::BLOCKED)
    }

    /// Whether they go in this round, in which `data` was sent or not.
    pub(super) const fn is_over(&mut self, data: bool) -> bool {
        let enough = if data { Self::WITH_DATA } else { Self::MANY };
        if self.owed >= enough {
            return true;
        }
        if data && self.has(Self::WAITED) {
            self.flags |= Self::DEFERRED;
        }
        let over = self.has(Self::WAITED) && !self.has(Self::DEFERRED);
        self.flags |= Self::WAITED;
        over
    }

    /// Whether a timer ends their wait.
    pub(super) const fn is_deferred(self) -> bool {
        self.has(Self::DEFERRED)
    }

    /// Whether a timer has to be armed; from now on it is.
    pub(super) const fn arm(&mut self) -> bool {
        let arm = self.has(Self::DEFERRED) && !self.has(Self::ARMED);
        if arm {
            self.flags |= Self::ARMED;
        }
        arm
    }

    /// There was no room for them when they were to go.
    pub(super) const fn block(&mut self) {
        self.flags |= Self::BLOCKED;
    }

    /// Whether they go before anything else as soon as there is room.
    pub(super) const fn is_blocked(self) -> bool {
        self.has(Self::BLOCKED)
    }

    /// The timer has fired.
    pub(super) const fn end(&mut self) {
        self.flags &= !Self::ARMED;
        if self.has(Self::DEFERRED) {
            self.owed = u8::MAX;
        }
    }

    /// Nothing is owed any more.
    pub(super) const fn start_anew(&mut self) {
        self.owed = 0;
        self.flags &= Self::ARMED;
    }
}
