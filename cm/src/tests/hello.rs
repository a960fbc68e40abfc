//! Laws and maps of the private data.

use crate::binds::{Bind, Binds, Bound, Bounds};
use crate::hello::{End, Hello, HelloError, HelloReply, Purpose};
use crate::identity::Identity;
use proptest::prelude::*;
use trunkline_wire::cm::PrivateData;
use trunkline_wire::{Control, ControlKind, Qpn, Workers};

fn ends() -> impl Strategy<Value = End> {
    let identity = (any::<u64>(), any::<u64>());
    let workers = (1..=Workers::MOST).prop_filter_map("a count that may be", Workers::new);
    let sizes = (256_u32..=65_535, 1_u16..=1_024, workers);
    let knows = any::<bool>();
    (identity, any::<u32>(), 0..1_u64 << 63, sizes, knows).prop_map(
        |((guid, epoch), token, first_packet, (packet_size, window, workers), packs)| End {
            identity: Identity { guid, epoch },
            token,
            first_packet,
            packet_size,
            window,
            workers,
            packs,
        },
    )
}

fn binds() -> impl Strategy<Value = Bind> {
    let qp = (any::<u32>(), any::<u32>());
    (qp, any::<u32>()).prop_map(|((src, dest), generation)| Bind {
        src_qp: Qpn::from_wire(src),
        dest_qp: Qpn::from_wire(dest),
        generation,
    })
}

fn hellos() -> impl Strategy<Value = Hello> {
    let purpose = prop_oneof![
        Just(Purpose::Private),
        (0..=Purpose::POOL_LAST).prop_map(Purpose::Pool)
    ];
    let binds = prop::collection::vec(binds(), 0..=Binds::MOST);
    (ends(), purpose, any::<[u8; 2]>(), binds).prop_map(
        |(end, purpose, [toward, traffic_class], binds)| Hello {
            end,
            purpose,
            toward,
            traffic_class,
            binds: binds.into_iter().collect(),
        },
    )
}

proptest! {
    #[test]
    fn law_a_hello_that_was_emitted_parses_as_itself(hello in hellos()) {
        prop_assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    }

    #[test]
    fn law_a_reply_that_was_emitted_parses_as_itself(
        end in ends(), binds in prop::collection::vec(binds(), 0..=Bounds::MOST),
    ) {
        let bounds = binds.iter().map(consent).collect();
        let reply = HelloReply { end, bounds };
        prop_assert_eq!(HelloReply::parse(&reply.emit()), Ok(reply));
    }

    #[test]
    fn law_what_parses_says_the_same_when_emitted_again(
        bytes in prop::array::uniform32(any::<u8>()), hello in hellos(), at in 0..60_usize,
    ) {
        let mut data = hello.emit();
        data.0[at..at + 32].copy_from_slice(&bytes);
        if let Ok(parsed) = Hello::parse(&data) {
            prop_assert_eq!(Hello::parse(&parsed.emit()), Ok(parsed));
        }
    }
}

fn consent(bind: &Bind) -> Bound {
    Bound {
        src_qp: bind.dest_qp,
        dest_qp: bind.src_qp,
        generation: bind.generation,
        own_generation: !bind.generation,
    }
}

fn sample() -> Hello {
    let bind = |n: u32| Bind {
        src_qp: Qpn::from_wire(0x0001_0203 + n),
        dest_qp: Qpn::from_wire(0x0004_0506),
        generation: 0x0708_090a,
    };
    Hello {
        end: End {
            identity: Identity {
                guid: 0x1112_1314_1516_1718,
                epoch: 0x2122_2324_2526_2728,
            },
            token: 0x3132_3334,
            first_packet: 0x4142_4344_4546_4748,
            packet_size: 0x5152,
            window: 0x0200,
            workers: Workers::new(5).expect("five workers may be"),
            packs: true,
        },
        purpose: Purpose::Pool(6),
        toward: 0x62,
        traffic_class: 0x60,
        binds: [bind(0), bind(1)].into_iter().collect(),
    }
}

