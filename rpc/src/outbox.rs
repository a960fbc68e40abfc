//! What waits for the next messages of a connection.

use crate::frame::{self, Entry};

/// Entries in the order in which they were said, until messages take them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Where the first entry begins that no message has taken.
    head: usize,
}

/// What a message takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) entries: u32,
    /// Those that are requests.
    pub(crate) requests: u32,
    /// Those that are responses to be read.
    pub(crate) lent: u32,
}

/// Room that is kept though nothing waits.
const KEPT: usize = 64 << 10;

impl Outbox {
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.bytes.len()
    }

    pub(crate) fn push(&mut self, entry: &Entry) {
        entry.emit(&mut self.bytes);
    }

    /// Returns the longest run of entries of at most `most` bytes. Each entry is that short.
    pub(crate) fn next(&self, most: usize) -> Run<'_> {
        let rest = &self.bytes[self.head..];
        let (mut end, mut entries, mut requests, mut lent) = (0, 0, 0, 0);
        while end < rest.len() {
            let next = end + frame::size(&rest[end..]);
            if next > most {
                break;
            }
            requests += u32::from(frame::is_request(&rest[end..]));
            lent += u32::from(frame::is_lent(&rest[end..]));
            (end, entries) = (next, entries + 1);
        }
        debug_assert!(end > 0 || rest.is_empty(), "an entry fits a message");
        let bytes = &rest[..end];
        Run {
            bytes,
            entries,
            requests,
            lent,
        }
    }

    /// A message has taken so many bytes.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.head += bytes;
        if self.is_empty() {
            self.clear();
        } else if self.head > self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }

    /// Nothing is said any more.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.head = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Body, HEADER};
    use bytes::Bytes;

    fn response(id: u32, length: usize) -> Entry {
        let body = Body::Here(Bytes::from(vec![id as u8; length]));
        Entry::Response { id, body }
    }

    #[test]
    fn messages_take_whole_entries_in_order_and_as_many_as_fit() {
        let mut outbox = Outbox::default();
        let lengths = [0, 10, 100, 84, 1, 100, 3];
        for (id, length) in (0..).zip(lengths) {
            outbox.push(&response(id, length));
        }
        let (mut ids, mut runs) = (Vec::new(), Vec::new());
        while !outbox.is_empty() {
            let run = outbox.next(HEADER + 100);
            assert!(run.bytes.len() <= HEADER + 100);
            runs.push(run.entries);
            let taken = run.bytes.len();
            let mut message = Bytes::copy_from_slice(run.bytes);
            while !message.is_empty() {
                match Entry::parse(&mut message) {
                    Ok(Entry::Response { id, .. }) => ids.push(id),
                    other => panic!("{other:?}"),
                }
            }
            outbox.take(taken);
        }
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6]);
        // 16 + 26; 116; 100; 17, as 17 + 116 is too much; 116; 19.
        assert_eq!(runs, [2, 1, 1, 1, 1, 1]);
        assert_eq!(outbox.next(HEADER).entries, 0);
    }

    #[test]
    fn what_was_taken_leaves_no_room_behind() {
        let mut outbox = Outbox::default();
        for id in 0..100_000 {
            outbox.push(&response(id, 64));
            outbox.push(&response(id, 64));
            outbox.take(2 * (HEADER + 64));
            assert!(outbox.is_empty());
        }
        assert!(outbox.bytes.capacity() <= KEPT);
        outbox.push(&response(0, 1 << 20));
        outbox.clear();
        assert!(outbox.bytes.capacity() <= KEPT);
    }
}
