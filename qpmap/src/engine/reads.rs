//! READs and atomics of a flow that were sent, in this round or an earlier one: a list of their own
//! within that of all its requests. What a peer says of one is looked for among these, of which
//! there are as many as may be outstanding at a time, however many requests are.
//!
//! Its first one is the oldest request of the flow, or that one names it.

use super::requester::Pending;
use crate::slab::{NONE, Slab};

/// These requests of a flow, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Reads<'a> {
    requests: &'a Slab<Pending>,
    next: u32,
}

impl<'a> Reads<'a> {
    /// Those of the flow with this oldest request.
    pub(crate) fn of(requests: &'a Slab<Pending>, oldest: u32) -> Self {
        let next = match requests.get(oldest) {
            Some(pending) if !is_read(pending) => pending.next_read,
            _ => oldest,
        };
        Self { requests, next }
    }
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

/// Request `at` of the flow with this oldest request is sent. For the first time it is sent after
/// all older ones.
#[inline]
pub(crate) fn begin(requests: &mut Slab<Pending>, oldest: u32, at: u32) {
    if requests[at].begun {
        return;
    }
    if requests[at].request.op.has_response_data() {
        let before = Reads::of(requests, oldest).last().unwrap_or(oldest);
        if before != at {
            requests[before].next_read = at;
        }
    }
    requests[at].begun = true;
}

/// The oldest request of a flow is done, and `next` is the oldest now, if there is one.
#[inline]
pub(crate) fn hand_on(requests: &mut Slab<Pending>, oldest: u32, next: u32) {
    let first = requests[oldest].next_read;
    if first != NONE && first != next {
        requests[next].next_read = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut requests = Slab::new();
        for number in 0..ALL {
            let at = requests.insert(request(reads.contains(&number)));
            begin(&mut requests, 0, at);
        }
        let found: Vec<u32> = Reads::of(&requests, 0).collect();
        assert_eq!(found, reads);
    }

    #[test]
    fn the_list_is_that_of_all_that_were_sent_and_are_not_done() {
        for seed in 0..200 {
            let mut random = Secret::from_seed(seed).stream(Purpose::Nodes);
            let mut below = |n: u64| (random.next_u64() % n) as u32;
            let mut requests = Slab::new();
            let all: Vec<u32> = (0..40)
                .map(|_| requests.insert(request(below(3) == 0)))
                .collect();
            let (mut oldest, mut sent) = (0, 0);
            while oldest < all.len() {
                // Some are sent again: that changes nothing.
                let to = (oldest + below(12) as usize).min(all.len());
                for at in &all[oldest..to] {
                    begin(&mut requests, all[oldest], *at);
                }
                sent = to.max(sent);
                let expected: Vec<u32> = all[oldest..sent.max(oldest)]
                    .iter()
                    .copied()
                    .filter(|at| requests[*at].request.op.has_response_data())
                    .collect();
                let found: Vec<u32> = Reads::of(&requests, all[oldest]).collect();
                assert_eq!(found, expected, "seed {seed}");
                if oldest < sent {
                    let next = all.get(oldest + 1).copied().unwrap_or(NONE);
                    hand_on(&mut requests, all[oldest], next);
                    requests.remove(all[oldest]);
                    oldest += 1;
                }
            }
        }
    }
}
