//! Packets of a liar at a node with so many QPs that it reads ahead.

use crate::common::liar::{LAST, Liar, entry, generation_of};
use crate::common::scene::{LIFE, PEER, Scene};
use trunkline_conn::work::Status;
use trunkline_qpmap::{Attributes, FIRST_MSN, QpModify, QpType};
use trunkline_wire::{Answer, ControlKind, NakCode, Opcode, Qpn, Record, Syndrome};

/// QPs of every kind beside that of the scene.
fn crowd(scene: &mut Scene) -> Vec<Qpn> {
    let mut all = vec![scene.qp.qpn];
    for at in 0..320 {
        let kind = [QpType::Rc, QpType::Uc, QpType::Ud][at % 3];
        let qp = scene.pair.qp(1, kind);
        all.push(qp.qpn);
        let engine = &mut scene.pair.nodes[1].engine;
        match at % 5 {
            // In RESET.
            0 => {}
            1 => engine.destroy_qp(qp.qpn).expect("it was made"),
            2 => {
                let _ = engine.modify_qp(qp.qpn, &QpModify::Error);
            }
            _ if kind != QpType::Ud => {
                let attributes = Attributes {
                    remote: scene.liar.address(),
                    dest_qpn: Qpn::from_wire(1000 + at as u32),
                    ..Attributes::default()
                };
                scene.pair.take_to_rts(1, &qp, attributes, attributes);
                if at % 5 == 4 {
                    let engine = &mut scene.pair.nodes[1].engine;
                    let _ = engine.modify_qp(qp.qpn, &QpModify::Error);
                }
            }
            _ => {}
        }
    }
    all
}

#[test]
fn a_node_with_many_qps_reads_ahead_whatever_a_packet_is_about() {
    let mut scene = Scene::new();
    for wr_id in 0..8 {
        let place = scene.pair.sge(1, 64 * wr_id, 8);
        scene.pair.receive(&scene.qp, wr_id, &[place]);
    }
    let all = crowd(&mut scene);
    let life = scene.life;
    let edges = [
        0, 1, 2, 0xff, 0x100, 0xffff, 0x7f_ffff, 0x80_0000, 0xff_fffe, 0xff_ffff,
    ];
    let numbers: Vec<Qpn> = all
        .iter()
        .copied()
        .chain(edges.map(Qpn::from_wire))
        .chain((0..3000).map(|n| Qpn::from_wire((n * 5591) & 0xff_ffff)))
        .collect();
    for opcode in 0..=255u8 {
        let mut said = Vec::new();
        for (n, &dest_qp) in
            numbers
                .iter()
                .enumerate()
                .take(if opcode % 16 == 0 { 3400 } else { 40 })
        {
            let record = Record {
                opcode: Opcode(opcode),
                solicited: false,
                abort: false,
                generation: generation_of(LIFE, life),
                src_qp: PEER,
                replay_epoch: 0,
                dest_qp,
                msn: FIRST_MSN.wrapping_add(n as u32),
                offset: 0,
                length: 0,
            };
            said.extend(record.to_bytes());
            if said.len() > 1200 {
                scene.say(Opcode::SRC_PACKED, LAST, &said);
                said.clear();
            }
        }
        scene.say(Opcode::SRC_PACKED, LAST, &said);
        let _ = scene.liar.hears(&mut scene.pair);
    }
    for syndrome in [
        Syndrome::ACK_WITHOUT_CREDITS,
        Syndrome::RnrNak { timer: 3 },
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::InvalidRd),
    ] {
        for dests in numbers.chunks(50) {
            let entries: Vec<_> = dests
                .iter()
                .enumerate()
                .map(|(n, &requester)| Answer {
                    requester,
                    syndrome,
                    msn: n as u32,
                    generation: 0,
                    replay_epoch: 7,
                    responder: Qpn::from_wire(n as u32),
                })
                .collect();
            scene.liar.answers(&mut scene.pair, &entries);
            let _ = scene.liar.hears(&mut scene.pair);
        }
    }
    // Parts of entries.
    for length in 0..40 {
        scene.say(Opcode::SRC_ANSWERS, LAST, &vec![1; length]);
        scene.say(Opcode::SRC_PACKED, LAST, &vec![0xff; length]);
    }
    // What is honest goes on.
    scene.post(77, trunkline_conn::work::SendOp::Send, 0);
    let _ = scene.liar.hears(&mut scene.pair);
    scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 1, 0);
    assert!(scene.statuses().contains(&Status::Success));
}

#[test]
fn a_node_with_many_qps_outlives_their_end_amid_a_packet() {
    let mut scene = Scene::new();
    let all = crowd(&mut scene);
    for (n, qpn) in all.iter().enumerate().skip(1) {
        let _ = scene.pair.nodes[1].engine.destroy_qp(*qpn);
        if n % 40 == 0 {
            scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 0, 0);
            let unbind = entry(ControlKind::Unbind, 1000 + n as u32, *qpn, 1, 1);
            scene.liar.control(&mut scene.pair, &[unbind]);
            let _ = Liar::new(&mut scene.pair, 30 + (n / 40) as u8);
        }
    }
}
