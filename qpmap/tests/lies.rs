//! A peer that completed the handshake and then lies: about what it asks for, what it has done, and
//! whose life it speaks of.

use crate::common::liar::{LAST, Liar, entry};
use crate::common::scene::{LIFE, PEER, Scene};
use crate::common::{Pair, RingMemory};
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{MAX_MESSAGE, Remote, SendOp, Status};
use trunkline_qpmap::{Attributes, FIRST_MSN, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::{ControlKind, NakCode, Opcode, Qpn, Reth, Rkey, SrcExt, Syndrome, icrc};

#[test]
fn a_write_is_checked_whole_whichever_of_its_packets_comes_first() {
    let mut scene = Scene::new();
    let size = scene.pair.nodes[1].buffer.bytes.len();
    let second = SrcExt {
        last: false,
        offset: 8,
        ..scene.ext()
    };
    let reth = scene.reth(size as u64 - 16, 32);
    scene.say(Opcode::SRC_WRITE, second, &Scene::rest(&reth, &[7; 8]));
    assert_eq!(scene.counters().nak_sent, 1);
    assert_eq!(scene.pair.nodes[1].buffer.get(size - 8, 8), [0; 8]);
}

#[test]
fn a_write_that_no_message_can_be_as_long_as_is_an_invalid_request() {
    for (length, event) in [
        (MAX_MESSAGE, QpEvent::AccessError),
        (MAX_MESSAGE + 1, QpEvent::RequestError),
    ] {
        let mut scene = Scene::new();
        let first = SrcExt {
            last: false,
            ..scene.ext()
        };
        let reth = scene.reth(0, length);
        scene.say(Opcode::SRC_WRITE, first, &Scene::rest(&reth, &[7; 8]));
        assert_eq!(scene.events(), [event], "{length} bytes");
        assert_eq!(scene.pair.nodes[1].buffer.get(0, 8), [0; 8]);
    }
}

#[test]
fn packets_of_one_message_are_of_one_kind() {
    let mut scene = Scene::new();
    let inbox = scene.pair.sge(1, 4096, 64);
    scene.pair.receive(&scene.qp, 1, &[inbox]);
    let begins = SrcExt {
        last: false,
        ..scene.ext()
    };
    let reth = scene.reth(0, 16);
    scene.say(Opcode::SRC_WRITE, begins, &Scene::rest(&reth, &[7; 8]));
    let ends = SrcExt {
        offset: 8,
        ..scene.ext()
    };
    scene.say(Opcode::SRC_SEND, ends, &[7; 8]);
    assert_eq!(scene.counters().nak_sent, 1);
    assert_eq!(scene.statuses(), [Status::Flushed]);
}

/// The first half of a message is said twice, and all but its last packet is there, as it seems.
#[test]
fn a_message_whose_first_bytes_are_said_twice_is_an_invalid_request() {
    a_message_in_these_packets_is_an_invalid_request([(0, false), (0, false), (8, true)]);
}

#[test]
fn a_message_of_which_more_was_said_than_its_last_packet_leaves_is_an_invalid_request() {
    a_message_in_these_packets_is_an_invalid_request([(0, false), (4, false), (4, true)]);
}

/// Packets of 4 bytes of a SEND, or 8 of a WRITE: where each begins, and whether it is the last.
fn a_message_in_these_packets_is_an_invalid_request(packets: [(u32, bool); 3]) {
    for (opcode, status) in [
        (Opcode::SRC_SEND, Status::RemoteInvalidRequest),
        (Opcode::SRC_WRITE_IMM, Status::Flushed),
    ] {
        let mut scene = Scene::new();
        let inbox = scene.pair.sge(1, 4096, 64);
        scene.pair.receive(&scene.qp, 1, &[inbox]);
        let reth = scene.reth(0, 12);
        for (offset, end) in packets {
            let ext = SrcExt {
                last: end,
                offset,
                ..scene.ext()
            };
            let rest = match opcode {
                Opcode::SRC_SEND => vec![7; 4],
                _ => Scene::rest(&reth, &[7; 8]),
            };
            scene.say(opcode, ext, &rest);
        }
        assert_eq!(scene.events(), [QpEvent::RequestError], "{opcode:?}");
        assert_eq!(scene.statuses(), [status], "{opcode:?}");
    }
}

/// Every way to say 4 bytes in two pieces and a last packet, which comes before, between or behind
/// them: it is the message, or refused as soon as the last packet and as many bytes as it leaves
/// are there, or waits.
#[test]
fn whatever_pieces_a_message_is_said_in_and_in_whatever_order_it_is_whole_or_refused() {
    const LENGTH: u32 = 4;
    let pieces = (0..LENGTH).flat_map(|at| (1..=LENGTH - at).map(move |length| (at, length)));
    let pieces: Vec<(u32, u32)> = pieces.collect();
    for opcode in [Opcode::SRC_SEND, Opcode::SRC_WRITE_IMM] {
        for (first, second) in pieces
            .iter()
            .flat_map(|a| pieces.iter().map(move |b| (*a, *b)))
        {
            for (begins, turn) in (0..LENGTH).flat_map(|at| (0..3).map(move |turn| (at, turn))) {
                let mut said = vec![(first, false), (second, false)];
                said.insert(turn, ((begins, LENGTH - begins), true));
                let expected = outcome_of(&said, begins);
                let found = outcome(opcode, &said, LENGTH);
                assert_eq!(found, expected, "{opcode:?} in {said:?}");
            }
        }
    }
}

/// A piece of a message, and whether it is in the last packet.
type Said = ((u32, u32), bool);

/// `Some(true)`: the message is done; `Some(false)`: it is refused.
fn outcome_of(said: &[Said], begins: u32) -> Option<bool> {
    let (mut ended, mut bytes, mut counts) = (false, 0, [0; 8]);
    for ((at, length), last) in said {
        ended |= last;
        if !last {
            bytes += length;
            counts[*at as usize..][..*length as usize]
                .iter_mut()
                .for_each(|count| *count += 1);
        }
        if ended && bytes >= begins {
            let (rest, behind) = counts.split_at(begins as usize);
            let whole = rest.iter().all(|n| *n == 1) && behind.iter().all(|n| *n == 0);
            return Some(whole);
        }
    }
    None
}

/// The same of an engine.
fn outcome(opcode: Opcode, said: &[Said], length: u32) -> Option<bool> {
    let mut scene = Scene::new();
    let inbox = scene.pair.sge(1, 4096, 64);
    scene.pair.receive(&scene.qp, 1, &[inbox]);
    let reth = scene.reth(0, length);
    for ((at, length), last) in said {
        let ext = SrcExt {
            last: *last,
            offset: *at,
            ..scene.ext()
        };
        let data = vec![7; *length as usize];
        let rest = match opcode {
            Opcode::SRC_SEND => data,
            // An immediate stands before the data.
            _ => Scene::rest(&reth, &[vec![0; 4], data].concat()),
        };
        scene.say(opcode, ext, &rest);
    }
    let refused = scene.events() == [QpEvent::RequestError];
    let done = scene.statuses() == [Status::Success];
    (refused || done).then_some(done)
}

/// Its first part came in one replay epoch, and all of it comes in the next one.
#[test]
fn a_message_that_is_said_again_in_a_later_epoch_begins_anew() {
    let mut scene = Scene::new();
    let inbox = scene.pair.sge(1, 4096, 64);
    scene.pair.receive(&scene.qp, 1, &[inbox]);
    for (replay_epoch, offset, last, byte) in [(0, 0, false, 6), (1, 0, false, 7), (1, 4, true, 7)]
    {
        let ext = SrcExt {
            replay_epoch,
            offset,
            last,
            ..scene.ext()
        };
        scene.say(Opcode::SRC_SEND, ext, &[byte; 4]);
    }
    assert_eq!(scene.statuses(), [Status::Success]);
    assert_eq!(scene.pair.nodes[1].buffer.get(4096, 8), [7; 8]);
}

#[test]
fn a_read_whose_first_bytes_are_said_twice_has_no_answer_that_makes_sense() {
    let mut scene = Scene::new();
    scene.read(1, 0);
    assert_eq!(scene.hears(Opcode::SRC_READ_REQ, MILLISECOND), 1);
    let first = SrcExt {
        last: false,
        ..scene.ext()
    };
    for _ in 0..2 {
        scene.say(Opcode::SRC_READ_RESP, first, &[0x5a; 4]);
    }
    assert_eq!(scene.statuses(), [Status::BadResponse]);
    assert_eq!(scene.counters().bad_answer, 1);
}

#[test]
fn a_peer_says_no_more_bytes_of_a_read_than_it_has() {
    let mut scene = Scene::new();
    scene.read(1, 0);
    assert_eq!(scene.hears(Opcode::SRC_READ_REQ, MILLISECOND), 1);
    let said: [(u32, &[u8]); 3] = [(0, &[0x5a; 4]), (1, &[0x66; 5]), (4, &[0x5a; 4])];
    for (offset, data) in said {
        let ext = SrcExt {
            last: false,
            offset,
            ..scene.ext()
        };
        scene.say(Opcode::SRC_READ_RESP, ext, data);
    }
    assert_eq!(scene.counters().bad_answer, 1);
    assert_eq!(scene.statuses(), [Status::Success]);
    assert_eq!(scene.pair.nodes[1].buffer.get(0, 8), [0x5a; 8]);
}

#[test]
fn the_abort_of_another_life_ends_nothing() {
    let mut scene = Scene::new();
    let mut abort = SrcExt {
        abort: true,
        ..scene.ext()
    };
    abort.generation ^= 1;
    scene.say(Opcode::SRC_VOID, abort, &[]);
    assert_eq!(scene.counters().stale, 1);
    assert_eq!(scene.qp.state(), QpState::Rts);
    abort.generation ^= 1;
    scene.say(Opcode::SRC_VOID, abort, &[]);
    assert_eq!(scene.qp.state(), QpState::Error);
}

#[test]
fn who_asks_a_qp_that_has_just_gone_hears_its_last_word_and_no_refusal() {
    let mut scene = Scene::new();
    let qpn = scene.qp.qpn;
    let gone = scene.pair.nodes[1].engine.destroy_qp(qpn);
    gone.expect("it is there");
    let (of_this_life, mut of_another) = (scene.ext(), scene.ext());
    of_another.generation ^= 1;
    scene.say(Opcode::SRC_SEND, of_this_life, &[7; 8]);
    let heard = scene.liar.hears(&mut scene.pair);
    let opcodes: Vec<_> = heard.iter().map(|one| Opcode(one[0])).collect();
    assert_eq!(opcodes, [Opcode::SRC_CONTROL]);
    scene.say(Opcode::SRC_SEND, of_another, &[7; 8]);
    assert_eq!(scene.hears(Opcode::SRC_ANSWERS, MILLISECOND), 1);
}

#[test]
fn a_refusal_stands_and_is_said_again_in_each_round() {
    let mut pair = Pair::new(0);
    let mut liar = Liar::new(&mut pair, 9);
    let qp = pair.qp(1, QpType::Src);
    let attributes = Attributes::default();
    pair.take_to_rts(1, &qp, attributes, attributes);
    let bind = entry(ControlKind::Bind, PEER.get(), qp.qpn, LIFE, 0);
    liar.control(&mut pair, &[bind]);
    let life = liar.hears_control(&mut pair)[0].status;
    let mut scene = Scene {
        pair,
        liar,
        qp,
        life,
    };
    let good = scene.reth(0, 8);
    let bad = Reth {
        rkey: Rkey(good.rkey.0 ^ 1),
        ..good
    };
    for (round, reth) in [(0, bad), (1, good), (2, good)] {
        let ext = SrcExt {
            replay_epoch: round,
            ..scene.ext()
        };
        scene.say(Opcode::SRC_WRITE, ext, &Scene::rest(&reth, &[7; 8]));
        assert_eq!(scene.hears(Opcode::SRC_ANSWERS, MILLISECOND), 1, "{round}");
    }
    assert_eq!(scene.pair.nodes[1].buffer.get(0, 8), [0; 8]);
    assert_eq!(scene.counters().nak_sent, 1);
}

#[test]
fn no_more_reads_are_answered_at_a_time_than_were_agreed_on() {
    let agreed = u32::from(Attributes::default().max_dest_rd_atomic);
    let read = |scene: &mut Scene, number: u32, ahead: u32| {
        let ext = SrcExt {
            msn: FIRST_MSN.wrapping_add(number),
            offset: ahead,
            ..scene.ext()
        };
        let reth = scene.reth(0, 8);
        scene.say(Opcode::SRC_READ_REQ, ext, &Scene::rest(&reth, &[]));
        scene.pair.nodes[1].engine.live_objects().responses
    };
    let mut scene = Scene::new();
    assert_eq!(read(&mut scene, 0, agreed), 0);
    assert_eq!(scene.counters().nak_sent, 1);
    let mut scene = Scene::new();
    for number in 0..agreed {
        assert_eq!(read(&mut scene, number, number) as u32, number + 1);
    }
    // As if one from before all of them came again.
    assert!(read(&mut scene, u32::MAX, 0) as u32 <= agreed);
    assert_eq!(scene.counters().nak_sent, 1);
}

#[test]
fn data_of_a_read_that_is_complete_stand() {
    let mut scene = Scene::new();
    scene.post_reads(1, &[0, 64]);
    let answer = |scene: &mut Scene, number: u32, byte: u8| {
        let ext = SrcExt {
            msn: FIRST_MSN.wrapping_add(number),
            ..scene.ext()
        };
        scene.say(Opcode::SRC_READ_RESP, ext, &[byte; 8]);
    };
    answer(&mut scene, 1, 7);
    answer(&mut scene, 1, 9);
    assert_eq!(scene.pair.nodes[1].buffer.get(64, 8), [7; 8]);
    assert_eq!(scene.counters().bad_answer, 1);
    answer(&mut scene, 0, 5);
    assert_eq!(scene.statuses(), [Status::Success; 2]);
}

#[test]
fn a_read_is_complete_when_all_its_data_came_though_no_packet_says_that_it_is_the_last() {
    const PART: u32 = 64;
    for excess in [0, 1, 3] {
        let mut scene = Scene::new();
        let from = SendOp::Read(Remote {
            addr: 0,
            rkey: Rkey(1),
        });
        let into = scene.pair.sge(1, 0, 4 * PART);
        scene.pair.post(1, &scene.qp, 1, from, &[into]);
        assert_eq!(scene.hears(Opcode::SRC_READ_REQ, MILLISECOND), 1);
        let packets: Vec<_> = (0..4 + excess)
            .map(|number| {
                let ext = SrcExt {
                    offset: PART * number.min(3),
                    ..scene.ext()
                };
                scene.streamed(
                    Opcode::SRC_READ_RESP,
                    ext,
                    &[number as u8 + 1; PART as usize],
                )
            })
            .collect();
        let before = scene.counters();
        scene.pair.deliver(1, &packets);
        let after = scene.counters();
        assert_eq!(after.streamed - before.streamed, 2, "{excess} too many");
        assert_eq!(scene.statuses(), [Status::Success], "{excess} too many");
        assert_eq!(scene.pair.nodes[1].buffer.get(3 * PART as usize, 8), [4; 8]);
        assert_eq!(after.bad_icrc + after.malformed, 0);
    }
}

#[test]
fn nothing_is_done_before_it_is_posted() {
    let mut scene = Scene::new();
    scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 5, 0);
    assert_eq!(scene.counters().bad_answer, 1);
    scene.post(1, SendOp::Send, 0);
    assert_eq!(scene.hears(Opcode::SRC_SEND, MILLISECOND), 1);
    scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 0, 0);
    assert_eq!(scene.statuses(), []);
    scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 1, 0);
    assert_eq!(scene.statuses(), [Status::Success]);
}

