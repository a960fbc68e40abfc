//! A port with little room, or none for a while: who may send, and that nobody starves.

use crate::common::watched::both;
use crate::common::{Node, Outbox, Pair, RingMemory};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::egress::{Egress, Transmitted};
use trunkline_conn::time::{MICROSECOND, MILLISECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::QpQueues;
use trunkline_wire::{Bth, IpFields, Opcode, Path, SrcExt};

/// Where management goes in these tests.
const LOOP: Path = Path {
    src: IpAddr::V4(Ipv4Addr::LOCALHOST),
    dst: IpAddr::V4(Ipv4Addr::LOCALHOST),
    src_port: 0,
    traffic_class: 0,
    ip: IpFields::DEFAULT,
};

/// Rounds of both nodes, `step_ns` apart, for `span_ns`.
fn pace(pair: &mut Pair, span_ns: u64, step_ns: u64) {
    let end = pair.now + span_ns;
    while pair.now < end {
        for i in [0, 1] {
            pair.step(i);
        }
        pair.now = pair.now + step_ns;
    }
}

#[test]
fn what_a_full_port_refused_is_sent_as_soon_as_it_has_room() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    let sge = [pair.sge(1, 0, 64)];
    for id in 0..8 {
        pair.receive(&b, id, &sge);
    }
    // The path is measured: probes come soon.
    for id in 0..4 {
        pair.post(0, &a, id, SendOp::Send, &[pair.sge(0, 0, 64)]);
        pair.run(MILLISECOND);
    }
    assert_eq!(pair.completions(0).len(), 4);
    pair.post(0, &a, 9, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.fate = Box::new(|from, _| from);
    pair.step(0);
    // It was lost, and for a second the port has no room to send it again.
    pair.fate = Box::new(|_, _| 1);
    pair.room = Some(0);
    pace(&mut pair, 1000 * MILLISECOND, 50 * MICROSECOND);
    pair.room = None;
    pace(&mut pair, 2 * MILLISECOND, MICROSECOND);
    assert_eq!(pair.completions(0).len(), 1, "sent again at once");
}

#[test]
fn what_is_in_flight_keeps_its_timer_while_the_port_is_full() {
    let mut pair = Pair::new(1);
    // QPs without a clock of their own.
    let [a, b] = both(&mut pair, (0, 0));
    for id in 0..4 {
        pair.receive(&b, id, &[pair.sge(1, 0, 1000)]);
    }
    // No timer of what bound them is left.
    pair.run(1000 * MILLISECOND);
    for id in 0..3 {
        pair.post(0, &a, id, SendOp::Send, &[pair.sge(0, 0, 1000)]);
    }
    pair.room = Some(1);
    assert_eq!(pair.sent_by(0).len(), 1, "and the others wait for room");
    let next = pair.nodes[0].engine.poll_timeout();
    let next = next.expect("one packet is in flight").since(pair.now);
    assert!(next < 100 * MILLISECOND, "it is asked after in {next} ns");
}

/// Bytes that the packets of a test carry at most.
const PAYLOAD: u32 = 1024;

/// A stream of WRITEs from node 1: as many as the queue takes, posted again as they complete.
struct Stream {
    qp: Arc<QpQueues<RingMemory>>,
    under_way: usize,
    bytes: u32,
}

impl Stream {
    const DEPTH: usize = 8;

    fn new(qp: Arc<QpQueues<RingMemory>>, bytes: u32) -> Self {
        let under_way = 0;
        Self {
            qp,
            under_way,
            bytes,
        }
    }

    fn feed(&mut self, pair: &Pair) {
        while self.under_way < Self::DEPTH {
            let Node { buffer, key, .. } = &pair.nodes[0];
            let target = SendOp::Write(Remote {
                addr: buffer.addr + 4096,
                rkey: *key,
            });
            let id = STREAM | u64::from(self.qp.index);
            pair.post(1, &self.qp, id, target, &[pair.sge(1, 0, self.bytes)]);
            self.under_way += 1;
        }
    }
}

/// Completions of streams carry this bit.
const STREAM: u64 = 1 << 32;

/// Takes completions of node 1; those of streams are posted again, the others given.
fn reap(pair: &Pair, streams: &mut [Stream]) -> Vec<u64> {
    let mut others = Vec::new();
    for done in pair.completions(1) {
        assert_eq!(done.status, Status::Success);
        match streams
            .iter_mut()
            .find(|stream| done.wr_id == STREAM | u64::from(stream.qp.index))
        {
            Some(stream) => stream.under_way -= 1,
            None => others.push(done.wr_id),
        }
    }
    for stream in streams {
        stream.feed(pair);
    }
    others
}

/// The opcode of a shared connection's datagram, its connection, and the QP that it is for.
fn label(datagram: &[u8]) -> (Opcode, u32, u32) {
    let (bth, rest) = Bth::read(datagram).expect("a BTH");
    let (ext, _) = SrcExt::read(rest).expect("an extension header");
    (bth.opcode, bth.dest_qp.get(), ext.dest_qp.get())
}

fn is_data(opcode: Opcode) -> bool {
    opcode == Opcode::SRC_WRITE || opcode == Opcode::SRC_SEND
}

/// One round of both nodes, a microsecond: what node 1 sent.
fn round(pair: &mut Pair) -> Vec<(Path, Vec<u8>)> {
    let room = pair.room.take();
    pair.step(0);
    pair.room = room;
    let sent = pair.sent_by(1);
    pair.deliver(0, &sent);
    pair.now = pair.now + MICROSECOND;
    sent
}

#[test]
fn an_answer_leaves_within_its_delay_and_a_few_packets_at_any_room() {
    for room in [1, 2, 3, 4, 7, 8, 16, 40, 64, 100] {
        let mut pair = Pair::new(1);
        let [a, b] = pair.connected();
        let [_, far] = pair.connected();
        let mut streams = [Stream::new(far, 256 << 10)];
        pair.receive(&b, 1, &[pair.sge(1, 8192, 64)]);
        streams[0].feed(&pair);
        pair.room = Some(room);
        for _ in 0..2000 {
            round(&mut pair);
            reap(&pair, &mut streams);
        }
        pair.post(0, &a, 7, SendOp::Send, &[pair.sge(0, 0, 64)]);
        let mut waited = 0;
        while pair.completions(0).is_empty() {
            round(&mut pair);
            reap(&pair, &mut streams);
            waited += 1;
            // A delay of 50 us, a round trip, and a few packets.
            assert!(waited < 50 + 10 + 16 / room, "{waited} rounds of {room}");
        }
    }
}

#[test]
fn a_bind_leaves_and_is_answered_within_a_few_packets_at_any_room() {
    for room in [1, 2, 4, 16] {
        let mut pair = Pair::new(1);
        pair.control = Some(CongestionControl::None);
        let [_, stream] = pair.connected();
        let mut streams = [Stream::new(stream, 256 << 10)];
        pair.run(MILLISECOND);
        reap(&pair, &mut streams);
        pair.room = Some(room);
        for _ in 0..200 {
            round(&mut pair);
            reap(&pair, &mut streams);
        }
        // Node 1 has to ask, and then to consent to what the other asks.
        let [asked, asker] = pair.connected();
        pair.receive(&asked, 7, &[pair.sge(0, 0, 64)]);
        pair.post(1, &asker, 7, SendOp::Send, &[pair.sge(1, 0, 64)]);
        let (mut data, mut done) = (0, false);
        for _ in 0..400 {
            let sent = round(&mut pair);
            let opcodes = sent.iter().map(|(_, datagram)| label(datagram).0);
            data += opcodes.filter(|opcode| is_data(*opcode)).count();
            done |= reap(&pair, &mut streams).contains(&7);
            if done {
                break;
            }
        }
        assert!(done, "room {room}: it was not bound, nor was its SEND done");
        assert!(data >= room, "room {room}: nothing was in the way");
        assert!(data <= 8 * room + 64, "room {room}: after {data} packets");
    }
}

#[test]
fn each_of_many_connections_sends_within_as_many_turns_at_any_room() {
    const CONNECTIONS: usize = 5;
    /// Packets of a whole turn.
    const TURN: usize = 64;
    for room in [1, 2, 3, 5, 8, 16, 63, 64, 65, 100] {
        let mut pair = Pair::new(0);
        pair.control = Some(CongestionControl::None);
        (0..CONNECTIONS).for_each(|_| pair.open());
        let mut streams: Vec<Stream> = (0..CONNECTIONS)
            .map(|_| Stream::new(pair.connected()[1].clone(), 256 << 10))
            .collect();
        for stream in &mut streams {
            stream.feed(&pair);
        }
        pair.room = Some(room);
        // Since when each has not sent, in packets of data; and how often it did.
        let mut sent: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        let mut total = 0;
        while total < 6000 {
            for (_, datagram) in round(&mut pair) {
                let (opcode, connection, _) = label(&datagram);
                if !is_data(opcode) {
                    continue;
                }
                total += 1;
                let (last, count) = sent.entry(connection).or_insert((total, 0));
                let gap = total - *last;
                (*last, *count) = (total, *count + 1);
                assert!(gap <= (CONNECTIONS - 1) * TURN + 1, "{gap} at {room}");
            }
            reap(&pair, &mut streams);
        }
        assert_eq!(sent.len(), CONNECTIONS, "at {room}");
        let counts = sent.values().map(|(_, count)| *count);
        let (least, most) = (
            counts.clone().min().expect("some were counted"),
            counts.max().expect("some were counted"),
        );
        assert!(most - least <= 3 * TURN, "{least} to {most} at {room}");
    }
}

#[test]
fn a_large_message_delays_its_neighbours_by_a_few_packets_only() {
    let mut pair = Pair::new(1);
    let [_, large] = pair.connected();
    let [_, other] = pair.connected();
    let mut streams = [
        Stream::new(large.clone(), 512 << 10),
        Stream::new(other.clone(), 512 << 10),
    ];
    for stream in &mut streams {
        stream.feed(&pair);
    }
    let (mut run, mut last, mut longest, mut changes) = (0, 0, 0, 0);
    for at in 0..2000 {
        for (_, datagram) in round(&mut pair) {
            let (opcode, _, qp) = label(&datagram);
            if !is_data(opcode) {
                continue;
            }
            changes += u32::from(qp != last);
            run = if qp == last { run + 1 } else { 1 };
            last = qp;
            // Both have something to send from the first round on.
            if at > 10 {
                longest = longest.max(run);
            }
        }
        reap(&pair, &mut streams);
    }
    assert!(changes > 100, "{changes}");
    // The end of one message and the beginning of another may go in one turn.
    assert!(longest <= 2 * 4096 / PAYLOAD, "{longest} packets in a row");
}

#[test]
fn what_goes_first_gets_half_of_a_full_port_and_none_of_its_kinds_starves() {
    for room in [1, 2, 3, 8, 20] {
        let mut pair = Pair::new(0);
        pair.control = Some(CongestionControl::None);
        pair.open();
        let [a, b] = pair.connected();
        let [_, far] = pair.connected();
        let mut streams = [Stream::new(far, 256 << 10)];
        streams[0].feed(&pair);
        let (mut managed, mut data, mut answers, mut others) = (0_u32, 0_u32, 0_u32, 0_u32);
        let mut under_way = 0;
        for at in 0..4000 {
            // Somebody has requests answered all the time.
            if at % 4 == 0 && under_way < 32 {
                pair.receive(&b, 1, &[pair.sge(1, 8192, 64)]);
                pair.post(0, &a, 7, SendOp::Send, &[pair.sge(0, 0, 64)]);
                under_way += 1;
            }
            pair.step(0);
            let mut outbox = Outbox::default();
            outbox.room = Some(room);
            let engine = &mut pair.nodes[1].engine;
            engine.handle_timeout(pair.now);
            engine.handle_doorbells();
            // Connection managers could fill the port alone.
            let mut manage = |out: &mut Outbox| match out.reserve(&LOOP, 300) {
                Some(slot) => {
                    slot.datagram.fill(0);
                    out.commit();
                    Transmitted::Packet
                }
                None => Transmitted::NoRoom,
            };
            engine.poll_transmit_with(pair.now, &mut outbox, &mut manage);
            engine.publish();
            let (first, rest): (Vec<_>, Vec<_>) =
                outbox.sent.into_iter().partition(|(path, _)| *path == LOOP);
            managed += first.len() as u32;
            for (_, datagram) in &rest {
                let (opcode, ..) = label(datagram);
                data += u32::from(is_data(opcode));
                others += u32::from(!is_data(opcode));
                answers += u32::from(opcode == Opcode::SRC_ANSWERS);
            }
            pair.deliver(0, &rest);
            pair.now = pair.now + MICROSECOND;
            reap(&pair, &mut streams);
            under_way -= pair.completions(0).len();
        }
        let all = 4000 * room as u32;
        assert!(managed > all / 4, "{managed} of {all} at {room}");
        // Each round is half theirs; before the first was over nobody knew that room is short.
        let first = managed + others;
        assert!(first <= data + 2 * 32, "{first} and {data} at {room}");
        assert!(first + data >= all * 9 / 10, "{first} and {data} at {room}");
        assert!(answers >= 50, "{answers} of {all} at {room}");
    }
}

/// A full port is waited for: what is due meanwhile wakes nobody.
#[test]
fn an_acknowledgement_that_waits_for_room_is_no_reason_to_wake() {
    let mut pair = Pair::new(1);
    let [a, b] = both(&mut pair, (0, 0));
    pair.receive(&b, 0, &[pair.sge(1, 0, 64)]);
    pair.run(1000 * MILLISECOND);
    pair.post(0, &a, 0, SendOp::Send, &[pair.sge(0, 0, 64)]);
    let sent = pair.sent_by(0);
    pair.room = Some(0);
    pair.deliver(1, &sent);
    assert_eq!(pair.sent_by(1).len(), 0);
    for _ in 0..3 {
        pair.now = pair.now + 50 * MILLISECOND;
        assert_eq!(pair.sent_by(1).len(), 0);
        let next = pair.nodes[1].engine.poll_timeout();
        assert!(next.is_none_or(|next| next > pair.now), "{next:?}");
    }
    pair.room = None;
    assert!(!pair.sent_by(1).is_empty(), "it leaves when there is room");
}
