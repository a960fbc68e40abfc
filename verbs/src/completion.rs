//! Completions in the words of verbs.

use crate::abi;
use crate::abi::wc_flags;
use trunkline::{Completion, Extra, Status, WorkOpcode};

/// Whether it is a datagram that was received: its first 40 bytes are for the GRH. No connected QP
/// tells who sent.
fn is_datagram(completion: &Completion) -> bool {
    completion.opcode == WorkOpcode::Receive && completion.src_qp.get() != 0
}

/// `wc_flags`
pub(crate) fn flags(completion: &Completion) -> u32 {
    let extra = match completion.extra {
        Extra::None => 0,
        Extra::Immediate(_) => wc_flags::WITH_IMM,
        Extra::Invalidated(_) => wc_flags::WITH_INV,
    };
    extra
        | if is_datagram(completion) {
            wc_flags::GRH
        } else {
            0
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

/// The structure of the header.
pub(crate) fn wc(completion: &Completion) -> abi::Wc {
    let is_good = completion.status == Status::Success;
    abi::Wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.opcode as u32,
        vendor_err: vendor_err(completion),
        byte_len: completion.byte_len,
        imm_data: imm_data(completion),
        qp_num: completion.qpn.get(),
        src_qp: completion.src_qp.get(),
        wc_flags: if is_good { flags(completion) } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline::{Qpn, Rkey};

    #[test]
    fn what_came_along_is_told_by_flags() {
        let mut completion = Completion {
            status: Status::Success,
            opcode: WorkOpcode::Receive,
            ..Completion::BLANK
        };
        assert_eq!(wc(&completion).wc_flags, 0);
        completion.extra = Extra::Immediate(0x0102_0304);
        let told = wc(&completion);
        assert_eq!(told.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(told.wc_flags, wc_flags::WITH_IMM);
        completion.src_qp = Qpn::from_wire(7);
        assert_eq!(wc(&completion).wc_flags, wc_flags::WITH_IMM | wc_flags::GRH);
        completion.extra = Extra::Invalidated(Rkey(9));
        assert_eq!(wc(&completion).imm_data, 9);
        completion.status = Status::Flushed;
        assert_eq!(wc(&completion).wc_flags, 0);
    }

    #[test]
    fn values_are_those_of_the_header() {
        // IBV_WC_RETRY_EXC_ERR, IBV_WC_RECV_RDMA_WITH_IMM
        let completion = Completion {
            status: Status::RetryExceeded,
            opcode: WorkOpcode::ReceiveWriteImm,
            ..Completion::BLANK
        };
        let told = wc(&completion);
        assert_eq!((told.status, told.opcode), (12, 129));
    }
}
