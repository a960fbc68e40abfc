//! Memory as a trait: keys, ranges and rights are checked by whoever implements it.

use core::ops::{BitOr, BitOrAssign};
use trunkline_wire::{Crc, Lkey, Qpn, Rkey};

/// Protection domain: keys and QPs of different domains do not see each other.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct PdId(pub u32);

/// The QP that does what a peer asks for: the peer has the rights that this QP has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Responder {
    /// Its protection domain.
    pub pd: PdId,
    /// Its number, to which windows of type 2 are bound.
    pub qpn: Qpn,
}

/// What a memory region allows, with the bit values of `enum ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access(u32);

impl Access {
    /// Local reads only: what every region allows.
    pub const LOCAL_READ: Self = Self(0);
    /// The node may write to it (receives, READ responses, atomic results).
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may WRITE to it.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may READ it.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may run atomics on it.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Memory windows may be bound to it (`IBV_ACCESS_MW_BIND`).
    pub const MW_BIND: Self = Self(1 << 4);
    /// Its addresses are offsets from its first byte (`IBV_ACCESS_ZERO_BASED`): it begins at
    /// iova 0.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// A peer may take the key away by a SEND with invalidate. A bit of Trunkline's own: verbs
    /// gives this right to memory windows, and to regions of kernel programs. It needs no other
    /// remote right, and no right of the QP.
    pub const REMOTE_INVALIDATE: Self = Self(1 << 30);
    /// Placement need not follow the order of messages.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);
    /// All rights to read, write and run atomics. Relaxed ordering, remote invalidation, windows
    /// and offsets as addresses are asked for beside it.
    pub const ALL: Self = Self(0b1111);

    /// The bits, as verbs programs pass them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Takes the bits of `enum ibv_access_flags`.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Whether all of `wanted` is allowed.
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Returns both, in constants, too, where `|` cannot be used.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

/// One scatter-gather element of a local buffer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, as the region has it: counted from its iova.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Region that holds them.
    pub lkey: Lkey,
}

/// An 8-byte operation that no other access to the same region interrupts (of this node).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// Value expected.
        compare: u64,
        /// Value stored on a match.
        swap: u64,
    },
    /// Adds, wrapping.
    FetchAdd {
        /// What is added.
        add: u64,
    },
}

impl AtomicOp {
    /// Returns the value after it, where `before` was there.
    pub const fn after(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if before == compare => swap,
            Self::CompareSwap { .. } => before,
            Self::FetchAdd { add } => before.wrapping_add(add),
        }
    }
}

/// Why memory was not touched.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryFault {
    /// No region has this key (any more).
    #[error("no region has key {key:#010x}")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    #[error("key {key:#010x} belongs to another protection domain")]
    ForeignDomain {
        /// The key.
        key: u32,
    },
    /// The window is bound to another QP.
    #[error("the window with key {key:#010x} is bound to another QP")]
    ForeignQp {
        /// The key.
        key: u32,
    },
    /// The range is not inside the region. `addr + length` is computed without wrapping.
    #[error("{length} bytes at {addr:#x} are outside the region of key {key:#010x}")]
    OutOfRange {
        /// The key.
        key: u32,
        /// First byte wanted.
        addr: u64,
        /// Bytes wanted.
        length: u64,
    },
    /// The region does not allow this kind of access.
    #[error("key {key:#010x} allows {allowed:#x}, not {wanted:#x}")]
    NotAllowed {
        /// The key.
        key: u32,
        /// Its [`Access`] bits.
        allowed: u32,
        /// The bits needed.
        wanted: u32,
    },
    /// The bytes are not there: the program whose memory it is has unmapped them, or has ended.
    /// What comes before them may have been copied.
    #[error("the memory of key {key:#010x} cannot be reached at {addr:#x}")]
    Unreachable {
        /// The key.
        key: u32,
        /// First byte wanted.
        addr: u64,
    },
    /// An atomic on an address that is not a multiple of 8, be it the one that the peer names or
    /// the one where the bytes lie, which differ where a region has an iova of its own.
    #[error("atomic at {addr:#x}, which is not a multiple of 8")]
    Misaligned {
        /// The address.
        addr: u64,
    },
    /// A local buffer is shorter than what should go through it.
    #[error("the buffer holds {have} bytes, {need} are needed")]
    TooShort {
        /// Its bytes.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
}