#[test]
fn a_pause_ends_by_its_own_timer() {
    // 655.36 ms.
    let pause = Syndrome::RnrNak { timer: 0 };
    let mut scene = Scene::new();
    scene.post(1, SendOp::Send, 0);
    assert_eq!(scene.hears(Opcode::SRC_SEND, MILLISECOND), 1);
    scene.answer(pause, 0, 0);
    assert_eq!(scene.hears(Opcode::SRC_SEND, 300 * MILLISECOND), 0);
    // It is asked for before the pause is over, and not taken again.
    scene.answer(Syndrome::Nak(NakCode::PsnSequence), 0, 0);
    assert_eq!(scene.hears(Opcode::SRC_SEND, 2 * MILLISECOND), 1);
    scene.answer(pause, 0, 1);
    assert_eq!(scene.hears(Opcode::SRC_SEND, 600 * MILLISECOND), 0);
    assert_eq!(scene.hears(Opcode::SRC_SEND, 100 * MILLISECOND), 1);
}

#[test]
fn a_bind_that_goes_on_with_another_life_is_refused() {
    let mut scene = Scene::new();
    let number = scene.qp.qpn;
    let bind = entry(
        ControlKind::Bind,
        PEER.get(),
        number,
        LIFE + 1,
        scene.life + 1,
    );
    scene.liar.control(&mut scene.pair, &[bind]);
    let said = scene.liar.hears_control(&mut scene.pair);
    let kinds: Vec<_> = said.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [ControlKind::Refused]);
}

