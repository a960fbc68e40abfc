//! Unreliable connections and datagrams, rule by rule and against captured traffic.

mod common;

use common::bench::{ADDR, KEY, MTU, PRIVATE, SIZE, remote, with_imm, with_invalidate, with_reth};
use common::capture::{self, Seen};
use common::{Port, Qp, Region, path, pattern, receive, request, sge};
use std::net::{IpAddr, Ipv6Addr};
use trunkline_conn::host::QpEvent;
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::mem::{Access, AtomicOp, Order, PdId};
use trunkline_conn::rc::{Dropped, Mtu, State};
use trunkline_conn::work::{Extra, SendFlags, SendOp, Status, WorkOpcode};
use trunkline_conn::{uc, ud};
use trunkline_testkit::captures;
use trunkline_wire::{
    Deth, Ipv4, Ipv6, Opcode, Operation, Packet, Path, Psn, Qpn, Rkey, Transport, Udp,
    parse_datagram,
};

const FULL: [u8; MTU] = [7; MTU];
const QKEY: u32 = 0x1111_1111;

fn qp() -> Qp {
    let mut qp = Qp::default();
    qp.ram.regions = vec![
        Region::new(KEY, ADDR, pattern(1, SIZE)),
        Region {
            access: Access::LOCAL_WRITE,
            ..Region::new(PRIVATE, ADDR, pattern(2, SIZE))
        },
    ];
    qp
}

fn post_receives(qp: &mut Qp, count: u64, length: u32) {
    for wr_id in 0..count {
        qp.receives
            .push_back(receive(wr_id, sge(PRIVATE, ADDR, length)));
    }
}

fn uc_config() -> uc::Config {
    uc::Config {
        qpn: common::bench::US,
        dest_qpn: common::bench::PEER,
        path: path(1, 2),
        path_mtu: Mtu::B256,
        sq_psn: common::bench::psn(0),
        rq_psn: common::bench::psn(0),
        pkey: 0xffff,
        pd: PdId(0),
        access: Access::ALL,
        send_capacity: 4,
    }
}

struct Uc {
    engine: uc::UnreliableConnection,
    qp: Qp,
    port: Port,
}

impl Uc {
    fn new(config: uc::Config) -> Self {
        Self {
            engine: uc::UnreliableConnection::new(config),
            qp: qp(),
            port: Port::default(),
        }
    }

    fn feed(&mut self, packet: Packet<'_>) -> Result<(), Dropped> {
        let mut datagram = vec![0; packet.length()];
        packet.emit(&mut datagram);
        let packet = parse_datagram(&datagram).expect("the test builds what parses");
        self.engine.handle_packet(&packet, &mut self.qp)
    }

    fn sent(&mut self) -> Vec<Seen> {
        while self
            .engine
            .poll_transmit(&mut self.qp, &mut self.port)
            .is_packet()
        {}
        std::iter::from_fn(|| self.port.take())
            .map(|datagram| Seen::new(0, &datagram))
            .collect()
    }
}

fn packet(opcode: Opcode, number: u32, payload: &[u8]) -> Packet<'_> {
    common::bench::packet(opcode, number, payload)
}

