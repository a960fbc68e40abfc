//! Completions in the words of verbs.

use crate::abi;
use crate::abi::wc_flags;
use std::net::IpAddr;
use trunkline::{Completion, Extra, Status, WorkOpcode};

/// Whose header is in the 40 bytes in front of a datagram, in the numbers of mlx5's completions
/// (`L3_Header_Type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Network {
    Ipv6 = 1,
    Ipv4 = 2,
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }
}

/// A completion, and by which network its QP receives if it is one of datagrams: the first 40 bytes
/// of what such a QP receives are for the GRH.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) completion: Completion,
    pub(crate) datagrams: Option<Network>,
}

impl Told {
    pub(crate) const BLANK: Self = Self {
        completion: Completion::BLANK,
        datagrams: None,
    };

    /// The network that a datagram came by; `None` where this is not about one that was received.
    fn network(&self) -> Option<Network> {
        let completion = &self.completion;
        let received =
            completion.status == Status::Success && completion.opcode == WorkOpcode::Receive;
        self.datagrams.filter(|_| received)
    }

    /// `wc_flags`, which mean something only where all is well.
    pub(crate) fn flags(&self) -> u32 {
        if self.completion.status != Status::Success {
            return 0;
        }
        let extra = match self.completion.extra {
            Extra::None => 0,
            Extra::Immediate(_) => wc_flags::WITH_IMM,
            Extra::Invalidated(_) => wc_flags::WITH_INV,
        };
        match self.network() {
            Some(_) => extra | wc_flags::GRH,
            None => extra,
        }
    }

    /// `sl`. RoCEv2 has no service levels, and `ibv_wc` no field for the kind of header that a
    /// completion of a datagram is to tell (A17.4.5.1), so devices tell it here. UCX looks for it,
    /// and drops what then came to another GID than its own.
    pub(crate) fn sl(&self) -> u8 {
        self.network().map_or(0, |network| network as u8)
    }

    /// The structure of the header.
    pub(crate) fn wc(&self) -> abi::Wc {
        let completion = &self.completion;
        abi::Wc {
            wr_id: completion.wr_id,
            status: completion.status as u32,
            opcode: completion.opcode as u32,
            vendor_err: vendor_err(completion),
            byte_len: completion.byte_len,
            imm_data: imm_data(completion),
            qp_num: completion.qpn.get(),
            src_qp: completion.src_qp.get(),
            wc_flags: self.flags(),
            pkey_index: 0,
            slid: 0,
            sl: self.sl(),
            dlid_path_bits: 0,
        }
    }
}

/// Immediate data as on the wire, or the key that was taken away.
pub(crate) fn imm_data(completion: &Completion) -> u32 {
    match completion.extra {
        Extra::None => 0,
        Extra::Immediate(value) => value.to_be(),
        Extra::Invalidated(key) => key.0,
    }
}

/// `vendor_err`: why a request ended, in numbers of [`trunkline::VendorError`].
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    completion.vendor_err as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline::Rkey;

    #[test]
    fn what_came_along_is_told_by_flags() {
        let mut told = Told::BLANK;
        told.completion.status = Status::Success;
        told.completion.opcode = WorkOpcode::Receive;
        assert_eq!(told.wc().wc_flags, 0);
        told.completion.extra = Extra::Immediate(0x0102_0304);
        assert_eq!(told.wc().imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(told.wc().wc_flags, wc_flags::WITH_IMM);
        told.datagrams = Some(Network::Ipv4);
        assert_eq!(told.wc().wc_flags, wc_flags::WITH_IMM | wc_flags::GRH);
        told.completion.extra = Extra::Invalidated(Rkey(9));
        assert_eq!(told.wc().imm_data, 9);
        told.completion.opcode = WorkOpcode::Send;
        assert_eq!(told.wc().wc_flags, wc_flags::WITH_INV);
        told.completion.status = Status::Flushed;
        assert_eq!(told.wc().wc_flags, 0);
    }

    #[test]
    fn a_datagram_says_by_which_network_it_came_and_nothing_else_does() {
        let mut told = Told::BLANK;
        told.completion.status = Status::Success;
        told.completion.opcode = WorkOpcode::Receive;
        assert_eq!(told.wc().sl, 0);
        for (address, sl) in [("127.0.0.1", 2), ("::1", 1)] {
            let address: IpAddr = address.parse().expect("an address");
            told.datagrams = Some(address.into());
            assert_eq!(told.wc().sl, sl, "{address}");
        }
        told.completion.status = Status::Flushed;
        assert_eq!(told.wc().sl, 0);
        told.completion.status = Status::Success;
        told.completion.opcode = WorkOpcode::Send;
        assert_eq!(told.wc().sl, 0);
    }

    #[test]
    fn values_are_those_of_the_header() {
        // IBV_WC_RETRY_EXC_ERR, IBV_WC_RECV_RDMA_WITH_IMM
        let mut told = Told::BLANK;
        told.completion.status = Status::RetryExceeded;
        told.completion.opcode = WorkOpcode::ReceiveWriteImm;
        assert_eq!((told.wc().status, told.wc().opcode), (12, 129));
    }
}
