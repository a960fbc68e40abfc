//! One engine, and packets made by hand.

use super::capture::Seen;
use super::{Port, Qp, Region, path, pattern, receive, request, sge};
use trunkline_conn::mem::Access;
use trunkline_conn::rc::{Config, Dropped, Mtu, ReliableConnection};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Remote, SendOp};
use trunkline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Ieth, ImmDt, Opcode, Packet, Psn, Qpn, Reth, Rkey,
    Syndrome, parse_datagram,
};

/// A region that allows everything.
pub(crate) const KEY: u32 = 0x77;
/// A region for local use only.
pub(crate) const PRIVATE: u32 = 0x78;
/// Where both begin, and how long they are.
pub(crate) const ADDR: u64 = 0x10_0000;
pub(crate) const SIZE: usize = 64 << 10;
pub(crate) const MTU: usize = 256;
pub(crate) const US: Qpn = Qpn::from_wire(0x11);
pub(crate) const PEER: Qpn = Qpn::from_wire(0x22);
/// First PSN of either direction: the circle closes soon behind it.
pub(crate) const FIRST: u32 = 0x00ff_fffe;

pub(crate) fn psn(number: u32) -> Psn {
    Psn::from_wire(FIRST).advance(number)
}

pub(crate) fn config() -> Config {
    Config {
        path_mtu: Mtu::B256,
        sq_psn: psn(0),
        rq_psn: psn(0),
        timeout: 10,
        flow_control: false,
        // Tests of windows set one; all others are of what a full one lets through.
        initial_window: Config::DEFAULT_WINDOW,
        ..Config::new(US, PEER, path(1, 2))
    }
}

pub(crate) fn remote(offset: u64) -> Remote {
    Remote {
        addr: ADDR + offset,
        rkey: Rkey(KEY),
    }
}

pub(crate) fn reth(offset: u64, length: usize) -> Reth {
    Reth {
        va: ADDR + offset,
        rkey: Rkey(KEY),
        length: length as u32,
    }
}

/// A request or response packet for the engine.
pub(crate) fn packet(opcode: Opcode, number: u32, payload: &[u8]) -> Packet<'_> {
    const PAD: [u8; 3] = [0; 3];
    let pad = payload.len().wrapping_neg() & 3;
    Packet {
        bth: Bth {
            opcode,
            pad: pad as u8,
            pkey: 0xffff,
            dest_qp: US,
            ack_req: true,
            psn: psn(number),
            ..Bth::default()
        },
        cnp: (opcode == Opcode::CNP).then(Cnp::default),
        payload,
        pad: &PAD[..pad],
        ..Packet::default()
    }
}

pub(crate) fn answer(opcode: Opcode, number: u32, syndrome: Syndrome) -> Packet<'static> {
    Packet {
        aeth: Some(Aeth { syndrome, msn: 0 }),
        ..packet(opcode, number, &[])
    }
}

pub(crate) fn ack(number: u32) -> Packet<'static> {
    let syndrome = Syndrome::ACK_WITHOUT_CREDITS;
    answer(Opcode::RC_ACKNOWLEDGE, number, syndrome)
}

pub(crate) fn read_request(number: u32, offset: u64, length: usize) -> Packet<'static> {
    Packet {
        reth: Some(reth(offset, length)),
        ..packet(Opcode::RC_READ_REQUEST, number, &[])
    }
}

pub(crate) fn fetch_add(number: u32, offset: u64, add: u64) -> Packet<'static> {
    Packet {
        atomic: Some(AtomicEth {
            va: ADDR + offset,
            rkey: Rkey(KEY),
            swap_or_add: add,
            compare: 0,
        }),
        ..packet(Opcode::RC_FETCH_ADD, number, &[])
    }
}

/// A packet of a READ response; those in the middle have no AETH.
pub(crate) fn read_response(opcode: Opcode, number: u32, payload: &[u8]) -> Packet<'_> {
    let syndrome = Syndrome::ACK_WITHOUT_CREDITS;
    Packet {
        aeth: opcode.has_aeth().then_some(Aeth { syndrome, msn: 0 }),
        ..packet(opcode, number, payload)
    }
}

