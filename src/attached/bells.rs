//! The doorbells of the program.

use super::Client;
use crate::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use trunkline_host::Words;
use trunkline_host::control::attributes::RingKind;
use trunkline_host::wake::ring;
use trunkline_qpmap::doorbell::{Apart, Bells, Rung};

/// Those at one worker.
pub(super) struct WorkerBells {
    bells: Bells<Apart<Words>>,
    /// Wakes the worker.
    wake: OwnedFd,
}

impl Client {
    /// Makes sure that there are doorbells at a worker.
    pub(super) fn equip(&self, worker: u8) -> Result<(), Error> {
        let broken = |why: &str| self.line.broken(why);
        let place = self.bells.get(usize::from(worker));
        let place = place.ok_or_else(|| broken("there is no such worker"))?;
        if place.get().is_some() {
            return Ok(());
        }
        let (memory, wake) = self.ring(RingKind::Doorbells, None, worker)?;
        let wake = wake.ok_or_else(|| broken("no descriptor came for doorbells"))?;
        let bells =
            Bells::over(memory, self.max_qps).map_err(|error| broken(&error.to_string()))?;
        // Another thread may have been faster: it has the same ones.
        let _ = place.set(WorkerBells { bells, wake });
        Ok(())
    }

    /// Rings the bell of a QP, and wakes its worker if that does not look.
    #[inline]
    pub(crate) fn ring_bell(&self, worker: u8, bell: u32) {
        let bells = self.bells[usize::from(worker)].get();
        let bells = bells.expect("a QP is made once there are bells");
        if bells.bells.ring_and_look(bell) == Rung::Unheard {
            bells.wake();
        }
    }
}

impl WorkerBells {
    #[cold]
    fn wake(&self) {
        // It fails only when the counter is full, and then the worker is waking up.
        let _ = ring(self.wake.as_fd());
    }
}
