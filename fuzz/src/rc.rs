//! Target `reliable`: the InfiniBand reliable connection against a peer that knows its numbers and
//! says whatever it likes.

use crate::forge::{self, Headers};
use crate::input::Input;
use crate::memory::Outbox;
use crate::program::{OPEN_ADDR, Program, REGION};
use std::net::{IpAddr, Ipv4Addr};
use trunkline_conn::rc::{Config, Mtu, ReliableConnection, State};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_conn::work::Status;
use trunkline_wire::{
    AtomicEth, IpFields, Opcode, Operation, Path, Psn, Qpn, ROCE_PORT, Reth, Transport,
    parse_datagram,
};

/// Operations of one run.
const MAX_OPERATIONS: usize = 1024;
/// Datagrams the port takes per turn.
const ROOM: usize = 64;
const QPN: Qpn = Qpn::from_wire(0x11);
const PEER_QPN: Qpn = Qpn::from_wire(0x22);
const MTU: u32 = Mtu::B256.bytes();
/// Longest datagram: a full packet with the most headers there are.
const DATAGRAM: usize = 12 + 28 + MTU as usize + 4;

/// Drives both halves of a connection by `data`.
///
/// # Panics
/// When an invariant is broken: memory touched or told that the peer has no right to, a request or
/// receive that ends out of order, twice or never, a packet sent that is none.
pub fn reliable(data: &[u8]) {
    let mut input = Input::new(data);
    let mut end = End::new(&mut input);
    input.drive(MAX_OPERATIONS, |input| {
        end.step(input);
        end.turn();
    });
    end.finish();
}

struct End {
    connection: ReliableConnection,
    program: Program,
    outbox: Outbox,
    now: Instant,
    /// PSN that the connection expects next, as far as the peer can tell.
    expected: u32,
    /// PSN of the request heard last, and the first one nobody has acknowledged.
    heard: u32,
    oldest: u32,
    msn: u32,
}

