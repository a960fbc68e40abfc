//! Management datagrams in their wrapping.

use super::{Stage, address, path};
use crate::gsi::{self, FrameError};
use core::net::IpAddr;
use trunkline_conn::ingress::Identification;
use trunkline_wire::{Bth, Deth, Opcode, Path, Psn, Qpn, WireError, icrc};

fn built(path: &Path) -> [u8; gsi::LEN] {
    let mut out = [0; gsi::LEN];
    gsi::build(
        path,
        9,
        Psn::from_wire(0x0001_0203),
        &Stage::new().req(),
        &mut out,
    );
    out
}

fn v6() -> Path {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    path(ip("fe80::1"), ip("fe80::2"))
}

#[test]
fn what_was_built_is_parsed() {
    for path in [path(address(1), address(2)), v6()] {
        let datagram = built(&path);
        let mad = Stage::new().req();
        assert!(gsi::is_management(&datagram));
        assert_eq!(gsi::parse(&datagram), Ok(&mad));
        for identification in [
            Identification::Seen(9),
            Identification::Predicted(9),
            Identification::Predicted(0),
        ] {
            assert_eq!(
                gsi::parse_checked(&path, identification, &datagram),
                Ok(&mad)
            );
        }
        let (bth, _) = Bth::read(&datagram).expect("it begins with a BTH");
        assert_eq!((bth.psn.get(), bth.dest_qp), (0x0001_0203, Qpn::GSI));
    }
}

#[test]
fn damage_shows_in_the_icrc() {
    for path in [path(address(1), address(2)), v6()] {
        // Bytes of the MAD: everything before is judged first.
        for at in Bth::LEN + Deth::LEN..gsi::LEN {
            let mut datagram = built(&path);
            datagram[at] ^= 0x10;
            let checked = gsi::parse_checked(&path, Identification::Seen(9), &datagram);
            assert_eq!(checked, Err(FrameError::Icrc), "byte {at}");
        }
    }
    let datagram = built(&path(address(1), address(2)));
    let elsewhere = path(address(3), address(2));
    assert_eq!(
        gsi::parse_checked(&elsewhere, Identification::Seen(9), &datagram),
        Err(FrameError::Icrc)
    );
    let other = gsi::parse_checked(
        &path(address(1), address(2)),
        Identification::Seen(8),
        &datagram,
    );
    assert_eq!(other, Err(FrameError::Icrc));
}

#[test]
fn what_is_no_management_datagram_is_told_apart() {
    let route = path(address(1), address(2));
    let changed = |at: usize, byte: u8| {
        let mut datagram = built(&route);
        datagram[at] = byte;
        icrc::seal(&route, 9, &mut datagram);
        datagram
    };
    let parse = |datagram: &[u8]| gsi::parse(datagram).map(|_| ());
    let not_gsi = changed(7, 2);
    assert!(!gsi::is_management(&not_gsi));
    assert_eq!(parse(&not_gsi), Err(FrameError::Qp(Qpn::from_wire(2))));
    assert_eq!(
        parse(&changed(15, 1)),
        Err(FrameError::Qkey(Deth::GSI_QKEY | 1))
    );
    assert_eq!(parse(&changed(3, 0)), Err(FrameError::Pkey(0xff00)));
    assert_eq!(
        parse(&changed(2, 0x7f)),
        Ok(()),
        "a limited member of the same partition"
    );
    let opcode = Opcode::RC_SEND_ONLY;
    assert_eq!(
        parse(&changed(0, opcode.0)),
        Err(FrameError::Opcode(opcode))
    );
    assert!(matches!(
        parse(&changed(0, 0x3f)),
        Err(FrameError::Wire(WireError::Invalid { .. }))
    ));
    let short = &built(&route)[..gsi::LEN - 4];
    assert_eq!(parse(short), Err(FrameError::Length(252)));
    for length in 0..24 {
        assert!(parse(&built(&route)[..length]).is_err());
    }
    assert!(!gsi::is_management(&[]) && !gsi::is_management(&[0; 11]));
}