pub(crate) fn atomic_response(number: u32, value: u64) -> Packet<'static> {
    let syndrome = Syndrome::ACK_WITHOUT_CREDITS;
    Packet {
        atomic_ack: Some(AtomicAckEth(value)),
        ..answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, number, syndrome)
    }
}

pub(crate) fn with_imm(packet: Packet<'_>, value: u32) -> Packet<'_> {
    Packet {
        imm: Some(ImmDt(value)),
        ..packet
    }
}

pub(crate) fn with_invalidate(packet: Packet<'_>, key: u32) -> Packet<'_> {
    Packet {
        ieth: Some(Ieth(Rkey(key))),
        ..packet
    }
}

pub(crate) fn with_reth(packet: Packet<'_>, offset: u64, length: usize) -> Packet<'_> {
    Packet {
        reth: Some(reth(offset, length)),
        ..packet
    }
}

/// An engine with its QP, memory and port, and a clock.
pub(crate) struct Bench {
    pub(crate) engine: ReliableConnection,
    pub(crate) qp: Qp,
    pub(crate) port: Port,
    pub(crate) now: Instant,
}

impl Bench {
    pub(crate) fn new(config: Config) -> Self {
        let mut qp = Qp::default();
        qp.ram.regions = vec![
            Region::new(KEY, ADDR, pattern(1, SIZE)),
            Region {
                access: Access::LOCAL_WRITE,
                ..Region::new(PRIVATE, ADDR, pattern(2, SIZE))
            },
        ];
        Self {
            engine: ReliableConnection::new(config),
            qp,
            port: Port::default(),
            now: Instant::from_nanos(1_000_000),
        }
    }

    /// Posts receives of `length` bytes of private memory.
    pub(crate) fn receives(&mut self, count: u64, length: u32) {
        for wr_id in 0..count {
            self.qp
                .receives
                .push_back(receive(wr_id, sge(PRIVATE, ADDR, length)));
        }
    }

    /// Posts a request over private memory.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, length: usize) {
        let element = sge(PRIVATE, ADDR + wr_id * 4096, length as u32);
        let posted = self.engine.post_send(request(wr_id, op, element));
        assert!(posted.is_ok(), "the queue is long enough");
    }

    pub(crate) fn feed(&mut self, packet: Packet<'_>) -> Result<(), Dropped> {
        self.feed_marked(packet, false)
    }

    pub(crate) fn feed_marked(&mut self, packet: Packet<'_>, ce: bool) -> Result<(), Dropped> {
        let mut datagram = vec![0; packet.length()];
        packet.emit(&mut datagram);
        let packet = parse_datagram(&datagram).expect("the test builds what parses");
        self.engine
            .handle_packet(self.now, &packet, ce, &mut self.qp)
    }

    /// Everything that leaves now.
    pub(crate) fn sent(&mut self) -> Vec<Seen> {
        while self
            .engine
            .poll_transmit(self.now, &mut self.qp, &mut self.port)
            .is_packet()
        {}
        let mut sent = Vec::new();
        while let Some(datagram) = self.port.take() {
            sent.push(Seen::new(self.now.as_nanos(), &datagram));
        }
        sent
    }

    /// Lets the next timer run out; `false` when there is none.
    pub(crate) fn next_timer(&mut self) -> bool {
        let Some(at) = self.engine.poll_timeout() else {
            return false;
        };
        self.now = self.now.max(at);
        self.engine.handle_timeout(self.now, &mut self.qp);
        true
    }

    /// How send requests ended: cookie and status.
    pub(crate) fn ends(&self) -> Vec<(u64, trunkline_conn::work::Status)> {
        let ends = self.qp.sent.iter();
        ends.map(|one| (one.wr_id, one.status)).collect()
    }
}

/// Number, counted from [`FIRST`], of each packet.
pub(crate) fn numbers(packets: &[Seen]) -> Vec<u32> {
    let number = |one: &Seen| one.bth.psn.get().wrapping_sub(FIRST) & 0x00ff_ffff;
    packets.iter().map(number).collect()
}

/// The only packet, with its syndrome.
pub(crate) fn only_answer(packets: &[Seen]) -> (u32, Syndrome, u32) {
    assert_eq!(packets.len(), 1, "{packets:?}");
    let aeth = packets[0].aeth.expect("it is an answer");
    (numbers(packets)[0], aeth.syndrome, aeth.msn)
}