#[test]
fn fields_stand_where_the_map_says() {
    let data = sample().emit();
    let bytes = data.bytes();
    assert_eq!(bytes[..8], [b'T', b'R', b'N', b'K', 1, 0, 6, 0x60]);
    assert_eq!(bytes[8..16], [0x31, 0x32, 0x33, 0x34, 0, 0, 0x51, 0x52]);
    let counted = |first: u8| core::array::from_fn::<u8, 8, _>(|i| first + i as u8);
    assert_eq!(bytes[16..24], counted(0x11));
    assert_eq!(bytes[24..32], counted(0x21));
    assert_eq!(bytes[32..40], counted(0x41));
    assert_eq!(bytes[40..44], [0x02, 0x00, 1, 2]);
    let bind = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0a, 0, 0, 0, 0];
    assert_eq!(bytes[44..58], bind);
    assert_eq!(bytes[58..61], [1, 2, 4]);
    assert_eq!(bytes[72..86], [0; 14]);
    assert_eq!(bytes[86..], [4, 0x62, 0, 0, 0, 0]);
    let bounds = sample().binds.as_slice().iter().map(consent).collect();
    let end = sample().end;
    let reply = HelloReply { end, bounds }.emit();
    assert_eq!(reply.bytes()[..8], [b'T', b'R', b'N', b'K', 1, 1, 0, 0]);
    assert_eq!(reply.bytes()[8..42], bytes[8..42]);
    assert_eq!(reply.bytes()[42..44], [4, 2]);
    let bound = [4, 5, 6, 1, 2, 3, 7, 8, 9, 0x0a, 0xf8, 0xf7, 0xf6, 0xf5];
    assert_eq!(reply.bytes()[44..58], bound);
    assert!(reply.bytes()[72..].iter().all(|&byte| byte == 0));
}

#[test]
fn what_a_hello_may_not_hold_is_named() {
    let cases: [(usize, &[u8], HelloError); 10] = [
        (0, b"T", HelloError::Magic),
        (4, &[2], HelloError::Version { version: 2 }),
        (
            5,
            &[2],
            HelloError::Invalid {
                field: "kind",
                value: 2,
            },
        ),
        (
            6,
            &[255],
            HelloError::Invalid {
                field: "pool index",
                value: 255,
            },
        ),
        (
            12,
            &[0, 1, 0, 0],
            HelloError::Invalid {
                field: "packet size",
                value: 65_536,
            },
        ),
        (
            32,
            &[0x80],
            HelloError::Invalid {
                field: "first packet",
                value: 0xc142_4344_4546_4748,
            },
        ),
        (
            40,
            &[0, 0],
            HelloError::Invalid {
                field: "window",
                value: 0,
            },
        ),
        (
            43,
            &[4],
            HelloError::Invalid {
                field: "BINDs",
                value: 4,
            },
        ),
        (
            86,
            &[64],
            HelloError::Invalid {
                field: "workers",
                value: 64,
            },
        ),
        (
            86,
            &[255],
            HelloError::Invalid {
                field: "workers",
                value: 255,
            },
        ),
    ];
    for (at, bytes, error) in cases {
        let mut data = sample().emit();
        if error == HelloError::Magic {
            data.0[at] ^= 1;
        } else if at == 32 {
            data.0[at] |= bytes[0];
        } else {
            data.0[at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(Hello::parse(&data), Err(error));
    }
    assert_eq!(
        HelloReply::parse(&PrivateData::default()),
        Err(HelloError::Magic)
    );
}

#[test]
fn reserved_bytes_are_ignored() {
    let mut data = sample().emit();
    data.0[88..].fill(0xff);
    // Places of BINDs that are not there.
    data.0[72..86].fill(0xff);
    assert_eq!(Hello::parse(&data), Ok(sample()));
}

#[test]
fn a_bind_is_the_control_entry_that_it_stands_for() {
    let bind = sample().binds.as_slice()[0];
    let control = Control::from(bind);
    assert_eq!((control.kind, control.status), (ControlKind::Bind, 0));
    assert_eq!(
        (control.src_qp, control.dest_qp),
        (bind.src_qp, bind.dest_qp)
    );
    let rest = (control.replay_epoch, control.generation, control.msn);
    assert_eq!(rest, (0, bind.generation, 0));
    let many: Binds = (0..9).map(|_| bind).collect();
    assert_eq!(many.as_slice().len(), Binds::MOST);
}
