//! How long answers wait for company, or for data that goes the same way.

use trunkline_conn::time::MICROSECOND;

/// How long answers may wait. They cost a packet, and a program that gets data seldom waits for the
/// end of its request too; but others do.
///
/// Where data follow what comes again and again, as replies do, answers wait for them; where no
/// data followed, they do not the next time.
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
    /// They wait for a reply.
    const HELD: u8 = 16;
    /// The last answers went without data, and none have gone since.
    const ALONE: u8 = 32;
    /// How many times, up to [`EXPECTED`](Self::EXPECTED), data followed what came.
    const REPLY: u8 = 64;
    const REPLIES: u8 = 3 * Self::REPLY;
    const EXPECTED: u8 = 2 * Self::REPLY;

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

    /// Data goes, `since_ns` after what came last. Twice so soon, and replies are expected.
    #[inline]
    pub(super) const fn sent_data(&mut self, since_ns: u64) {
        let replies = self.flags & Self::REPLIES;
        self.flags &= !(Self::ALONE | Self::REPLIES);
        if since_ns <= Self::MOST_NS {
            self.flags |= match replies {
                Self::EXPECTED => Self::EXPECTED,
                fewer => fewer + Self::REPLY,
            };
        }
    }

    /// Whether they had better wait for a reply, as one is to be expected.
    #[inline]
    pub(super) const fn may_hold(self) -> bool {
        let expected = self.flags & Self::REPLIES == Self::EXPECTED;
        expected && self.owed < Self::MANY && !self.has(Self::DEFERRED)
    }

    /// They wait for a reply, and for no company after that.
    pub(super) const fn hold(&mut self) {
        self.flags |= Self::HELD | Self::WAITED;
    }

    /// Whether they wait for a reply.
    #[inline]
    pub(super) const fn is_held(self) -> bool {
        self.has(Self::HELD)
    }

    /// Whether they go in this round, in which `data` was sent or not.
    pub(super) const fn is_over(&mut self, data: bool) -> bool {
        let over = self.is_enough(data);
        if over && !data {
            self.go_alone();
        }
        over
    }

    const fn is_enough(&mut self, data: bool) -> bool {
        let enough = if data { Self::WITH_DATA } else { Self::MANY };
        if self.owed >= enough {
            return true;
        }
        if data && self.has(Self::WAITED) {
            self.flags |= Self::DEFERRED;
            self.flags &= !Self::HELD;
        }
        let over = self.has(Self::WAITED) && !self.has(Self::DEFERRED);
        self.flags |= Self::WAITED;
        over
    }

    /// They go without data: it is in vain to wait for any if that was so the last time, or if they
    /// have.
    const fn go_alone(&mut self) {
        if self.has(Self::ALONE | Self::HELD) {
            self.flags &= !Self::REPLIES;
        }
        self.flags |= Self::ALONE;
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
        self.flags &= !Self::HELD;
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
        self.flags &= Self::ARMED | Self::ALONE | Self::REPLIES;
    }
}
