//! Tables of what QPs have under way.

use super::crowd::{Last, arrival};
use super::{ROUND_NS, run};
use std::hint::black_box;
use std::sync::Arc;
use trunkline_conn::mem::RegionMemory;
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_pieces::pair::{Ends, PairConfig, RingMemory};
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{Attributes, ConnId, QpInit, QpModify, QpQueues, QpType};
use trunkline_wire::{Bth, IpFields, Path, Psn, ROCE_PORT, SrcExt, icrc};

/// Bytes of a message.
const LENGTH: u32 = 64;
/// Packets in flight: more than requests that a flow may have outstanding.
const WINDOW: u32 = 1 << 16;

/// A send request with a completion.
const fn request(op: SendOp, sges: &[trunkline_conn::mem::Sge], route: u32) -> SendWr<'_> {
    SendWr {
        wr_id: 2,
        op,
        flags: SendFlags::SIGNALED,
        sges,
        inline: None,
        route,
    }
}

/// Completions of an end since the last call, of which none failed.
fn polled(ends: &Ends, node: usize) -> u32 {
    let mut out = [Completion::BLANK; 64];
    let mut all = 0;
    loop {
        let got = ends.nodes[node].cq.poll(&mut out);
        let got = got.expect("it has room for all");
        let good = |done: &Completion| done.status == Status::Success;
        assert!(out[..got].iter().all(good), "a request failed");
        all += got as u32;
        if got < out.len() {
            return all;
        }
    }
}

/// Runs both ends until as many completed at each as given.
fn complete(ends: &mut Ends, now: &mut Instant, mut left: [u32; 2]) {
    let mut rounds = 0;
    while left != [0; 2] {
        *now = *now + ROUND_NS;
        ends.turn_at(*now);
        for (node, left) in left.iter_mut().enumerate() {
            *left -= polled(ends, node);
        }
        rounds += 1;
        assert!(rounds < 1_000_000, "nothing moves");
    }
}

/// Requests of one QP that are sent and not acknowledged: first its peer is not ready, and then
/// takes all of them.
pub(crate) fn requests(entries: u32) {
    let mut ends = Ends::new(&PairConfig {
        qps: 0,
        datagram: 512,
        window: WINDOW,
        ..PairConfig::default()
    });
    let inits = [0, 1].map(|node: usize| QpInit {
        max_send_wr: entries.max(1),
        max_recv_wr: entries.max(1),
        ..ends.nodes[node].qp_init()
    });
    let qp = ends.add_qp(&inits);
    let mut now = ends.start();
    for _ in 0..8 {
        now = now + ROUND_NS;
        ends.turn_at(now);
    }
    let [from, to] = [0, 1].map(|node: usize| [ends.nodes[node].sge(0, LENGTH)]);
    for _ in 0..entries {
        ends.post_send(0, qp, &[black_box(request(SendOp::Send, &from, 0))]);
    }
    let mut rounds = 0;
    while ends.nodes[0].engine.live_objects().requests < entries as usize {
        ends.nodes[0].turn_at(now);
        rounds += 1;
        assert!(rounds < 1_000_000, "nothing moves");
    }
    now = now + ROUND_NS;
    ends.turn_at(now);
    for wr_id in 0..entries.into() {
        ends.post_recv(1, qp, &[RecvWr { wr_id, sges: &to }]);
    }
    complete(&mut ends, &mut now, [entries; 2]);
}

/// READs, one of each QP: their requests, and the responses that are kept for them.
pub(crate) fn responses(entries: u32) {
    let (mut ends, mut now) = super::ends(entries);
    let node = &ends.nodes[1];
    let target = Remote {
        addr: node.region.addr(),
        rkey: node.key,
    };
    let to = [ends.nodes[0].sge(0, LENGTH)];
    for qp in 0..entries as usize {
        ends.post_send(0, qp, &[black_box(request(SendOp::Read(target), &to, 0))]);
    }
    complete(&mut ends, &mut now, [entries, 0]);
}

/// An app-managed QP of an end, ready to send.
fn managed(ends: &mut Ends, node: usize, depth: u32) -> Arc<QpQueues<RingMemory>> {
    let end = &mut ends.nodes[node];
    let init = QpInit {
        kind: QpType::Src,
        max_send_wr: depth,
        ..end.qp_init()
    };
    let qp = end.engine.create_qp(&init).expect("a QP");
    let attributes = Attributes::default();
    for step in [
        QpModify::Init {
            access: trunkline_conn::mem::Access::ALL,
        },
        QpModify::Rtr(attributes),
        QpModify::Rts(attributes),
    ] {
        end.engine.modify_qp(qp.qpn, &step).expect("a legal step");
    }
    qp
}

