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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::memory::Regions;
    use trunkline::{Drive, Node, Remote};

    #[test]
    fn transfers_begin_in_order_and_so_many_at_a_time() {
        let node = Node::builder().address([127, 9, 81, 1].into());
        let pd = node.drive(Drive::Inline).build().unwrap().alloc_pd();
        let regions = Regions::new(pd, 0);
        let mut transfers = Transfers::default();
        for length in 1..=TRANSFERS + 2 {
            transfers.push(Transfer {
                memory: Memory::Region(regions.take(length).unwrap()),
                extent: Extent {
                    remote: Remote::default(),
                    length,
                },
                then: Then::Nothing,
                written: None,
            });
        }
        let begin = |transfers: &mut Transfers| {
            let begun = transfers.begin();
            begun.map(|(number, transfer)| (number, transfer.extent.length))
        };
        for number in 0..TRANSFERS {
            assert_eq!(begin(&mut transfers), Some((number, number + 1)));
        }
        assert_eq!(begin(&mut transfers), None, "eight are under way");
        for (number, length) in [(3, TRANSFERS + 1), (0, TRANSFERS + 2)] {
            let ended = transfers.end(number).unwrap();
            assert_eq!(ended.extent.length, number + 1);
            assert!(transfers.end(number).is_none(), "it has ended");
            assert_eq!(begin(&mut transfers), Some((number, length)));
        }
        assert!(
            transfers.end(TRANSFERS).is_none(),
            "there is no such number"
        );
        (0..TRANSFERS).for_each(|number| {
            assert!(!transfers.is_empty());
            transfers.end(number).unwrap();
        });
        assert!(transfers.is_empty());
    }
}
