//! Packets of records as a peer that lies makes them.

use crate::common::liar::{LAST, Liar, entry, generation_of};
use crate::common::scene::{LIFE, PEER, Scene};
use crate::packs::{BODY, SUM, opcode};
use trunkline_qpmap::FIRST_MSN;
use trunkline_wire::{Answer, Control, ControlKind, NakCode, Opcode, Qpn, Record, Syndrome};

/// A SEND of 8 bytes from the liar's QP to nobody.
const SEND: Record = Record {
    opcode: Opcode::SRC_SEND,
    solicited: false,
    abort: false,
    generation: 0,
    src_qp: PEER,
    replay_epoch: 0,
    dest_qp: Qpn::from_wire(0),
    msn: 0,
    offset: 0,
    length: 8,
};

/// The same to the scene's QP.
fn send(scene: &Scene, number: u32) -> Vec<u8> {
    let record = Record {
        generation: generation_of(LIFE, scene.life),
        dest_qp: scene.qp.qpn,
        msn: FIRST_MSN.wrapping_add(number),
        ..SEND
    };
    [&record.to_bytes()[..], &[number as u8; 8]].concat()
}

/// The same to a QP that is not there, another one for each number.
fn to_nobody(scene: &Scene, number: u32) -> Vec<u8> {
    let mut record = send(scene, number);
    let [_, dest @ ..] = (number + 1).to_be_bytes();
    record[4..7].copy_from_slice(&dest);
    record
}

fn scene() -> Scene {
    let scene = Scene::new();
    for wr_id in 0..8 {
        scene
            .pair
            .receive(&scene.qp, wr_id, &[scene.pair.sge(1, 64 * wr_id, 8)]);
    }
    scene
}

fn received(scene: &Scene) -> Vec<u64> {
    let done = scene.pair.completions(1);
    done.iter().map(|done| done.wr_id).collect()
}

#[test]
fn a_packet_cut_short_anywhere_moves_nothing_or_whole_records() {
    let whole = {
        let scene = scene();
        [send(&scene, 0), send(&scene, 1), send(&scene, 2)].concat()
    };
    for length in 0..=whole.len() {
        let mut scene = scene();
        let said = [send(&scene, 0), send(&scene, 1), send(&scene, 2)].concat();
        scene.say(Opcode::SRC_PACKED, LAST, &said[..length]);
        let behind = length % 28;
        let malformed = behind >= 20;
        let counters = scene.counters();
        assert_eq!(counters.malformed, u64::from(malformed), "{length}");
        let whole = if malformed { 0 } else { length / 28 };
        assert_eq!(received(&scene).len(), whole, "{length}");
    }
}

#[test]
fn records_come_in_any_order_twice_and_for_others_and_each_has_its_own_fate() {
    let mut scene = scene();
    let foreign = {
        let mut foreign = send(&scene, 0);
        foreign[4..7].copy_from_slice(&[0xff, 0xff, 0xfe]);
        foreign
    };
    let said = [
        send(&scene, 2),
        send(&scene, 1),
        foreign,
        send(&scene, 0),
        send(&scene, 0),
        send(&scene, 3),
    ];
    scene.say(Opcode::SRC_PACKED, LAST, &said.concat());
    assert_eq!(received(&scene), [0, 1, 2, 3]);
    for number in 0..4 {
        let arrived = scene.pair.nodes[1].buffer.get(64 * number, 8);
        assert_eq!(arrived, [number as u8; 8]);
    }
    let counters = scene.counters();
    assert_eq!((counters.unknown_qp, counters.duplicate), (1, 1));
    let heard = scene.liar.hears(&mut scene.pair);
    let answers: Vec<Answer> = heard
        .iter()
        .filter(|datagram| opcode(datagram) == Opcode::SRC_ANSWERS)
        .flat_map(|datagram| Answer::entries(&datagram[BODY..datagram.len() - SUM]))
        .flat_map(|entries| entries.map(|entry| entry.expect("it is well formed")))
        .collect();
    let nobody = Qpn::from_wire(0x00ff_fffe);
    let of = |qp: Qpn| answers.iter().find(|answer| answer.responder == qp);
    let nak = of(nobody).expect("it is told").syndrome;
    assert_eq!(nak, Syndrome::Nak(NakCode::InvalidRd));
    let done = of(scene.qp.qpn).expect("it is told");
    assert_eq!(done.msn, FIRST_MSN.wrapping_add(4));
}

#[test]
fn packets_of_records_neither_nest_nor_carry_what_has_no_number() {
    for inner in [
        Opcode::SRC_PACKED,
        Opcode::SRC_ACK,
        Opcode::SRC_CLOSE,
        Opcode(0x04),
    ] {
        let mut scene = scene();
        let mut bad = send(&scene, 1);
        bad[7] = inner.0;
        let said = [send(&scene, 0), bad].concat();
        scene.say(Opcode::SRC_PACKED, LAST, &said);
        assert_eq!(scene.counters().malformed, 1, "{inner}");
        assert_eq!(received(&scene), [], "{inner}");
    }
}

