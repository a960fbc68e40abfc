//! Packets that wait for an earlier one of their QP.

use crate::slab::{NONE, Slab};

/// Packets that wait for an earlier one of their QP: a bounded pool, linked per flow.
#[derive(Debug)]
pub(crate) struct Staging {
    waiting: Slab<Staged>,
    spare: Vec<Vec<u8>>,
    room: usize,
    /// Most that one flow may take.
    share: usize,
}

#[derive(Debug)]
struct Staged {
    next: u32,
    msn: u32,
    /// The last packet of its message runs after the others.
    last: bool,
    datagram: Vec<u8>,
}

impl Staging {
    pub(crate) const fn new(bytes: usize) -> Self {
        Self {
            waiting: Slab::new(),
            spare: Vec::new(),
            room: bytes,
            share: bytes / 2,
        }
    }

    /// Packets in it.
    pub(crate) const fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn add(&mut self, list: &mut u32, msn: u32, last: bool, datagram: &[u8]) -> bool {
        let (mut used, mut at) = (0, *list);
        while at != NONE {
            used += self.waiting[at].datagram.len();
            at = self.waiting[at].next;
        }
        if datagram.len() > self.room || used + datagram.len() > self.share {
            return false;
        }
        self.room -= datagram.len();
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(datagram);
        *list = self.waiting.insert(Staged {
            next: *list,
            msn,
            last,
            datagram: copy,
        });
        true
    }

    /// Takes out a packet of message `msn`: its last one, or any other.
    pub(super) fn take(&mut self, list: &mut u32, msn: u32, last_one: bool) -> Option<Vec<u8>> {
        let (mut last, mut at) = (NONE, *list);
        while at != NONE {
            let next = self.waiting[at].next;
            if self.waiting[at].msn == msn && self.waiting[at].last == last_one {
                match last {
                    NONE => *list = next,
                    last => self.waiting[last].next = next,
                }
                let staged = self.waiting.remove(at);
                self.room += staged.datagram.len();
                return Some(staged.datagram);
            }
            (last, at) = (at, next);
        }
        None
    }

    pub(super) fn recycle(&mut self, mut datagram: Vec<u8>) {
        datagram.clear();
        if self.spare.len() < 256 {
            self.spare.push(datagram);
        }
    }

    pub(super) fn clear(&mut self, list: &mut u32) {
        let mut at = std::mem::replace(list, NONE);
        while at != NONE {
            let staged = self.waiting.remove(at);
            at = staged.next;
            self.room += staged.datagram.len();
            self.recycle(staged.datagram);
        }
    }
}