/// Registered memory, as the engines reach it. Lengths are bytes; a zero-length access checks
/// nothing and touches nothing, as InfiniBand has it.
///
/// Where `crc` is given, the bytes are fed into it in the same pass that copies them.
pub trait Memory {
    /// Checks that `pd` may use every element of `sges` for `access`.
    ///
    /// # Errors
    /// The first fault found, in the order of the list.
    fn check_local(&self, pd: PdId, sges: &[Sge], access: Access) -> Result<(), MemoryFault>;

    /// Copies `out.len()` bytes, from `offset` bytes into the buffer that `sges` lists, to `out`.
    ///
    /// # Errors
    /// A key that is gone, a range that does not fit, a list that is too short.
    fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault>;

    /// Copies `data` to `offset` bytes into the buffer that `sges` lists. Needs
    /// [`Access::LOCAL_WRITE`].
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault>;

    /// Checks that a peer may use `length` bytes at `addr` of region `key` for `access`.
    ///
    /// # Errors
    /// The fault.
    fn check_remote(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), MemoryFault>;

    /// Reads for a peer; checks [`Access::REMOTE_READ`].
    ///
    /// # Errors
    /// The fault. Of [`MemoryFault::Unreachable`] alone some bytes may have been read.
    fn read(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault>;

    /// Writes for a peer; checks [`Access::REMOTE_WRITE`].
    ///
    /// # Errors
    /// The fault. Of [`MemoryFault::Unreachable`] alone some bytes may have been written.
    fn write(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault>;

    /// Runs an atomic for a peer on the 8 bytes at `addr` (host byte order in memory); checks
    /// [`Access::REMOTE_ATOMIC`]. Gives the value before.
    ///
    /// # Errors
    /// The fault; nothing is changed then.
    fn atomic(&self, by: Responder, key: Rkey, addr: u64, op: AtomicOp)
    -> Result<u64, MemoryFault>;

    /// Invalidates `key` for a peer (SEND with invalidate): of a region that allows
    /// [`Access::REMOTE_INVALIDATE`], or of a window of type 2.
    ///
    /// # Errors
    /// When the domain has no such key, or its region or window does not allow it.
    fn invalidate(&mut self, by: Responder, key: Rkey) -> Result<(), MemoryFault>;
}

/// The order in which bytes that are copied into memory show there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Any byte may be first: something else says that all are there, as a completion does.
    Any,
    /// The last byte shows when all others do: programs poll the last byte of a WRITE.
    LastByteLast,
}

impl Order {
    /// That of a packet of a WRITE, of which it is the last or not.
    #[must_use]
    pub const fn of_write(is_last: bool) -> Self {
        if is_last {
            Self::LastByteLast
        } else {
            Self::Any
        }
    }
}

/// Bytes of a region are not there: [`MemoryFault::Unreachable`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the memory cannot be reached")]
pub struct Unreachable;

/// The bytes of one region: what a [`Memory`] keeps behind a key. Offsets are from its first byte;
/// peers and programs may change the bytes at any time, so they are only ever copied. They may be
/// another program's, which can unmap them while they are registered.
pub trait RegionMemory {
    /// Virtual address of the first byte, as verbs programs name it.
    fn addr(&self) -> u64;

    /// Bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out; where `crc` is given they are fed into it in the same pass.
    ///
    /// # Errors
    /// Some of them are not there. What is in `out` and `crc` then says nothing.
    ///
    /// # Panics
    /// When the range is not inside: the caller has checked it.
    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable>;

    /// Copies bytes in, in an order that `order` allows.
    ///
    /// # Errors
    /// Some places are not there. Others may have been written.
    ///
    /// # Panics
    /// As [`copy_out`](Self::copy_out).
    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable>;

    /// Runs an atomic on 8 aligned bytes; gives the value before.
    ///
    /// # Errors
    /// They are not there.
    ///
    /// # Panics
    /// When the range is not inside or not aligned.
    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable>;

    /// Feeds bytes that nobody else has, such as the headers of a packet, into `crc`, by the means
    /// that copies have to sum.
    fn sum(bytes: &[u8], crc: &mut Crc)
    where
        Self: Sized,
    {
        crc.update(bytes);
    }
}