#[test]
fn a_write_with_immediate_touches_nothing_before_there_is_a_receive() {
    let mut scene = Scene::new();
    let reth = scene.reth(0, 8);
    let rest = Scene::rest(&reth, &[[0, 0, 0, 3], [7; 4], [7; 4]].concat());
    let ext = scene.ext();
    scene.say(Opcode::SRC_WRITE_IMM, ext, &rest);
    assert_eq!(scene.counters().rnr_sent, 1);
    assert_eq!(scene.pair.nodes[1].buffer.get(0, 8), [0; 8]);
}

#[test]
fn a_bind_of_another_peer_takes_no_qp_from_plain_rc() {
    let mut pair = Pair::new(0);
    pair.ibta = true;
    let [_, qp] = pair.connected();
    let named = Qpn::from_wire(0x77);
    let attributes = Attributes {
        remote: IpAddr::from([10, 0, 0, 1]).into(),
        dest_qpn: named,
        ..Attributes::default()
    };
    let other = pair.qp(1, QpType::Rc);
    pair.take_to_rts(1, &other, attributes, attributes);
    let mut liar = Liar::new(&mut pair, 9);
    for (src, dest) in [(named, &other), (Qpn::from_wire(0x78), &qp)] {
        let bind = entry(ControlKind::Bind, src.get(), dest.qpn, LIFE, 0);
        liar.control(&mut pair, &[bind]);
        let from = [pair.sge(1, 0, 8)];
        pair.post(1, dest, 1, SendOp::Send, &from);
        let sent = pair.sent_by(1);
        let send = |(path, datagram): &(trunkline_wire::Path, Vec<u8>)| {
            Opcode(datagram[0]) == Opcode::RC_SEND_ONLY && path.dst == IpAddr::from([10, 0, 0, 1])
        };
        assert!(sent.iter().any(send));
    }
}

