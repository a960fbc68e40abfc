//! READs and atomics of a flow that were sent, in this epoch or an earlier one: a list of their own
//! within that of all its requests. What a peer says of one is looked for among these, of which
//! there are as many as may be outstanding at a time, however many requests are: `max_rd_atomic`,
//! 255 at most.
//!
//! Its first one is the oldest request of the flow, or that one names it.
//!
//! A READ that waits for its data keeps all requests behind it that the peer has executed. The
//! oldest request names the last of those that were found so, and no call goes through them again.

use super::{Pending, Requests};
use crate::order::before;
use crate::slab::NONE;

/// These requests of a flow, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Reads<'a> {
    requests: &'a Requests,
    next: u32,
}

impl Iterator for Reads<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let at = self.next;
        self.next = self.requests.get(at)?.next_read;
        Some(at)
    }
}

const fn is_read(pending: &Pending) -> bool {
    pending.begun && pending.request.op.has_response_data()
}

impl Requests {
    /// READs and atomics of the flow with this oldest request that were sent.
    pub(crate) fn reads(&self, oldest: u32) -> Reads<'_> {
        let next = match self.get(oldest) {
            Some(pending) if !is_read(pending) => pending.next_read,
            _ => oldest,
        };
        let requests = self;
        Reads { requests, next }
    }

    /// Request `at` of the flow with this oldest request is sent for the first time, as message
    /// `msn`: after all older ones. Returns it.
    #[inline]
    pub(crate) fn begin(&mut self, oldest: u32, at: u32, msn: u32) -> &mut Pending {
        if self[at].request.op.has_response_data() {
            let before = self.reads(oldest).last().unwrap_or(oldest);
            if before != at {
                self[before].next_read = at;
            }
        }
        let pending = &mut self[at];
        (pending.begun, pending.msn) = (true, msn);
        pending
    }

    /// The oldest request of a flow is done, and `next` is the oldest now, if there is one.
    #[inline]
    pub(crate) fn hand_on(&mut self, oldest: u32, next: u32) {
        let Pending {
            next_read: first,
            executed,
            ..
        } = self[oldest];
        if first == NONE {
            return;
        }
        let next_request = &mut self[next];
        if first != next {
            next_request.next_read = first;
        }
        if executed != oldest {
            next_request.executed = executed;
        }
    }

    /// The first request of the flow with this oldest request that the peer has not executed, or
    /// that it may not have heard is wanted again; [`NONE`]: there is none.
    pub(crate) fn first_to_repeat(&mut self, oldest: u32, acked_msn: u32) -> u32 {
        let executed = |at: &u32| before(self[*at].msn, acked_msn);
        let mut reads = self.reads(oldest).take_while(executed);
        reads
            .find(|at| self[*at].may_be_unheard())
            .unwrap_or_else(|| self.first_unexecuted(oldest, acked_msn))
    }

    /// The first request of the flow with this oldest request that the peer has not executed, where
    /// it has executed all before `acked_msn`; [`NONE`]: there is none.
    pub(crate) fn first_unexecuted(&mut self, oldest: u32, acked_msn: u32) -> u32 {
        let mut last = self.get(oldest).map_or(NONE, |at| at.executed);
        let mut next = self.get(last).map_or(oldest, |at| at.flow_next);
        let executed = |at: &&Pending| at.begun && before(at.msn, acked_msn);
        while let Some(pending) = self.get(next).filter(executed) {
            (last, next) = (next, pending.flow_next);
        }
        if let Some(oldest) = self.get_mut(oldest) {
            oldest.executed = last;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Keyed;
    use trunkline_conn::secret::{Purpose, Secret};
    use trunkline_conn::work::{Local, Remote, Request, SendFlags, SendOp};

    fn request(is_read: bool) -> Pending {
        let target = Remote {
            addr: 0,
            rkey: trunkline_wire::Rkey(0),
        };
        let op = match is_read {
            true => SendOp::Read(target),
            false => SendOp::Write(target),
        };
        let request = Request {
            wr_id: 0,
            op,
            flags: SendFlags::default(),
            length: 8,
            local: Local::Sges(smallvec::SmallVec::new()),
        };
        Pending::new(0, request, 0, 1)
    }

    #[test]
    fn a_response_is_looked_for_among_as_many_as_are_outstanding_however_many_requests_are() {
        const ALL: u32 = 32_000;
        let reads = [0, 20_000, ALL - 1];
        let mut requests = Requests::new(Keyed::new([1, 2]));
        for number in 0..ALL {
            let at = requests.slots.insert(request(reads.contains(&number)));
            requests.begin(0, at, number);
        }
        let found: Vec<u32> = requests.reads(0).collect();
        assert_eq!(found, reads);
    }

    /// Requests in a row, with these of them READs; all were sent.
    fn flow(reads: &[u32], count: u32) -> Requests {
        let mut requests = Requests::new(Keyed::new([1, 2]));
        for number in 0..count {
            let mut pending = request(reads.contains(&number));
            pending.flow_next = if number + 1 < count { number + 1 } else { NONE };
            let at = requests.slots.insert(pending);
            requests.begin(0, at, number);
        }
        requests
    }

    #[test]
    fn requests_that_were_executed_behind_a_read_are_gone_through_once() {
        const ALL: u32 = 32_000;
        let mut requests = flow(&[0, 20_000], ALL);
        assert_eq!(requests.first_unexecuted(0, 10_000), 10_000);
        // Whoever goes through them again does not get past this one.
        requests[5_000].flow_next = NONE;
        for acked in [10_000, 10_001, 15_000] {
            assert_eq!(requests.first_unexecuted(0, acked), acked);
        }
        // It stays known when the READ is done, and what was executed behind it.
        let mut oldest = 0;
        while oldest < 12_000 {
            requests.hand_on(oldest, oldest + 1);
            requests.slots.remove(oldest);
            oldest += 1;
        }
        requests[14_000].flow_next = NONE;
        assert_eq!(requests.first_unexecuted(oldest, 15_000), 15_000);
        assert_eq!(requests.first_unexecuted(oldest, ALL), NONE);
        // Of what is gone nothing is named.
        while oldest < ALL - 1 {
            requests.hand_on(oldest, oldest + 1);
            requests.slots.remove(oldest);
            oldest += 1;
            let named = requests[oldest].executed;
            assert!(named == NONE || named >= oldest, "{named} of {oldest}");
        }
    }

    #[test]
    fn what_is_done_is_not_named_as_executed() {
        let mut requests = flow(&[0, 2], 4);
        assert_eq!(requests.first_unexecuted(0, 1), 1);
        requests.hand_on(0, 1);
        requests.slots.remove(0);
        // Another flow's request has its slot.
        let mut other = request(false);
        other.flow_next = 3;
        assert_eq!(requests.slots.insert(other), 0);
        assert_eq!(requests.first_unexecuted(1, 1), 1);
    }

    #[test]
    fn the_list_is_that_of_all_that_were_sent_and_are_not_done() {
        for seed in 0..200 {
            let mut random = Secret::from_seed(seed).stream(Purpose::Nodes);
            let mut below = |n: u64| (random.next_u64() % n) as u32;
            let mut requests = Requests::new(Keyed::new([1, 2]));
            let all: Vec<u32> = (0..40)
                .map(|_| requests.slots.insert(request(below(3) == 0)))
                .collect();
            let (mut oldest, mut sent) = (0, 0);
            while oldest < all.len() {
                // Some are sent again: that changes nothing.
                let to = (oldest + below(12) as usize).min(all.len());
                for at in &all[oldest..to] {
                    if !requests[*at].begun {
                        requests.begin(all[oldest], *at, *at);
                    }
                }
                sent = to.max(sent);
                let expected: Vec<u32> = all[oldest..sent.max(oldest)]
                    .iter()
                    .copied()
                    .filter(|at| requests[*at].request.op.has_response_data())
                    .collect();
                let found: Vec<u32> = requests.reads(all[oldest]).collect();
                assert_eq!(found, expected, "seed {seed}");
                if oldest < sent {
                    let next = all.get(oldest + 1).copied().unwrap_or(NONE);
                    requests.hand_on(all[oldest], next);
                    requests.slots.remove(all[oldest]);
                    oldest += 1;
                }
            }
        }
    }
}
