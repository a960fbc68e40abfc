//! Packets that several messages share: what fits, to the byte, and what does not.

use crate::common::watched::{both, graced};
use crate::common::{Outbox, Pair};
use crate::packs::{BODY, Qp, SUM, connected, opcode, outcomes, pair, records, send_one_each};
use crate::watch::{GRACE, SHORT, on_tiny_path, write};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{SendOp, Status};
use trunkline_wire::{Answer, Control, Opcode, Path, Record};

/// Most bytes of records in a packet.
const MOST: usize = 4096;
/// Most bytes of control messages in it.
const CONTROL: usize = 1024;

/// Node `from` has each QP send so many bytes, whose receive is there.
fn send(pair: &Pair, from: usize, qps: &[[Qp; 2]], lengths: &[u32]) {
    for (number, (qp, &length)) in (0..).zip(qps.iter().zip(lengths)) {
        pair.receive(&qp[1 - from], number, &[pair.sge(1 - from, 8192, length)]);
        let bytes = pair.sge(from, 0, length);
        pair.post(from, &qp[from], number, SendOp::Send, &[bytes]);
    }
}

fn opcodes(sent: &[(Path, Vec<u8>)]) -> Vec<Opcode> {
    sent.iter().map(|(_, at)| opcode(at)).collect()
}

#[test]
fn a_message_of_512_bytes_shares_a_packet_and_a_longer_one_does_not() {
    for (length, expected) in [
        (512, &[Opcode::SRC_PACKED][..]),
        (513, &[Opcode::SRC_SEND; 2]),
    ] {
        let mut pair = pair();
        let qps = connected(&mut pair, 2);
        send(&pair, 0, &qps, &[length; 2]);
        let sent = pair.sent_by(0);
        assert_eq!(opcodes(&sent), expected, "{length}");
        pair.deliver(1, &sent);
        pair.run(MILLISECOND);
        assert_eq!(outcomes(&pair, 0).len(), 2, "{length}");
    }
}

#[test]
fn records_fill_a_packet_to_its_last_byte_and_not_beyond() {
    // With its header one is an eighth of a packet.
    const LENGTH: u32 = (MOST / 8 - Record::LEN) as u32;
    for (last, counts) in [(LENGTH, &[8][..]), (LENGTH + 1, &[7, 1])] {
        let mut pair = pair();
        let qps = connected(&mut pair, 8);
        let mut lengths = [LENGTH; 8];
        lengths[7] = last;
        send(&pair, 0, &qps, &lengths);
        let sent = pair.sent_by(0);
        let carried = |(_, at): &(Path, Vec<u8>)| match opcode(at) {
            Opcode::SRC_PACKED => records(at).len(),
            _ => 1,
        };
        let carried: Vec<_> = sent.iter().map(carried).collect();
        assert_eq!(carried, counts, "{last}");
        if last == LENGTH {
            assert_eq!(sent[0].1.len(), BODY + MOST + SUM);
        }
    }
}

/// A port that has room for one packet, and after that for datagrams of so many bytes.
struct Shrinking {
    outbox: Outbox,
    then: usize,
}

impl Egress for Shrinking {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if !self.outbox.sent.is_empty() && length > self.then {
            return None;
        }
        self.outbox.reserve(path, length)
    }

    fn commit(&mut self) {
        self.outbox.commit();
    }
}

/// The message that closes a packet is longer than all that was in it: a port that has room for
/// another packet of that kind need not have any for this.
#[test]
fn a_message_that_is_longer_than_the_packet_before_it_waits_for_a_port_that_takes_it() {
    let mut pair = Pair::with(0, 1024 + 80);
    pair.packs = true;
    pair.open();
    let qps = connected(&mut pair, 3);
    send(&pair, 0, &qps, &[230, 230, 512]);
    let mut port = Shrinking {
        outbox: Outbox::default(),
        // Enough for as much as the first one says, and not for the third message alone.
        then: BODY + 2 * (Record::LEN + 230) + SUM,
    };
    let engine = &mut pair.nodes[0].engine;
    engine.handle_doorbells();
    engine.poll_transmit(pair.now, &mut port);
    engine.publish();
    let sent = port.outbox.sent;
    assert_eq!(opcodes(&sent), [Opcode::SRC_PACKED]);
    assert_eq!(records(&sent[0].1).len(), 2);
    pair.deliver(1, &sent);
    pair.run(MILLISECOND);
    assert_eq!(outcomes(&pair, 0).len(), 3);
    assert_eq!(pair.nodes[0].engine.delivery_counters().lost, 0);
}