#[test]
fn uc_messages_go_out_in_packets_and_are_done_when_they_have_left() {
    let mut uc = Uc::new(uc_config());
    let long = request(
        0,
        SendOp::WriteImm(remote(8), 7),
        sge(PRIVATE, ADDR, 2 * MTU as u32),
    );
    let mut short = request(1, SendOp::SendImm(6), sge(PRIVATE, ADDR, 3));
    short.flags = short.flags.with(SendFlags::SOLICITED);
    assert!(uc.engine.post_send(long).is_ok() && uc.engine.post_send(short).is_ok());
    uc.port.room = 1;
    assert_eq!(uc.sent().len(), 1);
    assert!(uc.qp.sent.is_empty());
    uc.port.room = usize::MAX;
    let sent = uc.sent();
    let opcodes: Vec<Opcode> = sent.iter().map(|one| one.bth.opcode).collect();
    assert_eq!(
        opcodes,
        [Opcode::UC_WRITE_LAST_IMM, Opcode::UC_SEND_ONLY_IMM]
    );
    assert!(sent.iter().all(|one| !one.bth.ack_req));
    assert!(sent[1].bth.solicited && sent[0].reth.is_none());
    assert_eq!(sent[1].bth.psn, common::bench::psn(2));
    let ends: Vec<_> = uc
        .qp
        .sent
        .iter()
        .map(|one| (one.wr_id, one.status))
        .collect();
    assert_eq!(ends, [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn uc_knows_no_reads_no_atomics_and_no_invalidation() {
    let mut uc = Uc::new(uc_config());
    let atomic = SendOp::Atomic(remote(0), AtomicOp::FetchAdd { add: 1 });
    for op in [
        SendOp::Read(remote(0)),
        atomic,
        SendOp::SendInvalidate(Rkey(1)),
    ] {
        let mut uc = Uc::new(uc_config());
        let first = request(4, SendOp::Send, sge(PRIVATE, ADDR, 8));
        assert!(uc.engine.post_send(first).is_ok());
        let unknown = request(5, op, sge(PRIVATE, ADDR, 8));
        assert!(uc.engine.post_send(unknown).is_ok());
        assert_eq!(uc.sent().len(), 1, "what precedes it is sent");
        let ends: Vec<_> = uc.qp.sent.iter().map(|one| one.status).collect();
        assert_eq!(ends, [Status::Success, Status::LocalQpOperation]);
        assert_eq!(uc.engine.state(), State::SendError);
    }
    for wr_id in 0..5 {
        let fits = uc
            .engine
            .post_send(request(wr_id, SendOp::Send, sge(PRIVATE, ADDR, 8)))
            .is_ok();
        assert_eq!(fits, wr_id < 4);
    }
}

#[test]
fn uc_local_memory_that_is_gone_ends_sending_until_the_program_resumes() {
    let mut uc = Uc::new(uc_config());
    post_receives(&mut uc.qp, 1, 1024);
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_FIRST, 0, &FULL)), Ok(()));
    let bad = request(0, SendOp::Send, sge(0x999, ADDR, 8));
    let good = request(1, SendOp::Send, sge(PRIVATE, ADDR, 8));
    assert!(uc.engine.post_send(bad).is_ok() && uc.engine.post_send(good).is_ok());
    assert!(uc.sent().is_empty());
    let ends: Vec<_> = uc.qp.sent.iter().map(|one| one.status).collect();
    assert_eq!(ends, [Status::LocalProtection, Status::Flushed]);
    assert_eq!(uc.engine.state(), State::SendError);
    let more = request(2, SendOp::Send, sge(PRIVATE, ADDR, 8));
    assert!(uc.engine.post_send(more.clone()).is_err());
    // Receiving goes on.
    let last = packet(Opcode::UC_SEND_LAST, 1, b"end");
    assert_eq!(uc.feed(last), Ok(()));
    assert_eq!(uc.qp.received[0].status, Status::Success);
    uc.engine.resume();
    assert!(uc.engine.post_send(more).is_ok());
    assert_eq!(uc.sent().len(), 1);
    uc.engine.abort(&mut uc.qp, Status::Flushed);
    uc.engine.resume();
    assert_eq!(uc.engine.state(), State::Error, "that is for good");
    let late = uc.feed(packet(Opcode::UC_SEND_ONLY, 2, b"end"));
    assert_eq!(late, Err(Dropped::QpInError));
}

