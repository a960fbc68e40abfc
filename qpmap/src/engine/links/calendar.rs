//! When connections that are idle are to be looked at: by the stretch of time that their deadlines
//! fall into, for as long as these are far off. Four bytes for each, where a timer has 28.
//!
//! Nothing is taken out of it: what is found and is gone is dropped; what has work has a timer of
//! its own; what was heard since is noted anew. A connection that works and rests in turns costs
//! nothing here.

use crate::slab::{NONE, reach};
use trunkline_conn::time::Instant;

/// Pages that the time between two deadlines of a connection has.
const OF_PAUSE: u64 = 8;
/// Pages there are: all that deadlines may fall into.
const PAGES: usize = 16;
/// Not in the calendar.
const OUT: u32 = NONE - 1;

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
    /// Of each connection, the next one on its page.
    next: Vec<u32>,
}

impl Calendar {
    /// An empty one, for deadlines at most `pause_ns` off.
    pub(super) const fn new(pause_ns: u64) -> Self {
        let page = Page {
            number: 0,
            first: NONE,
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
        if self
            .next
            .get(conn as usize)
            .is_some_and(|next| *next != OUT)
        {
            return Listed::Already;
        }
        let number = self.page_of(deadline);
        if number <= self.page_of(now) + 1 {
            return Listed::No;
        }
        let page = &mut self.pages[number as usize % PAGES];
        if page.first == NONE {
            page.number = number;
        }
        let first = std::mem::replace(&mut page.first, conn);
        let at = Instant::from_nanos(page.number * self.width);
        reach(&mut self.next, conn, || OUT);
        self.next[conn as usize] = first;
        Listed::At(at)
    }

    /// Takes a connection from a page whose time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u32> {
        let current = self.page_of(now);
        let due = |page: &&mut Page| page.first != NONE && page.number <= current;
        let page = self.pages.iter_mut().find(due)?;
        let next = &mut self.next[page.first as usize];
        let conn = std::mem::replace(&mut page.first, *next);
        *next = OUT;
        Some(conn)
    }

    /// When the next page is to be opened.
    pub(super) fn next(&self) -> Option<Instant> {
        let pages = self.pages.iter().filter(|page| page.first != NONE);
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
}
