//! Target `uc`: the InfiniBand unreliable connection against a peer that knows its numbers and says
//! whatever it likes.

use crate::forge::{self, Headers};
use crate::input::Input;
use crate::memory::Outbox;
use crate::program::{OPEN_ADDR, Program, REGION};
use std::net::{IpAddr, Ipv4Addr};
use trunkline_conn::mem::Access;
use trunkline_conn::rc::{Dropped, Mtu, State};
use trunkline_conn::uc::{Config, UnreliableConnection};
use trunkline_conn::work::Status;
use trunkline_wire::{
    IpFields, Opcode, Path, Psn, Qpn, ROCE_PORT, Reth, Transport, parse_datagram,
};

/// Operations of one run.
const MAX_OPERATIONS: usize = 1024;
/// Datagrams the port takes per turn.
const ROOM: usize = 8;
const QPN: Qpn = Qpn::from_wire(0x11);
const PEER_QPN: Qpn = Qpn::from_wire(0x22);
const MTU: u32 = Mtu::B256.bytes();
/// Longest datagram: BTH, RETH, immediate, payload and ICRC.
const DATAGRAM: usize = 12 + 16 + 4 + MTU as usize + 4;

/// Drives both halves of a connection by `data`.
///
/// # Panics
/// When an invariant is broken: memory touched or told that the peer has no right to, a request or
/// receive that ends out of order, twice or never, a packet sent that is none or out of turn.
pub fn uc(data: &[u8]) {
    let mut input = Input::new(data);
    let mut end = End::new(&mut input);
    input.drive(MAX_OPERATIONS, |input| {
        end.step(input);
        end.turn();
    });
    end.finish();
}

struct End {
    connection: UnreliableConnection,
    program: Program,
    outbox: Outbox,
    /// PSN that the connection expects next, as far as the peer can tell.
    expected: u32,
    /// PSN that it sends next.
    next: Psn,
}

impl End {
    fn new(input: &mut Input<'_>) -> Self {
        let shape = input.byte();
        let mut program = Program::new();
        program.qpn = QPN;
        // PSNs that wrap soon.
        let (sq_psn, rq_psn) = (Psn::from_wire(0xff_fffd), 0xff_fffb);
        let access = match shape & 3 {
            0 => Access::LOCAL_WRITE,
            _ => Access::ALL,
        };
        let config = Config {
            qpn: QPN,
            dest_qpn: PEER_QPN,
            path: Path {
                src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
                dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
                src_port: ROCE_PORT,
                traffic_class: 2,
                ip: IpFields::DEFAULT,
            },
            path_mtu: Mtu::B256,
            sq_psn,
            rq_psn: Psn::from_wire(rq_psn),
            pkey: 0xffff,
            pd: program.pd(),
            access,
            send_capacity: 16,
        };
        Self {
            connection: UnreliableConnection::new(config),
            program,
            outbox: Outbox::new(ROOM, DATAGRAM),
            expected: rq_psn,
            next: sq_psn,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 15 {
            0..=8 => self.hear(input),
            9 | 10 => {
                let request = self.program.request(input);
                let wr_id = request.wr_id;
                if self.connection.post_send(request).is_ok() {
                    self.program.posted.push_back(wr_id);
                }
            }
            11..=13 => self.program.receive(input),
            14 => {
                self.hand_over(&forge::raw(QPN, input));
            }
            _ => {
                if input.byte() > 250 {
                    self.connection.abort(&mut self.program, Status::General);
                    assert_eq!(self.connection.state(), State::Error);
                } else {
                    self.connection.resume();
                }
            }
        }
    }

    /// A packet of the peer's, which may fit what came before.
    fn hear(&mut self, input: &mut Input<'_>) {
        let opcode = Opcode(match input.byte() {
            byte @ 0..=200 => 0x20 + byte % 0x0c,
            // Of reliable connections.
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
            ..Headers::default()
        };
        let ends = (QPN, PEER_QPN);
        let arriving = forge::packet(opcode, psn, &headers, payload as usize, ends, input);
        for _ in 0..arriving.copies {
            if self.hand_over(&arriving.datagram) {
                self.expected = psn.wrapping_add(1);
            }
        }
    }

    /// Whether it counts as the packet expected last: taken, or dropped with its message.
    fn hand_over(&mut self, datagram: &[u8]) -> bool {
        let Ok(packet) = parse_datagram(datagram) else {
            return false;
        };
        let before = *self.connection.stats();
        let result = self.connection.handle_packet(&packet, &mut self.program);
        if let Err(dropped) = result {
            let after = self.connection.stats().dropped(dropped);
            assert_eq!(after, before.dropped(dropped) + 1, "{dropped} not counted");
        }
        !matches!(
            result,
            Err(Dropped::WrongQp
                | Dropped::WrongPartition
                | Dropped::WrongTransport
                | Dropped::Duplicate
                | Dropped::QpInError)
        )
    }

    fn turn(&mut self) {
        // One more than there is room for: a full port is nothing special.
        for _ in 0..=ROOM {
            let sent = self
                .connection
                .poll_transmit(&mut self.program, &mut self.outbox);
            if !sent.is_packet() {
                break;
            }
        }
        for (_, datagram) in self.outbox.take() {
            let packet = parse_datagram(&datagram).expect("the port has parsed it");
            assert_eq!(packet.opcode().transport(), Transport::Uc);
            assert_eq!((packet.bth.dest_qp, packet.bth.psn), (PEER_QPN, self.next));
            self.next = self.next.advance(1);
        }
        self.program.check();
        assert_eq!(self.connection.pending(), self.program.posted.len());
    }

    /// However it was left, all that was posted ends.
    fn finish(mut self) {
        self.connection.abort(&mut self.program, Status::Flushed);
        self.turn();
        self.program.finish();
    }
}
