//! RPC: docs/rpc-format.md.

use crate::input::Input;
use bytes::Bytes;
use std::time::Duration;
use trunkline::{Remote, Rkey};

#[allow(dead_code, reason = "its crate uses all of it")]
#[path = "../../../rpc/src/frame.rs"]
mod format;
#[allow(dead_code, reason = "its crate uses all of it")]
#[path = "../../../rpc/src/hello.rs"]
mod hello;

use format::{Body, Entry, Extent, HEADER, Reason, Word};
use hello::{BYTES, Hello, MAX_BODY, RECEIVES};

/// Longest deadline that an entry tells.
const LONGEST: Duration = Duration::from_micros(u32::MAX as u64);

/// A hello, words and entries of messages: what is parsed says what was there, within its message,
/// and what is emitted is parsed, however much stands behind it.
pub fn rpc(data: &[u8]) {
    hello(data);
    entries(data);
    let mut input = Input::new(data);
    word(input.u32());
    input.drive(32, |input| {
        let entry = entry(input);
        emitted(&entry, input);
    });
}

fn hello(data: &[u8]) {
    if let Some(hello) = Hello::parse(data) {
        assert_eq!(hello.emit(), data[..Hello::LENGTH]);
        assert!(can_be(hello), "{hello:?}");
        assert_eq!(Hello::parse(&data[..Hello::LENGTH - 1]), None);
    }
    let mut input = Input::new(data);
    let hello = Hello {
        receives: input.near(1024) as u16,
        requests: input.u16(),
        bytes: input.near(1 << 20),
        max_body: input.near(MAX_BODY),
    };
    let parsed = Hello::parse(&hello.emit());
    assert_eq!(parsed, can_be(hello).then_some(hello), "{hello:?}");
}

fn can_be(hello: Hello) -> bool {
    RECEIVES.contains(&hello.receives) && BYTES.contains(&hello.bytes) && hello.max_body <= MAX_BODY
}

fn word(word: u32) {
    match Word::parse(word) {
        Ok(parsed) => assert_eq!(parsed.emit(), word),
        Err(_) => assert!(word & 0x7fff_0000 != 0, "{word:#x}"),
    }
}

/// A message as it comes: every entry says what its bytes say, to the last one.
fn entries(data: &[u8]) {
    let whole = Bytes::copy_from_slice(data);
    let mut message = whole.clone();
    while !message.is_empty() {
        let before = message.clone();
        let Ok(entry) = Entry::parse(&mut message) else {
            break;
        };
        let taken = before.len() - message.len();
        assert!(taken >= HEADER, "{entry:?}");
        let mut again = Vec::new();
        entry.emit(&mut again);
        assert_eq!(again, before[..taken], "{entry:?}");
        if let Some(bytes) = carried(&entry) {
            let (from, to) = (bytes.as_ptr_range(), whole.as_ptr_range());
            let inside = to.start <= from.start && from.end <= to.end;
            assert!(bytes.is_empty() || inside, "a copy, or not its own");
        }
    }
}

const fn carried(entry: &Entry) -> Option<&Bytes> {
    match entry {
        Entry::Request { body, .. } | Entry::Response { body, .. } => match body {
            Body::Here(bytes) => Some(bytes),
            Body::At(_) => None,
        },
        Entry::Refused { text, .. } => Some(text),
        Entry::Written { .. } | Entry::Cancel { .. } | Entry::Release { .. } => None,
    }
}

fn extent(input: &mut Input<'_>) -> Extent {
    let remote = Remote {
        addr: input.u64(),
        rkey: Rkey(input.u32()),
    };
    let length = input.u32();
    Extent { remote, length }
}

fn body(input: &mut Input<'_>) -> Body {
    match input.byte() {
        length @ 0..=127 => Body::Here(Bytes::copy_from_slice(input.bytes(length.into()))),
        _ => {
            let extent = extent(input);
            // There is no memory of no bytes.
            let length = extent.length.max(1);
            Body::At(Extent { length, ..extent })
        }
    }
}

fn entry(input: &mut Input<'_>) -> Entry {
    let (choice, id) = (input.byte(), input.u32());
    match choice & 7 {
        0..=2 => {
            let deadline = (choice & 8 != 0).then(|| Duration::from_nanos(input.u64()));
            let place = (choice & 16 != 0).then(|| extent(input));
            let body = body(input);
            Entry::Request {
                id,
                deadline,
                place,
                body,
            }
        }
        3 => Entry::Response {
            id,
            body: body(input),
        },
        4 => {
            let length = input.u32();
            Entry::Written { id, length }
        }
        5 => {
            let (code, length) = (input.u16(), input.byte());
            let reasons = [
                Reason::Service,
                Reason::Overloaded,
                Reason::Deadline,
                Reason::Cancelled,
                Reason::TooLong,
                Reason::Draining,
            ];
            let reason = reasons[usize::from(choice >> 3) % reasons.len()];
            let text = Bytes::copy_from_slice(input.bytes(length.into()));
            Entry::Refused {
                id,
                reason,
                code,
                text,
            }
        }
        6 => Entry::Cancel { id },
        _ => Entry::Release { id },
    }
}

/// As the peer reads it: a deadline in whole microseconds, at least one.
fn as_told(entry: &Entry) -> Entry {
    let mut told = entry.clone();
    if let Entry::Request { deadline, .. } = &mut told {
        let micros = deadline.map(|left| Duration::from_micros(left.as_micros() as u64));
        *deadline = micros.map(|left| left.clamp(Duration::from_micros(1), LONGEST));
    }
    told
}

fn emitted(entry: &Entry, input: &mut Input<'_>) {
    let mut out = Vec::new();
    entry.emit(&mut out);
    let length = out.len();
    assert_eq!(format::size(&out), length, "{entry:?}");
    let lent = matches!(
        entry,
        Entry::Response {
            body: Body::At(_),
            ..
        }
    );
    assert_eq!(format::is_lent(&out), lent, "{entry:?}");
    // Cut short it is none.
    let cut = usize::from(input.byte()) % length;
    let mut short = Bytes::copy_from_slice(&out[..cut]);
    assert!(
        Entry::parse(&mut short).is_err(),
        "{entry:?} of {cut} bytes"
    );
    // What is behind it is not touched.
    let behind = input.bytes(3);
    out.extend_from_slice(behind);
    let mut message = Bytes::from(out);
    assert_eq!(Entry::parse(&mut message), Ok(as_told(entry)));
    assert_eq!(message, behind);
}
