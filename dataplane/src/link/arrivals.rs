//! Datagrams in frames that arrived: which are for us, and where they begin.

use super::datagram::datagram;
use super::device::Device;
use crate::port::{Arrival, Identification, PortCounters};
use std::net::IpAddr;
use std::slice::Chunks;
use trunkline_wire::{Mac, Roce};

/// Bits of the traffic class that say "congestion experienced".
const CE: u8 = 3;

/// Takes frames apart.
#[derive(Debug)]
pub(super) struct Arrivals {
    address: IpAddr,
    mac: Mac,
    /// Datagrams of the front unit that were given already.
    given: usize,
}

impl Arrivals {
    pub(super) const fn new(address: IpAddr, mac: Mac) -> Self {
        Self {
            address,
            mac,
            given: 0,
        }
    }

    /// The interface has another address of the link from now on.
    pub(super) const fn readdress(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Gives up to `limit` datagrams of what `device` has to `sink`, and frames that hold none for
    /// us to `strange`; says how many datagrams.
    pub(super) fn receive(
        &mut self,
        device: &mut impl Device,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
        strange: &mut dyn FnMut(&[u8], &mut PortCounters),
    ) -> usize {
        let mut given = 0;
        while given < limit {
            let Some(unit) = device.front() else { break };
            let found = match unit.is_cut {
                true => None,
                false => datagram(unit.frame, self.mac, self.address),
            };
            match (found, unit.segment) {
                (Some(found), None) => {
                    give(&found, 0, found.datagram, counters, sink);
                    given += 1;
                }
                (Some(found), Some(segment @ 1..)) => {
                    let pieces = found.datagram.chunks(segment.into());
                    let (count, is_over) =
                        self.give_some(&found, pieces, limit - given, counters, sink);
                    given += count;
                    if !is_over {
                        break;
                    }
                }
                _ if unit.is_cut => counters.malformed += 1,
                _ => strange(unit.frame, counters),
            }
            // Of one that was begun nothing may be for us any more: see `readdress`.
            self.given = 0;
            device.recycle();
        }
        counters.received += given as u64;
        given
    }

    /// Gives up to `limit` datagrams of a unit, behind those that were given. Says how many, and
    /// whether these were the last.
    fn give_some(
        &mut self,
        found: &Roce<'_>,
        datagrams: Chunks<'_, u8>,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> (usize, bool) {
        let all = datagrams.len();
        if self.given == 0 && all > 1 {
            counters.super_packets_received += 1;
        }
        let mut count = 0;
        for datagram in datagrams.skip(self.given).take(limit) {
            give(found, self.given + count, datagram, counters, sink);
            count += 1;
        }
        self.given += count;
        (count, self.given >= all)
    }
}

/// Gives a datagram, before which there are so many in what was found.
#[inline]
fn give(
    found: &Roce<'_>,
    before: usize,
    datagram: &[u8],
    counters: &mut PortCounters,
    sink: &mut dyn FnMut(&Arrival, &[u8]),
) {
    let identification = found.identification.wrapping_add(before as u16);
    let arrival = Arrival {
        path: found.path,
        identification: Identification::Seen(identification),
        ce: found.path.traffic_class & CE == CE,
        waited_ns: 0,
    };
    sink(&arrival, datagram);
    counters.received_bytes += datagram.len() as u64;
}
