//! Datagrams on a bare port: as long as those of shared connections, sealed and verified by their
//! ICRC.
//!
//! ```text
//! | BTH: zeros | kind | zeros | number | received | zeros | payload | ICRC |
//! 0            12     13      20       28         36      52
//! ```

use anyhow::{Result, ensure};
use std::net::IpAddr;
use trunkline_dataplane::Port;
use trunkline_wire::{Bth, IcrcSeed, IpFields, Path, ROCE_PORT, SrcExt, icrc};

/// Bytes before the payload: what packets of shared connections have there.
const HEADERS: usize = Bth::LEN + SrcExt::LEN;
/// Where the fields begin.
const KIND: usize = Bth::LEN;
const NUMBER: usize = 20;
const RECEIVED: usize = 28;
/// Most payload of a datagram: the MTUs of RoCE.
const PAYLOADS: [usize; 5] = [4096, 2048, 1024, 512, 256];
/// ECN capable, as packets of shared connections are.
const TRAFFIC_CLASS: u8 = 2;
/// Datagrams taken at once.
const BATCH: usize = 64;

/// What a datagram is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A part of a message.
    Data,
    /// Wants a [`Credit`](Self::Credit) at once.
    Probe,
    /// Says what has arrived.
    Credit,
}

impl Kind {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Data),
            1 => Some(Self::Probe),
            2 => Some(Self::Credit),
            _ => None,
        }
    }
}

/// What stands before the payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Of data, its own number; else how many numbers were used, or seen, so far.
    pub(super) number: u64,
    /// Of a credit: datagrams with data that have arrived.
    pub(super) received: u64,
}

impl Header {
    fn bytes(self) -> [u8; HEADERS] {
        let mut bytes = [0; HEADERS];
        bytes[KIND] = self.kind as u8;
        bytes[NUMBER..RECEIVED].copy_from_slice(&self.number.to_be_bytes());
        bytes[RECEIVED..RECEIVED + 8].copy_from_slice(&self.received.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let field = |at: usize| bytes.get(at..)?.first_chunk().copied();
        Some(Self {
            kind: Kind::from_byte(*bytes.get(KIND)?)?,
            number: u64::from_be_bytes(field(NUMBER)?),
            received: u64::from_be_bytes(field(RECEIVED)?),
        })
    }
}

/// A port, and the path to the other end.
pub(super) struct Datagrams {
    port: Box<dyn Port + Send>,
    path: Path,
    seed: IcrcSeed,
    /// The path of the last arrival.
    theirs: (Path, IcrcSeed),
    taken: u64,
    damaged: u64,
}

/// Most payload of a datagram on a port.
///
/// # Errors
/// The port has no room for the smallest packets of RoCE.
pub(super) fn most_payload(port: &dyn Port) -> Result<u64> {
    let room = port.capabilities().max_datagram;
    let fits = |payload: &&usize| HEADERS + **payload + icrc::LEN <= room;
    let payload = PAYLOADS.iter().find(fits);
    ensure!(payload.is_some(), "a datagram has {room} bytes at most");
    Ok(payload.copied().unwrap_or_default() as u64)
}

/// Whether it is one that ports have.
pub(super) fn is_payload(bytes: u64) -> bool {
    PAYLOADS.iter().any(|payload| *payload as u64 == bytes)
}

impl Datagrams {
    /// Takes over a port at the address `here`, to talk to `there`.
    ///
    /// # Errors
    /// The addresses are of different families.
    pub(super) fn new(port: Box<dyn Port + Send>, here: IpAddr, there: IpAddr) -> Result<Self> {
        ensure!(
            here.is_ipv4() == there.is_ipv4(),
            "{here} and {there} are addresses of different families"
        );
        let path = Path {
            src: here,
            dst: there,
            src_port: port.source_ports().first().copied().unwrap_or(ROCE_PORT),
            traffic_class: TRAFFIC_CLASS,
            ip: IpFields::DEFAULT,
        };
        let theirs = path.reversed(ROCE_PORT);
        Ok(Self {
            port,
            path,
            seed: IcrcSeed::new(&path),
            theirs: (theirs, IcrcSeed::new(&theirs)),
            taken: 0,
            damaged: 0,
        })
    }

    /// Puts a datagram behind those that leave with the next flush; whether there was room.
    #[inline]
    pub(super) fn put(&mut self, header: Header, payload: &[u8]) -> bool {
        let length = HEADERS + payload.len() + icrc::LEN;
        let Some(slot) = self.port.reserve(&self.path, length) else {
            return false;
        };
        let (head, rest) = slot.datagram.split_at_mut(HEADERS);
        head.copy_from_slice(&header.bytes());
        rest[..payload.len()].copy_from_slice(payload);
        self.seed.seal(slot.identification, slot.datagram);
        self.port.commit();
        true
    }

    /// Lets them leave.
    ///
    /// # Errors
    /// The port does not work any more.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.port.flush()?)
    }

    /// Gives what has come from the other end to `sink`; whether there was anything.
    ///
    /// # Errors
    /// The port does not work any more.
    pub(super) fn take(&mut self, mut sink: impl FnMut(Header)) -> Result<bool> {
        let Self {
            port,
            path,
            theirs,
            taken,
            damaged,
            ..
        } = self;
        let count = port.receive(BATCH, &mut |arrival, datagram| {
            if arrival.path.src != path.dst {
                return;
            }
            if arrival.path != theirs.0 {
                *theirs = (arrival.path, IcrcSeed::new(&arrival.path));
            }
            let likely = arrival.identification.guess();
            match Header::parse(datagram) {
                Some(header) if theirs.1.verify_any(likely, datagram) => {
                    *taken += 1;
                    sink(header);
                }
                _ => *damaged += 1,
            }
        })?;
        Ok(count > 0)
    }

    /// Datagrams that were.
    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Datagrams that were not what the other end had sent.
    pub(super) const fn damaged(&self) -> u64 {
        self.damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_as_they_were_made_and_of_other_bytes_none() {
        for kind in [Kind::Data, Kind::Probe, Kind::Credit] {
            let header = Header {
                kind,
                number: 0x0102_0304_0506_0708,
                received: u64::MAX,
            };
            let bytes = header.bytes();
            let parsed = Header::parse(&bytes).expect("it is whole");
            assert_eq!(parsed, header);
            assert!(Header::parse(&bytes[..RECEIVED + 7]).is_none());
        }
        let mut bytes = [0; HEADERS];
        bytes[KIND] = 3;
        assert!(Header::parse(&bytes).is_none());
    }
}
