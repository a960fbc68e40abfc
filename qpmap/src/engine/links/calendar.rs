//! When connections that are idle are to be looked at: by the stretch of time that their deadlines
//! fall into, for as long as these are far off. Four bytes for each, where a timer has 28.
//!
//! Nothing is taken out of it: what is found and is gone is dropped; what has work has a timer of
//! its own; what was heard since is noted anew. A connection that works and rests in turns costs
//! nothing here. Whoever gets the index of one that is gone and still listed has a timer meanwhile,
//! as its deadline may be nearer.

use crate::slab::reach;
use trunkline_conn::time::Instant;

/// Pages that the time between two deadlines of a connection has.
const OF_PAUSE: u64 = 8;
/// Pages there are: all that deadlines may fall into.
const PAGES: usize = 16;
/// Flag of a row whose connection is gone.
const GONE: u32 = 1 << 31;
/// No next one.
const END: u32 = GONE - 2;
/// Not in the calendar.
const OUT: u32 = u32::MAX;

/// Connections whose deadlines are about equally far.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Its place in time.
    number: u64,
    /// The first of its connections; they are linked.
    first: u32,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Listed {
    /// It stands in the calendar.
    Already,
    /// It does now. This is when its page is to be opened.
    At(Instant),
    /// It needs a timer.
    No,
}

/// All pages.
#[derive(Debug)]
pub(super) struct Calendar {
    /// How long a page is, in ns.
    width: u64,
    pages: [Page; PAGES],
    /// Of each connection, the next one on its page, and whether it is gone itself.
    next: Vec<u32>,
}

impl Calendar {
    /// An empty one, for deadlines at most `pause_ns` off.
    pub(super) const fn new(pause_ns: u64) -> Self {
        let page = Page {
            number: 0,
            first: END,
        };
        let width = pause_ns / OF_PAUSE;
        Self {
            width: if width == 0 { 1 } else { width },
            pages: [page; PAGES],
            next: Vec::new(),
        }
    }

    const fn page_of(&self, at: Instant) -> u64 {
        at.as_nanos() / self.width
    }

    /// Notes a connection whose deadline is far off.
    pub(super) fn list(&mut self, now: Instant, conn: u32, deadline: Instant) -> Listed {
        match self.next.get(conn as usize) {
            None | Some(&OUT) => {}
            Some(next) if next & GONE != 0 => return Listed::No,
            Some(_) => return Listed::Already,
        }
        let number = self.page_of(deadline);
        let page = &mut self.pages[number as usize % PAGES];
        // Where a page is overdue, nobody has looked for long: its place is free once it is empty.
        let taken = page.first != END && page.number != number;
        if taken || number <= now.as_nanos() / self.width + 1 {
            return Listed::No;
        }
        page.number = number;
        let first = std::mem::replace(&mut page.first, conn);
        let at = Instant::from_nanos(page.number * self.width);
        reach(&mut self.next, conn, || OUT);
        self.next[conn as usize] = first;
        Listed::At(at)
    }

