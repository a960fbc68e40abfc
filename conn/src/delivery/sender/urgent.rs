//! Small packets that somebody waits for: who asks and who answers is not held up by data.
//!
//! They count in the window and at the pace like all others, but one of them at a time passes both:
//! a window that a few large packets fill, or a pace of one packet in many round trips, would hold
//! them up for so long. Where they get lost they are sent again before data. That is a packet in a
//! round trip more than congestion control allows, as probes are (RFC 9002, section 7.5).

use super::super::flight::{Mark, Segment};
use super::super::spare::Spare;
use super::{Sender, Sent};
use crate::time::Instant;

/// Numbers of a window that data leaves to them: such a part of it, and so many at most.
const KEPT_PART: u64 = 16;
const MOST_KEPT: u64 = 16;

/// Those that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Urgent {
    in_flight: u32,
    /// Waiting to be sent again.
    lost: u32,
    /// None of the latter has a number below it.
    lost_from: u64,
}

impl Urgent {
    /// Whether one may leave whatever window and pace say.
    pub(super) const fn may_pass(&self) -> bool {
        self.in_flight == 0
    }

    #[inline(always)]
    pub(super) const fn sent(&mut self, urgent: bool) {
        self.in_flight += urgent as u32;
    }

    pub(super) const fn sent_again(&mut self, number: u64) {
        self.lost -= 1;
        self.in_flight += 1;
        self.lost_from = number + 1;
    }

    /// So many have arrived that were in flight.
    #[inline(always)]
    pub(super) const fn arrived(&mut self, count: u32) {
        self.in_flight -= count;
    }

    /// One has arrived that was taken for lost.
    pub(super) const fn arrived_late(&mut self) {
        self.lost -= 1;
    }

    pub(super) fn lose(&mut self, number: u64) {
        self.lost_from = match self.lost {
            0 => number,
            _ => self.lost_from.min(number),
        };
        self.in_flight -= 1;
        self.lost += 1;
    }
}

impl<I: Copy> Sender<I> {
    /// Whether an urgent packet may be sent now.
    pub(in super::super) fn ready_urgent(
        &mut self,
        now: Instant,
        segments: &mut Spare<Segment<I>>,
    ) -> bool {
        if self.ready(now, segments) > 0 {
            return true;
        }
        if self.numbers() == 0 || self.dead || !self.urgent.may_pass() {
            return false;
        }
        self.grant = 1;
        self.flight.reserve(self.next + 1, segments);
        true
    }

    /// Numbers that data leaves to urgent packets.
    pub(super) fn kept_numbers(&self) -> u64 {
        (self.limits.window / KEPT_PART).min(MOST_KEPT)
    }

    /// Lowest number of an urgent packet that waits to be sent again, if one does.
    pub(super) fn urgent_lost(&mut self) -> Option<u64> {
        if self.urgent.lost == 0 {
            return None;
        }
        let mut number = self.urgent.lost_from.max(self.una);
        loop {
            assert!(number < self.next, "a lost packet is in the window");
            let mut word = self.flight.gather(number, Mark::Lost);
            while word != 0 {
                let at = number + u64::from(word.trailing_zeros());
                let Sent { urgent, .. } = self.flight.get(at);
                if *urgent {
                    // Whoever asks again does not search again.
                    self.urgent.lost_from = at;
                    return Some(at);
                }
                word &= word - 1;
            }
            number += 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{AckInfo, Config, Delivery, Pool};
    use crate::control::CongestionControl;
    use crate::time::{Instant, SECOND};

    /// Two urgent packets and many between them are lost: the search for the second one passes over
    /// all those. Whoever may not send it yet asks again with every packet that comes.
    #[test]
    fn what_is_lost_is_searched_for_once_however_often_it_is_asked_for() {
        let now = Instant::from_nanos(SECOND);
        let config = Config {
            control: CongestionControl::None,
            window: 1024,
            ..Config::default()
        };
        let (mut pool, mut connection) = (Pool::default(), Delivery::new(&config, now));
        for number in 0..905 {
            if [1, 901].contains(&number) {
                assert!(connection.ready_urgent(now, &mut pool));
                connection.record_urgent(now, number, 100);
            } else {
                assert!(connection.ready(now, &mut pool) > 0);
                connection.record(now, number, 1000);
            }
        }
        let (block, bit) = (903 / 48, 903 % 48);
        let ack = AckInfo {
            cumulative: 0,
            sack: &[block << 48 | 1 << bit],
            echo: 0,
            ce: None,
            delay_ns: 0,
            waited_ns: 0,
        };
        let acked = connection.handle_ack(now, &ack, &mut |_| {});
        assert_eq!(acked.map(|acked| acked.lost), Ok(904));
        for number in [1, 901, 0, 2] {
            let lost = connection.peek_retransmit(now).expect("a packet is lost");
            assert_eq!(lost.item, number);
            let window = connection.window.as_ref().expect("some are in flight");
            let from = match lost.bytes {
                100 => window.sender.urgent.lost_from,
                _ => window.sender.lost_from,
            };
            assert_eq!(from, number, "what is below it is not looked at again");
            let _ = connection.retransmit(now, lost.bytes);
        }
    }
}
