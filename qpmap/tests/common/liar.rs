//! A peer that completed the handshake, and then says whatever it likes.

use super::{FIRST, Node, Pair, params};
use std::net::{IpAddr, Ipv6Addr};
use trunkline_qpmap::{ConnId, PeerIdentity};
use trunkline_wire::{
    Answer, Bth, Control, ControlKind, Gid, IpFields, Opcode, Path, Psn, Qpn, ROCE_PORT, SrcExt,
    Workers, icrc,
};

/// Number of its own end of the connection.
const OWN_END: u32 = 0x77_0001;

/// Where node 1 is, if it has an IPv6 address.
pub(crate) const NODE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// It has one connection to node 1 of a [`Pair`].
pub(crate) struct Liar {
    path: Path,
    /// The connection as node 1 knows it.
    pub(crate) conn: ConnId,
    id: Qpn,
    token: u32,
    /// Number of the next packet that it sends.
    next: u64,
    /// Number of the next packet that it expects.
    pub(crate) expected: u64,
}

impl Liar {
    /// Lives at 10.0.0.`host`.
    pub(crate) fn new(pair: &mut Pair, host: u8) -> Self {
        Self::at(pair, IpAddr::from([10, 0, 0, host]), host.into())
    }

    /// Lives at `address`, and has this GUID.
    pub(crate) fn at(pair: &mut Pair, address: IpAddr, guid: u64) -> Self {
        let now = pair.now;
        let Node { engine, .. } = &mut pair.nodes[1];
        let (id, token) = engine.draw_connection().expect("a number");
        let identity = PeerIdentity {
            guid,
            epoch: 1,
            address: address.into(),
            workers: Workers::ONE,
        };
        let end = (Qpn::from_wire(OWN_END), 0x5555);
        let params = params((id, token), end);
        let conn = engine
            .add_connection(now, identity, &params)
            .expect("a connection");
        let path = Path {
            src: address,
            dst: match address {
                IpAddr::V4(_) => IpAddr::from([10, 0, 0, 2]),
                IpAddr::V6(_) => NODE_V6,
            },
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        Self {
            path,
            conn,
            id,
            token,
            next: FIRST,
            expected: FIRST,
        }
    }

    pub(crate) fn address(&self) -> Gid {
        self.path.src.into()
    }

    /// A packet of the connection, sealed, with the next number. `ext` says what it is about,
    /// `rest` is what follows the extension header.
    pub(crate) fn packet(&mut self, opcode: Opcode, ext: SrcExt, rest: &[u8]) -> (Path, Vec<u8>) {
        let counted = !matches!(opcode, Opcode::SRC_ACK | Opcode::SRC_CLOSE);
        let number = if counted { self.next } else { 0 };
        self.next += u64::from(counted);
        let bth = Bth {
            opcode,
            mig_req: true,
            pkey: 0xffff,
            dest_qp: self.id,
            psn: Psn::from_wire(number as u32 & 0xff_ffff),
            ..Bth::default()
        };
        let ext = SrcExt {
            token: self.token,
            psn_high: number >> 24,
            timestamp: 1,
            ack: self.expected as u32,
            ..ext
        };
        let mut datagram = bth.to_bytes().to_vec();
        datagram.extend(ext.to_bytes());
        datagram.extend(rest);
        datagram.extend([0; icrc::LEN]);
        icrc::seal(&self.path, 0, &mut datagram);
        (self.path, datagram)
    }

    /// It sends one packet.
    pub(crate) fn say(&mut self, pair: &mut Pair, opcode: Opcode, ext: SrcExt, rest: &[u8]) {
        let packet = self.packet(opcode, ext, rest);
        pair.deliver(1, &[packet]);
    }

    /// It sends entries of a CONTROL packet.
    pub(crate) fn control(&mut self, pair: &mut Pair, entries: &[Control]) {
        let entries: Vec<u8> = entries.iter().flat_map(Control::to_bytes).collect();
        self.say(pair, Opcode::SRC_CONTROL, LAST, &entries);
    }

    /// It sends entries of an ANSWERS packet.
    pub(crate) fn answers(&mut self, pair: &mut Pair, entries: &[Answer]) {
        let entries: Vec<u8> = entries.iter().flat_map(Answer::to_bytes).collect();
        self.say(pair, Opcode::SRC_ANSWERS, LAST, &entries);
    }

    /// What node 1 sends to it in one round. It acknowledges all of it with its next packet.
    pub(crate) fn hears(&mut self, pair: &mut Pair) -> Vec<Vec<u8>> {
        let sent = pair.sent_by(1);
        self.takes(&sent)
    }

    /// What of this is for it.
    fn takes(&mut self, sent: &[(Path, Vec<u8>)]) -> Vec<Vec<u8>> {
        let mine = sent.iter().filter(|(path, _)| path.dst == self.path.src);
        let mine: Vec<Vec<u8>> = mine.map(|(_, datagram)| datagram.clone()).collect();
        for datagram in &mine {
            let (bth, rest) = Bth::read(datagram).expect("a packet of an engine");
            let (ext, _) = SrcExt::read(rest).expect("a packet of an engine");
            let number = ext.psn64(bth.psn);
            if !matches!(bth.opcode, Opcode::SRC_ACK | Opcode::SRC_CLOSE) {
                self.expected = self.expected.max(number + 1);
            }
        }
        mine
    }

    /// The entries of CONTROL packets among those.
    pub(crate) fn hears_control(&mut self, pair: &mut Pair) -> Vec<Control> {
        let sent = pair.sent_by(1);
        self.takes_control(&sent)
    }

    /// The entries of CONTROL packets among what of this is for it.
    pub(crate) fn takes_control(&mut self, sent: &[(Path, Vec<u8>)]) -> Vec<Control> {
        let heard = self.takes(sent);
        let control = heard
            .iter()
            .filter(|datagram| Opcode(datagram[0]) == Opcode::SRC_CONTROL);
        control
            .flat_map(|datagram| {
                let payload = &datagram[Bth::LEN + SrcExt::LEN..datagram.len() - icrc::LEN];
                let entries = Control::entries(payload).expect("whole entries");
                entries.map(|entry| entry.expect("an engine's entry"))
            })
            .collect()
    }
}

/// A packet that is all of its message.
pub(crate) const LAST: SrcExt = SrcExt {
    last: true,
    header_crc: false,
    abort: false,
    sealed: false,
    attempt: 0,
    generation: 0,
    token: 0,
    src_qp: Qpn::from_wire(0),
    replay_epoch: 0,
    dest_qp: Qpn::from_wire(0),
    psn_high: 0,
    msn: 0,
    offset: 0,
    timestamp: 0,
    echo: 0,
    ack: 0,
};

/// QP `src` of the liar, in its life `generation`, says `kind` to QP `dest`, whose life it takes to
/// be `status`.
pub(crate) fn entry(
    kind: ControlKind,
    src: u32,
    dest: Qpn,
    generation: u32,
    status: u32,
) -> Control {
    Control {
        kind,
        src_qp: Qpn::from_wire(src),
        replay_epoch: 0,
        dest_qp: dest,
        generation,
        status,
        msn: 0,
    }
}

/// What packets carry of the lives of two QPs.
pub(crate) const fn generation_of(source: u32, dest: u32) -> u16 {
    (source as u16).wrapping_add((dest as u16).swap_bytes())
}
