//! Numbers of connections, before and while they are open: four bytes each, however many there
//! were. And the other numbers that two nodes agree on: tokens, first packets.

use crate::key::Secret24;
use crate::slab::make_room;
use trunkline_conn::secret::{Purpose, Secret, Stream};
use trunkline_wire::{Qpn, Worker};

/// Given out, with no connection yet.
const DRAWN: u32 = u32::MAX;
/// Not given out.
const FREE: u32 = u32::MAX - 1;

/// What is drawn for connections, and where their numbers lead.
pub(crate) struct Numbers {
    secret: Secret24,
    tokens: Stream,
    first_packets: Stream,
    slots: Slots,
}

/// Where the number that a packet names leads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Numbered {
    /// To this connection.
    Conn(u32),
    /// To one that is being opened.
    Drawn,
    /// To none.
    Unknown,
}

impl Numbers {
    pub(crate) fn new(secret: &Secret, worker: Worker) -> Self {
        Self {
            secret: Secret24::new(secret.stream(Purpose::Connections), worker),
            tokens: secret.stream(Purpose::Tokens),
            first_packets: secret.stream(Purpose::FirstPackets),
            slots: Slots::default(),
        }
    }

    /// Most connections that there may be.
    pub(crate) const fn most(&self) -> u32 {
        self.secret.size()
    }

    /// The number and the token of a connection to come; `None` when there are no numbers left.
    pub(crate) fn draw(&mut self) -> Option<(Qpn, u32)> {
        let slot = self.slots.draw(self.secret.size())?;
        Some((Qpn::from_wire(self.secret.seal(slot)), self.token()))
    }

    /// 32 bits that are not zero.
    fn token(&mut self) -> u32 {
        loop {
            let token = self.tokens.next_u64() as u32;
            if token != 0 {
                return token;
            }
        }
    }

    /// The number of the first packet of a connection.
    pub(crate) fn first_packet(&mut self) -> u64 {
        self.first_packets.next_u64() >> 16
    }

    pub(crate) const fn state_bytes(&self) -> usize {
        let Slots { conns, free } = &self.slots;
        (conns.capacity() + free.capacity()) * size_of::<u32>()
    }

    /// Gives back a number that was drawn and never used. Any other stays as it is.
    pub(crate) fn release(&mut self, number: Qpn) {
        let slot = self.secret.open(number.get());
        self.slots.release(slot);
    }

    /// A number that was drawn leads to `conn` from now on.
    ///
    /// # Panics
    /// It was not drawn, or leads to another one.
    pub(crate) fn open(&mut self, number: Qpn, conn: u32) {
        let slot = self.secret.open(number.get());
        self.slots.open(slot, conn);
    }

    /// The connection that a number leads to is gone.
    pub(crate) fn close(&mut self, number: Qpn) {
        let slot = self.secret.open(number.get());
        self.slots.close(slot);
    }

    /// Where a number leads.
    #[inline]
    pub(crate) fn find(&self, number: Qpn) -> Numbered {
        let slot = self.secret.open(number.get());
        match self.slots.get(slot) {
            Some(conn) => Numbered::Conn(conn),
            None if self.slots.is_drawn(slot) => Numbered::Drawn,
            None => Numbered::Unknown,
        }
    }
}

/// Slots that are drawn for a connection that is being opened, and lead to it once it is open.
#[derive(Debug, Default)]
struct Slots {
    conns: Vec<u32>,
    /// Slots given back, to be drawn again first.
    free: Vec<u32>,
}

impl Slots {
    /// A slot below `limit` for a connection to come; `None` when all are taken.
    fn draw(&mut self, limit: u32) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.conns[slot as usize] = DRAWN;
            return Some(slot);
        }
        let slot = u32::try_from(self.conns.len()).ok()?;
        if slot >= limit {
            return None;
        }
        make_room(&mut self.conns, 1);
        self.conns.push(DRAWN);
        Some(slot)
    }

    /// Gives back a slot that was drawn and never used. Any other stays as it is.
    fn release(&mut self, slot: u32) {
        if self.is_drawn(slot) {
            self.vacate(slot);
        }
    }

    /// Whether the slot is taken for a connection to come.
    fn is_drawn(&self, slot: u32) -> bool {
        self.conns.get(slot as usize) == Some(&DRAWN)
    }

    /// The slot leads to `conn` from now on.
    ///
    /// # Panics
    /// It was not drawn, or leads to another one.
    fn open(&mut self, slot: u32, conn: u32) {
        let place = &mut self.conns[slot as usize];
        assert_eq!(*place, DRAWN, "a connection number is used once");
        *place = conn;
    }

    /// The connection that the slot leads to is gone.
    fn close(&mut self, slot: u32) {
        assert!(self.get(slot).is_some(), "a connection is closed once");
        self.vacate(slot);
    }

    /// The connection that a slot leads to.
    #[inline]
    fn get(&self, slot: u32) -> Option<u32> {
        let conn = self.conns.get(slot as usize).copied()?;
        (conn < FREE).then_some(conn)
    }

    fn vacate(&mut self, slot: u32) {
        self.conns[slot as usize] = FREE;
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_leads_nowhere_until_its_connection_is_open_and_again_when_it_is_gone() {
        let mut slots = Slots::default();
        assert_eq!((slots.draw(2), slots.draw(2)), (Some(0), Some(1)));
        assert_eq!(slots.draw(2), None, "all are taken");
        assert_eq!(slots.get(1), None);
        slots.open(1, 77);
        assert_eq!((slots.get(1), slots.get(9)), (Some(77), None));
        slots.close(1);
        assert_eq!(slots.get(1), None);
        assert_eq!(slots.draw(2), Some(1));
    }

    #[test]
    fn only_what_was_drawn_and_not_used_is_released() {
        let mut slots = Slots::default();
        let slot = slots.draw(8).expect("none is taken");
        slots.open(slot, 5);
        slots.release(slot);
        assert_eq!(slots.get(slot), Some(5));
        slots.close(slot);
        slots.release(slot);
        slots.release(100);
        assert_eq!((slots.draw(8), slots.draw(8)), (Some(0), Some(1)));
        slots.release(1);
        assert_eq!((slots.draw(8), slots.draw(8)), (Some(1), Some(2)));
    }

    #[test]
    #[should_panic(expected = "a connection number is used once")]
    fn a_slot_does_not_lead_to_two_connections() {
        let mut slots = Slots::default();
        let slot = slots.draw(1).expect("none is taken");
        slots.open(slot, 1);
        slots.open(slot, 2);
    }

    #[test]
    fn a_number_leads_to_its_connection_while_that_is_open() {
        let mut numbers = Numbers::new(&Secret::from_seed(3), Worker::ONLY);
        let (number, token) = numbers.draw().expect("none is taken");
        let (other, other_token) = numbers.draw().expect("one is taken");
        assert!(number != other && token != 0 && token != other_token);
        assert_eq!(numbers.find(number), Numbered::Drawn);
        numbers.open(number, 9);
        assert_eq!(numbers.find(number), Numbered::Conn(9));
        numbers.close(number);
        assert_eq!(numbers.find(number), Numbered::Unknown);
        numbers.release(other);
        assert_eq!(numbers.find(other), Numbered::Unknown);
        assert_ne!(numbers.first_packet(), numbers.first_packet());
    }
}
