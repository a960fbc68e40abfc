//! An engine that hands its jobs to a device.

use crate::engine::{CopyEngine, Full, Job, Ticket};
use std::collections::VecDeque;
use trunkline_dataplane::copy::Copier;

/// A batch this long begins without a kick: devices have a longest batch, of 32 jobs at least.
const BATCH: usize = 32;

/// How a device ended a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// All bytes are in place.
    Copied,
    /// Some or none are.
    Failed,
}

/// Something beside the CPU that copies.
///
/// # Safety
/// A device touches the memory of a job only from [`push`](Self::push), if that gives true, until
/// [`reap`](Self::reap) reports the job, which it does once.
pub unsafe trait Device {
    /// How many jobs it may have at once.
    fn depth(&self) -> usize;

    /// Takes a job, which it may begin with the next kick. False: it does not take it now.
    ///
    /// # Safety
    /// As [`CopyEngine::submit`], until `reap` reports `number`.
    unsafe fn push(&mut self, number: u64, job: &Job) -> bool;

    /// Begins what was taken.
    fn kick(&mut self);

    /// Reports jobs that are over by their numbers, in any order.
    fn reap(&mut self, over: impl FnMut(u64, Outcome));
}

/// What became of jobs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OffloadCounters {
    /// The device copied them.
    pub copied: u64,
    /// The device did not take them, and the CPU copied them.
    pub refused: u64,
    /// The device failed at them, and the CPU copied them.
    pub failed: u64,
}

/// An engine with a device, whose jobs the CPU does where the device does not.
///
/// Dropping it waits for what the device has, however long that takes: memory that a device may
/// still write belongs to nobody else.
#[derive(Debug)]
pub struct Offload<D: Device> {
    device: D,
    copier: Copier,
    depth: usize,
    /// What was taken and not polled, the oldest first. Never more than `depth`.
    taken: VecDeque<Taken>,
    /// Number of the oldest.
    first: u64,
    /// How many the device has.
    in_device: usize,
    /// How many of those wait for a kick.
    unkicked: usize,
    counters: OffloadCounters,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    ticket: Ticket,
    job: Job,
    is_over: bool,
}

impl<D: Device> Offload<D> {
    /// Of a device that has no jobs.
    pub fn new(device: D) -> Self {
        let depth = device.depth();
        Self {
            device,
            copier: Copier::detect(),
            depth,
            taken: VecDeque::with_capacity(depth),
            first: 0,
            in_device: 0,
            unkicked: 0,
            counters: OffloadCounters::default(),
        }
    }

    /// What became of jobs so far.
    pub const fn counters(&self) -> OffloadCounters {
        self.counters
    }

    /// Takes up what the device reports.
    fn reap(&mut self) {
        if self.in_device == 0 {
            return;
        }
        let Self {
            device,
            copier,
            taken,
            first,
            in_device,
            counters,
            ..
        } = self;
        device.reap(|number, outcome| {
            let place = number.checked_sub(*first);
            let taken = place.and_then(|place| taken.get_mut(place as usize));
            let taken = taken.filter(|taken| !taken.is_over);
            let taken = taken.expect("a device reports each job that it took, and once");
            match outcome {
                Outcome::Copied => counters.copied += 1,
                Outcome::Failed => {
                    // SAFETY: who submitted the job promised it until the job is polled, and the
                    // device touches it no more.
                    unsafe { taken.job.by_cpu(*copier) };
                    counters.failed += 1;
                }
            }
            taken.is_over = true;
            *in_device -= 1;
        });
    }
}

impl<D: Device> CopyEngine for Offload<D> {
    fn room(&self) -> usize {
        self.depth - self.taken.len()
    }

    unsafe fn submit(&mut self, ticket: Ticket, job: &Job) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        let number = self.first + self.taken.len() as u64;
        // SAFETY: the caller's promise lasts until the ticket is polled, and that is after the
        // device reported the job.
        let is_over = !unsafe { self.device.push(number, job) };
        self.taken.push_back(Taken {
            ticket,
            job: *job,
            is_over,
        });
        if is_over {
            // SAFETY: the caller's promise; the device did not take it.
            unsafe { job.by_cpu(self.copier) };
            self.counters.refused += 1;
            return Ok(());
        }
        self.in_device += 1;
        self.unkicked += 1;
        if self.unkicked >= BATCH {
            self.kick();
        }
        Ok(())
    }

    fn kick(&mut self) {
        if self.unkicked > 0 {
            self.device.kick();
            self.unkicked = 0;
        }
    }

    fn poll(&mut self, done: &mut [Ticket]) -> usize {
        self.reap();
        let over = self.taken.iter().take_while(|taken| taken.is_over);
        let count = over.count().min(done.len());
        for (place, taken) in done.iter_mut().zip(self.taken.drain(..count)) {
            *place = taken.ticket;
        }
        self.first += count as u64;
        count
    }
}

impl<D: Device> Drop for Offload<D> {
    fn drop(&mut self) {
        self.kick();
        while self.in_device > 0 {
            self.reap();
            std::thread::yield_now();
        }
    }
}