#[test]
fn a_connection_in_the_place_of_another_is_none_but_itself() {
    let mut pair = Pair::new(0);
    let mut liar = Liar::new(&mut pair, 9);
    // An acknowledgement is due soon, so that a timer is armed.
    liar.say(&mut pair, Opcode::SRC_PING, LAST, &[]);
    pair.run(1_000);
    let gone = liar.conn;
    pair.nodes[1].engine.close_connection(gone);
    let mut next = Liar::new(&mut pair, 9);
    let engine = &pair.nodes[1].engine;
    assert!(!engine.is_open(gone) && engine.is_open(next.conn));
    // It has a clock of its own: it is kept alive.
    let heard: Vec<Vec<u8>> = (0..11)
        .flat_map(|_| {
            pair.now = pair.now + SECOND;
            next.hears(&mut pair)
        })
        .collect();
    assert!(heard.iter().any(|one| Opcode(one[0]) == Opcode::SRC_PING));
}

#[test]
fn an_identification_that_no_sender_of_ours_has_is_not_made_up() {
    let mut scene = Scene::new();
    for (identification, good) in [(127, true), (128, false), (0xffff, false)] {
        let before = scene.counters();
        let (path, mut datagram) = scene.liar.packet(Opcode::SRC_PING, LAST, &[]);
        icrc::seal(&path, identification, &mut datagram);
        scene.pair.deliver(1, &[(path, datagram)]);
        let bad = scene.counters().bad_icrc - before.bad_icrc;
        assert_eq!(bad == 0, good, "{identification}");
    }
}

