//! Target `ud`: InfiniBand's unreliable datagrams, from and to anybody.

use crate::forge::{self, Headers};
use crate::input::Input;
use crate::memory::Outbox;
use crate::program::Program;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::rc::{Mtu, State};
use trunkline_conn::ud::{Address, Config, Endpoint};
use trunkline_conn::work::Status;
use trunkline_wire::{
    Deth, IpFields, Opcode, Path, Psn, Qpn, ROCE_PORT, Transport, parse_datagram,
};

/// Operations of one run.
const MAX_OPERATIONS: usize = 1024;
/// Datagrams the port takes per turn.
const ROOM: usize = 4;
const QPN: Qpn = Qpn::from_wire(0x11);
const PEER_QPN: Qpn = Qpn::from_wire(0x22);
const QKEY: u32 = 0x0123_4567;
/// A Q_Key of a request that means the QP's own.
const OWN_QKEY: u32 = 1 << 31;
const MTU: u32 = Mtu::B256.bytes();
/// Longest datagram: BTH, DETH, immediate, payload and ICRC.
const DATAGRAM: usize = 12 + 8 + 4 + MTU as usize + 4;

/// Drives a QP by `data`.
///
/// # Panics
/// When an invariant is broken: memory touched or told that nobody may, a request or receive that
/// ends out of order, twice or never, a packet sent that is none or has another's key.
pub fn ud(data: &[u8]) {
    let mut input = Input::new(data);
    let mut end = End::new();
    input.drive(MAX_OPERATIONS, |input| {
        end.step(input);
        end.turn();
    });
    end.finish();
}

struct End {
    endpoint: Endpoint,
    program: Program,
    outbox: Outbox,
    /// PSN that it sends next.
    next: Psn,
    /// Q_Keys that requests were posted with.
    qkeys: Vec<u32>,
}

impl End {
    fn new() -> Self {
        let mut program = Program::new();
        program.qpn = QPN;
        // PSNs that wrap soon.
        let sq_psn = Psn::from_wire(0xff_fffd);
        let config = Config {
            qpn: QPN,
            mtu: Mtu::B256,
            sq_psn,
            pkey: 0xffff,
            qkey: QKEY,
            pd: program.pd(),
            send_capacity: 16,
        };
        Self {
            endpoint: Endpoint::new(config),
            program,
            outbox: Outbox::new(ROOM, DATAGRAM),
            next: sq_psn,
            qkeys: vec![QKEY],
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 15 {
            0..=6 => self.hear(input),
            7..=9 => self.post(input),
            10..=13 => self.program.receive(input),
            14 => {
                let from = path(input.byte());
                self.hand_over(from, &forge::raw(QPN, input), false);
            }
            _ => {
                if input.byte() > 250 {
                    self.endpoint.abort(&mut self.program, Status::General);
                    assert_eq!(self.endpoint.state(), State::Error);
                } else {
                    self.endpoint.resume();
                }
            }
        }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let request = self.program.request(input);
        let wr_id = request.wr_id;
        let to = Address {
            // A handle for two families cannot be made.
            path: path(input.byte() & 1),
            qpn: Qpn::from_wire(u32::from(input.byte())),
            qkey: input.near(OWN_QKEY),
        };
        if self.endpoint.post_send(request, Some(to)).is_ok() {
            self.program.posted.push_back(wr_id);
            self.qkeys.push(to.qkey);
        }
    }

    /// A datagram of anybody's.
    fn hear(&mut self, input: &mut Input<'_>) {
        let opcode = match input.byte() {
            byte @ 0..=200 if byte & 1 == 0 => Opcode::UD_SEND_ONLY,
            0..=200 => Opcode::UD_SEND_ONLY_IMM,
            // Of reliable connections.
            byte => Opcode(byte & 0x1f),
        };
        let shape = input.byte();
        let payload = match shape & 3 {
            0 => MTU as usize,
            1 | 2 => usize::from(input.byte()),
            _ => usize::from(input.u16()) % (2 * MTU as usize),
        };
        let headers = Headers {
            deth: Deth {
                qkey: if shape & 0x1c == 0x1c {
                    input.u32()
                } else {
                    QKEY
                },
                src_qp: Qpn::from_wire(u32::from(input.u16())),
            },
            ..Headers::default()
        };
        let psn = u32::from(input.byte());
        let ends = (QPN, PEER_QPN);
        let arriving = forge::packet(opcode, psn, &headers, payload, ends, input);
        for _ in 0..arriving.copies {
            self.hand_over(path(shape >> 5), &arriving.datagram, arriving.ce);
        }
    }

    fn hand_over(&mut self, path: Path, datagram: &[u8], ce: bool) {
        let Ok(packet) = parse_datagram(datagram) else {
            return;
        };
        let arrival = Arrival {
            path,
            identification: Identification::Predicted(0),
            ce,
            waited_ns: 0,
        };
        let before = *self.endpoint.stats();
        let result = self
            .endpoint
            .handle_packet(&packet, &arrival, &mut self.program);
        match result {
            Ok(()) => assert_eq!(packet.deth.map(|deth| deth.qkey), Some(QKEY)),
            Err(dropped) => {
                let after = self.endpoint.stats().dropped(dropped);
                assert_eq!(after, before.dropped(dropped) + 1, "{dropped} not counted");
            }
        }
    }

    fn turn(&mut self) {
        // One more than there is room for: a full port is nothing special.
        for _ in 0..=ROOM {
            let sent = self
                .endpoint
                .poll_transmit(&mut self.program, &mut self.outbox);
            if !sent.is_packet() {
                break;
            }
        }
        for (_, datagram) in self.outbox.take() {
            let packet = parse_datagram(&datagram).expect("the port has parsed it");
            assert_eq!(packet.opcode().transport(), Transport::Ud);
            assert_eq!(packet.bth.psn, self.next);
            self.next = self.next.advance(1);
            let deth = packet.deth.expect("a datagram names its sender");
            assert_eq!(deth.src_qp, QPN);
            assert_eq!(deth.qkey & OWN_QKEY, 0, "no controlled key is ever sent");
            assert!(self.qkeys.contains(&deth.qkey), "a key that nobody gave");
        }
        self.program.check();
        assert_eq!(self.endpoint.pending(), self.program.posted.len());
    }

    /// However it was left, all that was posted ends.
    fn finish(mut self) {
        self.endpoint.abort(&mut self.program, Status::Flushed);
        self.turn();
        self.program.finish();
    }
}

/// Where datagrams come from and go to: IPv4, IPv6, or what no port says.
fn path(choice: u8) -> Path {
    let v4 = |host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
    let v6 = |host| IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host));
    let (src, dst) = match choice {
        1 => (v6(1), v6(2)),
        7 => (v4(1), v6(2)),
        _ => (v4(1), v4(2)),
    };
    Path {
        src,
        dst,
        src_port: ROCE_PORT,
        traffic_class: 2,
        ip: IpFields::DEFAULT,
    }
}
