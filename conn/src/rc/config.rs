//! What a connection is set up with.

use crate::mem::{Access, PdId, Responder};
use trunkline_wire::{Operation, Packet, Path, Psn, Qpn, Transport};

/// Payload bytes of a full packet, with the values of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1,024 bytes: what an Ethernet link of 1,500 bytes carries.
    #[default]
    B1024 = 3,
    /// 2,048 bytes.
    B2048 = 4,
    /// 4,096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    /// The MTU of so many bytes: 256, 512, 1024, 2048 or 4096.
    pub const fn from_bytes(bytes: u16) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// From the value of `enum ibv_mtu`; `None` outside `1 ..= 5`.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// Attributes of an RC QP that is ready to receive and to send, in the words of `ibv_modify_qp(3)`.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// From here to the peer.
    pub path: Path,
    /// Payload of a full packet, the same at both ends.
    pub path_mtu: Mtu,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// PSN of the first packet expected.
    pub rq_psn: Psn,
    /// Partition key of packets sent, compared with that of packets received.
    pub pkey: u16,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Remote rights of the QP: what a region allows is not allowed unless the QP allows it too.
    pub access: Access,
    /// Time to wait for an acknowledgement: 4.096 us * 2^timeout, in `0 ..= 31`; 0 waits for ever.
    pub timeout: u8,
    /// Retries without progress before [`RetryExceeded`](crate::work::Status::RetryExceeded),
    /// in `0 ..= 7`.
    pub retry_cnt: u8,
    /// Retries of a receiver that is not ready before
    /// [`RnrRetryExceeded`](crate::work::Status::RnrRetryExceeded), in `0 ..= 6`; 7: for ever.
    pub rnr_retry: u8,
    /// Code of the time that RNR NAKs sent from here ask for, in `0 ..= 31`: see
    /// [`rnr_timer_ns`](trunkline_wire::rnr_timer_ns).
    pub min_rnr_timer: u8,
    /// READs and atomics that may be outstanding from here.
    pub max_rd_atomic: u8,
    /// READs and atomics that may be outstanding towards here.
    pub max_dest_rd_atomic: u8,
    /// Whether the peer's credits count: without one only one message that takes a receive is under
    /// way. A peer that grants none says so with its first acknowledgement. The managers of
    /// connections tell it by the bit "End-to-End Flow Control".
    pub flow_control: bool,
    /// Send requests that fit.
    pub send_capacity: usize,
    /// Packets that may be in flight unacknowledged, and READ responses that may be, at most: so
    /// many each, at least 1. How many are is up to what comes back and when.
    pub window: u32,
    /// As many of both may be before anything has come back, but no more than `window`.
    pub initial_window: u32,
    /// Rate of the link in bytes per second, where congestion control starts and ends; `None`
    /// stands for 100 Gb/s.
    pub link_rate: Option<u64>,
}

impl Config {
    /// Packets in flight where nothing else is known: a megabyte at the largest MTU, which is more
    /// than data centres hold in a round trip. What the queues of switches and of hosts that do
    /// RoCE in software do not hold is lost, and go-back-N sends all behind it again.
    pub const DEFAULT_WINDOW: u32 = 256;
    /// Packets of a peer of which nothing is known: what TCP begins with (RFC 6928).
    pub const INITIAL_WINDOW: u32 = 10;
    /// The partition every port is a full member of.
    pub const DEFAULT_PKEY: u16 = 0xffff;

    /// Who does what the peer asks for.
    pub(crate) const fn responder(&self) -> Responder {
        Responder {
            pd: self.pd,
            qpn: self.qpn,
        }
    }

    /// A connection with the usual attributes between two QPs; PSNs start at 0, every right is
    /// given.
    pub const fn new(qpn: Qpn, dest_qpn: Qpn, path: Path) -> Self {
        Self {
            qpn,
            dest_qpn,
            path,
            path_mtu: Mtu::B1024,
            sq_psn: Psn::from_wire(0),
            rq_psn: Psn::from_wire(0),
            pkey: Self::DEFAULT_PKEY,
            pd: PdId(0),
            access: Access::ALL,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            flow_control: true,
            send_capacity: 128,
            window: Self::DEFAULT_WINDOW,
            initial_window: Self::INITIAL_WINDOW,
            link_rate: None,
        }
    }
}

/// How a peer begins.
impl Config {
    /// Whether a packet is the first one that the peer's QP has to send to this one: it begins a
    /// request, with the PSN that is expected first. Its ICRC and the address that it came from are
    /// the caller's to check.
    pub fn is_opened_by(&self, packet: &Packet<'_>) -> bool {
        let (bth, opcode) = (&packet.bth, packet.opcode());
        let answer = matches!(
            opcode.operation(),
            Some(Operation::Acknowledge | Operation::ReadResponse | Operation::AtomicResponse)
        );
        opcode.transport() == Transport::Rc
            && !answer
            && opcode.position().is_some_and(|place| place.starts())
            && bth.dest_qp == self.qpn
            && bth.psn == self.rq_psn
            && pkeys_match(bth.pkey, self.pkey)
    }
}

/// Pieces of READs.
impl Config {
    /// Pieces that share the window, where so many READs may be outstanding.
    const PIECES: u32 = 4;
    /// Packets of a piece while the window is smaller than it was set: fewer would make a peer that
    /// is slow spend its time on requests.
    const LEAST_PIECE: u32 = 4;

    /// Packets of a piece, which one READ request asks for while `window` may be in flight; the
    /// last piece of a READ may be shorter. With few outstanding, pieces are as much longer, so
    /// that the window is full.
    pub const fn read_piece(&self, window: u32) -> u32 {
        let pieces = match self.max_rd_atomic as u32 {
            0 | 1 => 1,
            Self::PIECES.. => Self::PIECES,
            some => some,
        };
        let least = match self.window / pieces {
            0 => 1,
            1..Self::LEAST_PIECE => self.window / pieces,
            _ => Self::LEAST_PIECE,
        };
        match window / pieces {
            packets if packets > least => packets,
            _ => least,
        }
    }
}

/// Whether packets of one partition key may reach a QP of the other: the same partition, and not
/// both limited members (IBTA Vol 1, 10.9.3).
pub(crate) const fn pkeys_match(a: u16, b: u16) -> bool {
    const FULL: u16 = 0x8000;
    a & !FULL == b & !FULL && (a | b) & FULL != 0 && a & !FULL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_are_those_of_verbs() {
        let bytes = [256, 512, 1024, 2048, 4096];
        for (code, bytes) in (1..).zip(bytes) {
            let mtu = Mtu::from_code(code).expect("codes 1 to 5 are known");
            assert_eq!((mtu as u8, mtu.bytes()), (code, bytes));
        }
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6)), (None, None));
    }

    #[test]
    fn two_limited_members_do_not_hear_each_other() {
        assert!(pkeys_match(0xffff, 0xffff));
        assert!(pkeys_match(0xffff, 0x7fff));
        assert!(!pkeys_match(0x7fff, 0x7fff));
        assert!(!pkeys_match(0xffff, 0x8001));
        assert!(!pkeys_match(0x8000, 0x8000));
    }
}
