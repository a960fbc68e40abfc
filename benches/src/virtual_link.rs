//! Two engines joined by a modelled link, on one virtual clock: what loss, reordering and the
//! troubles of single QPs cost, without what the machine at hand adds. Equal seeds give equal runs.
//!
//! Each direction sends one packet after another at [`RATE_GBPS`] and carries it for
//! [`PROPAGATION_NS`]; then it may get lost, or late. Programs and engines take no time.

use std::collections::{BTreeMap, VecDeque};
use trunkline_conn::control::CongestionControl;
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::time::{Instant, MICROSECOND};
use trunkline_pieces::pair::{Ends, PairConfig};
use trunkline_testkit::Rng;
use trunkline_wire::Path;

/// Speed of each direction, in Gb/s.
pub const RATE_GBPS: u64 = 100;
/// Time on the way in each direction, in ns: half a round trip.
pub const PROPAGATION_NS: u64 = 5 * MICROSECOND;
/// What a datagram has around it: preamble and gap (20 bytes), Ethernet (18), IPv4 (20), UDP (8).
const AROUND: u64 = 66;
/// Time that a byte takes, in ps.
const BYTE_PS: u64 = 8_000 / RATE_GBPS;
const PS_PER_NS: u64 = 1_000;
/// Packets that may wait for the link at its sender.
const QUEUE: usize = 256;
/// What a late packet is late by, in ns.
const LATE_NS: std::ops::Range<u64> = MICROSECOND..3 * MICROSECOND;

/// What happens to packets, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share that gets lost, 0 to 1.
    pub loss: f64,
    /// Share that is overtaken by those behind it, 0 to 1.
    pub late: f64,
}

/// Whether what has this share of all cases, 0 to 1, is so in this one.
fn happens(rng: &mut Rng, share: f64) -> bool {
    rng.chance((share * 1e6) as u64)
}

#[derive(Debug)]
struct Packet {
    path: Path,
    bytes: Vec<u8>,
}

/// One direction.
#[derive(Debug)]
struct Wire {
    faults: Faults,
    rng: Rng,
    now: Instant,
    /// The packet that is being built.
    slot: Option<Packet>,
    /// Buffers to build packets in.
    spare: Vec<Vec<u8>>,
    /// When the link has sent all that it was given, in ps.
    free_ps: u64,
    /// When each packet that waits for it, or is being sent, has left.
    leaving: VecDeque<Instant>,
    /// Packets on their way by their arrival, and by their order among those of one time.
    under_way: BTreeMap<(Instant, u64), Packet>,
    order: u64,
    /// A packet found no room.
    refused: bool,
}

impl Wire {
    fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            rng: Rng::new(seed),
            now: Instant::ZERO,
            slot: None,
            spare: Vec::new(),
            free_ps: 0,
            leaving: VecDeque::new(),
            under_way: BTreeMap::new(),
            order: 0,
            refused: false,
        }
    }

    /// Now it is `now`: what has left makes room.
    fn advance(&mut self, now: Instant) {
        self.now = now;
        self.refused = false;
        while self.leaving.front().is_some_and(|left| *left <= now) {
            self.leaving.pop_front();
        }
    }

    /// The next packet that has arrived.
    fn arrived(&mut self) -> Option<Packet> {
        let first = self.under_way.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    /// When something happens here next.
    fn next(&self) -> Option<Instant> {
        let arrival = self.under_way.keys().next().map(|(at, _)| *at);
        let room = self.leaving.front().filter(|_| self.refused).copied();
        arrival.into_iter().chain(room).min()
    }
}

impl Egress for Wire {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if self.leaving.len() >= QUEUE {
            self.refused = true;
            return None;
        }
        let left = self.slot.take().map(|packet| packet.bytes);
        let mut bytes = left.or_else(|| self.spare.pop()).unwrap_or_default();
        bytes.resize(length, 0);
        let packet = self.slot.insert(Packet { path: *path, bytes });
        Some(Slot {
            datagram: &mut packet.bytes,
            identification: 0,
        })
    }

    fn commit(&mut self) {
        let packet = self.slot.take().expect("reserved before");
        let start = self.free_ps.max(self.now.as_nanos() * PS_PER_NS);
        self.free_ps = start + (packet.bytes.len() as u64 + AROUND) * BYTE_PS;
        let left = Instant::from_nanos(self.free_ps.div_ceil(PS_PER_NS));
        self.leaving.push_back(left);
        if happens(&mut self.rng, self.faults.loss) {
            self.spare.push(packet.bytes);
            return;
        }
        let late = match happens(&mut self.rng, self.faults.late) {
            true => self.rng.within(LATE_NS),
            false => 0,
        };
        self.order += 1;
        let at = (left + (PROPAGATION_NS + late), self.order);
        self.under_way.insert(at, packet);
    }
}

