//! When idle connections are asked for a sign of life.

use crate::common::liar::Liar;
use crate::common::watched::{both, graced};
use crate::common::{Pair, params};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp};
use trunkline_qpmap::{ConnectionParams, PeerIdentity};
use trunkline_wire::{Opcode, Qpn, Workers};

/// When node 1 asks a liar that keeps silent for a sign of life, before `end`, in ns.
fn asked_at(pair: &mut Pair, liar: &mut Liar, end: u64) -> Option<u64> {
    while pair.now.as_nanos() < end {
        pair.now = pair.now + 10 * MILLISECOND;
        let heard = liar.hears(pair);
        if heard.iter().any(|one| Opcode(one[0]) == Opcode::SRC_PING) {
            return Some(pair.now.as_nanos());
        }
    }
    None
}

/// A peer whose last connection died of its silence gets the time of that one, not a new one. It is
/// asked at 20 s; it was at 26.25 s where its connection had the index of another idle one.
#[test]
fn a_connection_in_the_place_of_an_idle_one_is_asked_for_a_sign_of_life_in_its_own_time() {
    for between in [false, true] {
        let mut pair = Pair::new(0);
        let mut liar = Liar::new(&mut pair, 9);
        asked_at(&mut pair, &mut liar, 9 * SECOND);
        // Another one, of a program's, which keeps what is known of the peer.
        let identity = PeerIdentity {
            guid: 9,
            epoch: 1,
            address: liar.address(),
            workers: Workers::ONE,
        };
        let now = pair.now;
        let engine = &mut pair.nodes[1].engine;
        let end = engine.draw_connection().expect("a number");
        let private = ConnectionParams {
            private: true,
            ..params(end, (Qpn::from_wire(0x77_0002), 1))
        };
        let kept = engine.add_connection(now, identity, &private);
        kept.expect("a second connection");
        let asked = asked_at(&mut pair, &mut liar, 11 * SECOND).expect("it is asked");
        assert!(asked.abs_diff(10 * SECOND) < SECOND / 2);
        asked_at(&mut pair, &mut liar, 17 * SECOND);
        let engine = &mut pair.nodes[1].engine;
        assert_eq!(engine.connections().len(), 1, "the silent one is dead");
        if between {
            let other = Liar::new(&mut pair, 8);
            asked_at(&mut pair, &mut liar, 18 * SECOND);
            pair.nodes[1].engine.close_connection(other.conn);
        }
        asked_at(&mut pair, &mut liar, 18 * SECOND + SECOND / 2);
        let mut liar = Liar::new(&mut pair, 9);
        let asked = loop {
            let asked = asked_at(&mut pair, &mut liar, 40 * SECOND).expect("it is asked");
            // At 19 s the other connection is.
            if asked > 19 * SECOND + SECOND / 2 {
                break asked;
            }
        };
        assert!(asked <= 20 * SECOND + SECOND / 10, "asked at {asked}");
    }
}

/// A worker has no processor for a while, and finds the acknowledgement of its last answer then.
#[test]
fn timers_fire_in_time_however_late_idle_connections_are_looked_at() {
    let mut stuck = Vec::new();
    for stall in 1..60 {
        let mut pair = graced(2, 60 * SECOND);
        let qps = both(&mut pair, (14, 7));
        let target = Remote {
            addr: pair.nodes[0].buffer.addr,
            rkey: pair.nodes[0].key,
        };
        let sges = [pair.sge(1, 0, 64)];
        pair.post(1, &qps[1], 1, SendOp::Write(target), &sges);
        let mut acknowledged = Vec::new();
        for _ in 0..5_000 {
            pair.now = pair.now + 1_000;
            let request = pair.sent_by(1);
            if pair.completions(1).is_empty() && acknowledged.is_empty() {
                pair.deliver(0, &request);
                let answer = pair.sent_by(0);
                pair.deliver(1, &answer);
                if !pair.completions(1).is_empty() {
                    acknowledged.push(Vec::new());
                }
            } else {
                acknowledged.push(request);
            }
        }
        pair.now = pair.now + stall * SECOND / 2;
        pair.deliver(0, &acknowledged.concat());
        let woke = pair.now;
        let late = |pair: &Pair| {
            let next = pair.nodes[0].engine.poll_timeout();
            next.is_some_and(|next| next <= pair.now)
        };
        loop {
            for _ in 0..10 {
                pair.sent_by(0);
            }
            if !late(&pair) {
                break;
            }
            pair.now = pair.now + 10 * MILLISECOND;
        }
        if pair.now > woke {
            stuck.push((stall * 500, pair.now.since(woke) / MILLISECOND));
        }
    }
    assert!(
        stuck.is_empty(),
        "(after a stall, all timers are late), in ms: {stuck:?}"
    );
}
