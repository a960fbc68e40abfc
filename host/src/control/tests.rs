mod refusals;

use super::answers::{Failed, Welcome};
use super::attributes::{QpAttributes, QpStep, Reason, RegionPlace, RingKind};
use super::requests::*;
use super::*;
use crate::Handle;
use crate::piece::PieceName;
use proptest::collection::vec;
use proptest::prelude::*;
use std::fmt::Debug;
use std::num::NonZeroU32;
use trunkline_conn::mem::Access;
use trunkline_qpmap::{QpState, QpType};
use trunkline_wire::{Gid, Lkey, Psn, Qpn, Rkey};

/// Bytes that values are made of; zeros when they are used up.
pub(super) struct Draw<'a>(&'a [u8]);

impl Draw<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        for byte in &mut out {
            if let Some(drawn) = self.0.split_off_first() {
                *byte = *drawn;
            }
        }
        out
    }

    pub(super) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        let [byte] = self.array();
        values[usize::from(byte) % values.len()]
    }
}

/// A type of which tests make any value.
pub(super) trait Any: Sized {
    fn any(draw: &mut Draw<'_>) -> Self;
}

/// All messages of one side.
pub(super) trait Side: Debug + PartialEq + Sized {
    const KINDS: &'static [u16];

    fn draw(kind: u16, draw: &mut Draw<'_>) -> Self;
    fn read(message: &[u8]) -> Result<(u32, Self), ControlError>;
    fn bytes(&self, number: u32) -> Vec<u8>;
}

macro_rules! any {
    ($($type:ty: |$draw:ident| $value:expr;)*) => {
        $(impl Any for $type {
            fn any($draw: &mut Draw<'_>) -> Self {
                $value
            }
        })*
    };
}

any! {
    u8: |draw| Self::from_le_bytes(draw.array());
    u16: |draw| Self::from_le_bytes(draw.array());
    u32: |draw| Self::from_le_bytes(draw.array());
    u64: |draw| Self::from_le_bytes(draw.array());
    bool: |draw| u8::any(draw) & 1 == 1;
    Access: |draw| Self::from_bits(u32::any(draw));
    Lkey: |draw| Self(u32::any(draw));
    Rkey: |draw| Self(u32::any(draw));
    Qpn: |draw| Self::from_wire(u32::any(draw));
    Psn: |draw| Self::from_wire(u32::any(draw));
    Gid: |draw| Self(draw.array());
    QpState: |draw| draw.one_of(&Self::ALL);
    QpType: |draw| draw.one_of(&[Self::Rc, Self::Uc, Self::Ud, Self::Src]);
    Magic: |_draw| Self;
    Handle: |draw| Self {
        index: u32::any(draw),
        serial: NonZeroU32::new(u32::any(draw)).unwrap_or(NonZeroU32::MIN),
    };
    PieceName: |draw| Self {
        segment: u32::any(draw),
        offset: u64::any(draw),
        words: u32::any(draw),
    };
    RegionPlace: |draw| match u8::any(draw) % 3 {
        0 => Self::Foreign {
            addr: u64::any(draw),
        },
        1 => Self::Shared {
            memory: Handle::any(draw),
            offset: u64::any(draw),
        },
        _ => Self::Promoted {
            lent: Handle::any(draw),
            addr: u64::any(draw),
            start: u64::any(draw),
            length: u64::any(draw),
            offset: u64::any(draw),
        },
    };
}

impl<T: Any> Any for Option<T> {
    fn any(draw: &mut Draw<'_>) -> Self {
        bool::any(draw).then(|| T::any(draw))
    }
}

impl<const N: usize> Any for Text<N> {
    fn any(draw: &mut Draw<'_>) -> Self {
        let characters = ["a", "Z", " ", "\u{e9}", "\u{20ac}", "\u{1f600}"];
        let length = u8::any(draw);
        let text: String = (0..length).map(|_| draw.one_of(&characters)).collect();
        Self::clipped(&text)
    }
}

/// One message of each kind, made of the same bytes.
fn each<S: Side>(bytes: &[u8]) -> Vec<S> {
    let kinds = S::KINDS.iter();
    kinds.map(|kind| S::draw(*kind, &mut Draw(bytes))).collect()
}

/// Every message comes back, and no shorter or longer one is taken for it.
fn comes_back<S: Side>(bytes: &[u8], number: u32) {
    for message in each::<S>(bytes) {
        let mut sent = message.bytes(number);
        assert!(sent.len() <= MAX_MESSAGE);
        for length in 0..sent.len() {
            assert!(S::read(&sent[..length]).is_err(), "{length} of {message:?}");
        }
        assert_eq!(S::read(&sent), Ok((number, message)));
        sent.push(0);
        assert!(S::read(&sent).is_err());
    }
}

/// A byte that is changed makes the message bad, or another one that has these bytes.
fn no_change_is_overlooked<S: Side>(bytes: &[u8], change: u8) {
    for message in each::<S>(bytes) {
        let sent = message.bytes(7);
        for at in 0..sent.len() {
            let mut changed = sent.clone();
            changed[at] ^= change;
            match S::read(&changed) {
                Ok((number, other)) => {
                    assert_ne!((number, &other), (7, &message), "byte {at}");
                    assert_eq!(other.bytes(number), changed, "byte {at}");
                    assert!(!(2..4).contains(&at), "reserved");
                    assert!(!(8..12).contains(&at), "length");
                }
                Err(error) => assert!(!(4..8).contains(&at), "number: {error}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_message_comes_back(bytes in vec(any::<u8>(), 0..400), number: u32) {
        comes_back::<Request>(&bytes, number);
        comes_back::<Answer>(&bytes, number);
    }

    #[test]
    fn no_changed_byte_is_overlooked(bytes in vec(any::<u8>(), 0..400), change in 1..=255_u8) {
        no_change_is_overlooked::<Request>(&bytes, change);
        no_change_is_overlooked::<Answer>(&bytes, change);
    }

    #[test]
    fn the_laws_hold_for_bytes_behind_any_header(
        kind in 0..0x90_u16,
        side: bool,
        fields in vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..300),
    ) {
        let kind = kind | if side { 0x8000 } else { 0 };
        let mut bytes = Header { kind, number: 1 }.begin(fields.len());
        bytes.extend(fields);
        law::request(&bytes);
        law::answer(&bytes);
    }
}

/// A message of this kind and these fields.
fn raw(kind: u16, fields: &[u8]) -> Vec<u8> {
    let mut out = Header { kind, number: 9 }.begin(fields.len());
    out.extend_from_slice(fields);
    out
}

fn handle(index: u32, serial: u32) -> Handle {
    let serial = NonZeroU32::new(serial).expect("not 0");
    Handle { index, serial }
}

/// Message, field and value that are told of a bad request.
fn blamed(message: &[u8]) -> (&'static str, &'static str, u64) {
    match Request::parse(message) {
        Err(ControlError::Invalid {
            message,
            field,
            value,
        }) => (message, field, value),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fields_stand_where_the_map_says() {
    let resize = ResizeCq {
        cq: handle(0x0102_0304, 0x0506_0708),
        depth: 0x090a_0b0c,
    };
    let expected = [
        0x21, 0, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa, 12, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9,
    ];
    assert_eq!(Request::from(resize).to_bytes(0xaabb_ccdd), expected);
    let hello = Hello {
        magic: Magic,
        version: VERSION,
        name: Text::new("me").expect("short"),
    };
    let sent = Request::from(hello).to_bytes(1);
    assert_eq!(sent.len(), HEADER + 4 + 4 + 1 + 64);
    assert_eq!(&sent[HEADER..HEADER + 11], b"TRNK\x04\0\0\0\x02me");
    let request = RequestRing {
        ring: RingKind::Completions,
        object: None,
        worker: 3,
    };
    let expected = raw(0x60, &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(Request::from(request).to_bytes(9), expected);
    let welcome = Welcome {
        version: 1,
        gid: Gid([5; 16]),
        workers: 2,
        max_qps: 6,
        quota: 3,
        max_requests: 4,
    };
    let fields = [
        &[1, 0, 0, 0][..],
        &[5; 16],
        &[2, 6, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 0],
    ];
    let expected = raw(0x8001, &fields.concat());
    assert_eq!(Answer::from(welcome).to_bytes(9), expected);
}

#[test]
fn attributes_that_are_missing_leave_their_room_empty() {
    let attributes = QpAttributes {
        access: Some(Access::REMOTE_READ),
        dest_qpn: Some(Qpn::from_wire(0x0012_3456)),
        ..QpAttributes::default()
    };
    let (qp, step) = (handle(0, 1), QpStep::Change);
    let modify = ModifyQp {
        qp,
        step,
        attributes,
    };
    let sent = Request::from(modify).to_bytes(9);
    let fields = &sent[HEADER + Handle::LEN + 1..];
    assert_eq!(fields.len(), QpAttributes::LEN);
    assert_eq!(fields[..4], (1_u32 | 1 << 16).to_le_bytes());
    assert_eq!(fields[4..8], [4, 0, 0, 0], "access");
    assert_eq!(fields[QpAttributes::LEN - 4..], [0x56, 0x34, 0x12, 0]);
}

#[test]
fn headers_are_judged() {
    let good = Request::from(AllocPd {}).to_bytes(1);
    assert_eq!(Request::parse(&good), Ok((1, AllocPd {}.into())));
    let error = Request::parse(&good[..11]).unwrap_err();
    assert_eq!(error, ControlError::Truncated { got: 11 });
    let error = Request::parse(&[0; MAX_MESSAGE + 1]).unwrap_err();
    let got = MAX_MESSAGE + 1;
    assert_eq!(error, ControlError::TooLong { got });
    let mut reserved = good.clone();
    reserved[3] = 1;
    assert_eq!(blamed(&reserved), ("header", "reserved", 0x100));
    let mut length = good.clone();
    length[8] = 1;
    let error = Request::parse(&length).unwrap_err();
    assert_eq!(error, ControlError::OtherLength { said: 1, got: 0 });
    let error = Request::parse(&raw(0x10, &[0])).unwrap_err();
    let (message, need, got) = ("alloc PD", 0, 1);
    assert_eq!(error, ControlError::BadLength { message, need, got });
    for kind in [0, 0x12, 0x7fff, 0x8001, 0xffff] {
        let error = Request::parse(&raw(kind, &[])).unwrap_err();
        assert_eq!(error, ControlError::UnknownKind { kind });
    }
    let error = Answer::parse(&good).unwrap_err();
    assert_eq!(error, ControlError::UnknownKind { kind: 0x10 });
}

#[test]
fn errors_name_the_message_and_the_field() {
    let hello = |fields: &[u8]| blamed(&raw(1, &[fields, &[0; 73][fields.len()..]].concat()));
    assert_eq!(hello(b"HTTP"), ("hello", "magic", 0x5054_5448));
    assert_eq!(
        hello(b"TRNK\x01\0\0\0\x02a\n"),
        ("hello", "name", 0x000a_6102)
    );
    let dealloc = raw(0x11, &[1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(blamed(&dealloc), ("dealloc PD", "pd", 1), "serial 0");
    let ring = |bytes: [u8; 11]| blamed(&raw(0x60, &bytes));
    let kind = ring([7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(kind, ("request ring", "ring", 7));
    let flag = ring([1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(flag, ("request ring", "object", 2));
    let hidden = ring([1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
    assert_eq!(
        hidden,
        ("request ring", "object", 9 << 40),
        "missing, not zero"
    );
}

#[test]
fn errors_name_the_attribute() {
    let modify = |mask: u32, at: usize, value: u8| {
        let mut fields = vec![0; ModifyQp::LEN];
        fields[4] = 1;
        fields[8] = QpStep::Change as u8;
        fields[9..13].copy_from_slice(&mask.to_le_bytes());
        fields[13 + at] = value;
        blamed(&raw(0x41, &fields))
    };
    assert_eq!(modify(1 << 11, 39, 1), ("modify QP", "rq_psn", 1 << 24));
    let absent = modify(0, 0, 3);
    assert_eq!(absent, ("modify QP", "access", 3), "not in the mask");
    let last = QpAttributes::LEN - 4 - 1;
    assert_eq!(modify(1 << 16, last, 1), ("modify QP", "dest_qpn", 1 << 24));
    assert_eq!(modify(1 << 17, 0, 0).1, "mask");
    assert_eq!(modify(1 << 31, 0, 0).1, "mask");
}

#[test]
fn reasons_that_there_are_not_are_refused() {
    let failed = Failed {
        errno: 12,
        text: Text::clipped("no room"),
        error: None,
    };
    let good = Answer::from(failed).to_bytes(3);
    assert_eq!(Answer::parse(&good), Ok((3, failed.into())));
    for (reason, valid) in [
        (0, false),
        (1, true),
        (10, true),
        (11, false),
        (0x101, false),
    ] {
        let mut fields = vec![0; 2 + 193];
        fields[..2].copy_from_slice(&u16::to_le_bytes(reason));
        assert_eq!(
            Answer::parse(&raw(0x8003, &fields)).is_ok(),
            valid,
            "{reason}"
        );
    }
    assert_eq!(Reason::Failed as u16, 8);
}
