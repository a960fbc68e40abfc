//! The network between the nodes: per ordered pair a link with a rate, a queue, a delay and faults,
//! all on virtual time and all drawn from the seed.

use crate::trace::{Event, Fate, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_dataplane::port::{Arrival, Egress, Identification, Slot};
use trunkline_dataplane::prng::Prng;
use trunkline_dataplane::{Capabilities, Port, PortCounters, PortError};
use trunkline_wire::{NakCode, Opcode, Path, Qpn, Syndrome, icrc, parse_datagram};

/// Bytes of Ethernet, IP and UDP around a datagram, as they count on a link: preamble, header,
/// checksum and gap of Ethernet (38), IPv4 (20), UDP (8).
const FRAMING: u64 = 66;
const ECN: u8 = 0b11;
/// Bytes of BTH and extension header.
const HEADERS: usize = 52;
/// BTH and DETH.
const DATAGRAM_HEADERS: usize = 20;

/// What one direction between two nodes is like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Link {
    /// Bits per second.
    pub rate_bps: u64,
    /// One way, without queueing, in ns.
    pub delay_ns: u64,
    /// Up to so much more, in ns; keeps the order of packets.
    pub jitter_ns: u64,
    /// Bytes that may wait for the link; what comes on top is dropped.
    pub queue_bytes: u64,
    /// Bytes waiting from which on packets are marked (ECN).
    pub mark_bytes: u64,
    /// Packets lost, per million.
    pub loss_ppm: u32,
    /// Packets that arrive twice, per million.
    pub duplicate_ppm: u32,
    /// Packets held back, per million, ...
    pub reorder_ppm: u32,
    /// ... by up to so much, in ns.
    pub reorder_ns: u64,
    /// Packets with a bit flipped, per million.
    pub corrupt_ppm: u32,
}

impl Link {
    /// A link without faults: 100 Gb/s, 5 us one way, 4 MiB of queue.
    pub const CLEAN: Self = Self {
        rate_bps: 100_000_000_000,
        delay_ns: 5_000,
        jitter_ns: 0,
        queue_bytes: 4 << 20,
        mark_bytes: 1 << 20,
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        reorder_ns: 0,
        corrupt_ppm: 0,
    };

    /// The same link without its faults.
    #[must_use]
    pub const fn healed(self) -> Self {
        Self {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            ..self
        }
    }
}

/// How a network may be broken on purpose, to see that the simulator notices what it should and
/// does not mind what it should not.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Sabotage {
    /// Not at all.
    #[default]
    None,
    /// Payload bits are flipped and the ICRC made right again, in so many packets per million.
    Forge(u32),
    /// Every so many packets per million arrive twice, the second time up to a millisecond later.
    Repeat(u32),
}

#[derive(Clone, Copy, Debug)]
struct Wire {
    link: Link,
    cut: bool,
    /// When the link has sent what it took.
    free_at: u64,
    /// When the last packet that was not held back arrives.
    last_at: u64,
}

#[derive(Debug)]
struct Packet {
    at: u64,
    serial: u64,
    to: usize,
    arrival: Arrival,
    bytes: Vec<u8>,
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.serial) == (other.at, other.serial)
    }
}

impl Eq for Packet {}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Packet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// What the network did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NetCounters {
    /// Packets handed to it.
    pub packets: u64,
    /// Their bytes, BTH to ICRC.
    pub bytes: u64,
    /// Lost at random, in full queues, or for want of a receiver.
    pub dropped: u64,
    /// Delivered twice.
    pub doubled: u64,
    /// Held back.
    pub delayed: u64,
    /// Delivered with a bit flipped.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
    /// Changed with the ICRC made right.
    pub forged: u64,
}

/// The network.
#[derive(Debug)]
pub struct Net {
    now: u64,
    random: Prng,
    addresses: Vec<IpAddr>,
    index: HashMap<IpAddr, usize>,
    wires: Vec<Wire>,
    flying: BinaryHeap<Reverse<Packet>>,
    serial: u64,
    inboxes: Vec<VecDeque<(Arrival, Vec<u8>)>>,
    /// Which port is plugged in at each address; 0: none.
    plugged: Vec<u64>,
    plugs: u64,
    spare: Vec<Vec<u8>>,
    sabotage: Sabotage,
    counters: NetCounters,
    /// When a refusal on its way to a QP was lost last, by node and number of the QP.
    lost_refusals: BTreeMap<(usize, Qpn), u64>,
    /// What happened.
    pub trace: Trace,
}

/// A network that ports and the world share. One thread drives all of it.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<Net>>);