#[test]
fn a_uc_message_that_failed_halfway_is_dropped_by_the_peer_and_the_next_one_arrives() {
    let mut from = Uc::new(uc_config());
    let mut to = Uc::new(uc::Config {
        qpn: common::bench::PEER,
        dest_qpn: common::bench::US,
        ..uc_config()
    });
    post_receives(&mut to.qp, 2, 1024);
    let long = request(0, SendOp::Send, sge(PRIVATE, ADDR, 3 * MTU as u32));
    assert!(from.engine.post_send(long).is_ok());
    from.port.room = 1;
    for one in from.sent() {
        assert_eq!(to.feed(one.packet()), Ok(()));
    }
    let regions = std::mem::take(&mut from.qp.ram.regions);
    from.port.room = usize::MAX;
    assert!(from.sent().is_empty());
    assert_eq!(from.engine.state(), State::SendError);
    from.qp.ram.regions = regions;
    from.engine.resume();
    let next = request(1, SendOp::Send, sge(PRIVATE, ADDR, 8));
    assert!(from.engine.post_send(next).is_ok());
    for one in from.sent() {
        assert_eq!(to.feed(one.packet()), Ok(()));
    }
    let ends: Vec<_> = to.qp.received.iter().map(|one| one.byte_len).collect();
    assert_eq!(ends, [8]);
}

#[test]
fn uc_messages_arrive_whole() {
    let mut uc = Uc::new(uc_config());
    post_receives(&mut uc.qp, 2, 1024);
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_FIRST, 0, &FULL)), Ok(()));
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_MIDDLE, 1, &FULL)), Ok(()));
    let last = with_imm(packet(Opcode::UC_SEND_LAST_IMM, 2, b"end"), 9);
    assert_eq!(uc.feed(last), Ok(()));
    let first = with_reth(packet(Opcode::UC_WRITE_FIRST, 3, &FULL), 4, MTU + 4);
    assert_eq!(uc.feed(first), Ok(()));
    let last = with_imm(packet(Opcode::UC_WRITE_LAST_IMM, 4, b"tail"), 8);
    assert_eq!(uc.feed(last), Ok(()));
    let [send, write] = uc.qp.received[..] else {
        panic!("two messages came");
    };
    assert_eq!(
        (send.byte_len, send.extra),
        (2 * MTU as u32 + 3, Extra::Immediate(9))
    );
    assert_eq!(
        (write.byte_len, write.extra),
        (MTU as u32 + 4, Extra::Immediate(8))
    );
    assert_eq!(write.opcode, WorkOpcode::ReceiveWriteImm);
    assert_eq!(uc.qp.ram.bytes(KEY, ADDR + 4 + MTU as u64, 4), b"tail");
    let orders = uc.qp.ram.orders.borrow();
    assert_eq!(orders[..], [Order::Any, Order::LastByteLast]);
    assert_eq!(uc.engine.stats().received_packets, 5);
}

#[test]
fn a_uc_message_with_a_gap_is_dropped_and_its_receive_serves_the_next() {
    let mut uc = Uc::new(uc_config());
    post_receives(&mut uc.qp, 1, 1024);
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_FIRST, 0, &FULL)), Ok(()));
    let gap = uc.feed(packet(Opcode::UC_SEND_MIDDLE, 2, &FULL));
    assert_eq!(gap, Err(Dropped::PartialMessage));
    let rest = uc.feed(packet(Opcode::UC_SEND_LAST, 3, b"end"));
    assert_eq!(rest, Err(Dropped::PartialMessage));
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_ONLY, 7, b"new")), Ok(()));
    assert_eq!(uc.qp.received.len(), 1);
    assert_eq!(
        (uc.qp.received[0].wr_id, uc.qp.received[0].byte_len),
        (0, 3)
    );
    assert_eq!(uc.qp.ram.bytes(PRIVATE, ADDR, 3), b"new");
    let twice = uc.feed(packet(Opcode::UC_SEND_ONLY, 7, b"new"));
    assert_eq!(twice, Err(Dropped::Duplicate));
}

#[test]
fn a_uc_message_that_begins_ends_the_one_before() {
    let mut uc = Uc::new(uc_config());
    post_receives(&mut uc.qp, 1, 1024);
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_FIRST, 0, &FULL)), Ok(()));
    assert_eq!(uc.feed(packet(Opcode::UC_SEND_ONLY, 1, b"new")), Ok(()));
    assert_eq!(uc.qp.received[0].byte_len, 3);
}

#[test]
fn half_a_circle_of_lost_packets_does_not_silence_uc() {
    let mut uc = Uc::new(uc_config());
    post_receives(&mut uc.qp, 1, 1024);
    let far = packet(Opcode::UC_SEND_ONLY, (1 << 23) + 5, b"new");
    assert_eq!(uc.feed(far), Ok(()));
}

