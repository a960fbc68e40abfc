//! What a node sends to its own address: it comes back without having been a frame.

use crate::memory::MemoryConfig;
use crate::memory::lane::{Receiver, Sender, lane};
use crate::port::{Arrival, PortCounters};
use trunkline_wire::{IpFields, Path};

/// Room for what is under way. Memory is touched when it is first used.
const CONFIG: MemoryConfig = MemoryConfig {
    slot_bytes: 65_536,
    slots: 256,
};

/// The way from a port to itself, which there is once it is used.
#[derive(Debug, Default)]
pub(super) struct Own {
    lane: Option<Box<(Sender, Receiver)>>,
    /// Something was committed since the last flush.
    is_new: bool,
}

impl Own {
    /// Room for a datagram, as [`Egress::reserve`](crate::port::Egress::reserve) has it.
    pub(super) fn reserve(&mut self, path: &Path, length: usize) -> Option<&mut [u8]> {
        let lane = self.lane.get_or_insert_with(|| Box::new(lane(CONFIG)));
        let path = Path {
            ip: IpFields::DEFAULT,
            ..*path
        };
        lane.0.reserve(&path, length).map(|slot| slot.datagram)
    }

    /// The datagram reserved last is whole.
    pub(super) fn commit(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.0.commit();
            self.is_new = true;
        }
    }

    /// What was committed may be received. Gives whether there is any.
    pub(super) fn flush(&mut self, counters: &mut PortCounters) -> bool {
        if let Some(lane) = &mut self.lane {
            lane.0.flush(counters);
        }
        std::mem::take(&mut self.is_new)
    }

    /// Looks whether there is something to receive.
    pub(super) fn look(&mut self) -> bool {
        self.lane.as_mut().is_some_and(|lane| lane.1.fetch())
    }

    /// Gives up to `limit` datagrams that were there at the last look; says how many.
    pub(super) fn receive(
        &mut self,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> usize {
        match &mut self.lane {
            Some(lane) => lane.1.receive(limit, sink, counters),
            None => 0,
        }
    }
}
