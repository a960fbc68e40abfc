//! Completion queues.

use super::{Answered, Desk, busy, done, entry, full};
use crate::error::Error;
use crate::service::client::words;
use crate::service::objects::{CqEntry, CqSignal};
use crate::service::reply::Refusal;
use crate::verbs::cq::Cq;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use trunkline_host::control::answers::{CqCreated, CqResized};
use trunkline_host::wake::Signal;
use trunkline_host::{Handle, Piece, Words};
use trunkline_qpmap::Allowed;
use trunkline_qpmap::cq::{CQE_WORDS, Entries, HEADER, MAX_CQE, Notify};

impl CqEntry {
    /// What the program waits on for events.
    pub(super) fn watched(&self) -> Result<Arc<OwnedFd>, Refusal> {
        let fd = self.signal.0.fd_for_client().try_clone_to_owned();
        Ok(Arc::new(fd?))
    }
}

impl Desk<'_> {
    pub(super) fn cq(&self, cq: Handle) -> Result<&CqEntry, Refusal> {
        entry!(self.client.belongings.cqs, cq, "CQ")
    }

    /// Memory for so many words at each worker.
    fn at_each_worker(&self, count: usize) -> Result<Vec<Arc<Piece>>, Refusal> {
        let workers = 0..self.node.workers().count();
        workers
            .map(|_| self.client.belongings.piece(count))
            .collect()
    }

    fn entries(&self, depth: u32) -> Result<Vec<Arc<Piece>>, Refusal> {
        Allowed::Range(1, self.limits.cqe.min(MAX_CQE)).check("cqe", depth)?;
        self.at_each_worker(depth.next_power_of_two() as usize * CQE_WORDS)
    }

    pub(super) fn create_cq(&mut self, depth: u32) -> Answered {
        if self.client.belongings.graves.close(&self.client.closer) {
            // Nobody gets here whose descriptors can be closed.
            return Err(busy("descriptors of CQs that are gone"));
        }
        let (headers, entries) = (self.at_each_worker(HEADER)?, self.entries(depth)?);
        let signal = Signal::new().map_err(Error::system("epoll of a completion queue"))?;
        let signal = Arc::new(CqSignal(signal));
        let memory: Vec<(Words, Words)> = headers
            .iter()
            .zip(&entries)
            .map(|(header, entries)| (words(header), words(entries)))
            .collect();
        let notify = Arc::clone(&signal) as Arc<dyn Notify>;
        let cq = Cq::apart(self.shared(), &memory, notify)?;
        let (id, depth) = (cq.id(), cq.depth());
        let entry = CqEntry {
            cq,
            headers,
            entries,
            signal,
        };
        let inserted = self.client.belongings.cqs.insert(entry);
        let cq = inserted.map_err(full("CQs"))?;
        self.owners.cqs.insert(id, (self.token, cq));
        Ok(CqCreated { cq, depth }.into())
    }

    pub(super) fn resize_cq(&mut self, cq: Handle, depth: u32) -> Answered {
        self.cq(cq)?;
        let pieces = self.entries(depth)?;
        let entry = entry!(mut self.client.belongings.cqs, cq, "CQ")?;
        let entries = pieces.iter().map(|piece| Entries::over(words(piece)));
        let entries: Result<Vec<_>, _> = entries.collect();
        entry.cq.resize_to(entries?)?;
        entry.entries = pieces;
        let depth = entry.cq.depth();
        Ok(CqResized { depth }.into())
    }

    pub(super) fn destroy_cq(&mut self, cq: Handle) -> Answered {
        let entry = self.cq(cq)?;
        if !entry.cq.is_last_handle() {
            return Err(busy("CQ"));
        }
        let id = entry.cq.id();
        self.owners.cqs.remove(&id);
        let all = &mut self.client.belongings;
        if let Some(CqEntry { cq, signal, .. }) = all.cqs.remove(cq) {
            drop(cq);
            all.graves.bury_signal(signal);
            all.graves.close(&self.client.closer);
        }
        done()
    }

    pub(super) fn completion_header(&self, cq: Handle, worker: u8) -> Result<Arc<Piece>, Refusal> {
        part(&self.cq(cq)?.headers, worker)
    }

    pub(super) fn completions(&self, cq: Handle, worker: u8) -> Result<Arc<Piece>, Refusal> {
        part(&self.cq(cq)?.entries, worker)
    }
}

/// A worker's part.
fn part(pieces: &[Arc<Piece>], worker: u8) -> Result<Arc<Piece>, Refusal> {
    let piece = pieces.get(usize::from(worker));
    piece.cloned().ok_or_else(|| Refusal::unknown("worker"))
}