#[test]
fn a_peer_lives_and_is_served_while_what_waited_of_another_is_done() {
    const MANY: u32 = 28_728;
    /// Packets of the liar in each round.
    const BATCH: u32 = 64;
    // A flow gets a quarter of the room for what waits: enough for all of it.
    let mut scene = Scene::of(Pair::with_staging(0, 1104, 64 << 20));
    scene.pair.open();
    let [a, _b] = scene.pair.connected();
    scene.pair.run(5 * MILLISECOND);
    let reth = scene.reth(0, 1);
    let rest = Scene::rest(&reth, &[7]);
    let write = |scene: &mut Scene, msn: u32| {
        let msn = FIRST_MSN.wrapping_add(msn);
        let ext = SrcExt { msn, ..scene.ext() };
        scene.liar.packet(Opcode::SRC_WRITE, ext, &rest)
    };
    let mut honest = Honest::new(a);
    let before = scene.counters();
    for first in (1..=MANY).step_by(BATCH as usize) {
        let packets: Vec<_> = (first..=MANY.min(first + BATCH - 1))
            .map(|msn| write(&mut scene, msn))
            .collect();
        scene.pair.deliver(1, &packets);
        honest.round(&mut scene.pair);
    }
    let waiting = scene.counters().staged - before.staged;
    assert_eq!(waiting, MANY.into());
    // The missing one comes: each round does some of what waited for it.
    let missing = write(&mut scene, 0);
    scene.pair.deliver(1, &[missing]);
    let waits = |scene: &Scene| scene.pair.nodes[1].engine.live_objects().staged;
    let mut left = waits(&scene);
    assert!(left >= MANY as usize - 64, "{left}");
    while left > 0 {
        honest.round(&mut scene.pair);
        let now = waits(&scene);
        assert!(now < left && left - now <= 256, "{now} of {left}");
        left = now;
    }
    assert!(scene.counters().executed > before.executed + u64::from(MANY));
    assert!(honest.done > 20, "{}", honest.done);
}

