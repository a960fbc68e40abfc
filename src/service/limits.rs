//! What programs may have.

use super::Trusted;

/// The most that programs may have; what is beyond it is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// Programs.
    pub clients: u32,
    /// Programs of one user.
    pub clients_per_user: u32,
    /// QPs of a program, up to 2^18.
    pub qps: u32,
    /// CQs of a program, and as many SRQs.
    pub cqs: u32,
    /// Completions of a CQ. Workers are held up while those that wait in it are moved
    /// ([`Cq::resize`](crate::Cq::resize)).
    pub cqe: u32,
    /// Memory regions of a program, and as many windows and protection domains.
    pub mrs: u32,
    /// Bytes of the segments of a program, in which its rings and the memory that it allocates for
    /// regions lie.
    pub segment_bytes: u64,
    /// Bytes of other memory that a program has registered.
    pub registered_bytes: u64,
    /// QPs of all programs of one user.
    pub qps_per_user: u32,
    /// CQs of all programs of one user, and as many SRQs.
    pub cqs_per_user: u32,
    /// Memory regions of all programs of one user, and as many windows and protection domains.
    pub mrs_per_user: u32,
    /// Bytes of the segments of all programs of one user.
    pub segment_bytes_per_user: u64,
    /// Bytes of other memory that all programs of one user have registered.
    pub registered_bytes_per_user: u64,
    /// The only users whose programs are let in; empty: all.
    pub users: Vec<u32>,
    /// The users whose programs' memory workers reach by themselves.
    pub trusted: Trusted,
    /// Weights of users, 1 to 64, by which their programs share connections; 1 where none is said.
    pub weights: Vec<(u32, u32)>,
}

impl Limits {
    /// The weight of a program of that user.
    pub(super) fn weight(&self, uid: u32) -> u32 {
        let found = self.weights.iter().find(|(user, _)| *user == uid);
        found.map_or(1, |(_, weight)| *weight)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 1024,
            clients_per_user: 512,
            qps: 1 << 16,
            cqs: 1 << 12,
            cqe: 1 << 16,
            mrs: 1 << 16,
            segment_bytes: 1 << 30,
            registered_bytes: 1 << 40,
            qps_per_user: 1 << 18,
            cqs_per_user: 1 << 14,
            mrs_per_user: 1 << 18,
            segment_bytes_per_user: 1 << 34,
            registered_bytes_per_user: 1 << 44,
            users: Vec::new(),
            trusted: Trusted::default(),
            weights: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_weight_of_its_user_or_one() {
        let limits = Limits {
            weights: vec![(1000, 8), (0, 3)],
            ..Limits::default()
        };
        assert_eq!([1000, 0, 1001].map(|uid| limits.weight(uid)), [8, 3, 1]);
    }
}
