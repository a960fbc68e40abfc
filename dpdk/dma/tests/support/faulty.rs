//! Devices that fail, by seed.

use std::collections::VecDeque;
use trunkline_dataplane::prng::Prng;
use trunkline_dma::{Device, Job, Outcome};

/// What goes wrong, in parts per million.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// A job is not taken.
    pub(crate) full_ppm: u32,
    /// A job that was copied is called failed, and some of its bytes are others.
    pub(crate) error_ppm: u32,
    /// A report is held back until another call, and others overtake it.
    pub(crate) late_ppm: u32,
}

/// Faults that all happen in a few hundred jobs.
pub(crate) const FAULTS: Faults = Faults {
    full_ppm: 100_000,
    error_ppm: 100_000,
    late_ppm: 300_000,
};

/// A device with faults.
#[derive(Debug)]
pub(crate) struct Faulty<D> {
    device: D,
    faults: Faults,
    prng: Prng,
    jobs: VecDeque<(u64, Job)>,
    /// What the device reported, and this did not yet.
    held: Vec<(u64, Outcome)>,
}

impl<D: Device> Faulty<D> {
    pub(crate) fn new(device: D, faults: Faults, seed: u64) -> Self {
        Self {
            device,
            faults,
            prng: Prng::new(seed),
            jobs: VecDeque::new(),
            held: Vec::new(),
        }
    }
}

// SAFETY: a job is reported once, after the device reported it; it is written here only between.
unsafe impl<D: Device> Device for Faulty<D> {
    fn depth(&self) -> usize {
        self.device.depth()
    }

    unsafe fn push(&mut self, number: u64, job: &Job) -> bool {
        if self.prng.chance(self.faults.full_ppm) {
            return false;
        }
        // SAFETY: the caller's promise, which lasts until this reports the job.
        let is_taken = unsafe { self.device.push(number, job) };
        if is_taken {
            self.jobs.push_back((number, *job));
        }
        is_taken
    }

    fn kick(&mut self) {
        self.device.kick();
    }

    fn reap(&mut self, mut over: impl FnMut(u64, Outcome)) {
        let Self {
            device,
            faults,
            prng,
            jobs,
            held,
        } = self;
        device.reap(|number, outcome| {
            let place = jobs.iter().position(|(own, _)| *own == number);
            let place = place.expect("a job that it took");
            let (_, job) = jobs.remove(place).expect("there is one");
            let fails = prng.chance(faults.error_ppm);
            if fails {
                // SAFETY: the device copied it and touches it no more, and it is not reported yet.
                unsafe {
                    job.destination()
                        .write_bytes(0xee, job.length().div_ceil(2))
                };
            }
            let outcome = if fails { Outcome::Failed } else { outcome };
            held.push((number, outcome));
        });
        // In no order.
        for at in (1..held.len()).rev() {
            held.swap(at, prng.below(at as u64 + 1) as usize);
        }
        held.retain(|(number, outcome)| {
            let is_late = prng.chance(faults.late_ppm);
            if !is_late {
                over(*number, *outcome);
            }
            is_late
        });
    }
}
