//! What a copy engine does.

use trunkline_dataplane::copy::{Bounds, Copier};

/// The name that a caller gives a job, by which it hears that the job is over.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Ticket(pub u64);

/// The engine has as many jobs as it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the copy engine has as many jobs as it takes")]
pub struct Full;

/// A copy between registered memory, which others may write at any moment, and a buffer that
/// nobody else has.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    source: *mut u8,
    destination: *mut u8,
    length: usize,
    registered: Side,
    /// The registered memory.
    within: Bounds,
}

/// Which side of a copy is registered memory.
#[derive(Clone, Copy, Debug)]
enum Side {
    Source,
    Destination,
}

impl Job {
    /// Puts the payload of a packet, `length` bytes at `data`, into registered memory.
    pub const fn place(data: *const u8, to: *mut u8, length: usize, within: Bounds) -> Self {
        Self {
            source: data.cast_mut(),
            destination: to,
            length,
            registered: Side::Destination,
            within,
        }
    }

    /// Takes the payload of a packet, `length` bytes at `from`, out of registered memory.
    pub const fn gather(from: *mut u8, to: *mut u8, length: usize, within: Bounds) -> Self {
        Self {
            source: from,
            destination: to,
            length,
            registered: Side::Source,
            within,
        }
    }

    /// The first byte that is read.
    pub const fn source(&self) -> *const u8 {
        self.source
    }

    /// The first byte that is written.
    pub const fn destination(&self) -> *mut u8 {
        self.destination
    }

    /// Bytes to copy.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Copies by this CPU.
    ///
    /// # Safety
    /// As [`CopyEngine::submit`], until this returns.
    pub(crate) unsafe fn by_cpu(&self, copier: Copier) {
        match self.registered {
            Side::Destination => {
                // SAFETY: the caller's promise: a buffer that nobody writes meanwhile.
                let data = unsafe { std::slice::from_raw_parts(self.source, self.length) };
                // SAFETY: the caller's promise: registered memory, which does not overlap it.
                unsafe { copier.copy_in(self.destination, data, self.within) };
            }
            Side::Source => {
                // SAFETY: the caller's promise: a buffer that nobody else reaches meanwhile.
                let out = unsafe { std::slice::from_raw_parts_mut(self.destination, self.length) };
                // SAFETY: the caller's promise: registered memory, which does not overlap it.
                unsafe { copier.copy_out(out, self.source, self.within) };
            }
        }
    }
}

/// Copies memory, maybe while the CPU does something else.
///
/// Nothing is allocated for a job.
pub trait CopyEngine {
    /// How many jobs it takes before one has to be polled.
    fn room(&self) -> usize;

    /// Takes a job. It may begin at once, or with the next [`kick`](Self::kick).
    ///
    /// # Errors
    /// There is no room; nothing was taken.
    ///
    /// # Safety
    /// Until the ticket was polled, or the engine is dropped:
    /// - The source is readable and the destination writable for the length of the job. So the
    ///   memory of both stays, wherever it is in the program.
    /// - The side that is not registered memory is reached by nobody but the engine, and no
    ///   reference to it is used; as source it may be read.
    /// - Registered memory may be read and written by others as `trunkline_dataplane::copy` allows
    ///   it. Both of its ends lie within the bounds that the job names.
    /// - What the job writes overlaps neither what it reads nor what any job reads or writes that
    ///   was not polled: jobs run in any order, and what failed is copied again.
    unsafe fn submit(&mut self, ticket: Ticket, job: &Job) -> Result<(), Full>;

    /// Begins what was taken.
    fn kick(&mut self);

    /// Writes the tickets of jobs that are over to `done`, in the order in which they were taken,
    /// and gives how many. All bytes of these jobs are in place.
    fn poll(&mut self, done: &mut [Ticket]) -> usize;
}