    /// Takes a connection from a page whose time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u32> {
        let current = self.page_of(now);
        let due = |page: &&mut Page| page.first != END && page.number <= current;
        let page = self.pages.iter_mut().find(due)?;
        let next = &mut self.next[page.first as usize];
        let conn = std::mem::replace(&mut page.first, *next & !GONE);
        *next = OUT;
        Some(conn)
    }

    /// A connection is gone.
    pub(super) fn leave(&mut self, conn: u32) {
        if let Some(next) = self.next.get_mut(conn as usize) {
            *next |= GONE;
        }
    }

    /// When the next page is to be opened.
    pub(super) fn next(&self) -> Option<Instant> {
        let pages = self.pages.iter().filter(|page| page.first != END);
        let number = pages.map(|page| page.number).min()?;
        Some(Instant::from_nanos(number * self.width))
    }

    pub(super) const fn state_bytes(&self) -> usize {
        self.next.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: u64 = 800;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn each_connection_is_found_before_its_deadline_and_not_long_before() {
        let mut calendar = Calendar::new(PAUSE);
        let deadline = |conn: u64| at(1000 + 7 * conn % PAUSE + 250);
        for conn in 0..100 {
            let listed = calendar.list(at(1000), conn as u32, deadline(conn));
            assert!(matches!(listed, Listed::At(page) if page <= deadline(conn)));
            let again = calendar.list(at(1000), conn as u32, deadline(conn));
            assert_eq!(again, Listed::Already);
        }
        let mut found = vec![];
        while let Some(next) = calendar.next() {
            assert_eq!(calendar.pop(at(next.as_nanos() - 1)), None);
            while let Some(conn) = calendar.pop(next) {
                let left = deadline(conn.into()).since(next);
                assert!(left < PAUSE / OF_PAUSE, "{left} ns");
                assert!(deadline(conn.into()) >= next);
                found.push(conn);
            }
        }
        found.sort_unstable();
        assert_eq!(found, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_near_needs_a_timer() {
        let mut calendar = Calendar::new(PAUSE);
        assert_eq!(calendar.list(at(1000), 3, at(1150)), Listed::No);
        assert_eq!(calendar.list(at(1000), 3, at(900)), Listed::No);
        assert_eq!(calendar.next(), None);
        assert_eq!(calendar.list(at(1000), 3, at(1800)), Listed::At(at(1800)));
        assert_eq!(calendar.pop(at(1799)), None);
        assert_eq!(calendar.pop(at(2000)), Some(3));
        assert_eq!(calendar.pop(at(9000)), None);
    }

    #[test]
    fn who_is_listed_anew_is_not_found_before_its_new_deadline_is_near_however_late_it_was_found() {
        let mut calendar = Calendar::new(PAUSE);
        for conn in [1, 0] {
            assert_eq!(calendar.list(at(0), conn, at(800)), Listed::At(at(800)));
        }
        // Nobody looked for a while, and connection 0 was heard just now.
        let now = at(1650);
        assert_eq!(calendar.pop(now), Some(0));
        let listed = calendar.list(now, 0, at(1650 + PAUSE));
        assert_eq!(listed, Listed::No, "a timer of its own is in time");
        assert_eq!(calendar.pop(now), Some(1));
        assert_eq!(calendar.pop(now), None);
    }

    #[test]
    fn who_comes_to_a_page_that_is_overdue_does_not_put_it_off() {
        let mut calendar = Calendar::new(PAUSE);
        let width = PAUSE / OF_PAUSE;
        let later = |pages: u64| at((8 + pages) * width);
        assert!(matches!(calendar.list(at(0), 1, later(0)), Listed::At(_)));
        let listed = calendar.list(later(14), 2, later(PAGES as u64));
        assert_eq!(listed, Listed::No, "it has a timer until the page is empty");
        assert_eq!(calendar.next(), Some(later(0)));
        assert_eq!([(); 2].map(|()| calendar.pop(later(14))), [Some(1), None]);
        let listed = calendar.list(later(14), 2, later(PAGES as u64));
        assert_eq!(listed, Listed::At(later(PAGES as u64)));
    }

    #[test]
    fn who_gets_the_index_of_one_that_is_gone_has_a_timer_until_the_page_is_opened() {
        let mut calendar = Calendar::new(PAUSE);
        for conn in [1, 2, 3] {
            let listed = calendar.list(at(0), conn, at(800));
            assert_eq!(listed, Listed::At(at(800)));
        }
        for conn in [2, 3, 70] {
            calendar.leave(conn);
        }
        assert_eq!(calendar.list(at(0), 1, at(800)), Listed::Already);
        for conn in [2, 3] {
            assert_eq!(calendar.list(at(0), conn, at(500)), Listed::No);
        }
        let found = [(); 4].map(|()| calendar.pop(at(800)));
        assert_eq!(found, [Some(3), Some(2), Some(1), None]);
        assert_eq!(calendar.list(at(800), 2, at(1600)), Listed::At(at(1600)));
    }
}
