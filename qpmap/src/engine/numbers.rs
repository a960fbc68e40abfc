//! Numbers of connections, before and while they are open: four bytes each, however many there
//! were.

/// Given out, with no connection yet.
const DRAWN: u32 = u32::MAX;
/// Not given out.
const FREE: u32 = u32::MAX - 1;

/// Slots that are drawn for a connection that is being opened, and lead to it once it is open.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    conns: Vec<u32>,
    /// Slots given back, to be drawn again first.
    free: Vec<u32>,
}

impl Numbers {
    /// Bytes of a slot in use.
    pub(crate) const SLOT: usize = size_of::<u32>();

    /// A slot below `limit` for a connection to come; `None` when all are taken.
    pub(crate) fn draw(&mut self, limit: u32) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.conns[slot as usize] = DRAWN;
            return Some(slot);
        }
        let slot = u32::try_from(self.conns.len()).ok()?;
        if slot >= limit {
            return None;
        }
        self.conns.push(DRAWN);
        Some(slot)
    }

    /// Gives back a slot that was drawn and never used. Any other stays as it is.
    pub(crate) fn release(&mut self, slot: u32) {
        if self.is_drawn(slot) {
            self.vacate(slot);
        }
    }

    /// Whether the slot is taken for a connection to come.
    pub(crate) fn is_drawn(&self, slot: u32) -> bool {
        self.conns.get(slot as usize) == Some(&DRAWN)
    }

    /// The slot leads to `conn` from now on.
    ///
    /// # Panics
    /// It was not drawn, or leads to another one.
    pub(crate) fn open(&mut self, slot: u32, conn: u32) {
        let place = &mut self.conns[slot as usize];
        assert_eq!(*place, DRAWN, "a connection number is used once");
        *place = conn;
    }

    /// The connection that the slot leads to is gone.
    pub(crate) fn close(&mut self, slot: u32) {
        assert!(self.get(slot).is_some(), "a connection is closed once");
        self.vacate(slot);
    }

    /// The connection that a slot leads to.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<u32> {
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
        let mut numbers = Numbers::default();
        assert_eq!((numbers.draw(2), numbers.draw(2)), (Some(0), Some(1)));
        assert_eq!(numbers.draw(2), None, "all are taken");
        assert_eq!(numbers.get(1), None);
        numbers.open(1, 77);
        assert_eq!((numbers.get(1), numbers.get(9)), (Some(77), None));
        numbers.close(1);
        assert_eq!(numbers.get(1), None);
        assert_eq!(numbers.draw(2), Some(1));
    }

    #[test]
    fn only_what_was_drawn_and_not_used_is_released() {
        let mut numbers = Numbers::default();
        let slot = numbers.draw(8).expect("none is taken");
        numbers.open(slot, 5);
        numbers.release(slot);
        assert_eq!(numbers.get(slot), Some(5));
        numbers.close(slot);
        numbers.release(slot);
        numbers.release(100);
        assert_eq!((numbers.draw(8), numbers.draw(8)), (Some(0), Some(1)));
        numbers.release(1);
        assert_eq!((numbers.draw(8), numbers.draw(8)), (Some(1), Some(2)));
    }

    #[test]
    #[should_panic(expected = "a connection number is used once")]
    fn a_slot_does_not_lead_to_two_connections() {
        let mut numbers = Numbers::default();
        let slot = numbers.draw(1).expect("none is taken");
        numbers.open(slot, 1);
        numbers.open(slot, 2);
    }
}