#[test]
fn uc_packets_that_break_rules_are_dropped_with_their_message() {
    let write =
        |offset, length| with_reth(packet(Opcode::UC_WRITE_ONLY, 0, b"word"), offset, length);
    let rkey = |mut packet: Packet<'static>| {
        packet.reth.as_mut().expect("it is a WRITE").rkey = Rkey(PRIVATE);
        packet
    };
    let cases = [
        (packet(Opcode::UC_SEND_FIRST, 0, b"word"), Dropped::Refused),
        (
            packet(Opcode::UC_SEND_LAST, 0, b"word"),
            Dropped::PartialMessage,
        ),
        (
            packet(Opcode::UC_WRITE_MIDDLE, 0, &FULL),
            Dropped::PartialMessage,
        ),
        (write(0, 3), Dropped::Refused),
        (write(SIZE as u64 - 3, 4), Dropped::AccessDenied),
        (rkey(write(0, 4)), Dropped::AccessDenied),
        (packet(Opcode::UC_SEND_ONLY, 0, &FULL), Dropped::TooLong),
        (
            packet(Opcode::RC_SEND_ONLY, 0, b"word"),
            Dropped::WrongTransport,
        ),
    ];
    for (packet, reason) in cases {
        let mut uc = Uc::new(uc_config());
        post_receives(&mut uc.qp, 1, 8);
        let before = uc.qp.ram.bytes(KEY, ADDR, SIZE);
        assert_eq!(uc.feed(packet), Err(reason));
        assert_eq!(uc.engine.stats().dropped(reason), 1);
        assert!(uc.qp.ram.bytes(KEY, ADDR, SIZE) == before);
        assert!(uc.qp.received.is_empty());
        assert_eq!(uc.engine.state(), State::Ready);
    }
    let mut uc = Uc::new(uc_config());
    let lost = uc.feed(packet(Opcode::UC_SEND_ONLY, 0, b"word"));
    assert_eq!(lost, Err(Dropped::ReceiverNotReady));
    let mut uc = Uc::new(uc::Config {
        access: Access::LOCAL_WRITE,
        ..uc_config()
    });
    assert_eq!(uc.feed(write(0, 4)), Err(Dropped::Refused));
}

/// What becomes of two receives, of which the first names memory that is gone.
fn after_lost_memory(qp: &Qp) {
    let ends = qp.received.iter().map(|done| (done.wr_id, done.status));
    assert_eq!(ends.collect::<Vec<_>>(), [(0, Status::LocalProtection)]);
    assert_eq!(qp.events, [QpEvent::Fatal]);
    let sent = qp.sent.iter().map(|one| (one.wr_id, one.status));
    assert_eq!(sent.collect::<Vec<_>>(), [(5, Status::Flushed)]);
}

#[test]
fn a_uc_receive_into_memory_that_is_gone_ends_its_qp() {
    let mut uc = Uc::new(uc_config());
    post_receives(&mut uc.qp, 2, 8);
    let send = request(5, SendOp::Send, sge(PRIVATE, ADDR, 8));
    assert!(uc.engine.post_send(send).is_ok());
    uc.qp.ram.regions.pop();
    let word = packet(Opcode::UC_SEND_ONLY, 0, b"word");
    assert_eq!(uc.feed(word), Err(Dropped::LocalMemory));
    after_lost_memory(&uc.qp);
    assert_eq!(uc.engine.state(), State::Error);
    let next = packet(Opcode::UC_SEND_ONLY, 1, b"word");
    assert_eq!(uc.feed(next), Err(Dropped::QpInError));
}

