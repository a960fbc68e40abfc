//! The doorbells of a program at each worker.

use super::client::words;
use super::reply::Refusal;
use crate::node::shared::Shared;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use trunkline_host::{Handle, Piece, Pieces, Words};
use trunkline_qpmap::doorbell::{self, Apart};
use trunkline_wire::Qpn;

/// Those of one program; at a worker there are some from its first QP there on.
#[derive(Debug)]
pub(super) struct Bells {
    /// How many there are at each worker.
    count: u32,
    workers: Vec<Option<WorkerBells>>,
}

#[derive(Debug)]
struct WorkerBells {
    memory: Arc<Piece>,
    /// What the worker's engine calls the program.
    program: u32,
    /// What the program wakes the worker by.
    wake: Arc<OwnedFd>,
}

impl Bells {
    pub(super) fn new(workers: u8, count: u32) -> Self {
        Self {
            count,
            workers: (0..workers).map(|_| None).collect(),
        }
    }

    /// The bells at a worker, made if need be: their memory, and what wakes the worker.
    ///
    /// # Errors
    /// There is no such worker; no memory, or no descriptor.
    pub(super) fn at(
        &mut self,
        node: &Shared,
        worker: u8,
        pieces: &Pieces,
    ) -> Result<(&Arc<Piece>, &Arc<OwnedFd>), Refusal> {
        let place = self.workers.get_mut(usize::from(worker));
        let place = place.ok_or_else(|| Refusal::unknown("worker"))?;
        if place.is_none() {
            *place = Some(WorkerBells::new(node, worker, self.count, pieces)?);
        }
        let bells = place.as_ref().expect("they were made");
        Ok((&bells.memory, &bells.wake))
    }

    /// Lets the bell of that handle stand for a QP, at its worker.
    ///
    /// # Errors
    /// The program has no bells there.
    pub(super) fn assign(
        &self,
        node: &Shared,
        worker: u8,
        bell: Handle,
        qpn: Qpn,
    ) -> Result<(), Refusal> {
        let place = self.workers.get(usize::from(worker));
        let bells = place.and_then(Option::as_ref);
        let bells = bells.ok_or_else(|| Refusal::unknown("worker without doorbells"))?;
        let mut core = node.handle(worker).core()?;
        Ok(core
            .engine
            .assign_bell(bells.program, bell.index, Some(qpn))?)
    }

    /// The program is gone: no worker looks at its bells any more. Gives what woke them, which is
    /// to be closed.
    pub(super) fn end(&mut self, node: &Shared) -> Vec<OwnedFd> {
        let mut wakes = Vec::new();
        for (worker, place) in (0..).zip(&mut self.workers) {
            if let Some(bells) = place.take() {
                wakes.extend(node.handle(worker).forget_program(bells.program));
                wakes.extend(Arc::into_inner(bells.wake));
            }
        }
        wakes
    }
}

impl WorkerBells {
    fn new(node: &Shared, worker: u8, count: u32, pieces: &Pieces) -> Result<Self, Refusal> {
        let length = doorbell::Bells::<Apart<Words>>::words_for(count);
        let memory = Arc::new(pieces.allocate(length as u32)?);
        let bells = doorbell::Bells::over(words(&memory), count)?;
        let (program, wake) = node.handle(worker).add_program(bells)?;
        Ok(Self {
            memory,
            program,
            wake: Arc::new(wake),
        })
    }
}
