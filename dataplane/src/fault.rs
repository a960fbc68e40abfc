//! A port that loses, repeats, delays, reorders and damages what goes through it, as told by a
//! seed.
//!
//! Both directions have faults of their own, drawn from generators of their own: equal seeds and
//! equal traffic give equal faults. Time is an argument ([`Fault::advance`]).
//!
//! A datagram that leaves late may get another IPv4 identification than the one it was built for;
//! its ICRC is then changed along, so that delay alone damages nothing.

use crate::links::LinkChanges;
use crate::port::{
    Arrival, Capabilities, Egress, Identification, LinkState, Port, PortCounters, PortError,
    PortEvent, Slot,
};
use crate::prng::Prng;
use crate::reidentify::reidentify;
use crate::routes::Routes;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use trunkline_conn::time::Instant;
use trunkline_wire::Path;

/// What happens to the datagrams of one direction. Probabilities are in parts per million, times in
/// nanoseconds. The default does nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults {
    /// Lost.
    pub loss_ppm: u32,
    /// Delivered twice, each copy with a fate of its own.
    pub duplicate_ppm: u32,
    /// Delivered with one to three bits flipped, anywhere.
    pub corrupt_ppm: u32,
    /// Held back until others have overtaken it.
    pub reorder_ppm: u32,
    /// How many overtake it: 1 to this many, all equally likely. 0 counts as 1.
    pub reorder_packets: u32,
    /// How long it waits for them at most.
    pub reorder_hold_ns: u64,
    /// Every datagram takes this long.
    pub delay_ns: u64,
    /// And up to this much longer. Jitter alone reorders, too.
    pub jitter_ns: u64,
}

/// What happened to the datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FaultCounters {
    /// Came in.
    pub seen: u64,
    /// Went out, copies included.
    pub passed: u64,
    /// Were lost by chance.
    pub lost: u64,
    /// Were lost because the link was cut.
    pub cut: u64,
    /// Were doubled.
    pub duplicated: u64,
    /// Copies that were damaged.
    pub corrupted: u64,
    /// Copies that others were to overtake.
    pub reordered: u64,
}

/// Which way datagrams go, as the wrapped port sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// Sent.
    Outbound,
    /// Received.
    Inbound,
}

/// A port with faults.
#[derive(Debug)]
pub struct Fault<P> {
    port: P,
    now: Instant,
    outbound: Link,
    inbound: Link,
    /// The datagram being built, and what was promised for it.
    staged: Vec<u8>,
    reserved: Option<Arrival>,
}

impl<P: Port> Fault<P> {
    /// Wraps `port`. Time begins at [`Instant::ZERO`]. There are no faults until they are
    /// [set](Self::set).
    pub fn new(port: P, seed: u64) -> Self {
        // Any two different numbers make the directions independent.
        let link = |direction: u64| Link::new(seed ^ direction.rotate_left(32));
        Self {
            port,
            now: Instant::ZERO,
            outbound: link(1),
            inbound: link(2),
            staged: Vec::new(),
            reserved: None,
        }
    }

    /// Sets what happens from now on to datagrams of one direction.
    pub const fn set(&mut self, direction: Direction, faults: Faults) {
        self.link(direction).faults = faults;
    }

    /// Cuts one direction, or mends it. What is under way when it is cut is lost if it would arrive
    /// before it is mended.
    pub const fn cut(&mut self, direction: Direction, cut: bool) {
        self.link(direction).cut = cut;
    }

    /// It is `now`. Time never runs backwards: an earlier one changes nothing. What is due leaves
    /// with the next flush or receive.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// When the next held datagram is due, if any is held.
    pub fn next_release(&self) -> Option<Instant> {
        [&self.outbound, &self.inbound]
            .into_iter()
            .filter_map(Link::next_release)
            .min()
    }

    /// What happened so far in one direction.
    pub const fn fault_counters(&self, direction: Direction) -> FaultCounters {
        match direction {
            Direction::Outbound => self.outbound.counters,
            Direction::Inbound => self.inbound.counters,
        }
    }

    /// The wrapped port.
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// The wrapped port.
    pub const fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Takes the wrapped port out; what is held is lost.
    pub fn into_port(self) -> P {
        self.port
    }

    const fn link(&mut self, direction: Direction) -> &mut Link {
        match direction {
            Direction::Outbound => &mut self.outbound,
            Direction::Inbound => &mut self.inbound,
        }
    }
}

