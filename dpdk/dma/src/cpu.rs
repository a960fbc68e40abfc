//! The engine that every machine has.

use crate::engine::{CopyEngine, Full, Job, Ticket};
use std::collections::VecDeque;
use trunkline_dataplane::copy::Copier;

/// Copies in the call that takes the job.
#[derive(Debug)]
pub struct Cpu {
    copier: Copier,
    /// Never more than there is room for.
    done: VecDeque<Ticket>,
    depth: usize,
}

impl Cpu {
    /// An engine for `depth` jobs, by the fastest kernel that this CPU runs.
    pub fn new(depth: usize) -> Self {
        Self {
            copier: Copier::detect(),
            done: VecDeque::with_capacity(depth),
            depth,
        }
    }
}

impl CopyEngine for Cpu {
    fn room(&self) -> usize {
        self.depth - self.done.len()
    }

    unsafe fn submit(&mut self, ticket: Ticket, job: &Job) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        // SAFETY: the caller's promise.
        unsafe { job.by_cpu(self.copier) };
        self.done.push_back(ticket);
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut [Ticket]) -> usize {
        let count = done.len().min(self.done.len());
        for (place, ticket) in done.iter_mut().zip(self.done.drain(..count)) {
            *place = ticket;
        }
        count
    }
}
