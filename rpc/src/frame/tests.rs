#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

const EXTENT_OF_9: Extent = Extent {
    remote: Remote {
        addr: 0x0102_0304_0506_0708,
        rkey: Rkey(0x0a0b_0c0d),
    },
    length: 9,
};

fn here(bytes: &'static [u8]) -> Body {
    Body::Here(Bytes::from_static(bytes))
}

fn request(place: Option<Extent>, body: Body) -> Entry {
    Entry::Request {
        id: 7,
        deadline: Some(Duration::from_micros(1500)),
        place,
        body,
    }
}

fn all() -> Vec<Entry> {
    let text = Bytes::from_static(b"no");
    let refused = |reason| Entry::Refused {
        id: 3,
        reason,
        code: 400,
        text: text.clone(),
    };
    vec![
        request(None, here(b"hello")),
        request(Some(EXTENT_OF_9), here(b"")),
        request(Some(EXTENT_OF_9), Body::At(EXTENT_OF_9)),
        Entry::Request {
            id: u32::MAX,
            deadline: None,
            place: None,
            body: Body::At(EXTENT_OF_9),
        },
        Entry::Response {
            id: 1,
            body: here(b"world"),
        },
        Entry::Response {
            id: 2,
            body: Body::At(EXTENT_OF_9),
        },
        Entry::Written { id: 4, length: 5 },
        refused(Reason::Service),
        refused(Reason::Overloaded),
        refused(Reason::Deadline),
        refused(Reason::Cancelled),
        refused(Reason::TooLong),
        refused(Reason::Draining),
        Entry::Cancel { id: 5 },
        Entry::Release { id: 6 },
    ]
}

fn emitted(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    entry.emit(&mut out);
    out
}

#[test]
fn what_is_emitted_is_parsed_and_as_long_as_its_size() {
    let mut message = Vec::new();
    for entry in all() {
        let out = emitted(&entry);
        assert_eq!(size(&out), out.len(), "{entry:?}");
        message.extend(out);
    }
    let mut message = Bytes::from(message);
    for entry in all() {
        assert_eq!(Entry::parse(&mut message), Ok(entry));
    }
    assert!(message.is_empty());
}

#[test]
fn an_entry_cut_at_any_byte_is_an_error() {
    for entry in all() {
        let out = emitted(&entry);
        for length in 1..out.len() {
            let mut cut = Bytes::copy_from_slice(&out[..length]);
            assert!(Entry::parse(&mut cut).is_err(), "{entry:?} cut at {length}");
        }
    }
}

#[test]
fn every_flag_and_field_that_an_entry_has_not_is_an_error() {
    for entry in all() {
        let out = emitted(&entry);
        let broken = |at: usize, bit: u8| {
            let mut bad = out.clone();
            bad[at] ^= bit;
            // Whatever else the entry would carry is there.
            bad.extend([0; 64]);
            Entry::parse(&mut Bytes::from(bad))
        };
        for bit in 2..8 {
            assert!(broken(5, 1 << bit).is_err(), "{entry:?} flag {bit}");
        }
        let is_request = matches!(entry, Entry::Request { .. });
        let is_refusal = matches!(entry, Entry::Refused { .. });
        if !is_request {
            assert!(broken(5, PLACED).is_err(), "{entry:?}");
        }
        if !is_refusal {
            assert!(broken(7, 1).is_err(), "{entry:?} code");
        }
        if !is_request && !is_refusal {
            assert!(broken(15, 1).is_err(), "{entry:?} deadline");
        }
        if matches!(entry, Entry::Cancel { .. } | Entry::Release { .. }) {
            assert!(broken(11, 1).is_err(), "{entry:?} length");
        }
        assert!(broken(4, 0x80).is_err(), "{entry:?} kind");
        if is_refusal {
            assert!(broken(12, 1).is_err(), "no such reason");
        }
    }
}

#[test]
fn memory_of_no_bytes_is_an_error() {
    let none = Extent {
        length: 0,
        ..EXTENT_OF_9
    };
    let mut out = Bytes::from(emitted(&request(None, Body::At(none))));
    assert_eq!(Entry::parse(&mut out), Err("memory of no bytes"));
}

#[test]
fn a_deadline_is_told_to_the_microsecond_and_never_as_none() {
    let told = |deadline| {
        let body = here(b"");
        let entry = Entry::Request {
            id: 0,
            deadline,
            place: None,
            body,
        };
        match Entry::parse(&mut Bytes::from(emitted(&entry))).unwrap() {
            Entry::Request { deadline, .. } => deadline,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told(None), None);
    let most = Duration::from_micros(u32::MAX.into());
    for (said, heard) in [
        (Duration::ZERO, Duration::from_micros(1)),
        (Duration::from_nanos(7_999), Duration::from_micros(7)),
        (Duration::from_secs(86_400), most),
    ] {
        assert_eq!(told(Some(said)), Some(heard));
    }
}

#[test]
fn words_are_parsed_as_emitted_and_reserved_bits_refused() {
    for posted in [0, 1, 0xffff] {
        for drains in [false, true] {
            let word = Word { posted, drains };
            assert_eq!(Word::parse(word.emit()), Ok(word));
        }
    }
    for bit in 16..31 {
        assert!(Word::parse(1 << bit).is_err(), "bit {bit}");
    }
}