/// Puts a datagram, built for the identification that `arrival` names, into `port`. False when
/// there is no room.
fn forward(port: &mut impl Port, arrival: &Arrival, datagram: &[u8]) -> bool {
    let Some(slot) = port.reserve(&arrival.path, datagram.len()) else {
        return false;
    };
    slot.datagram.copy_from_slice(datagram);
    let built_for = arrival.identification.guess();
    reidentify(&arrival.path, built_for, slot.identification, slot.datagram);
    port.commit();
    true
}

impl<P: Port> Egress for Fault<P> {
    fn part(&mut self) {
        self.reserved = None;
        self.port.part();
    }

    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.reserved = None;
        let identification = self.port.reserve(path, length)?.identification;
        let seen = Identification::Seen(identification);
        self.reserved = Some(Arrival {
            path: *path,
            identification: seen,
            ce: false,
            waited_ns: 0,
        });
        self.staged.resize(length, 0);
        Some(Slot {
            datagram: &mut self.staged,
            identification,
        })
    }

    fn commit(&mut self) {
        let arrival = self.reserved.take().expect("commit follows reserve");
        let port = &mut self.port;
        self.outbound.admit(
            self.now,
            &arrival,
            &self.staged,
            &mut |arrival, datagram| forward(port, arrival, datagram),
        );
    }
}

impl<P: Port> Port for Fault<P> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            lossless: false,
            ..self.port.capabilities()
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.reserved = None;
        let port = &mut self.port;
        loop {
            let out = &mut |arrival: &Arrival, datagram: &[u8]| forward(port, arrival, datagram);
            let released = self.outbound.release(self.now, out);
            port.flush()?;
            // What found no room before the flush may find some now.
            if released == 0 {
                return Ok(());
            }
        }
    }

    /// As the wrapped port does it; but datagrams that are held are not readable at
    /// [`fd`](Port::fd): ask [`next_release`](Fault::next_release), too.
    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let (now, link) = (self.now, &mut self.inbound);
        let before = link.counters.passed;
        let mut given = 0;
        let mut out = |arrival: &Arrival, datagram: &[u8]| {
            if given == limit {
                return false;
            }
            sink(arrival, datagram);
            given += 1;
            true
        };
        let mut gone = link.release(now, &mut out);
        while gone < limit {
            let asked = limit - gone;
            let got = self.port.receive(asked, &mut |arrival, datagram| {
                link.admit(now, arrival, datagram, &mut out);
            })?;
            link.release(now, &mut out);
            gone = (link.counters.passed - before) as usize;
            if got < asked {
                break;
            }
        }
        Ok(given)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    /// What is held here may be due, whatever the port says.
    fn fetch(&mut self) -> Result<bool, PortError> {
        self.port.fetch()?;
        Ok(true)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.fds()
    }

    fn full(&self) -> Option<usize> {
        self.port.full()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.port.poll_event()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.port.source_ports()
    }

    fn link_state(&self, local: IpAddr) -> Option<LinkState> {
        self.port.link_state(local)
    }

    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        self.port.link_changes(local)
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.port.routes(local)
    }
}

/// Takes a datagram if it has room.
type Out<'a> = dyn FnMut(&Arrival, &[u8]) -> bool + 'a;

/// One direction.
#[derive(Debug)]
struct Link {
    faults: Faults,
    cut: bool,
    prng: Prng,
    /// Waiting for their time, the earliest on top.
    delayed: BinaryHeap<Held>,
    /// Waiting to be overtaken; few.
    reordered: Vec<Held>,
    /// Datagrams held so far: those of one time leave in the order they came.
    sequence: u64,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
    counters: FaultCounters,
}

#[derive(Debug)]
struct Held {
    due: Instant,
    sequence: u64,
    /// Due, too, when so many datagrams have passed.
    overtaken_at: u64,
    arrival: Arrival,
    datagram: Vec<u8>,
}

impl Link {
    fn new(seed: u64) -> Self {
        Self {
            faults: Faults::default(),
            cut: false,
            prng: Prng::new(seed),
            delayed: BinaryHeap::new(),
            reordered: Vec::new(),
            sequence: 0,
            spare: Vec::new(),
            counters: FaultCounters::default(),
        }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.prng.chance(ppm)
    }

