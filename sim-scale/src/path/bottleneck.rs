//! The bottleneck: one packet after another at the link's rate, those behind it in a queue with an
//! end.

use std::collections::VecDeque;
use trunkline_conn::time::SECOND;

/// What passes it.
pub(super) trait Load {
    /// Bytes of the IP packet.
    fn bytes(&self) -> u32;
    /// It was marked, if its flow asks for that.
    fn mark(&mut self);
}

/// First in, first out; what finds no room is dropped.
#[derive(Debug)]
pub(super) struct Bottleneck<P> {
    rate: u64,
    room: u64,
    mark: Option<u64>,
    queue: VecDeque<P>,
    waiting: u64,
    /// The packet on the link.
    sending: Option<P>,
    /// Fractions of a ns that the last packet took beyond whole ones, times the rate.
    rest: u64,
    pub(super) drops: u64,
    pub(super) most: u64,
}

impl<P: Load> Bottleneck<P> {
    pub(super) fn new(rate: u64, room: u64, mark: Option<u64>) -> Self {
        Self {
            rate,
            room,
            mark,
            queue: VecDeque::new(),
            waiting: 0,
            sending: None,
            rest: 0,
            drops: 0,
            most: 0,
        }
    }

    /// Another rate, for packets that are not on the link yet.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// A packet comes. If the link was free, gives after how many ns it has left.
    pub(super) fn offer(&mut self, mut packet: P) -> Option<u64> {
        if self.mark.is_some_and(|mark| self.waiting > mark) {
            packet.mark();
        }
        if self.sending.is_none() {
            return Some(self.begin(packet));
        }
        let bytes = u64::from(packet.bytes());
        if self.waiting + bytes > self.room {
            self.drops += 1;
            return None;
        }
        self.waiting += bytes;
        self.most = self.most.max(self.waiting);
        self.queue.push_back(packet);
        None
    }

    /// The packet on the link has left; the next one, if there is one, has after so many ns.
    pub(super) fn departed(&mut self) -> (P, Option<u64>) {
        let packet = self.sending.take().expect("a packet was on the link");
        let next = self.queue.pop_front().map(|next| {
            self.waiting -= u64::from(next.bytes());
            self.begin(next)
        });
        (packet, next)
    }

    fn begin(&mut self, packet: P) -> u64 {
        let bits = u64::from(packet.bytes()) * 8 * SECOND + self.rest;
        self.sending = Some(packet);
        self.rest = bits % self.rate;
        bits / self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Packet(u32, bool);

    impl Load for Packet {
        fn bytes(&self) -> u32 {
            self.0
        }

        fn mark(&mut self) {
            self.1 = true;
        }
    }

    #[test]
    fn packets_leave_one_after_another_at_the_rate() {
        let mut link = Bottleneck::new(8_000_000, 10_000, None);
        assert_eq!(link.offer(Packet(1000, false)), Some(1_000_000));
        assert_eq!(link.offer(Packet(500, false)), None);
        let (first, next) = link.departed();
        assert_eq!((first.0, next), (1000, Some(500_000)));
        link.set_rate(4_000_000);
        assert_eq!(link.offer(Packet(500, false)), None);
        assert_eq!(link.departed().1, Some(1_000_000));
        assert_eq!(link.departed().1, None);
        assert_eq!((link.drops, link.most, link.waiting()), (0, 500, 0));
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_what_finds_a_queue_is_marked() {
        let mut link = Bottleneck::new(8_000, 1_000, Some(400));
        for _ in 0..4 {
            let _ = link.offer(Packet(500, false));
        }
        assert_eq!((link.drops, link.most), (1, 1_000));
        let marks: Vec<_> = (0..3).map(|_| link.departed().0.1).collect();
        assert_eq!(marks, [false, false, true]);
    }

    #[test]
    fn no_time_is_lost_to_rounding() {
        let mut link = Bottleneck::new(100_000_000_000, u64::MAX, None);
        let mut all = 0;
        let mut left = link.offer(Packet(1471, false));
        for _ in 0..1000 {
            all += left.expect("a packet is on the link");
            let _ = link.offer(Packet(1471, false));
            left = link.departed().1;
        }
        assert_eq!(all, 117_680);
    }
}
