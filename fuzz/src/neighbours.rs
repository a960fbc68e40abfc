//! Neighbours of an interface, among whom are liars.

use crate::input::Input;
use std::collections::BTreeSet;
use std::net::IpAddr;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_dataplane::{Interface, Neighbour, Neighbours};
use trunkline_wire::Mac;

/// Frames that one step may bring out: more are dropped by whoever makes them.
const MOST_FRAMES: usize = 256;

fn address(six: bool, last: u8) -> IpAddr {
    if six {
        IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 0, u16::from(last)])
    } else {
        IpAddr::from([10, 9, 0, last])
    }
}

fn end(six: bool, last: u8) -> Neighbours {
    Neighbours::new(Interface {
        mac: Mac([2, 0, 0, 0, 0, last]),
        address: address(six, last),
        prefix: if six { 64 } else { 24 },
        gateway: None,
        mtu: 1500,
    })
}

/// Two neighbours whose frames are lost, changed and made up, with time passing: nobody is known
/// who was not asked for, and nobody has an address of many.
pub fn neighbours(data: &[u8]) {
    let mut input = Input::new(data);
    let six = input.byte() & 1 == 1;
    let mut ends = [end(six, 1), end(six, 2)];
    let mut asked = [BTreeSet::new(), BTreeSet::new()];
    let mut now = Instant::from_nanos(SECOND);
    input.drive(64, |input| {
        let choice = input.byte();
        let (which, other) = (usize::from(choice >> 7), usize::from(choice >> 7 == 0));
        match choice & 3 {
            0 => {
                let wanted = address(six, input.byte());
                ends[which].solicit(wanted);
                asked[which].insert(wanted);
            }
            1 => {
                now = now + u64::from(input.u16()) * MILLISECOND;
                ends[which].handle_timeout(now);
            }
            2 => {
                let length = usize::from(input.byte());
                let frame = input.bytes(length);
                ends[which].receive(now, frame);
            }
            _ => carry(input, now, &mut ends, (which, other)),
        }
        for (end, asked) in ends.iter_mut().zip(&asked) {
            check(six, end, asked);
        }
    });
}

/// What one has to say reaches the other, as it is or with a byte changed.
fn carry(
    input: &mut Input<'_>,
    now: Instant,
    ends: &mut [Neighbours; 2],
    (from, to): (usize, usize),
) {
    let mut frames = 0;
    while let Some(mut frame) = ends[from].poll_transmit() {
        frames += 1;
        let (at, change) = (usize::from(input.byte()), input.byte());
        if let Some(byte) = frame.get_mut(at) {
            *byte ^= change;
        }
        ends[to].receive(now, &frame);
    }
    assert!(frames <= MOST_FRAMES, "{frames} frames waited");
}

fn check(six: bool, end: &mut Neighbours, asked: &BTreeSet<IpAddr>) {
    let mut waiting = false;
    for last in 0..=u8::MAX {
        let peer = address(six, last);
        let state = end.neighbour(peer);
        assert!(
            state == Neighbour::Unknown || asked.contains(&peer),
            "{peer}"
        );
        waiting |= state == Neighbour::Asked;
        if state == Neighbour::Known {
            let mac = end.mac(peer).expect("it is known");
            assert!(mac.0[0] & 1 == 0 && mac != Mac([0; 6]), "{peer} at {mac}");
        }
    }
    assert!(
        !waiting || end.poll_timeout().is_some(),
        "nobody asks again"
    );
}