/// A QP of node 0 with one WRITE under way at any time.
struct Honest {
    qp: Arc<QpQueues<RingMemory>>,
    /// WRITEs that are complete.
    done: u64,
    /// Rounds that the present one has taken; `None`: there is none.
    waited: Option<u32>,
}

impl Honest {
    const fn new(qp: Arc<QpQueues<RingMemory>>) -> Self {
        Self {
            qp,
            done: 0,
            waited: None,
        }
    }

    /// A round of both nodes, a microsecond.
    fn round(&mut self, pair: &mut Pair) {
        if self.waited.is_none() {
            let target = SendOp::Write(Remote {
                addr: pair.nodes[1].buffer.addr + 4096,
                rkey: pair.nodes[1].key,
            });
            pair.post(0, &self.qp, self.done, target, &[pair.sge(0, 0, 64)]);
        }
        pair.step(0);
        pair.step(1);
        pair.now = pair.now + 1_000;
        let waited = self.waited.map_or(1, |waited| waited + 1);
        self.waited = Some(waited);
        assert!(waited < 10, "{waited} rounds for one WRITE");
        for done in pair.completions(0) {
            assert_eq!((done.wr_id, done.status), (self.done, Status::Success));
            (self.done, self.waited) = (self.done + 1, None);
        }
    }
}