#[test]
fn a_datagram_into_memory_that_is_gone_ends_its_qp() {
    let mut endpoint = ud::Endpoint::new(ud_config(0x32));
    let mut qp = qp();
    post_receives(&mut qp, 2, 44);
    let to = ud::Address {
        path: path(1, 2),
        qpn: Qpn::from_wire(2),
        qkey: QKEY,
    };
    let send = request(5, SendOp::Send, sge(PRIVATE, ADDR, 8));
    assert!(endpoint.post_send(send, Some(to)).is_ok());
    qp.ram.regions.pop();
    let (good, came) = (datagram(QKEY, b"word"), arrival(path(1, 2)));
    let fed = endpoint.handle_packet(&good, &came, &mut qp);
    assert_eq!(fed, Err(Dropped::LocalMemory));
    after_lost_memory(&qp);
    assert_eq!(endpoint.state(), State::Error);
    let next = endpoint.handle_packet(&good, &came, &mut qp);
    assert_eq!(next, Err(Dropped::QpInError));
}

#[test]
fn what_needs_a_receive_where_there_will_be_none_ends_its_qp() {
    let ended = |qp: &Qp| {
        assert_eq!(qp.events, [QpEvent::Fatal]);
        assert_eq!(qp.received, []);
        let sent = qp.sent.iter().map(|one| (one.wr_id, one.status));
        assert_eq!(sent.collect::<Vec<_>>(), [(5, Status::Flushed)]);
    };
    let send = || request(5, SendOp::Send, sge(PRIVATE, ADDR, 8));
    let mut uc = Uc::new(uc_config());
    uc.qp.receives_in_error = true;
    assert!(uc.engine.post_send(send()).is_ok());
    let word = packet(Opcode::UC_SEND_ONLY, 0, b"word");
    assert_eq!(uc.feed(word), Err(Dropped::ReceivesInError));
    ended(&uc.qp);
    assert_eq!(uc.engine.state(), State::Error);

    let mut endpoint = ud::Endpoint::new(ud_config(0x32));
    let mut qp = qp();
    qp.receives_in_error = true;
    let to = ud::Address {
        path: path(1, 2),
        qpn: Qpn::from_wire(2),
        qkey: QKEY,
    };
    assert!(endpoint.post_send(send(), Some(to)).is_ok());
    let (good, came) = (datagram(QKEY, b"word"), arrival(path(1, 2)));
    let fed = endpoint.handle_packet(&good, &came, &mut qp);
    assert_eq!(fed, Err(Dropped::ReceivesInError));
    ended(&qp);
    assert_eq!(endpoint.state(), State::Error);
}

fn ud_config(qpn: u32) -> ud::Config {
    ud::Config {
        qpn: Qpn::from_wire(qpn),
        mtu: Mtu::B1024,
        sq_psn: Psn::from_wire(0x00ff_ffff),
        pkey: 0xffff,
        qkey: QKEY,
        pd: PdId(0),
        send_capacity: 4,
    }
}

fn arrival(path: Path) -> Arrival {
    Arrival {
        path,
        identification: Identification::Seen(0x1234),
        ce: false,
        waited_ns: 0,
    }
}

#[test]
fn a_datagram_arrives_behind_the_header_it_came_with() {
    let v6 = |last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
    let over_v6 = Path {
        src: v6(1),
        dst: v6(2),
        ..path(1, 2)
    };
    for path in [path(1, 2), over_v6] {
        let mut from = ud::Endpoint::new(ud_config(0x31));
        let (mut sender, mut receiver, mut port) = (qp(), qp(), Port::default());
        let to = ud::Address {
            path,
            qpn: Qpn::from_wire(0x32),
            qkey: QKEY,
        };
        let data = request(3, SendOp::SendImm(5), sge(PRIVATE, ADDR, 5));
        assert!(from.post_send(data, Some(to)).is_ok());
        assert!(from.poll_transmit(&mut sender, &mut port).is_packet());
        assert_eq!(sender.sent[0].status, Status::Success);
        let datagram = port.take().expect("it was sent");
        let packet = parse_datagram(&datagram).expect("it parses");
        assert_eq!(packet.bth.psn.get(), 0x00ff_ffff);

        post_receives(&mut receiver, 1, 64);
        let mut there = ud::Endpoint::new(ud_config(0x32));
        let verdict = there.handle_packet(&packet, &arrival(path), &mut receiver);
        assert_eq!(verdict, Ok(()));
        let done = receiver.received[0];
        assert_eq!((done.byte_len, done.extra), (45, Extra::Immediate(5)));
        assert_eq!(done.src_qp, Qpn::from_wire(0x31));
        let bytes = receiver.ram.bytes(PRIVATE, ADDR, 45);
        assert_eq!(bytes[40..], sender.ram.bytes(PRIVATE, ADDR, 5));
        let udp = Udp::LEN + datagram.len();
        if path.src.is_ipv4() {
            assert!(bytes[..20].iter().all(|byte| *byte == 0));
            let (ip, _) = Ipv4::read(&bytes[20..40]).expect("its checksum is right");
            assert_eq!(
                (IpAddr::V4(ip.src), IpAddr::V4(ip.dst)),
                (path.src, path.dst)
            );
            assert_eq!((ip.identification, ip.protocol), (0x1234, Udp::PROTOCOL));
            assert_eq!(usize::from(ip.total_length), Ipv4::LEN + udp);
        } else {
            let (ip, _) = Ipv6::read(&bytes[..40]).expect("it is a header");
            assert_eq!(
                (IpAddr::V6(ip.src), IpAddr::V6(ip.dst)),
                (path.src, path.dst)
            );
            assert_eq!(usize::from(ip.payload_length), udp);
        }
    }
}