impl Network {
    /// A network between `addresses`, all links like `link`.
    pub fn new(seed: u64, addresses: &[IpAddr], link: Link, trace: Trace) -> Self {
        let count = addresses.len();
        let wire = Wire {
            link,
            cut: false,
            free_at: 0,
            last_at: 0,
        };
        Self(Arc::new(Mutex::new(Net {
            now: 0,
            random: Prng::new(seed),
            addresses: addresses.to_vec(),
            index: addresses.iter().copied().zip(0..).collect(),
            wires: vec![wire; count * count],
            flying: BinaryHeap::new(),
            serial: 0,
            inboxes: vec![VecDeque::new(); count],
            plugged: vec![0; count],
            plugs: 0,
            spare: Vec::new(),
            sabotage: Sabotage::None,
            counters: NetCounters::default(),
            lost_refusals: BTreeMap::new(),
            trace,
        })))
    }

    /// Access to it.
    pub fn net(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port at the address of node `index`. A port that was there before hears nothing any more.
    pub fn plug(&self, index: usize, shape: PortShape) -> SimPort {
        let mut net = self.net();
        net.plugs += 1;
        let plug = net.plugs;
        net.plugged[index] = plug;
        net.inboxes[index].clear();
        SimPort {
            network: self.clone(),
            node: index,
            plug,
            shape,
            identification: (plug as u16).wrapping_mul(7919),
            reserved: None,
            buffer: Vec::new(),
            committed: Vec::new(),
            counters: PortCounters::default(),
        }
    }
}

impl Net {
    /// Sets the time.
    pub const fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Breaks the network on purpose.
    pub const fn sabotage(&mut self, how: Sabotage) {
        self.sabotage = how;
    }

    /// What it did so far.
    pub const fn counters(&self) -> NetCounters {
        self.counters
    }

    const fn wire(&self, from: usize, to: usize) -> usize {
        from * self.inboxes.len() + to
    }

    /// The link from `from` to `to`.
    pub fn link_mut(&mut self, from: usize, to: usize) -> &mut Link {
        let at = self.wire(from, to);
        &mut self.wires[at].link
    }

    /// Cuts two nodes off from each other, or joins them again. Packets under way still arrive.
    pub fn cut(&mut self, a: usize, b: usize, cut: bool) {
        for at in [self.wire(a, b), self.wire(b, a)] {
            self.wires[at].cut = cut;
        }
    }

    /// Takes all faults away.
    pub fn heal(&mut self) {
        for wire in &mut self.wires {
            wire.link = wire.link.healed();
            wire.cut = false;
        }
    }