/// A READ that is held back by one before it must not be skipped: it would be sent after later
/// ones, and everything that looks for READs relies on their order.
#[test]
fn nothing_is_said_of_a_request_that_was_not_sent_yet() {
    let mut scene = Scene::with_reads(Pair::new(0), 1);
    scene.read(1, 0);
    scene.post(2, SendOp::Send, 64);
    scene.read(3, 128);
    scene.hears(Opcode::SRC_SEND, 5 * MILLISECOND);
    scene.answer(Syndrome::RnrNak { timer: 1 }, 1, 0);
    let before = scene.counters().bad_answer;
    // The SEND was executed; and so was the READ behind it, which waits for the first one.
    scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 3, 0);
    assert_eq!(scene.counters().bad_answer, before + 1);
    scene.read(4, 192);
    scene.hears(Opcode::SRC_SEND, 5 * MILLISECOND);
    scene.data(0, 0);
    assert_eq!(scene.statuses(), [Status::Success]);
    scene.answer(Syndrome::ACK_WITHOUT_CREDITS, 2, 1);
    assert_eq!(scene.statuses(), [Status::Success]);
    for number in [2, 3] {
        assert_eq!(scene.hears(Opcode::SRC_READ_REQ, 5 * MILLISECOND), 1);
        scene.data(100, 1);
        scene.data(number, 1);
        assert_eq!(scene.statuses(), [Status::Success], "READ {number}");
    }
}

/// Whatever a peer answers, each request ends once, and no call takes for ever.
#[test]
fn a_peer_may_answer_anything_in_any_order() {
    for seed in 0..300 {
        let mut random = Secret::from_seed(seed).stream(Purpose::Nodes);
        let mut below = |n: u64| (random.next_u64() % n) as u32;
        let reads = [1, 2, 5, 255][below(4) as usize];
        let mut scene = Scene::with_reads(Pair::new(0), reads);
        let (mut posted, mut ended, mut round, mut done) = (0, 0, 0_u8, 0_u32);
        for _ in 0..300 {
            match below(11) {
                0 | 1 if posted < 60 => {
                    posted += 1;
                    match below(3) {
                        0 => scene.post(posted, SendOp::Send, 64),
                        _ => scene.read(posted, 128),
                    }
                }
                2 | 3 => {
                    let ns = [1, 5, 20][below(3) as usize] * MILLISECOND;
                    scene.hears(Opcode::SRC_SEND, ns);
                }
                4..=6 => {
                    let syndrome = match below(9) {
                        0..=3 => Syndrome::ACK_WITHOUT_CREDITS,
                        4 | 5 => Syndrome::RnrNak { timer: 1 },
                        _ => Syndrome::Nak(NakCode::PsnSequence),
                    };
                    let number = (done + below(6)).saturating_sub(below(2));
                    if below(3) == 0 {
                        done = done.max(number);
                    }
                    let old = u8::from(below(16) == 0);
                    scene.answer(syndrome, number, round.wrapping_sub(old));
                }
                7..=9 => {
                    let number = (done + below(4)).saturating_sub(below(4));
                    scene.data(number, round.wrapping_sub(u8::from(below(4) == 0)));
                }
                _ => round = round.wrapping_add(u8::from(below(3) == 0)),
            }
            ended += scene.statuses().len() as u64;
            assert!(ended <= posted, "seed {seed}");
        }
    }
}