/// Two engines and the link between them.
#[derive(Debug)]
pub struct VirtualLink {
    /// The engines, connected; their ports are not used any more.
    pub ends: Ends,
    /// From the first end, and from the second.
    wires: [Wire; 2],
    now: Instant,
}

impl VirtualLink {
    /// `qps` pairs of QPs with `bytes` of memory at each end, over one connection with the default
    /// congestion control, or each over one of its own (`plain`).
    ///
    /// # Panics
    /// When memory runs out.
    pub fn new(faults: Faults, qps: usize, bytes: usize, plain: bool) -> Self {
        let ends = Ends::new(&PairConfig {
            qps,
            bytes,
            control: CongestionControl::default(),
            plain,
            ..PairConfig::default()
        });
        let now = ends.start();
        Self {
            ends,
            wires: [
                Wire::new(faults, 0x5eed_0001),
                Wire::new(faults, 0x5eed_0002),
            ],
            now,
        }
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Runs for `ns`. `program` takes completions and posts requests whenever something may have
    /// happened to them, and says when it wants to be called next at the latest.
    pub fn run(&mut self, ns: u64, mut program: impl FnMut(Instant, &mut Ends) -> Instant) {
        let end = self.now + ns;
        while self.now < end {
            self.receive();
            let wanted = program(self.now, &mut self.ends);
            self.send();
            let next = self.next().into_iter().fold(wanted, Instant::min);
            self.now = next.max(self.now + 1).min(end);
        }
    }

    fn receive(&mut self) {
        for wire in &mut self.wires {
            wire.advance(self.now);
        }
        for (i, end) in self.ends.nodes.iter_mut().enumerate() {
            let wire = &mut self.wires[1 - i];
            while let Some(packet) = wire.arrived() {
                let arrival = Arrival {
                    path: packet.path,
                    identification: Identification::Seen(0),
                    ce: false,
                    waited_ns: 0,
                };
                end.engine
                    .handle_datagram(self.now, &arrival, &packet.bytes);
                wire.spare.push(packet.bytes);
            }
            end.engine.handle_timeout(self.now);
            end.engine.publish();
        }
    }

    fn send(&mut self) {
        for (end, wire) in self.ends.nodes.iter_mut().zip(&mut self.wires) {
            end.engine.handle_doorbells();
            while end.engine.poll_transmit(self.now, wire) > 0 && !wire.refused {}
        }
    }

    fn next(&self) -> Option<Instant> {
        let timers = self.ends.nodes.iter();
        let timers = timers.filter_map(|end| end.engine.poll_timeout());
        let packets = self.wires.iter().filter_map(Wire::next);
        timers.chain(packets).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::IpFields;

    fn packet(wire: &mut Wire) {
        let address = std::net::IpAddr::from([10, 0, 0, 1]);
        let path = Path {
            src: address,
            dst: address,
            src_port: 1,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let length = 1250 - AROUND as usize;
        assert!(wire.reserve(&path, length).is_some(), "there is room");
        wire.commit();
    }

    /// When packets that were given to a wire at once arrive.
    fn arrivals(faults: Faults, count: usize) -> Vec<u64> {
        let mut wire = Wire::new(faults, 1);
        (0..count).for_each(|_| packet(&mut wire));
        wire.under_way.keys().map(|(at, _)| at.as_nanos()).collect()
    }

    #[test]
    fn packets_arrive_at_the_speed_of_the_link() {
        assert_eq!(arrivals(Faults::default(), 3), [5100, 5200, 5300]);
    }

    #[test]
    fn late_packets_are_overtaken() {
        let always = Faults {
            loss: 0.0,
            late: 1.0,
        };
        let late = arrivals(always, 1)[0];
        assert!((6100..8100).contains(&late), "{late}");
    }

    #[test]
    fn the_share_asked_for_is_lost() {
        let half = Faults {
            loss: 0.5,
            late: 0.0,
        };
        let left = arrivals(half, QUEUE).len();
        assert!((QUEUE / 3..QUEUE * 2 / 3).contains(&left), "{left}");
    }

    #[test]
    fn a_full_queue_refuses_packets_until_one_has_left() {
        let mut wire = Wire::new(Faults::default(), 1);
        (0..QUEUE).for_each(|_| packet(&mut wire));
        let first = *wire.leaving.front().expect("they wait");
        let path = wire.under_way.values().next().expect("a packet").path;
        assert!(wire.reserve(&path, 100).is_none());
        assert_eq!(wire.next(), Some(first));
        wire.advance(first);
        assert!(wire.reserve(&path, 100).is_some());
    }
}
