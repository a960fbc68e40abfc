//! How a program makes QPs without the lock of their worker: the worker keeps a stock of places
//! (indices with their numbers) for them, and takes up what was made before its next packet or
//! control call. So a program that makes a QP waits for no round of a busy worker, and from there
//! to RTS the worker's lock is taken once.

use crate::worker::core::Core;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_host::Words;
use trunkline_qpmap::{Place, QpInit, QpQueues, VerbsError};
use trunkline_wire::Psn;

/// Places that are ready, as long as there are QPs enough: so many QPs are made without the worker
/// between two rounds of it.
const STOCK: usize = 64;
/// With fewer QPs there is a place for each four of them, and for so many at least: a node with few
/// QPs has little state.
const FEW: usize = 4;

/// The queues of a QP that was made, and the PSN that it sends first.
pub(crate) type NewQp = (Arc<QpQueues<Words>>, Psn);

/// QPs that programs have made and the worker has not taken up yet, and places for more.
#[derive(Debug, Default)]
pub(crate) struct NewQps {
    /// Whether any wait to be taken up. It changes under the lock of the stock.
    waiting: AtomicBool,
    stock: Mutex<Stock>,
}

#[derive(Debug, Default)]
struct Stock {
    places: Vec<(Place, Psn)>,
    made: Vec<(QpInit, Arc<QpQueues<Words>>)>,
}

impl NewQps {
    /// Makes a QP; `None` where no place is left: the stock has to be [filled](Self::fill).
    ///
    /// # Errors
    /// Sizes out of range.
    pub(crate) fn make(&self, init: &QpInit) -> Result<Option<NewQp>, VerbsError> {
        let mut stock = self.stock();
        let Some((place, psn)) = stock.places.last().copied() else {
            return Ok(None);
        };
        let queues = Arc::new(QpQueues::new(init, || Ok::<_, VerbsError>(place))?);
        stock.places.pop();
        stock.made.push((*init, Arc::clone(&queues)));
        self.waiting.store(true, Ordering::Release);
        Ok(Some((queues, psn)))
    }

    /// Whether any wait to be [taken up](Self::take_up).
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// The worker takes up what was made since the last time. Without any this costs one load.
    ///
    /// Called wherever the core is taken, and before what another worker says. A packet that
    /// concerns a new QP was caused by the program that made it, and its port has fetched it before
    /// the core is taken, or another worker has: its QP is there.
    #[inline]
    pub(crate) fn take_up(&self, core: &mut Core) {
        if self.is_waiting() {
            self.take_up_made(core);
        }
    }

    #[cold]
    fn take_up_made(&self, core: &mut Core) {
        let mut stock = self.stock();
        self.waiting.store(false, Ordering::Relaxed);
        for (init, queues) in stock.made.drain(..) {
            core.engine.insert_qp(&init, queues);
        }
        // Whoever finds no place says why there is none.
        let _ = stock.fill(core);
    }

    /// Fills the stock of places.
    ///
    /// # Errors
    /// There are as many QPs as may be: the stock is empty.
    pub(crate) fn fill(&self, core: &mut Core) -> Result<(), VerbsError> {
        self.stock().fill(core)
    }

    /// Bytes that it has allocated.
    pub(crate) fn state_bytes(&self) -> usize {
        let stock = self.stock();
        stock.places.capacity() * size_of::<(Place, Psn)>()
            + stock.made.capacity() * size_of::<(QpInit, Arc<QpQueues<Words>>)>()
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        // It is whole at any time.
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stock {
    /// Where the next number would have to end its rest it gets one place, and none where it has
    /// some: numbers rest as long as if there were no stock.
    fn fill(&mut self, core: &mut Core) -> Result<(), VerbsError> {
        let enough = (core.engine.qp_count() / 4).clamp(FEW, STOCK);
        while self.places.is_empty() || self.places.len() < enough && core.engine.has_rested_qp() {
            let place = core.engine.reserve_qp()?;
            self.places.push((place, core.draw_psn()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
