//! Two NICs at the two ends of a cable, each of which deals what it receives to its queues by
//! receive side scaling (RSS), as hardware does: a Toeplitz hash over addresses and ports, whose
//! low bits choose a queue.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use trunkline::{Port, PortCounters, PortError};
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, Slot};
use trunkline_dataplane::{MemoryConfig, MemoryPort};
use trunkline_wire::{Path, ROCE_PORT};

/// The key that drivers have by default (Microsoft, "Verifying the RSS hash calculation").
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The hash of a key over what a packet is told by.
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let window =
        |from: usize| (from..from + 32).fold(0, |all, at| all << 1 | u32::from(bit(key, at)));
    (0..input.len() * 8)
        .filter(|at| bit(input, *at) == 1)
        .fold(0, |hash, at| hash ^ window(at))
}

fn hash(path: &Path) -> u32 {
    let mut input = Vec::new();
    for address in [path.src, path.dst] {
        match address {
            IpAddr::V4(address) => input.extend(address.octets()),
            IpAddr::V6(address) => input.extend(address.octets()),
        }
    }
    input.extend(path.src_port.to_be_bytes());
    input.extend(ROCE_PORT.to_be_bytes());
    toeplitz(&KEY, &input)
}

/// What lies between the queues of the two NICs.
struct Cable {
    /// The other ends of the queues, of each NIC.
    ends: [Vec<MemoryPort>; 2],
    /// Whether queues are chosen by RSS; else a packet comes to the queue that the next one would.
    hashes: bool,
}

impl Cable {
    /// Carries what was sent.
    fn carry(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut carried = Vec::new();
            for (queue, end) in self.ends[from].iter_mut().enumerate() {
                let take = &mut |arrival: &Arrival, datagram: &[u8]| {
                    carried.push((queue, arrival.path, datagram.to_vec()));
                };
                end.receive(usize::MAX, take).expect("memory does not fail");
            }
            for (sent_by, path, datagram) in carried {
                let queues = self.ends[to].len();
                let queue = if self.hashes {
                    hash(&path) as usize
                } else {
                    sent_by + 1
                };
                let end = &mut self.ends[to][queue % queues];
                if let Some(slot) = end.reserve(&path, datagram.len()) {
                    slot.datagram.copy_from_slice(&datagram);
                    end.commit();
                }
            }
        }
        for end in self.ends.iter_mut().flatten() {
            end.flush().expect("memory does not fail");
        }
    }
}

/// Those of a NIC.
type Ports = Vec<Box<dyn Port + Send>>;

/// A queue of a NIC.
struct Queue {
    inner: MemoryPort,
    cable: Arc<Mutex<Cable>>,
    source_ports: Vec<u16>,
}

/// The queues of two NICs, so many each, with so many UDP source ports.
pub(crate) fn pair(queues: [usize; 2], source_ports: u16, hashes: bool) -> [Ports; 2] {
    let lanes = queues.map(|queues| {
        let lanes = (0..queues).map(|_| MemoryPort::pair(MemoryConfig::default()));
        lanes.unzip::<_, _, Vec<_>, Vec<_>>()
    });
    let [(near, near_ends), (far, far_ends)] = lanes;
    let ends = [near_ends, far_ends];
    let cable = Arc::new(Mutex::new(Cable { ends, hashes }));
    [near, far].map(|queues| {
        let queue = |inner| Queue {
            inner,
            cable: Arc::clone(&cable),
            source_ports: [ROCE_PORT]
                .into_iter()
                .chain((49_152..).take(usize::from(source_ports) - 1))
                .collect(),
        };
        queues
            .into_iter()
            .map(|inner| Box::new(queue(inner)) as Box<dyn Port + Send>)
            .collect()
    })
}

impl Egress for Queue {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.inner.reserve(path, length)
    }

    fn commit(&mut self) {
        self.inner.commit();
    }
}

impl Port for Queue {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.cable.lock().expect("nobody panicked").carry();
        self.inner.fetch()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        self.inner.receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }

    fn source_ports(&self) -> &[u16] {
        &self.source_ports
    }
}

/// The suite that comes with the key.
#[test]
fn the_hash_is_that_of_nics() {
    let known = [
        (
            [66, 9, 149, 187],
            2794_u16,
            [161, 142, 100, 80],
            1766_u16,
            0x51cc_c178,
        ),
        (
            [199, 92, 111, 2],
            14_230,
            [65, 69, 140, 83],
            4739,
            0xc626_b0ea,
        ),
        (
            [24, 19, 198, 95],
            12_898,
            [12, 22, 207, 184],
            38_024,
            0x5c2b_394a,
        ),
    ];
    for (src, src_port, dst, dst_port, hash) in known {
        let mut input = [src, dst].concat();
        input.extend(src_port.to_be_bytes());
        input.extend(dst_port.to_be_bytes());
        assert_eq!(toeplitz(&KEY, &input), hash);
    }
}