/// A datagram for QP 0x32.
fn datagram(qkey: u32, payload: &[u8]) -> Packet<'_> {
    let mut packet = packet(Opcode::UD_SEND_ONLY, 0, payload);
    packet.bth.dest_qp = Qpn::from_wire(0x32);
    packet.deth = Some(Deth {
        qkey,
        src_qp: Qpn::from_wire(0x31),
    });
    packet
}

#[test]
fn datagrams_that_break_rules_are_dropped_and_the_receive_serves_the_next() {
    let mut endpoint = ud::Endpoint::new(ud_config(0x32));
    let mut qp = qp();
    let came = arrival(path(1, 2));
    let mut feed = |qp: &mut Qp, packet: &Packet<'_>| endpoint.handle_packet(packet, &came, qp);
    let good = datagram(QKEY, b"word");
    assert_eq!(feed(&mut qp, &good), Err(Dropped::ReceiverNotReady));
    post_receives(&mut qp, 1, 44);
    assert_eq!(
        feed(&mut qp, &datagram(1, b"word")),
        Err(Dropped::WrongQkey)
    );
    assert_eq!(
        feed(&mut qp, &datagram(QKEY, b"longer..")),
        Err(Dropped::TooLong)
    );
    let mut other = good;
    other.bth.dest_qp = Qpn::from_wire(0x33);
    assert_eq!(feed(&mut qp, &other), Err(Dropped::WrongQp));
    other = good;
    other.bth.pkey = 0x1234;
    assert_eq!(feed(&mut qp, &other), Err(Dropped::WrongPartition));
    other = good;
    other.bth.opcode = Opcode::RC_SEND_ONLY;
    assert_eq!(feed(&mut qp, &other), Err(Dropped::WrongTransport));
    assert_eq!(feed(&mut qp, &good), Ok(()));
    assert_eq!(qp.received.len(), 1);
    assert_eq!((qp.received[0].wr_id, qp.received[0].byte_len), (0, 44));
    assert_eq!(feed(&mut qp, &good), Err(Dropped::ReceiverNotReady));
}

