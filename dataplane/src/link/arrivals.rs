//! Datagrams in frames that arrived: which are for us, and where they begin.

use super::device::{Device, Unit};
use crate::port::{Arrival, Identification, PortCounters};
use std::net::IpAddr;
use trunkline_wire::Frame;
use trunkline_wire::{IpFields, Mac, Path};

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

/// What a unit has for us.
struct Found<'a> {
    arrival: Arrival,
    identification: u16,
    /// One datagram, or several of `segment` bytes.
    datagrams: &'a [u8],
    segment: usize,
}

impl Arrivals {
    pub(super) const fn new(address: IpAddr, mac: Mac) -> Self {
        Self {
            address,
            mac,
            given: 0,
        }
    }

    /// Whether some of a unit was given, and some not.
    pub(super) const fn has_more(&self) -> bool {
        self.given > 0
    }

    /// Gives up to `limit` datagrams of what `device` has to `sink`; says how many.
    pub(super) fn receive(
        &mut self,
        device: &mut impl Device,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> usize {
        let mut given = 0;
        while given < limit {
            let Some(unit) = device.front() else { break };
            match self.find(&unit) {
                Some(found) => {
                    let (count, is_over) = self.give(found, limit - given, counters, sink);
                    given += count;
                    if !is_over {
                        break;
                    }
                }
                None => counters.malformed += 1,
            }
            self.given = 0;
            device.recycle();
        }
        counters.received += given as u64;
        given
    }

    /// Gives up to `limit` datagrams of a unit, behind those that were given. Says how many, and
    /// whether these were the last.
    fn give(
        &mut self,
        found: Found<'_>,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> (usize, bool) {
        let Found {
            mut arrival,
            identification,
            datagrams,
            segment,
        } = found;
        let all = datagrams.len().div_ceil(segment);
        if self.given == 0 && all > 1 {
            counters.super_packets_received += 1;
        }
        let rest = datagrams.chunks(segment).skip(self.given).take(limit);
        let mut count = 0;
        for datagram in rest {
            let number = (self.given + count) as u16;
            arrival.identification = Identification::Seen(identification.wrapping_add(number));
            sink(&arrival, datagram);
            counters.received_bytes += datagram.len() as u64;
            count += 1;
        }
        self.given += count;
        (count, self.given >= all)
    }

    /// What a unit has for us; `None`: it is not whole, or for somebody else.
    fn find<'a>(&self, unit: &Unit<'a>) -> Option<Found<'a>> {
        if unit.is_cut {
            return None;
        }
        let frame = Frame::parse(unit.frame).ok()?;
        let is_ours = frame.vlan.is_none() && frame.eth.dst == self.mac;
        let roce = frame
            .roce()
            .filter(|roce| is_ours && roce.path.dst == self.address && !roce.datagram.is_empty())?;
        let traffic_class = roce.path.traffic_class;
        let arrival = Arrival {
            path: Path {
                ip: IpFields::DEFAULT,
                ..roce.path
            },
            identification: Identification::Seen(roce.identification),
            ce: traffic_class & CE == CE,
            waited_ns: 0,
        };
        let segment = match unit.segment {
            Some(0) => return None,
            Some(segment) => segment.into(),
            None => roce.datagram.len(),
        };
        Some(Found {
            arrival,
            identification: roce.identification,
            datagrams: roce.datagram,
            segment,
        })
    }
}
