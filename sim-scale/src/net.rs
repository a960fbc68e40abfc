//! The network between the nodes: per ordered pair a link with a rate, a queue, a delay and faults,
//! all on virtual time and all drawn from the seed.

mod asks;
mod flow;
mod lies;
mod link;
mod packet;
mod port;
mod refusals;
mod turns;

pub(crate) use flow::Flow;
pub use link::{Link, ManagementFaults};
pub use port::{PortShape, SimPort};

use crate::trace::{Event, Fate, Trace};
use asks::Asks;
use flow::Shared;
use lies::Lies;
use packet::{answered, carries_data, content, content_hash, management, worker_of};
use refusals::Refusals;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_dataplane::Port;
use trunkline_dataplane::port::{Arrival, Identification};
use trunkline_dataplane::prng::Prng;
use trunkline_wire::{Path, Qpn, Worker, Workers, icrc};
use turns::Turns;

/// Bytes of Ethernet, IP and UDP around a datagram, as they count on a link: preamble, header,
/// checksum and gap of Ethernet (38), IPv4 (20), UDP (8).
const FRAMING: u64 = 66;
const ECN: u8 = 0b11;

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
    /// Larger datagrams are lost.
    mtu: usize,
    /// When the link has sent what it took.
    free_at: u64,
    /// When the last packet that was not held back arrives.
    last_at: u64,
}