    /// Whether any link is cut.
    pub fn is_cut(&self) -> bool {
        self.wires.iter().any(|wire| wire.cut)
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<u64> {
        self.flying.peek().map(|Reverse(packet)| packet.at)
    }

    /// Puts what has arrived into the inboxes; `woken` hears which nodes have something to read.
    pub fn deliver(&mut self, mut woken: impl FnMut(usize)) {
        while self
            .flying
            .peek()
            .is_some_and(|Reverse(packet)| packet.at <= self.now)
        {
            let Some(Reverse(packet)) = self.flying.pop() else {
                break;
            };
            if self.plugged[packet.to] == 0 {
                self.counters.dropped += 1;
                self.spare.push(packet.bytes);
                continue;
            }
            self.inboxes[packet.to].push_back((packet.arrival, packet.bytes));
            woken(packet.to);
        }
    }

    /// When the last refusal was lost that an InfiniBand QP, `qpn` of node `index`, was to hear. It
    /// is said once: the QP that said it is in error and answers no more.
    pub fn refusal_lost(&self, index: usize, qpn: Qpn) -> Option<u64> {
        self.lost_refusals.get(&(index, qpn)).copied()
    }

    /// Whether packets wait for node `index` to read them.
    pub fn has_mail(&self, index: usize) -> bool {
        !self.inboxes[index].is_empty()
    }

    /// Takes a packet from node `from`.
    fn send(&mut self, from: usize, path: &Path, identification: u16, mut bytes: Vec<u8>) {
        self.counters.packets += 1;
        self.counters.bytes += bytes.len() as u64;
        let to = self.index.get(&path.dst).copied();
        let mut arrival = Arrival {
            path: *path,
            identification: Identification::Seen(identification),
            ce: path.traffic_class & ECN == ECN,
            waited_ns: 0,
        };
        let refused = refused(&bytes);
        let fate = match to {
            Some(to) => self.fly(from, to, &mut arrival, &mut bytes),
            None => Err(Fate::Unreachable),
        };
        let (shown, at) = match fate {
            Ok((fate, at)) => (fate, Some(at)),
            Err(fate) => (fate, None),
        };
        self.note(from, to.unwrap_or(from), &bytes, shown);
        if let (Some(to), Some(qpn)) = (to, refused)
            && (at.is_none() || shown == Fate::Corrupted)
        {
            self.lost_refusals.insert((to, qpn), self.now);
        }
        let (Some(at), Some(to)) = (at, to) else {
            self.counters.dropped += 1;
            self.spare.push(bytes);
            return;
        };
        if shown == Fate::Doubled {
            self.counters.doubled += 1;
            let later = at + 1 + self.random.below(1_000_000);
            let copy = bytes.clone();
            self.launch(later, to, arrival, copy);
        }
        self.launch(at, to, arrival, bytes);
    }

    fn launch(&mut self, at: u64, to: usize, arrival: Arrival, bytes: Vec<u8>) {
        self.serial += 1;
        self.flying.push(Reverse(Packet {
            at,
            serial: self.serial,
            to,
            arrival,
            bytes,
        }));
    }

    /// What becomes of a packet, and when it arrives.
    fn fly(
        &mut self,
        from: usize,
        to: usize,
        arrival: &mut Arrival,
        bytes: &mut [u8],
    ) -> Result<(Fate, u64), Fate> {
        let (now, at) = (self.now, self.wire(from, to));
        let wire = self.wires[at];
        let link = wire.link;
        if wire.cut || self.plugged[to] == 0 {
            return Err(Fate::Unreachable);
        }
        let start = wire.free_at.max(now);
        let waiting = (u128::from(start - now) * u128::from(link.rate_bps) / 8_000_000_000) as u64;
        if waiting + bytes.len() as u64 > link.queue_bytes {
            return Err(Fate::Overflowed);
        }
        let on_wire = (bytes.len() as u64 + FRAMING) * 8;
        let sending = u128::from(on_wire) * 1_000_000_000 / u128::from(link.rate_bps);
        let sent_at = start + sending as u64;
        self.wires[at].free_at = sent_at;
        if self.random.chance(link.loss_ppm) {
            return Err(Fate::Lost);
        }
        let mut fate = Fate::Carried;
        if waiting > link.mark_bytes && matches!(arrival.path.traffic_class & ECN, 1 | 2) {
            arrival.ce = true;
            self.counters.marked += 1;
            fate = Fate::Marked;
        }
        let jitter = if link.jitter_ns > 0 {
            self.random.below(link.jitter_ns + 1)
        } else {
            0
        };
        let mut arrives = (sent_at + link.delay_ns + jitter).max(wire.last_at);
        if self.random.chance(link.reorder_ppm) {
            self.counters.delayed += 1;
            arrives += 1 + self.random.below(link.reorder_ns.max(1));
            fate = Fate::Delayed;
        } else {
            self.wires[at].last_at = arrives;
        }
        if self.random.chance(link.corrupt_ppm) {
            let bit = self.random.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
            fate = Fate::Corrupted;
        } else if self.random.chance(link.duplicate_ppm) {
            fate = Fate::Doubled;
        }
        Ok((self.spoil(arrival, bytes, fate), arrives))
    }

    fn spoil(&mut self, arrival: &Arrival, bytes: &mut [u8], fate: Fate) -> Fate {
        match self.sabotage {
            Sabotage::Forge(ppm) if carries_data(bytes) && self.random.chance(ppm) => {
                let last = bytes.len() - 5;
                bytes[last] ^= 1 << self.random.below(8);
                icrc::seal(&arrival.path, arrival.identification.guess(), bytes);
                self.counters.forged += 1;
                Fate::Forged
            }
            Sabotage::Repeat(ppm) if fate == Fate::Carried && self.random.chance(ppm) => {
                Fate::Doubled
            }
            _ => fate,
        }
    }

    fn note(&mut self, from: usize, to: usize, bytes: &[u8], fate: Fate) {
        let word = |at: usize| match bytes.get(at..at + 4) {
            Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
            _ => 0,
        };
        let event = Event::Packet {
            from: from as u8,
            to: to as u8,
            opcode: bytes.first().copied().unwrap_or(0),
            psn: word(8) & 0xff_ffff,
            length: bytes.len() as u32,
            content: content_hash(bytes),
            fate,
        };
        self.trace.record(self.now, event);
        if self.trace.prints() && bytes.len() > HEADERS + 4 {
            let datagram = bytes[0] == Opcode::UD_SEND_ONLY.0;
            let headers = if datagram { DATAGRAM_HEADERS } else { HEADERS };
            let content = &bytes[headers..bytes.len() - 4];
            self.trace.print_notices(bytes[0], content);
        }
    }
}

/// The QP that a datagram tells that its request was refused for good, in InfiniBand RC.
fn refused(datagram: &[u8]) -> Option<Qpn> {
    if datagram.first() != Some(&Opcode::RC_ACKNOWLEDGE.0) {
        return None;
    }
    let packet = parse_datagram(datagram).ok()?;
    let aeth = packet.aeth?;
    let fatal = matches!(aeth.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequence);
    fatal.then_some(packet.bth.dest_qp)
}

/// Stands for the bytes of a packet, but for what depends on where the machine happened to put
/// memory: addresses, and the sums that cover them.
fn content_hash(bytes: &[u8]) -> u64 {
    let Some(sum_at) = bytes.len().checked_sub(4).filter(|at| *at > HEADERS) else {
        return hash(0, bytes);
    };
    let headers = match bytes[0] {
        0xc3 | 0xc5 => HEADERS + 16,
        0xc4 => HEADERS + 20,
        0xc7 | 0xc8 => HEADERS + 28,
        0xc1 | 0xc2 => HEADERS + 4,
        _ => HEADERS,
    };
    let address = if headers >= HEADERS + 16 { 8 } else { 0 };
    let summed = bytes[0] >= 0xc0 && bytes[12] & 2 != 0;
    let payload = if summed { headers + 4 } else { headers };
    let parts = [0..HEADERS, HEADERS + address..headers, payload..sum_at];
    parts.into_iter().fold(0, |sum, part| {
        hash(sum, bytes.get(part).unwrap_or_default())
    })
}

fn hash(start: u64, bytes: &[u8]) -> u64 {
    let mut sum = start ^ bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    rest.iter().fold(sum, |sum, byte| {
        (sum.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Whether a packet is a SEND, a WRITE or READ data with at least one byte in it.
fn carries_data(bytes: &[u8]) -> bool {
    let headers = match bytes.first() {
        Some(0xc0 | 0xc6) => HEADERS,
        Some(0xc3) => HEADERS + 16,
        _ => return false,
    };
    bytes.len() > headers + 4 + 4
}

/// What a port can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortShape {
    /// Most bytes of a datagram, BTH to ICRC.
    pub max_datagram: usize,
    /// Datagrams that fit between two flushes.
    pub ring: usize,
    /// UDP source ports it has.
    pub source_ports: &'static [u16],
}

/// A node's port on the network.
#[derive(Debug)]
pub struct SimPort {
    network: Network,
    node: usize,
    plug: u64,
    shape: PortShape,
    identification: u16,
    reserved: Option<(Path, usize)>,
    buffer: Vec<u8>,
    committed: Vec<(Path, u16, Vec<u8>)>,
    counters: PortCounters,
}

impl Egress for SimPort {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if length == 0
            || length > self.shape.max_datagram
            || self.committed.len() >= self.shape.ring
        {
            return None;
        }
        self.reserved = Some((*path, length));
        if self.buffer.len() < length {
            // What a slot holds before it is written is nobody's business: make that visible.
            self.buffer.resize(length, 0xdb);
        }
        let identification = self.identification;
        Some(Slot {
            datagram: &mut self.buffer[..length],
            identification,
        })
    }

    fn commit(&mut self) {
        let (path, length) = self.reserved.take().expect("commit follows reserve");
        let blank = self.network.net().spare.pop().unwrap_or_default();
        let mut bytes = std::mem::replace(&mut self.buffer, blank);
        bytes.truncate(length);
        self.committed.push((path, self.identification, bytes));
        self.identification = self.identification.wrapping_add(1);
    }
}

impl Port for SimPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.shape.max_datagram,
            sees_identification: true,
            super_packets: false,
            coalesced_receive: false,
            kernel_routes: false,
            lossless: false,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if self.committed.is_empty() {
            return Ok(());
        }
        let mut net = self.network.net();
        let here = net.plugged[self.node] == self.plug;
        self.counters.send_calls += 1;
        for (path, identification, bytes) in self.committed.drain(..) {
            self.counters.sent += 1;
            self.counters.sent_bytes += bytes.len() as u64;
            if here && path.src == net.addresses[self.node] {
                net.send(self.node, &path, identification, bytes);
            } else {
                self.counters.misrouted += 1;
                net.spare.push(bytes);
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let mut count = 0;
        while count < limit {
            let mut net = self.network.net();
            if net.plugged[self.node] != self.plug {
                break;
            }
            let Some((arrival, bytes)) = net.inboxes[self.node].pop_front() else {
                break;
            };
            drop(net);
            sink(&arrival, &bytes);
            self.counters.received += 1;
            self.counters.received_bytes += bytes.len() as u64;
            self.network.net().spare.push(bytes);
            count += 1;
        }
        self.counters.receive_calls += u64::from(count > 0);
        Ok(count)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn source_ports(&self) -> &[u16] {
        self.shape.source_ports
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        let mut net = self.network.net();
        if net.plugged[self.node] == self.plug {
            net.plugged[self.node] = 0;
            net.inboxes[self.node].clear();
        }
    }
}
