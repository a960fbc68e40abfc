//! Datagrams committed and not yet with the kernel, grouped into what one message may carry.

use crate::port::Slot;
use crate::reidentify::reidentify;
use crate::super_packet::{MAX_SEGMENTS, SuperPacket};
use std::ops::Range;
use trunkline_wire::Path;

/// Most units waiting.
const MAX_UNITS: usize = 512;
/// Units begin at a multiple of this.
const ALIGN: usize = 64;

/// One message to the kernel: one datagram, or several of one length of which the last may be
/// shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) packet: SuperPacket,
    /// Socket it leaves from; `None` when its path does not start at this port.
    pub(super) socket: Option<usize>,
    /// First byte in the arena.
    pub(super) start: usize,
    /// It was part of a unit that the kernel refused, and whose datagrams had so many bytes.
    pub(super) split_from: Option<usize>,
}

impl Unit {
    /// Whether a datagram of `length` bytes along `path` may be added.
    fn takes(&self, path: &Path, length: usize) -> bool {
        self.split_from.is_none() && self.packet.takes(path, length)
    }

    /// Where it lies in the arena.
    pub(super) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.packet.bytes
    }
}

/// The datagrams lie in one arena, in the order they were reserved in; when all are sent, it is
/// used again from its start, so that a short burst stays on few cache lines.
#[derive(Debug)]
pub(super) struct Queue {
    arena: Box<[u8]>,
    /// Where the next unit may begin.
    used: usize,
    units: Vec<Unit>,
    /// Units at the front that were sent.
    sent: usize,
    /// The datagram given out: a new unit, or the last one with the datagram added.
    reserved: Option<Reserved>,
    segments: bool,
    /// The last unit takes no more.
    parted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Reserved {
    New(Unit),
    Joins { length: usize },
}

impl Queue {
    pub(super) fn new(bytes: usize, segments: bool) -> Self {
        Self {
            arena: vec![0; bytes].into_boxed_slice(),
            used: 0,
            units: Vec::with_capacity(MAX_UNITS + MAX_SEGMENTS),
            sent: 0,
            reserved: None,
            segments,
            parted: false,
        }
    }

    /// Room for a datagram; `socket` tells which socket packets of a path leave from.
    pub(super) fn reserve(
        &mut self,
        path: &Path,
        length: usize,
        socket: impl FnOnce(&Path) -> Option<usize>,
    ) -> Option<Slot<'_>> {
        if self.segments
            && !self.parted
            && let Some(unit) = self.waiting().last()
            && unit.takes(path, length)
        {
            let (identification, end) = (unit.packet.identification(), unit.range().end);
            if end + length <= self.arena.len() {
                self.reserved = Some(Reserved::Joins { length });
                let datagram = &mut self.arena[end..end + length];
                return Some(Slot {
                    datagram,
                    identification,
                });
            }
        }
        if !self.fits(length) {
            self.compact();
            if !self.fits(length) {
                self.reserved = None;
                return None;
            }
        }
        let start = self.used;
        self.reserved = Some(Reserved::New(Unit {
            packet: SuperPacket::new(*path, length),
            socket: socket(path),
            start,
            split_from: None,
        }));
        Some(Slot {
            datagram: &mut self.arena[start..start + length],
            identification: 0,
        })
    }

    pub(super) fn commit(&mut self) {
        let end = match self.reserved.take().expect("commit follows reserve") {
            Reserved::New(unit) => {
                self.parted = false;
                self.units.push(unit);
                unit.range().end
            }
            Reserved::Joins { length } => {
                let unit = self.units.last_mut().expect("the unit that was joined");
                unit.packet.add(length);
                unit.range().end
            }
        };
        self.used = end.next_multiple_of(ALIGN);
    }

    /// The next datagram begins a unit.
    pub(super) const fn part(&mut self) {
        self.parted = true;
        self.reserved = None;
    }

    fn fits(&self, length: usize) -> bool {
        self.units.len() < MAX_UNITS && self.used + length <= self.arena.len()
    }

    /// Moves what waits to the front of the arena.
    fn compact(&mut self) {
        if self.sent == 0 {
            return;
        }
        self.units.drain(..self.sent);
        self.sent = 0;
        let mut end = 0;
        for unit in &mut self.units {
            self.arena.copy_within(unit.range(), end);
            unit.start = end;
            end = unit.range().end.next_multiple_of(ALIGN);
        }
        self.used = end;
    }