/// Bytes of answers that are gathered where there is room for so many of control messages: as long
/// as two of the longer kind would fit.
const fn gathered(room: usize) -> usize {
    match room.checked_sub(2 * Control::LEN) {
        Some(rest) => (rest / Answer::LEN + 1) * Answer::LEN,
        None => 0,
    }
}

/// Lets 20 QPs of node 1 owe an answer, while seven others and one of `last` bytes have something
/// to say: what that comes to.
fn answers_beside(last: u32) -> Vec<(Path, Vec<u8>)> {
    let mut pair = pair();
    let qps = connected(&mut pair, 28);
    send_one_each(&pair, &qps[..20]);
    let asked = pair.sent_by(0);
    pair.deliver(1, &asked);
    let mut lengths = [492; 8];
    lengths[7] = last;
    send(&pair, 1, &qps[20..], &lengths);
    let sent = pair.sent_by(1);
    pair.deliver(0, &sent);
    pair.run(MILLISECOND);
    let mut done = outcomes(&pair, 0);
    done.retain(|(_, status)| *status == Status::Success);
    assert_eq!(done.len(), 20 + 8, "{last}");
    sent
}

#[test]
fn control_messages_join_a_packet_as_far_as_it_has_room_for_them_and_their_header() {
    let full = BODY + MOST + SUM;
    for last in (280..=492).step_by(4) {
        let sent = answers_beside(last);
        assert!(sent.iter().all(|(_, at)| at.len() <= full), "{last}");
        let first = records(&sent[0].1);
        let left = 492 - last as usize;
        let room = left.saturating_sub(Record::LEN);
        let said: usize = first
            .iter()
            .filter(|record| record.opcode == Opcode::SRC_ANSWERS)
            .map(|record| usize::from(record.length))
            .sum();
        // Room for less than four of the longer kind is not worth it.
        let worth = room >= 4 * Control::LEN;
        let most = if worth { gathered(room) } else { 0 };
        assert_eq!(said, most.min(20 * Answer::LEN), "{left} bytes were left");
    }
}

#[test]
fn so_many_control_messages_join_a_packet_as_get_over_any_path() {
    let mut pair = pair();
    let qps = connected(&mut pair, 120);
    send_one_each(&pair, &qps);
    let sent = pair.sent_by(0);
    pair.deliver(1, &sent);
    send(&pair, 1, &qps[..1], &[64]);
    let sent = pair.sent_by(1);
    let control = records(&sent[0].1);
    let control = control
        .iter()
        .filter(|record| record.opcode != Opcode::SRC_SEND)
        .map(|record| usize::from(record.length));
    let said: Vec<_> = control.collect();
    assert_eq!(said, [gathered(CONTROL)]);
    pair.deliver(0, &sent);
    pair.run(10 * MILLISECOND);
    assert_eq!(outcomes(&pair, 0).len(), 121);
}

/// Three connections carried nothing of a long message, the fourth does, slowly: what packets of
/// several messages say of other QPs meanwhile does not make that vain.
#[test]
fn a_long_message_that_is_carried_at_last_lives_beside_small_ones_that_share_packets() {
    let mut pair = graced(0, GRACE);
    pair.packs = true;
    pair.open();
    let [long, _] = both(&mut pair, SHORT);
    let small = [(); 3].map(|()| both(&mut pair, SHORT));
    write(&pair, &long, 1, 1 << 20);
    assert_eq!(on_tiny_path(&mut pair, 3), (3, None));
    pair.room = Some(2);
    pair.fate = Box::new(|_, _| 1);
    for _ in 0..50 {
        pair.step(0);
        pair.step(1);
        pair.now = pair.now + MILLISECOND / 10;
    }
    assert_eq!(pair.completions(0), []);
    // What acknowledges comes now and then, so that packets are under way all the time.
    let mut rounds = 0;
    pair.fate = Box::new(move |from, _| {
        rounds += from;
        usize::from(from == 0 || rounds % 3 == 0)
    });
    let mut idle: Vec<_> = small.iter().collect();
    let mut end = None;
    for _ in 0..20_000 {
        idle.drain(..).for_each(|[qp, _]| write(&pair, qp, 2, 64));
        for node in [0, 1] {
            pair.step(node);
        }
        pair.now = pair.now + 15 * MILLISECOND;
        for done in pair.completions(0) {
            idle.extend(small.iter().find(|[qp, _]| qp.qpn == done.qpn));
            end = end.or((done.qpn == long.qpn).then_some(done.status));
        }
        if end.is_some() {
            break;
        }
    }
    assert_eq!(end, Some(Status::Success));
    assert!(pair.nodes[0].engine.counters().packed_sent > 100);
}
