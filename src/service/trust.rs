//! Whose memory may hold up workers, and how long that of others does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use trunkline_dataplane::Patience;

/// The users whose programs are trusted not to register memory that blocks (files on FUSE or on a
/// network). Workers reach that by themselves, and wait as long as a page takes. What programs of
/// other users register is reached by a thread for each program, and workers wait for it as long as
/// the user's [`Patience`] lasts: 100 ms, and one part in 100 of the time. Then the program is
/// parted with. Memory of segments is the same for all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Trusted {
    /// The user that the service runs as, and root.
    #[default]
    Own,
    /// All users.
    All,
    /// Nobody, the service's own user included.
    Nobody,
}

impl Trusted {
    /// Whether that user is one of them, for a service that runs as user `own`.
    pub(super) const fn includes(self, uid: u32, own: u32) -> bool {
        match self {
            Self::Own => uid == own || uid == 0,
            Self::All => true,
            Self::Nobody => false,
        }
    }
}

/// The patience with each user who is not trusted.
#[derive(Debug, Default)]
pub(super) struct Patiences(HashMap<u32, Arc<Patience>>);

impl Patiences {
    /// That with the programs of a user. It outlives them until it has all come back, or who
    /// attaches anew would have it again.
    pub(super) fn with(&mut self, uid: u32) -> Arc<Patience> {
        let now = Instant::now();
        self.0.retain(|_, patience| {
            Arc::strong_count(patience) > 1 || patience.left(now) < Patience::MOST
        });
        Arc::clone(self.0.entry(uid).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn strangers_are_trusted_only_where_all_are() {
        const OWN: u32 = 1000;
        for (trusted, expected) in [
            (Trusted::Own, [true, true, false]),
            (Trusted::All, [true; 3]),
            (Trusted::Nobody, [false; 3]),
        ] {
            let found = [OWN, 0, 1001].map(|uid| trusted.includes(uid, OWN));
            assert_eq!(found, expected, "{trusted:?}");
        }
        assert_eq!(Trusted::default(), Trusted::Own);
    }

    #[test]
    fn programs_of_a_user_share_patience_and_users_do_not() {
        let mut all = Patiences::default();
        let first = all.with(7);
        assert!(Arc::ptr_eq(&first, &all.with(7)));
        assert!(!Arc::ptr_eq(&first, &all.with(8)));
    }

    #[test]
    fn what_a_user_has_used_is_gone_for_the_next_program_too() {
        let mut all = Patiences::default();
        let now = Instant::now();
        all.with(7).charge(Patience::MOST, now);
        assert!(all.with(7).left(now) < Patience::MOST / 10);
        // It is kept no longer than it tells something.
        all.with(8).charge(Duration::ZERO, now);
        all.with(9);
        assert_eq!(all.0.len(), 2, "users 7 and 9");
    }
}