    /// A datagram comes in: decides what becomes of it and gives `out` what leaves at once.
    fn admit(&mut self, now: Instant, arrival: &Arrival, datagram: &[u8], out: &mut Out<'_>) {
        self.counters.seen += 1;
        if self.cut {
            self.counters.cut += 1;
            return;
        }
        let faults = self.faults;
        if self.chance(faults.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        let twice = self.chance(faults.duplicate_ppm);
        self.counters.duplicated += u64::from(twice);
        for _ in 0..1 + u8::from(twice) {
            self.admit_copy(now, arrival, datagram, out);
        }
    }

    fn admit_copy(&mut self, now: Instant, arrival: &Arrival, datagram: &[u8], out: &mut Out<'_>) {
        let faults = self.faults;
        let mut due = now + faults.delay_ns;
        if faults.jitter_ns > 0 {
            due = due + self.prng.below(faults.jitter_ns.saturating_add(1));
        }
        let corrupt = self.chance(faults.corrupt_ppm);
        let reorder = self.chance(faults.reorder_ppm);
        if !corrupt && !reorder && due <= now && out(arrival, datagram) {
            self.passed(out);
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(datagram);
        if corrupt {
            self.damage(&mut copy);
        }
        self.sequence += 1;
        let (sequence, arrival) = (self.sequence, *arrival);
        let mut held = Held {
            due,
            sequence,
            overtaken_at: u64::MAX,
            arrival,
            datagram: copy,
        };
        if reorder {
            self.counters.reordered += 1;
            let others = 1 + self.prng.below(u64::from(faults.reorder_packets.max(1)));
            held.overtaken_at = self.counters.passed + others;
            held.due = due + faults.reorder_hold_ns;
            self.reordered.push(held);
        } else if due > now || !self.leave(&held, out) {
            self.delayed.push(held);
        } else {
            self.spare.push(held.datagram);
        }
    }

    /// Flips one to three different bits.
    fn damage(&mut self, datagram: &mut [u8]) {
        self.counters.corrupted += 1;
        let bits = datagram.len() as u64 * 8;
        let first = self.prng.below(bits);
        for i in 0..=self.prng.below(3) {
            let bit = (first + i * 11) % bits;
            datagram[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    /// A held datagram leaves. False when `out` has no room.
    fn leave(&mut self, held: &Held, out: &mut Out<'_>) -> bool {
        let left = out(&held.arrival, &held.datagram);
        if left {
            self.passed(out);
        }
        left
    }

    /// One has passed: lets out those that were to be overtaken by it.
    fn passed(&mut self, out: &mut Out<'_>) {
        self.counters.passed += 1;
        while let Some(i) = self.first_reordered(|held, link| held.overtaken_at <= link.passed) {
            let Held {
                arrival, datagram, ..
            } = &self.reordered[i];
            if !out(arrival, datagram) {
                return;
            }
            self.counters.passed += 1;
            let held = self.reordered.remove(i);
            self.spare.push(held.datagram);
        }
    }

    fn first_reordered(&self, due: impl Fn(&Held, &FaultCounters) -> bool) -> Option<usize> {
        self.reordered
            .iter()
            .position(|held| due(held, &self.counters))
    }

    /// Lets out what is due at `now`, as far as `out` has room; says how many left.
    fn release(&mut self, now: Instant, out: &mut Out<'_>) -> usize {
        let before = self.counters.passed;
        while let Some(i) = self.first_reordered(|held, _| held.due <= now) {
            let held = self.reordered.remove(i);
            self.delayed.push(held);
        }
        while self.delayed.peek().is_some_and(|held| held.due <= now) {
            let held = self.delayed.pop().expect("one was just seen");
            if self.cut {
                self.counters.cut += 1;
            } else if !self.leave(&held, out) {
                self.delayed.push(held);
                break;
            }
            self.spare.push(held.datagram);
        }
        (self.counters.passed - before) as usize
    }

    fn next_release(&self) -> Option<Instant> {
        let delayed = self.delayed.peek().map(|held| held.due);
        self.reordered
            .iter()
            .map(|held| held.due)
            .chain(delayed)
            .min()
    }
}

impl Ord for Held {
    /// The greatest is the one that leaves first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.sequence).cmp(&(self.due, self.sequence))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

#[cfg(test)]
mod tests;