#[test]
fn ud_takes_sends_of_one_packet_and_lends_its_key() {
    let mut endpoint = ud::Endpoint::new(ud_config(0x31));
    let (mut qp, mut port) = (qp(), Port::default());
    let to = ud::Address {
        path: path(1, 2),
        qpn: Qpn::from_wire(0x32),
        qkey: 0x8000_0000,
    };
    let refused = [
        (SendOp::Send, 1025),
        (SendOp::Write(remote(0)), 4),
        (SendOp::SendInvalidate(Rkey(1)), 4),
    ];
    for (op, length) in refused {
        let mut endpoint = ud::Endpoint::new(ud_config(0x31));
        let (mut qp, mut port) = (self::qp(), Port::default());
        let first = request(4, SendOp::Send, sge(PRIVATE, ADDR, 4));
        assert!(endpoint.post_send(first.clone(), Some(to)).is_ok());
        let refused = request(5, op, sge(PRIVATE, ADDR, length));
        assert!(endpoint.post_send(refused, Some(to)).is_ok());
        assert!(endpoint.poll_transmit(&mut qp, &mut port).is_packet());
        assert!(!endpoint.poll_transmit(&mut qp, &mut port).is_packet());
        let expected = match length {
            1025 => Status::LocalLength,
            _ => Status::LocalQpOperation,
        };
        let ends: Vec<_> = qp.sent.iter().map(|one| one.status).collect();
        assert_eq!(ends, [Status::Success, expected]);
        assert_eq!(endpoint.state(), State::SendError);
        assert!(endpoint.post_send(first.clone(), Some(to)).is_err());
        endpoint.resume();
        assert!(endpoint.post_send(first, Some(to)).is_ok());
    }
    let full = request(6, SendOp::Send, sge(PRIVATE, ADDR, 1024));
    assert!(endpoint.post_send(full, Some(to)).is_ok());
    assert!(endpoint.poll_transmit(&mut qp, &mut port).is_packet());
    assert!(!endpoint.poll_transmit(&mut qp, &mut port).is_packet());
    let bytes = port.take().expect("it was sent");
    let packet = parse_datagram(&bytes).expect("it parses");
    assert_eq!(packet.deth.map(|deth| deth.qkey), Some(QKEY));
    assert_eq!(packet.payload.len(), 1024);
    let bad = request(7, SendOp::Send, sge(0x999, ADDR, 4));
    assert!(endpoint.post_send(bad, Some(to)).is_ok());
    assert!(!endpoint.poll_transmit(&mut qp, &mut port).is_packet());
    assert_eq!(qp.sent[1].status, Status::LocalProtection);
    assert_eq!(endpoint.state(), State::SendError);
}

#[test]
fn invalidation_is_no_opcode_of_uc() {
    let parsed = with_invalidate(packet(Opcode::RC_SEND_ONLY_INV, 0, b"word"), 1);
    let mut uc = Uc::new(uc_config());
    assert_eq!(uc.feed(parsed), Err(Dropped::WrongTransport));
}

#[test]
fn captured_uc_messages_arrive_and_leave_as_they_were() {
    let Some(folder) = captures::folder() else {
        return;
    };
    let (mut files, mut packets) = (0, 0);
    for (name, frames) in captures::files(&folder) {
        let seen = capture::datagrams(&frames, Transport::Uc);
        let mut sources: Vec<IpAddr> = seen.iter().map(|(path, _)| path.src).collect();
        sources.sort();
        sources.dedup();
        for source in &sources {
            let one_way = seen.iter().filter(|(path, _)| path.src == *source);
            let one_way: Vec<&Seen> = one_way.map(|(_, packet)| packet).collect();
            packets += replay_uc(&name, &one_way);
        }
        files += usize::from(!sources.is_empty());
    }
    assert_eq!((files, packets), (4, 50 + 80 + 50 + 20));
}

