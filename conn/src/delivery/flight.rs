//! What is in flight: a ring of segments that grows and shrinks with it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::sender::Sent;
use super::spare::Spare;

/// Packets of a segment: a word of bits.
const SEGMENT: u64 = 64;
/// Segments that a window keeps for itself beside those in use; others go back to the pool.
const SPARE: usize = 1;

/// Records of [`SEGMENT`] packets with consecutive numbers, and what became of them.
#[derive(Debug)]
pub(super) struct Segment<I> {
    /// The peer has got it.
    pub(super) settled: u64,
    /// Lost, and waiting to be sent again.
    pub(super) lost: u64,
    /// Sent again.
    pub(super) again: u64,
    /// When the first of them was sent first, in ticks.
    pub(super) since: u32,
    slots: [Option<Sent<I>>; SEGMENT as usize],
}

impl<I: Copy> Segment<I> {
    const fn new() -> Self {
        Self {
            settled: 0,
            lost: 0,
            again: 0,
            since: 0,
            slots: [const { None }; SEGMENT as usize],
        }
    }
}

/// Which bits of a segment are meant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    Settled,
    Lost,
    Again,
}

/// The records of the packets in flight, by number. `first` and `end` are numbers of segments:
/// those between them have one.
#[derive(Debug)]
pub(super) struct Flight<I> {
    ring: Vec<Option<Box<Segment<I>>>>,
    first: u64,
    end: u64,
    spare: Vec<Box<Segment<I>>>,
}

impl<I: Copy> Flight<I> {
    pub(super) const fn new() -> Self {
        Self {
            ring: Vec::new(),
            first: 0,
            end: 0,
            spare: Vec::new(),
        }
    }

    /// Begins anew at `number`. It holds nothing.
    pub(super) fn start(&mut self, number: u64) {
        assert!(self.first == self.end, "it was cleared");
        (self.first, self.end) = (number / SEGMENT, number / SEGMENT);
    }

    /// Makes room for all numbers below `next`, and gives back what is spare.
    #[inline]
    pub(super) fn reserve(&mut self, next: u64, pool: &mut Spare<Segment<I>>) {
        if next > self.end * SEGMENT || self.spare.len() > SPARE {
            self.refill(next.div_ceil(SEGMENT), pool);
        }
    }

    #[cold]
    fn refill(&mut self, end: u64, pool: &mut Spare<Segment<I>>) {
        let end = end.max(self.end);
        let length = (end - self.first) as usize;
        if length > self.ring.len() {
            self.resize(length.next_power_of_two());
        } else if self.ring.len() > 64 && length < self.ring.len() / 8 {
            self.resize(self.ring.len() / 4);
        }
        while self.end < end {
            let segment = self.spare.pop().or_else(|| pool.take());
            let segment = segment.unwrap_or_else(|| Box::new(Segment::new()));
            let place = self.place(self.end);
            self.ring[place] = Some(segment);
            self.end += 1;
        }
        for segment in self.spare.drain(SPARE.min(self.spare.len())..) {
            pool.give(segment);
        }
        if self.spare.capacity() > 64 {
            self.spare.shrink_to(8);
        }
    }

    fn resize(&mut self, length: usize) {
        let mut ring = Vec::new();
        ring.resize_with(length, || None);
        for segment in self.first..self.end {
            let place = self.place(segment);
            ring[segment as usize & (length - 1)] = self.ring[place].take();
        }
        self.ring = ring;
    }

    #[inline]
    fn place(&self, segment: u64) -> usize {
        segment as usize & (self.ring.len() - 1)
    }

    /// All numbers below `number` are done with.
    #[inline]
    pub(super) fn release(&mut self, number: u64) {
        while self.first < number / SEGMENT {
            let place = self.place(self.first);
            let mut segment = self.ring[place].take().expect("it is between the ends");
            (segment.settled, segment.lost, segment.again) = (0, 0, 0);
            self.spare.push(segment);
            self.first += 1;
        }
    }

    /// Gives everything back. All is acknowledged, or given up.
    pub(super) fn clear(&mut self, pool: &mut Spare<Segment<I>>) {
        self.release(self.end * SEGMENT);
        for segment in self.spare.drain(..) {
            pool.give(segment);
        }
        if self.ring.len() > 64 {
            self.ring = Vec::new();
        }
    }

    /// Bytes of the segments it holds.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        ((self.end - self.first) as usize + self.spare.len()) * size_of::<Segment<I>>()
    }

    #[inline]
    fn segment(&self, number: u64) -> &Segment<I> {
        let place = self.place(number / SEGMENT);
        self.ring[place].as_ref().expect("the number is in flight")
    }

    #[inline]
    fn segment_mut(&mut self, number: u64) -> &mut Segment<I> {
        let place = self.place(number / SEGMENT);
        self.ring[place].as_mut().expect("the number is in flight")
    }

    #[inline]
    pub(super) fn get(&self, number: u64) -> &Sent<I> {
        self.segment(number).slots[(number % SEGMENT) as usize]
            .as_ref()
            .expect("it was recorded")
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> &mut Sent<I> {
        self.segment_mut(number).slots[(number % SEGMENT) as usize]
            .as_mut()
            .expect("it was recorded")
    }

    /// Records the next packet; `first` says that nothing else is in flight.
    #[inline(always)]
    pub(super) fn put(&mut self, number: u64, sent: Sent<I>, first: bool) {
        let segment = self.segment_mut(number);
        if first || number.is_multiple_of(SEGMENT) {
            segment.since = sent.at;
        }
        segment.slots[(number % SEGMENT) as usize] = Some(sent);
    }

    /// A time in ticks before which neither `number` nor any later packet was sent.
    pub(super) fn since(&self, number: u64) -> u32 {
        self.segment(number).since
    }

    fn word(&self, segment: u64, mark: Mark) -> u64 {
        if segment < self.first || segment >= self.end {
            return 0;
        }
        let segment = self.segment(segment * SEGMENT);
        match mark {
            Mark::Settled => segment.settled,
            Mark::Lost => segment.lost,
            Mark::Again => segment.again,
        }
    }

    #[inline]
    pub(super) fn has(&self, number: u64, mark: Mark) -> bool {
        self.word(number / SEGMENT, mark) >> (number % SEGMENT) & 1 == 1
    }

    #[inline]
    pub(super) fn set(&mut self, number: u64, mark: Mark, on: bool) {
        let segment = self.segment_mut(number);
        let word = match mark {
            Mark::Settled => &mut segment.settled,
            Mark::Lost => &mut segment.lost,
            Mark::Again => &mut segment.again,
        };
        let bit = 1 << (number % SEGMENT);
        *word = if on { *word | bit } else { *word & !bit };
    }

    /// Whether any packet from `number` on is settled, lost or was sent again.
    #[inline]
    pub(super) fn is_past_first(&self, number: u64) -> bool {
        let segment = self.segment(number);
        (segment.settled | segment.lost | segment.again) >> (number % SEGMENT) & 1 == 1
    }

    /// The marks of `number ..= number + 63`, that of `number` lowest. Numbers are on a circle: an
    /// old acknowledgement speaks of what would be before 0, where the first ones are in flight.
    #[inline]
    pub(super) fn gather(&self, number: u64, mark: Mark) -> u64 {
        let (segment, shift) = (number / SEGMENT, number % SEGMENT);
        let next = number.wrapping_add(SEGMENT) / SEGMENT;
        // Two shifts, because one by 64 is none.
        self.word(segment, mark) >> shift | (self.word(next, mark) << 1) << (63 - shift)
    }
}
