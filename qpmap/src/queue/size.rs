//! What a queue was made for: both halves of it go by this.

use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::{MAX_SLOTS, Ring, RingMemory, words_for};
use crate::wqe::{self, Limits};
use trunkline_conn::work::{MAX_INLINE, MAX_SGE};

/// Most requests of one queue.
pub const MAX_WR: u32 = 1 << 15;
const _: () = assert!(MAX_WR <= u16::MAX as u32);

// The largest requests still make rings that can be.
const _: () = {
    let limits = Limits {
        max_inline: MAX_INLINE as u16,
        max_sge: MAX_SGE as u8,
        datagrams: true,
    };
    assert!((MAX_WR * wqe::max_send_slots(limits)).next_power_of_two() <= MAX_SLOTS);
    assert!((MAX_WR * wqe::max_recv_slots(limits)).next_power_of_two() <= MAX_SLOTS);
};

/// How many requests a queue holds, and how long each of them may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Size {
    max_wr: u16,
    /// Slots of the ring: 2 to this power.
    slots_log2: u8,
    pub(crate) limits: Limits,
}

impl Size {
    /// Of a send queue for `max_wr` requests of at most `max_sge` elements or `max_inline` bytes;
    /// with `datagrams`, of a UD QP, whose requests name their receivers.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] beyond [`MAX_WR`], [`MAX_SGE`] or [`MAX_INLINE`].
    pub fn send(
        max_wr: u32,
        max_sge: u32,
        max_inline: u32,
        datagrams: bool,
    ) -> Result<Self, VerbsError> {
        Allowed::Range(0, MAX_WR).check("max_send_wr", max_wr)?;
        Allowed::Range(0, MAX_SGE as u32).check("max_send_sge", max_sge)?;
        Allowed::Range(0, MAX_INLINE as u32).check("max_inline_data", max_inline)?;
        let limits = Limits {
            max_inline: max_inline as u16,
            max_sge: max_sge as u8,
            datagrams,
        };
        Ok(Self::of(max_wr, limits, wqe::max_send_slots(limits)))
    }

    /// Of a queue for `max_wr` receives of at most `max_sge` elements.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] beyond [`MAX_WR`] or [`MAX_SGE`].
    pub fn receive(max_wr: u32, max_sge: u32) -> Result<Self, VerbsError> {
        Allowed::Range(0, MAX_WR).check("max_recv_wr", max_wr)?;
        Allowed::Range(0, MAX_SGE as u32).check("max_recv_sge", max_sge)?;
        let limits = Limits {
            max_inline: 0,
            max_sge: max_sge as u8,
            datagrams: false,
        };
        Ok(Self::of(max_wr, limits, wqe::max_recv_slots(limits)))
    }

    /// A ring in which as many requests of up to `each` slots fit, whatever they are.
    fn of(max_wr: u32, limits: Limits, each: u32) -> Self {
        let slots = (max_wr * each).next_power_of_two();
        Self {
            max_wr: max_wr as u16,
            slots_log2: slots.ilog2() as u8,
            limits,
        }
    }

    /// Most requests outstanding.
    pub const fn max_wr(self) -> u32 {
        self.max_wr as u32
    }

    /// Most scatter-gather elements of a request.
    pub const fn max_sge(self) -> u32 {
        self.limits.max_sge as u32
    }

    /// Most inline bytes of a request.
    pub const fn max_inline(self) -> u32 {
        self.limits.max_inline as u32
    }

    /// Words of memory that the ring takes.
    pub const fn ring_words(self) -> usize {
        words_for(1 << self.slots_log2)
    }

    /// The ring over `memory`.
    ///
    /// # Panics
    /// That has another number of words.
    pub(super) fn ring_over<W: RingMemory>(self, memory: W) -> Ring<W> {
        let (words, need) = (memory.as_slice().len(), self.ring_words());
        assert_eq!(words, need, "words of the memory of a ring");
        Ring::new(memory)
    }
}