#[test]
fn a_packet_that_makes_no_sense_is_not_acknowledged() {
    let mut scene = scene();
    let cut = send(&scene, 0);
    let packet = scene
        .liar
        .packet(Opcode::SRC_PACKED, LAST, &cut[..cut.len() - 1]);
    for times in 1..=2 {
        scene.pair.deliver(1, std::slice::from_ref(&packet));
        let counters = scene.counters();
        assert_eq!((counters.malformed, counters.duplicate), (times, 0));
    }
}

#[test]
fn a_record_that_had_to_wait_asks_for_its_event_as_others_do() {
    let mut scene = scene();
    let said: Vec<_> = [2, 1, 0].map(|number| send(&scene, number)).into();
    let solicited = said.into_iter().map(|mut record| {
        record[8] |= 0x10;
        record
    });
    let solicited: Vec<_> = solicited.collect();
    scene.say(Opcode::SRC_PACKED, LAST, &solicited.concat());
    let done = scene.pair.completions(1);
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.solicited));
}

#[test]
fn an_empty_packet_is_accepted_and_says_nothing() {
    let mut scene = scene();
    for padding in [0, 1, 19, 20, 400] {
        scene.say(Opcode::SRC_PACKED, LAST, &vec![0; padding]);
    }
    let counters = scene.counters();
    assert_eq!((counters.malformed, counters.packed_received), (0, 5));
    scene.say(Opcode::SRC_PACKED, LAST, &send(&scene, 0));
    assert_eq!(received(&scene), [0]);
}

/// A full table of what is still to be refused holds up no packet that has nothing of the kind.
#[test]
fn a_packet_that_would_be_refused_too_often_waits_and_others_do_not() {
    let mut scene = scene();
    let many: Vec<Vec<u8>> = (0..1200).map(|number| to_nobody(&scene, number)).collect();
    for packet in many.chunks(100) {
        scene.say(Opcode::SRC_PACKED, LAST, &packet.concat());
    }
    let counters = scene.counters();
    assert_eq!(counters.packed_received, 10, "room for 1024");
    assert_eq!(counters.control_overflow, 2);
    scene.say(Opcode::SRC_PACKED, LAST, &many[1000..1024].concat());
    scene.say(Opcode::SRC_PACKED, LAST, &many[1199]);
    assert_eq!(scene.counters().control_overflow, 3, "it is full");
    scene.say(Opcode::SRC_PACKED, LAST, &send(&scene, 0));
    assert_eq!(received(&scene), [0]);
}

/// What is bound when a packet is looked at need not be when its records are: an UNBIND before them
/// makes requests of theirs that nobody may answer, where there is no room to say so.
#[test]
fn requests_behind_the_unbind_of_their_pair_are_not_done_and_find_no_more_room_than_others() {
    for told in [0, 1000] {
        let mut scene = scene();
        let many: Vec<Vec<u8>> = (0..told).map(|number| to_nobody(&scene, number)).collect();
        for packet in many.chunks(100) {
            scene.say(Opcode::SRC_PACKED, LAST, &packet.concat());
        }
        let unbind = entry(
            ControlKind::Unbind,
            PEER.get(),
            scene.qp.qpn,
            LIFE,
            scene.life,
        );
        let header = Record {
            opcode: Opcode::SRC_CONTROL,
            length: Control::LEN as u16,
            ..SEND
        };
        let mut said = [&header.to_bytes()[..], &unbind.to_bytes()].concat();
        (0..100).for_each(|number| said.extend(send(&scene, number)));
        scene.say(Opcode::SRC_PACKED, LAST, &said);
        assert_eq!(received(&scene), [], "{told}");
        let answers = |datagrams: &[Vec<u8>]| -> usize {
            let answers = datagrams
                .iter()
                .filter(|datagram| opcode(datagram) == Opcode::SRC_ANSWERS);
            answers
                .map(|at| (at.len() - BODY - SUM) / Answer::LEN)
                .sum()
        };
        let mut heard = 0;
        for _ in 0..100 {
            heard += answers(&scene.liar.hears(&mut scene.pair));
            scene.say(Opcode::SRC_PING, LAST, &[]);
        }
        assert!(heard <= 1024 + 1, "{heard} of {told} and 100");
        // Whoever else asks is told.
        let mut other = Liar::new(&mut scene.pair, 8);
        let asks = send(&scene, 0);
        other.say(&mut scene.pair, Opcode::SRC_PACKED, LAST, &asks);
        let heard = other.hears(&mut scene.pair);
        assert_eq!(answers(&heard), 1, "{told}");
    }
}