impl End {
    fn new(input: &mut Input<'_>) -> Self {
        let (shape, near) = (input.byte(), u32::from(input.byte() & 15));
        let path = Path {
            src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
            src_port: ROCE_PORT,
            traffic_class: 2,
            ip: IpFields::DEFAULT,
        };
        let mut program = Program::new();
        // PSNs that wrap soon.
        let (sq_psn, rq_psn) = (0xff_ffff - near, 0xff_fffb);
        let config = Config {
            path_mtu: Mtu::B256,
            sq_psn: Psn::from_wire(sq_psn),
            rq_psn: Psn::from_wire(rq_psn),
            pd: program.pd(),
            timeout: shape & 7,
            retry_cnt: shape >> 3 & 7,
            rnr_retry: shape >> 5 & 7,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            send_capacity: 16,
            window: 32,
            ..Config::new(QPN, PEER_QPN, path)
        };
        program.qpn = QPN;
        Self {
            connection: ReliableConnection::new(config),
            program,
            outbox: Outbox::new(ROOM, DATAGRAM),
            now: Instant::from_nanos(SECOND),
            expected: rq_psn,
            heard: sq_psn,
            oldest: sq_psn,
            msn: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 15 {
            0..=4 => self.request(input),
            5..=7 => self.respond(input),
            8 | 9 => {
                let request = self.program.request(input);
                let wr_id = request.wr_id;
                if self.connection.post_send(request).is_ok() {
                    self.program.posted.push_back(wr_id);
                }
            }
            10 | 11 => self.program.receive(input),
            12 | 13 => self.pass(u64::from(input.u16()) << (input.byte() & 15)),
            14 => {
                self.hand_over(&forge::raw(QPN, input), false);
            }
            _ => {
                if input.byte() > 250 {
                    self.connection.abort(&mut self.program, Status::General);
                    assert_eq!(self.connection.state(), State::Error);
                }
            }
        }
    }

    /// A request of the peer's.
    fn request(&mut self, input: &mut Input<'_>) {
        let opcode = Opcode(match input.byte() {
            byte @ 0..=200 => byte % 0x18,
            byte => byte & 0x1f,
        });
        let shape = input.byte();
        let payload = match shape & 3 {
            0 | 1 => MTU,
            2 => u32::from(input.byte()),
            _ => u32::from(input.u16()) % (2 * MTU),
        };
        let psn = input.near(self.expected);
        let rkey = self.program.rkey(shape >> 2 & 7, input);
        let va = match shape >> 5 {
            0..=5 => OPEN_ADDR + u64::from(input.u16()) % (REGION as u64 + 64),
            _ => input.u64(),
        };
        let length = input.near(payload);
        let headers = Headers {
            reth: Reth { va, rkey, length },
            // Small operands: two of them side by side are not the mark.
            atomic: AtomicEth {
                va: if shape & 0x40 == 0 { va & !7 } else { va },
                rkey,
                swap_or_add: u64::from(input.byte()),
                compare: u64::from(input.byte()),
            },
            invalidate: rkey,
            ..Headers::default()
        };
        if self.deliver(opcode, psn, &headers, payload as usize, input) {
            let packets = match opcode.operation() {
                Some(Operation::ReadRequest) => length.div_ceil(MTU).max(1),
                _ => 1,
            };
            self.expected = psn.wrapping_add(packets);
        }
    }

    /// A response of the peer's, to whatever it is.
    fn respond(&mut self, input: &mut Input<'_>) {
        let opcode = match input.byte() & 7 {
            0 => Opcode::RC_READ_RESPONSE_FIRST,
            1 => Opcode::RC_READ_RESPONSE_MIDDLE,
            2 => Opcode::RC_READ_RESPONSE_LAST,
            3 => Opcode::RC_READ_RESPONSE_ONLY,
            4 => Opcode::RC_ATOMIC_ACKNOWLEDGE,
            _ => Opcode::RC_ACKNOWLEDGE,
        };
        let base = if input.flag() {
            self.heard
        } else {
            self.oldest
        };
        let psn = input.near(base);
        let syndrome = match input.byte() {
            0..=150 => 0x1f,
            byte @ 151..=180 => 0x20 | byte & 0x1f,
            byte @ 181..=215 => 0x60 | byte & 7,
            byte => byte,
        };
        let length = match input.byte() {
            0..=127 => MTU,
            _ => u32::from(input.u16()) % (2 * MTU),
        };
        self.msn = input.near(self.msn) & 0xff_ffff;
        let [_, a, b, c] = self.msn.to_be_bytes();
        let headers = Headers {
            aeth: [syndrome, a, b, c],
            ..Headers::default()
        };
        if self.deliver(opcode, psn, &headers, length as usize, input) && syndrome == 0x1f {
            self.oldest = psn.wrapping_add(1);
        }
    }

    /// Builds a packet and hands it over, mostly once and whole. Whether it was taken.
    fn deliver(
        &mut self,
        opcode: Opcode,
        psn: u32,
        headers: &Headers,
        payload: usize,
        input: &mut Input<'_>,
    ) -> bool {
        let ends = (QPN, PEER_QPN);
        let arriving = forge::packet(opcode, psn, headers, payload, ends, input);
        (0..arriving.copies).fold(false, |taken, _| {
            taken | self.hand_over(&arriving.datagram, arriving.ce)
        })
    }

    fn hand_over(&mut self, datagram: &[u8], ce: bool) -> bool {
        let Ok(packet) = parse_datagram(datagram) else {
            return false;
        };
        let before = *self.connection.stats();
        let result = self
            .connection
            .handle_packet(self.now, &packet, ce, &mut self.program);
        if let Err(dropped) = result {
            let count = |stats: &trunkline_conn::rc::Stats| stats.dropped(dropped);
            assert_eq!(
                count(self.connection.stats()),
                count(&before) + 1,
                "{dropped} not counted"
            );
        }
        result.is_ok()
    }

    /// Lets time pass, timers in their order.
    fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        for _ in 0..16 {
            match self.connection.poll_timeout() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
            self.connection.handle_timeout(self.now, &mut self.program);
            self.transmit();
        }
        self.now = end;
        self.connection.handle_timeout(end, &mut self.program);
    }

    fn turn(&mut self) {
        self.transmit();
        self.program.check();
        assert_eq!(self.connection.pending(), self.program.posted.len());
    }

    fn transmit(&mut self) {
        // One more than there is room for: a full port is nothing special.
        for _ in 0..=ROOM {
            if !self
                .connection
                .poll_transmit(self.now, &mut self.program, &mut self.outbox)
                .is_packet()
            {
                break;
            }
        }
        for (_, datagram) in self.outbox.take() {
            let packet = parse_datagram(&datagram).expect("the port has parsed it");
            assert_eq!(packet.bth.dest_qp, PEER_QPN);
            let opcode = packet.bth.opcode;
            let response = opcode.transport() == Transport::Cnp || opcode.is_response();
            if !response {
                self.heard = packet.bth.psn.get();
            }
        }
    }

    /// However it was left, all that was posted ends.
    fn finish(mut self) {
        for _ in 0..8 {
            self.pass(SECOND);
            self.turn();
        }
        self.connection.abort(&mut self.program, Status::Flushed);
        self.turn();
        self.program.finish();
    }
}