type Inbox = VecDeque<(Arrival, Vec<u8>)>;

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
    /// Not what the liar's node sent.
    pub lies: u64,
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
    /// By node, and by worker there.
    inboxes: Vec<Vec<Inbox>>,
    /// Workers of the node at each address.
    workers: Vec<Workers>,
    /// Packets that come out at any worker's port instead of the right one's, per million.
    astray_ppm: u32,
    /// Which port is plugged in at each address; 0: none.
    plugged: Vec<u64>,
    plugs: u64,
    spare: Vec<Vec<u8>>,
    sabotage: Sabotage,
    lies: Option<Lies>,
    counters: NetCounters,
    /// When a refusal or data on its way to a QP was lost last, by node and number of the QP.
    lost_answers: BTreeMap<(usize, Qpn), u64>,
    /// What became of questions whether a peer shares connections.
    pub(crate) asks: Asks,
    judges: bool,
    /// Whose packets left while others waited.
    pub(crate) turns: Turns,
    /// Which messages were refused as their receivers were not ready.
    pub(crate) refusals: Refusals,
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
            mtu: usize::MAX,
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
            inboxes: vec![Vec::new(); count],
            workers: vec![Workers::ONE; count],
            astray_ppm: 0,
            plugged: vec![0; count],
            plugs: 0,
            spare: Vec::new(),
            sabotage: Sabotage::None,
            lies: None,
            counters: NetCounters::default(),
            lost_answers: BTreeMap::new(),
            asks: Asks::default(),
            judges: true,
            turns: Turns::default(),
            refusals: Refusals::default(),
            trace,
        })))
    }

    /// Access to it.
    pub fn net(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ports at the address of node `index`, one for each of its workers. Those that were there
    /// before hear nothing any more.
    pub fn plug(
        &self,
        index: usize,
        workers: Workers,
        shape: PortShape,
    ) -> Vec<Box<dyn Port + Send>> {
        let mut net = self.net();
        net.plugs += 1;
        let plug = net.plugs;
        net.plugged[index] = plug;
        net.turns.largest(shape.max_datagram);
        net.workers[index] = workers;
        net.inboxes[index] = workers.iter().map(|_| Inbox::new()).collect();
        let port = |worker| {
            let port = SimPort::new(self.clone(), (index, worker), plug, shape);
            Box::new(port) as Box<dyn Port + Send>
        };
        workers.iter().map(Worker::index).map(port).collect()
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

    /// Node `who` lies in so many of its packets per million.
    pub(crate) fn let_lie(&mut self, who: usize, seed: u64, ppm: u32) {
        self.lies = Some(Lies::new(who, seed, ppm));
    }

    /// Nobody is at the address of node `index` any more, whatever its ports still say.
    pub(crate) fn unplug(&mut self, index: usize) {
        self.plugged[index] = 0;
        self.inboxes[index].clear();
    }

    /// Node `index` is at another address from now on.
    pub fn readdress(&mut self, index: usize, address: IpAddr) {
        let before = std::mem::replace(&mut self.addresses[index], address);
        self.index.remove(&before);
        self.index.insert(address, index);
    }

    /// Lets so many packets per million come out at the port of any worker of their node. The
    /// kernel does so where it brings several packets as one.
    pub const fn lead_astray(&mut self, ppm: u32) {
        self.astray_ppm = ppm;
    }

    /// Keeps buffers for `count` packets of at most `bytes` at hand, so that nobody who sends has
    /// to allocate them.
    pub fn stock(&mut self, count: usize, bytes: usize) {
        self.spare.reserve(2 * count);
        let missing = count.saturating_sub(self.spare.len());
        let buffers = (0..missing).map(|_| Vec::with_capacity(bytes));
        self.spare.extend(buffers);
    }

    /// Notes no longer what may break a law: nobody is going to judge.
    pub const fn judge_nothing(&mut self) {
        self.judges = false;
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

    /// Lets the way from `a` to `b`, and back, carry datagrams of so many bytes.
    pub fn narrow(&mut self, a: usize, b: usize, mtus: [usize; 2]) {
        for (at, mtu) in [self.wire(a, b), self.wire(b, a)].into_iter().zip(mtus) {
            self.wires[at].mtu = mtu;
        }
    }

    /// Takes all faults away.
    pub fn heal(&mut self) {
        for wire in &mut self.wires {
            wire.link = wire.link.healed();
            (wire.cut, wire.mtu) = (false, usize::MAX);
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
            let worker = self.port_of(packet.to, &packet.bytes);
            self.inboxes[packet.to][worker].push_back((packet.arrival, packet.bytes));
            woken(packet.to);
        }
    }

    /// The worker of node `to` whose port a packet comes out at.
    fn port_of(&mut self, to: usize, bytes: &[u8]) -> usize {
        let workers = self.workers[to];
        if workers == Workers::ONE {
            return 0;
        }
        if self.random.chance(self.astray_ppm) {
            return self.random.below(workers.count().into()) as usize;
        }
        worker_of(bytes, workers).into()
    }

    /// When the last refusal, READ data or result of an atomic was lost that an InfiniBand QP,
    /// `qpn` of node `index`, was to hear. A refusal is said once, and data before it not again:
    /// the QP that said it is in error and answers no more.
    pub fn answer_lost(&self, index: usize, qpn: Qpn) -> Option<u64> {
        self.lost_answers.get(&(index, qpn)).copied()
    }

    /// Whether packets wait for a worker of node `index` to read them.
    pub fn has_mail(&self, index: usize, worker: u8) -> bool {
        !self.inboxes[index][usize::from(worker)].is_empty()
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
        // Before anything is changed that tells where its addresses are.
        let content = content_hash(&bytes);
        let honest = self.hear(from, to, &arrival, &mut bytes);
        let answered = answered(&bytes).filter(|_| honest);
        let mad = management(&bytes);
        let shared = to.filter(|_| honest && self.judges);
        let shared = shared.map(|to| Shared::all((from, to), &bytes));
        let fate = match to {
            Some(to) => self.fly(from, to, &mut arrival, &mut bytes, mad.is_some()),
            None => Err(Fate::Unreachable),
        };
        let (shown, at) = match fate {
            Ok((fate, at)) => (fate, Some(at)),
            Err(fate) => (fate, None),
        };
        self.note((from, to.unwrap_or(from)), &bytes, content, shown);
        if let (Some(to), Some(qpn)) = (to, answered)
            && (at.is_none() || shown == Fate::Corrupted)
        {
            self.lost_answers.insert((to, qpn), self.now);
        }
        let heard = at.filter(|_| shown != Fate::Corrupted);
        for (packet, content) in shared.iter().flatten() {
            self.turns.left(self.now, packet, content);
            self.refusals.left(self.now, packet, content, heard);
        }
        if let (Some(to), Some(mad)) = (to, &mad)
            && honest
            && self.judges
        {
            self.asks.said(self.now, (from, to), mad, heard);
        }
        let (Some(at), Some(to)) = (at, to) else {
            self.counters.dropped += 1;
            self.spare.push(bytes);
            return;
        };
        if shown == Fate::Doubled {
            self.counters.doubled += 1;
            let spread = match mad {
                Some(_) => self.wires[self.wire(from, to)].link.management.delay_ns,
                None => 0,
            };
            let later = at + 1 + self.random.below(spread.max(1_000_000));
            let copy = bytes.clone();
            self.launch(later, to, arrival, copy);
        }
        self.launch(at, to, arrival, bytes);
    }

    /// The liar hears what others say to each other, and changes what it says. Gives whether both
    /// ends are honest.
    fn hear(
        &mut self,
        from: usize,
        to: Option<usize>,
        arrival: &Arrival,
        bytes: &mut Vec<u8>,
    ) -> bool {
        let Some(lies) = &mut self.lies else {
            return true;
        };
        if from == lies.who {
            self.counters.lies += u64::from(lies.tell(arrival, bytes));
            return false;
        }
        let honest = to != Some(lies.who);
        if honest {
            lies.overhear(bytes);
        }
        honest
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
        management: bool,
    ) -> Result<(Fate, u64), Fate> {
        let (now, at) = (self.now, self.wire(from, to));
        let wire = self.wires[at];
        let link = wire.link;
        if wire.cut || self.plugged[to] == 0 {
            return Err(Fate::Unreachable);
        }
        if bytes.len() > wire.mtu {
            return Err(Fate::Lost);
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
        let more = match management {
            true => link.management,
            false => ManagementFaults::NONE,
        };
        if self.random.chance(link.loss_ppm) || self.random.chance(more.loss_ppm) {
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
        } else if self.random.chance(more.delay_ppm) {
            self.counters.delayed += 1;
            arrives += 1 + self.random.below(more.delay_ns.max(1));
            fate = Fate::Delayed;
        } else {
            self.wires[at].last_at = arrives;
        }
        if self.random.chance(link.corrupt_ppm) || self.random.chance(more.corrupt_ppm) {
            let bit = self.random.below(bytes.len() as u64 * 8);
            let byte = (bit / 8) as usize;
            bytes[byte] ^= 1 << (bit % 8);
            // Where the ICRC does not cover a byte, its packet is still heard.
            if icrc::covers(byte) {
                self.counters.corrupted += 1;
                fate = Fate::Corrupted;
            }
        } else if self.random.chance(link.duplicate_ppm) || self.random.chance(more.duplicate_ppm) {
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

    fn note(&mut self, (from, to): (usize, usize), bytes: &[u8], content_hash: u64, fate: Fate) {
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
            content: content_hash,
            fate,
        };
        self.trace.record(self.now, event);
        if self.trace.prints()
            && let (Some(opcode), Some(content)) = (bytes.first(), content(bytes))
        {
            self.trace.print_control(*opcode, content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::IpFields;

    /// Laws are judged by what arrives whole: what the network calls corrupted must be what no
    /// node hears.
    #[test]
    fn a_packet_counts_as_corrupted_where_its_icrc_is_wrong_and_nowhere_else() {
        let addresses = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let link = Link {
            corrupt_ppm: 1_000_000,
            ..Link::CLEAN
        };
        let network = Network::new(7, &addresses, link, Trace::new(false));
        let shape = PortShape {
            max_datagram: 4096,
            ring: 64,
            source_ports: &[1],
        };
        let _ports = network.plug(1, Workers::ONE, shape);
        let path = Path {
            src: addresses[0],
            dst: addresses[1],
            src_port: 1,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let net = &mut network.net();
        let (mut wrong, sent) = (0, 2000);
        for id in 0..sent {
            let mut bytes = vec![id as u8; 20];
            icrc::seal(&path, id, &mut bytes);
            net.send(0, &path, id, bytes);
            let Some(Reverse(packet)) = net.flying.pop() else {
                panic!("nothing is lost")
            };
            wrong += u64::from(!icrc::verify(&path, id, &packet.bytes));
        }
        assert_eq!(net.counters.corrupted, wrong);
        assert!((1..u64::from(sent)).contains(&wrong), "{wrong} of {sent}");
    }
}
