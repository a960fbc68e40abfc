//! Bytes of requests and responses that go by READ or WRITE.

use crate::frame::Extent;
use crate::memory::Region;
use crate::request::Part;
use crate::service::Head;
use std::collections::VecDeque;
use tokio::sync::oneshot;
use trunkline::Sge;

/// Transfers of a connection that are under way at a time.
pub(crate) const TRANSFERS: u32 = 8;

/// What follows a transfer.
#[derive(Debug)]
pub(crate) enum Then {
    /// The bytes of a request are here: it can run.
    Run(Head),
    /// The bytes of a response are here.
    Respond { id: u32 },
    /// The bytes of a response were written to their place. The entry that says so was behind them.
    Nothing,
    /// A program that reads a server's memory hears so.
    Tell(oneshot::Sender<()>),
}

/// Memory of this end.
#[derive(Debug)]
pub(crate) enum Memory {
    /// The endpoint's.
    Region(Region),
    /// The program's.
    Part(Part),
}

impl Memory {
    pub(crate) fn sge(&self) -> Sge {
        match self {
            Self::Region(region) => region.sge(),
            Self::Part(part) => part.sge(),
        }
    }

    /// The bytes that were read into it; none where they are the program's.
    pub(crate) fn read(&self) -> Vec<u8> {
        match self {
            Self::Region(region) => region.read(),
            Self::Part(_) => Vec::new(),
        }
    }
}

/// A READ of a peer's memory, or a WRITE to it.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) memory: Memory,
    pub(crate) extent: Extent,
    pub(crate) then: Then,
    /// The request whose response a WRITE brings.
    pub(crate) written: Option<u32>,
}

/// Those of a connection.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    active: [Option<Transfer>; TRANSFERS as usize],
    queue: VecDeque<Transfer>,
}

impl Transfers {
    pub(crate) fn push(&mut self, transfer: Transfer) {
        self.queue.push_back(transfer);
    }

    /// The next that can begin, under its number.
    pub(crate) fn begin(&mut self) -> Option<(u32, &Transfer)> {
        let at = self.active.iter().position(Option::is_none)?;
        let transfer = self.queue.pop_front()?;
        let transfer = self.active[at].insert(transfer);
        Some((at as u32, transfer))
    }

    /// One is done.
    pub(crate) fn end(&mut self, number: u32) -> Option<Transfer> {
        self.active.get_mut(number as usize)?.take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.active.iter().all(Option::is_none)
    }
}