    /// Bytes from the first datagram that waits to the last.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting()
            .first()
            .map_or(0, |first| self.used - first.start)
    }

    /// The units that wait, oldest first.
    pub(super) fn waiting(&self) -> &[Unit] {
        &self.units[self.sent..]
    }

    /// The first `run` waiting units, and the arena they lie in.
    pub(super) fn sendable(&self, run: usize) -> (&[Unit], &[u8]) {
        (&self.waiting()[..run], &self.arena)
    }

    /// The first `count` waiting units are done with. Forgets a slot that was not committed.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
        self.reserved = None;
        if self.sent == self.units.len() {
            self.units.clear();
            self.sent = 0;
            self.used = 0;
        }
    }

    /// Cuts the first waiting unit into single datagrams and makes their ICRCs hold for the
    /// identification that these carry.
    pub(super) fn split_first(&mut self) {
        self.reserved = None;
        let unit = self.units[self.sent];
        let SuperPacket { path, segment, .. } = unit.packet;
        let pieces = self.arena[unit.range()].chunks_mut(segment);
        let pieces = pieces.enumerate().map(|(i, datagram)| {
            reidentify(&path, i as u16, 0, datagram);
            Unit {
                packet: SuperPacket::new(path, datagram.len()),
                start: unit.start + i * segment,
                split_from: Some(segment),
                ..unit
            }
        });
        self.units.splice(self.sent..=self.sent, pieces);
    }

    /// Whether super-packets are made.
    pub(super) const fn segments(&self) -> bool {
        self.segments
    }

    /// No more super-packets.
    pub(super) const fn stop_segmentation(&mut self) {
        self.segments = false;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::prng::Prng;
    use crate::super_packet::MAX_SEND;
    use std::collections::VecDeque;
    use std::net::Ipv4Addr;
    use trunkline_wire::IpFields;
    use trunkline_wire::icrc;

    const ARENA: usize = 128 << 10;

    fn path(number: u64) -> Path {
        let (src, dst) = (
            Ipv4Addr::LOCALHOST.into(),
            Ipv4Addr::from(number as u32).into(),
        );
        Path {
            src,
            dst,
            src_port: 1,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        }
    }

    /// Takes the first waiting unit as the kernel would and checks it against what was committed.
    fn take(queue: &mut Queue, expected: &mut VecDeque<(Path, usize, u8)>) {
        let (units, arena) = queue.sendable(1);
        let unit = units[0];
        let (bytes, packet) = (&arena[unit.range()], unit.packet);
        assert!(packet.bytes <= MAX_SEND && packet.count <= MAX_SEGMENTS);
        assert_eq!(bytes.chunks(packet.segment).count(), packet.count);
        for (i, datagram) in bytes.chunks(packet.segment).enumerate() {
            let (path, length, tag) = expected.pop_front().unwrap();
            assert_eq!(
                (packet.path, datagram.len(), datagram[0]),
                (path, length, tag)
            );
            assert!(
                icrc::verify(&path, i as u16, datagram),
                "datagram {i} of {unit:?}"
            );
        }
        queue.advance(1);
    }

    #[test]
    fn whatever_is_taken_in_between_datagrams_stay_whole_and_in_order() {
        for seed in 0..10 {
            let mut prng = Prng::new(seed);
            let mut queue = Queue::new(ARENA, true);
            let mut expected = VecDeque::new();
            let (mut refused, mut split) = (0, 0);
            for step in 0..1000_u64 {
                let tag = step as u8;
                let (path, length) = (path(prng.below(2)), 64 + prng.below(3) as usize * 2000);
                match queue.reserve(&path, length, |_| Some(0)) {
                    Some(slot) => {
                        slot.datagram.fill(tag);
                        icrc::seal(&path, slot.identification, slot.datagram);
                        if prng.chance(900_000) {
                            queue.commit();
                            expected.push_back((path, length, tag));
                        }
                    }
                    None => refused += 1,
                }
                if prng.chance(20_000)
                    && queue.waiting().first().is_some_and(|u| u.packet.count > 1)
                {
                    queue.split_first();
                    split += 1;
                }
                // Taken in bouts, so that the arena fills up at times.
                while step % 250 > 100 && prng.chance(600_000) && !queue.waiting().is_empty() {
                    take(&mut queue, &mut expected);
                }
            }
            while !queue.waiting().is_empty() {
                take(&mut queue, &mut expected);
            }
            assert!(expected.is_empty());
            assert!(refused > 0 && split > 0, "{refused} refused, {split} split");
        }
    }

    #[test]
    fn room_at_the_front_is_used_again_while_something_waits() {
        let mut queue = Queue::new(ARENA, false);
        let fill = |queue: &mut Queue| {
            let mut count = 0;
            while queue.reserve(&path(0), 4096, |_| Some(0)).is_some() {
                queue.commit();
                count += 1;
            }
            count
        };
        assert_eq!(fill(&mut queue), ARENA / 4096);
        queue.advance(10);
        assert_eq!(fill(&mut queue), 10);
        assert_eq!(queue.waiting().len(), ARENA / 4096);
    }

    #[test]
    fn datagrams_for_another_queue_of_the_receiver_begin_a_unit() {
        let mut queue = Queue::new(ARENA, true);
        for part in [false, false, true, false, false] {
            if part {
                queue.part();
            }
            queue.reserve(&path(0), 512, |_| Some(0)).unwrap();
            queue.commit();
        }
        let counts: Vec<_> = queue
            .waiting()
            .iter()
            .map(|unit| unit.packet.count)
            .collect();
        assert_eq!(counts, [2, 3]);
    }

    #[test]
    fn a_slot_that_was_not_committed_is_given_out_again() {
        let mut queue = Queue::new(ARENA, true);
        for _ in 0..1000 {
            let slot = queue.reserve(&path(0), 4096, |_| Some(0)).unwrap();
            assert_eq!(slot.identification, 0);
        }
        queue.commit();
        for _ in 0..1000 {
            let slot = queue.reserve(&path(0), 4096, |_| Some(0)).unwrap();
            assert_eq!(slot.identification, 1);
        }
        assert_eq!(queue.waiting().len(), 1);
        assert_eq!(queue.waiting()[0].packet.count, 1);
    }
}
