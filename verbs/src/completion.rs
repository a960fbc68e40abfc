//! Completions in the words of verbs.

use crate::abi;
use crate::abi::wc_flags;
use trunkline::{Completion, Extra, Status, WorkOpcode};

/// A completion, and whether its QP is one of datagrams: the first 40 bytes of what such a QP
/// receives are for the GRH.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) completion: Completion,
    pub(crate) of_datagrams: bool,
}

impl Told {
    pub(crate) const BLANK: Self = Self {
        completion: Completion::BLANK,
        of_datagrams: false,
    };

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
        let received = self.completion.opcode == WorkOpcode::Receive;
        match self.of_datagrams && received {
            true => extra | wc_flags::GRH,
            false => extra,
        }
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
            sl: 0,
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
        told.of_datagrams = true;
        assert_eq!(told.wc().wc_flags, wc_flags::WITH_IMM | wc_flags::GRH);
        told.completion.extra = Extra::Invalidated(Rkey(9));
        assert_eq!(told.wc().imm_data, 9);
        told.completion.opcode = WorkOpcode::Send;
        assert_eq!(told.wc().wc_flags, wc_flags::WITH_INV);
        told.completion.status = Status::Flushed;
        assert_eq!(told.wc().wc_flags, 0);
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