/// Routes of one app-managed QP: each is asked for at both ends, carries a SEND, and is closed.
pub(crate) fn routes(entries: u32) {
    const DEPTH: u32 = 64;
    let (mut ends, mut now) = super::ends(0);
    let hub = managed(&mut ends, 0, DEPTH);
    let [ours, theirs]: [ConnId; 2] = ends.conns[0];
    let to = [ends.nodes[1].sge(0, LENGTH)];
    let routes: Vec<u32> = (0..entries)
        .map(|_| {
            let leaf = managed(&mut ends, 1, 1);
            let receive = RecvWr {
                wr_id: 1,
                sges: &to,
            };
            let queue = leaf.receive.as_ref().expect("no SRQ here");
            queue.post(&[receive]).expect("room in the queue");
            let back = ends.nodes[1].engine.add_route(leaf.qpn, theirs, hub.qpn);
            back.expect("a route");
            let route = ends.nodes[0].engine.add_route(hub.qpn, ours, leaf.qpn);
            route.expect("a route")
        })
        .collect();
    let from = [ends.nodes[0].sge(0, LENGTH)];
    for some in routes.chunks(DEPTH as usize) {
        for route in some {
            let send = request(SendOp::Send, &from, *route);
            hub.send.post(&[black_box(send)]).expect("room");
        }
        ends.nodes[0].engine.doorbells().ring(hub.index);
        complete(&mut ends, &mut now, [some.len() as u32; 2]);
    }
    for route in routes {
        let closed = ends.nodes[0].engine.close_route(hub.qpn, route);
        closed.expect("it is there");
    }
    run(&mut ends, &mut now, |ends| {
        ends.nodes[0].engine.live_objects().flows == 0
    });
}

/// Packets that wait for the first one of their QP, which comes after all of them.
pub(crate) fn staging(entries: u32) {
    // A lone pair of QPs gets a quarter.
    const EACH: usize = 4 * 1024;
    let mut ends = Ends::new(&PairConfig {
        staging_bytes: EACH * (entries as usize + 1),
        ..PairConfig::default()
    });
    let now = ends.start();
    let target = Remote {
        addr: ends.nodes[1].region.addr(),
        rkey: ends.nodes[1].key,
    };
    let from = [ends.nodes[0].sge(0, LENGTH)];
    ends.post_send(0, 0, &[request(SendOp::Write(target), &from, 0)]);
    let mut out = Last::default();
    ends.nodes[0].engine.handle_doorbells();
    ends.nodes[0].engine.poll_transmit(now, &mut out);
    let path = Path {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let (bth, rest) = Bth::read(&out.datagram).expect("a packet of an engine");
    let (ext, rest) = SrcExt::read(rest).expect("a packet of an engine");
    // The WRITE as a later message, or, after all of these, as itself.
    let engine = &mut ends.nodes[1].engine;
    let mut come = |message: u32, behind: u32| {
        let number = ext.psn64(bth.psn) + u64::from(behind);
        let bth = Bth {
            psn: Psn::from_wire(number as u32),
            ..bth
        };
        let ext = SrcExt {
            psn_high: number >> 24,
            msn: ext.msn.wrapping_add(message),
            ..ext
        };
        let mut datagram = bth.to_bytes().to_vec();
        datagram.extend(ext.to_bytes());
        datagram.extend(rest);
        icrc::seal(&path, 0, &mut datagram);
        let mut burst = engine.burst(now);
        burst.handle_datagram(&arrival(path), &datagram);
    };
    for message in 1..=entries {
        come(message, message - 1);
    }
    come(0, entries);
    let executed = u64::from(entries) + 1;
    let before = ends.nodes[1].engine.live_objects().staged;
    assert!(before >= (entries as usize).saturating_sub(64), "{before}");
    let mut rounds = 0;
    while ends.nodes[1].engine.counters().executed < executed {
        let engine = &mut ends.nodes[1].engine;
        engine.handle_timeout(now);
        engine.poll_transmit(now, &mut out);
        rounds += 1;
        assert!(rounds < 1_000_000, "nothing moves");
    }
}
