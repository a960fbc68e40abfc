//! Tables by peer.

use super::crowd::Crowd;
use std::hint::black_box;
use trunkline_conn::time::{MICROSECOND, SECOND};
use trunkline_qpmap::ConnId;
use trunkline_wire::{Control, ControlKind, Opcode, Qpn};

/// Peers whose paths got narrow and that say nothing any more: larger sizes are tried by padded
/// PINGs, until each connection is dead.
pub(crate) fn pings(entries: u32) {
    let mut crowd = Crowd::new(entries, 1);
    for peer in 0..entries {
        let (now, address) = (crowd.now, Crowd::address(peer));
        crowd
            .engine
            .refused_as_too_long(now, address, Crowd::DATAGRAM);
    }
    let end = crowd.now + 30 * SECOND;
    while crowd.now < end {
        let next = crowd.engine.poll_timeout().unwrap_or(end);
        crowd.now = next.max(crowd.now + 20 * MICROSECOND);
        crowd.turn();
        while let Some(event) = crowd.engine.poll_event() {
            black_box(event);
        }
    }
    assert!(crowd.sent.count >= u64::from(entries), "each is tried");
    assert_eq!(crowd.engine.connections(), [], "each is dead");
}

/// Peers that ask for a QP which there is not, and are told so.
pub(crate) fn replies(entries: u32) {
    let mut crowd = Crowd::new(entries, 1);
    for peer in 0..entries {
        let bind = Control {
            kind: ControlKind::Bind,
            src_qp: Qpn::from_wire(0x11),
            replay_epoch: 0,
            dest_qp: Qpn::from_wire(0x22),
            generation: 1,
            status: 0,
            msn: 0,
        };
        crowd.hear(peer, Opcode::SRC_CONTROL, &bind.to_bytes());
    }
    let waiting = crowd.engine.live_objects().control_messages;
    assert_eq!(waiting, entries as usize, "a refusal for each");
    let mut rounds = 0;
    while crowd.sent.count < entries.into() {
        crowd.now = crowd.now + 200 * MICROSECOND;
        crowd.turn();
        rounds += 1;
        assert!(rounds < 1_000_000, "nothing moves");
    }
}

/// Connections of pools that have others and nothing to do: they are found, and given up.
pub(crate) fn idle_connections(entries: u32) {
    let mut crowd = Crowd::new(entries, 2);
    let idle: Vec<ConnId> = crowd.engine.idle_connections().collect();
    assert_eq!(idle.len(), 2 * entries as usize);
    let mut gone = 0;
    for conn in idle.into_iter().rev() {
        if crowd.engine.is_idle(conn) {
            crowd.engine.reclaim_connection(conn);
            gone += 1;
        }
    }
    assert_eq!(gone, entries, "one of each pool stays");
    crowd.turn();
    black_box(crowd);
}