#[test]
fn a_plain_qp_in_error_is_not_taken_up_by_a_bind() {
    let mut pair = Pair::new(0);
    let qp = pair.qp(1, QpType::Rc);
    let remote: trunkline_wire::Gid = IpAddr::from([10, 0, 0, 9]).into();
    let attributes = Attributes {
        remote,
        dest_qpn: PEER,
        ..Attributes::default()
    };
    pair.take_to_rts(1, &qp, attributes, attributes);
    pair.nodes[1].engine.peer_is_ibta(remote);
    pair.sent_by(1);
    let engine = &mut pair.nodes[1].engine;
    engine
        .modify_qp(qp.qpn, &QpModify::Error)
        .expect("a legal step");
    let mut liar = Liar::new(&mut pair, 9);
    let bind = entry(ControlKind::Bind, PEER.get(), qp.qpn, LIFE, 0);
    liar.control(&mut pair, &[bind]);
    let said = liar.hears_control(&mut pair);
    let kinds: Vec<_> = said.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [ControlKind::Refused]);
}

#[test]
fn a_plain_qp_that_is_destroyed_before_its_turn_is_not_served() {
    let mut pair = Pair::new(0);
    pair.ibta = true;
    let [qp, _] = pair.connected();
    pair.run(MILLISECOND);
    pair.post(0, &qp, 1, SendOp::Send, &[pair.sge(0, 0, 8)]);
    let engine = &mut pair.nodes[0].engine;
    engine.handle_doorbells();
    engine.destroy_qp(qp.qpn).expect("it is there");
    assert!(pair.sent_by(0).is_empty());
}

#[test]
fn a_peer_that_has_searched_for_numbers_finds_no_app_managed_qp_either() {
    let mut pair = Pair::new(0);
    let leaf = pair.qp(1, QpType::Src);
    let attributes = Attributes::default();
    pair.take_to_rts(1, &leaf, attributes, attributes);
    let mut liar = Liar::new(&mut pair, 9);
    let bind = |dest: u32| entry(ControlKind::Bind, 5, Qpn::from_wire(dest), 7, 0);
    let mut guess = leaf.qpn.get();
    while pair.nodes[1].engine.counters().control_overflow == 0 {
        guess ^= 1 << 20;
        guess += 1;
        liar.control(&mut pair, &[bind(guess)]);
        liar.hears(&mut pair);
    }
    liar.control(&mut pair, &[bind(leaf.qpn.get())]);
    assert_eq!(pair.nodes[1].engine.live_objects().flows, 0);
    assert_eq!(liar.hears_control(&mut pair), [], "as of any other number");
    // It is served once it has paused.
    pair.run(SECOND);
    liar.control(&mut pair, &[bind(leaf.qpn.get())]);
    assert_eq!(pair.nodes[1].engine.live_objects().flows, 1);
}

#[test]
fn consent_that_comes_when_the_asker_is_in_error_counts_as_stale() {
    let mut pair = Pair::new(0);
    let mut liar = Liar::new(&mut pair, 9);
    let asker = pair.qp(1, QpType::Rc);
    let to_liar = Attributes {
        remote: liar.address(),
        dest_qpn: Qpn::from_wire(5),
        ..Attributes::default()
    };
    pair.take_to_rts(1, &asker, to_liar, to_liar);
    let said = liar.hears_control(&mut pair);
    let ask = said.iter().find(|said| said.kind == ControlKind::Bind);
    let ask = *ask.expect("it asks");
    let failed = pair.nodes[1].engine.modify_qp(asker.qpn, &QpModify::Error);
    failed.expect("it is there");
    let bound = entry(ControlKind::Bound, 5, asker.qpn, ask.generation, 7);
    liar.control(&mut pair, &[bound]);
    let counters = pair.nodes[1].engine.counters();
    assert_eq!((counters.bound, counters.stale), (0, 1));
}