/// Receives captured packets of one direction and sends the same messages; gives the packets
/// compared.
fn replay_uc(name: &str, packets: &[&Seen]) -> usize {
    const ROOM: u32 = 16 << 10;
    let full = packets.iter().map(|one| one.payload.len()).max();
    let mtu = (1..=5).filter_map(Mtu::from_code);
    let mtu = mtu
        .into_iter()
        .find(|mtu| Some(mtu.bytes() as usize) == full);
    let first = packets[0].bth;
    let mut uc = Uc::new(uc::Config {
        qpn: first.dest_qp,
        dest_qpn: first.dest_qp,
        path_mtu: mtu.expect("full packets were captured"),
        sq_psn: first.psn,
        rq_psn: first.psn,
        send_capacity: 100,
        ..uc_config()
    });
    let mut target = None;
    for (number, reth) in packets.iter().filter_map(|one| one.reth).enumerate() {
        if number == 0 {
            let bytes = vec![0; reth.length as usize];
            uc.qp
                .ram
                .regions
                .push(Region::new(reth.rkey.0, reth.va, bytes));
        }
        target = Some(reth);
    }
    post_receives(&mut uc.qp, 100, ROOM);
    let mut message = Vec::new();
    let mut arrived = 0;
    for (number, packet) in packets.iter().enumerate() {
        assert_eq!(
            uc.engine.handle_packet(&packet.packet(), &mut uc.qp),
            Ok(()),
            "{name}"
        );
        if packet.position().starts() {
            message.clear();
        }
        message.extend(&packet.payload);
        if packet.position().ends() {
            let length = message.len();
            let op = match (packet.operation(), target) {
                (Operation::Write, Some(reth)) => {
                    let placed = uc.qp.ram.bytes(reth.rkey.0, reth.va, length);
                    assert!(placed == message, "{name}");
                    let mut remote = remote(0);
                    (remote.addr, remote.rkey) = (reth.va, reth.rkey);
                    SendOp::Write(remote)
                }
                _ => {
                    arrived += 1;
                    assert!(uc.qp.ram.bytes(PRIVATE, ADDR, length) == message, "{name}");
                    SendOp::Send
                }
            };
            uc.qp.ram.set(PRIVATE, ADDR, &message);
            let again = request(number as u64, op, sge(PRIVATE, ADDR, length as u32));
            assert!(uc.engine.post_send(again).is_ok(), "{name}");
        }
    }
    assert_eq!(uc.qp.received.len(), arrived, "{name}");
    let sent = uc.sent();
    assert_eq!(sent.len(), packets.len(), "{name}");
    for (ours, theirs) in sent.iter().zip(packets) {
        let fields = |one: &Seen| (one.bth.opcode, one.bth.psn, one.bth.pad, one.reth);
        assert_eq!(fields(ours), fields(theirs), "{name}");
        assert_eq!(ours.payload.len(), theirs.payload.len(), "{name}");
    }
    sent.len()
}

#[test]
fn captured_datagrams_arrive_and_leave_as_they_were() {
    let Some(folder) = captures::folder() else {
        return;
    };
    let mut compared = 0;
    for (name, frames) in captures::files(&folder) {
        for (path, seen) in capture::datagrams(&frames, Transport::Ud) {
            let packet = seen.packet();
            let deth = packet.deth.expect("datagrams have one");
            let config = ud::Config {
                qkey: deth.qkey,
                sq_psn: seen.bth.psn,
                ..ud_config(seen.bth.dest_qp.get())
            };
            let mut endpoint = ud::Endpoint::new(config);
            let (mut qp, mut port) = (qp(), Port::default());
            post_receives(&mut qp, 1, 2048);
            let verdict = endpoint.handle_packet(&packet, &arrival(path), &mut qp);
            assert_eq!(verdict, Ok(()), "{name}");
            assert_eq!(qp.received[0].byte_len as usize, 40 + packet.payload.len());
            assert_eq!(qp.received[0].src_qp, deth.src_qp);

            let mut sender = ud::Endpoint::new(ud::Config {
                qpn: deth.src_qp,
                ..config
            });
            let op = packet
                .imm
                .map_or(SendOp::Send, |imm| SendOp::SendImm(imm.0));
            let element = sge(PRIVATE, ADDR + 40, packet.payload.len() as u32);
            let to = ud::Address {
                path,
                qpn: seen.bth.dest_qp,
                qkey: deth.qkey,
            };
            assert!(sender.post_send(request(0, op, element), Some(to)).is_ok());
            assert!(sender.poll_transmit(&mut qp, &mut port).is_packet());
            let bytes = port.take().expect("it was sent");
            let ours = parse_datagram(&bytes).expect("it parses");
            let mut bth = ours.bth;
            // soft-RoCE sends MigReq as 0.
            bth.mig_req = false;
            assert_eq!(bth, packet.bth, "{name}");
            assert_eq!((ours.deth, ours.imm), (packet.deth, packet.imm), "{name}");
            assert!(ours.payload == packet.payload, "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 46);
}
