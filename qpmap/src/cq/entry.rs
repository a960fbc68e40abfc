//! A completion as the four words of an entry.

use super::entries::CQE_WORDS;
use trunkline_conn::work::{Completion, Extra, Status, VendorError, WorkOpcode};
use trunkline_wire::{Qpn, Rkey};

const FLAG_IMMEDIATE: u8 = 1;
const FLAG_INVALIDATED: u8 = 1 << 1;
const FLAG_SOLICITED: u8 = 1 << 2;

#[inline(always)]
pub(super) fn encode(completion: &Completion) -> [u64; CQE_WORDS] {
    let (extra, flag) = match completion.extra {
        Extra::None => (0, 0),
        Extra::Immediate(value) => (value, FLAG_IMMEDIATE),
        Extra::Invalidated(key) => (key.0, FLAG_INVALIDATED),
    };
    let flags = flag
        | if completion.solicited {
            FLAG_SOLICITED
        } else {
            0
        };
    [
        completion.wr_id,
        u64::from(completion.byte_len) | u64::from(extra) << 32,
        u64::from(completion.qpn.get()) | u64::from(completion.src_qp.get()) << 32,
        completion.status as u64
            | (completion.opcode as u64) << 8
            | u64::from(flags) << 16
            | (completion.vendor_err as u64) << 24
            | u64::from(completion.route) << 32,
    ]
}

#[inline]
pub(super) fn decode(words: [u64; CQE_WORDS]) -> Completion {
    let [wr_id, data, qps, how] = words;
    let extra = (data >> 32) as u32;
    let flags = (how >> 16) as u8;
    Completion {
        wr_id,
        status: status(how as u8),
        opcode: opcode((how >> 8) as u8),
        qpn: Qpn::from_wire(qps as u32),
        byte_len: data as u32,
        extra: if flags & FLAG_IMMEDIATE != 0 {
            Extra::Immediate(extra)
        } else if flags & FLAG_INVALIDATED != 0 {
            Extra::Invalidated(Rkey(extra))
        } else {
            Extra::None
        },
        src_qp: Qpn::from_wire((qps >> 32) as u32),
        route: (how >> 32) as u32,
        solicited: flags & FLAG_SOLICITED != 0,
        vendor_err: vendor_err((how >> 24) as u8),
    }
}

/// Values that no worker writes mean that something else wrote there.
#[inline]
const fn status(value: u8) -> Status {
    use Status::*;
    match value {
        0 => Success,
        1 => LocalLength,
        2 => LocalQpOperation,
        4 => LocalProtection,
        5 => Flushed,
        6 => MemoryManagement,
        7 => BadResponse,
        8 => LocalAccess,
        9 => RemoteInvalidRequest,
        10 => RemoteAccess,
        11 => RemoteOperation,
        12 => RetryExceeded,
        13 => RnrRetryExceeded,
        16 => RemoteAborted,
        _ => General,
    }
}

#[inline]
const fn opcode(value: u8) -> WorkOpcode {
    match value {
        1 => WorkOpcode::Write,
        2 => WorkOpcode::Read,
        3 => WorkOpcode::CompareSwap,
        4 => WorkOpcode::FetchAdd,
        5 => WorkOpcode::BindMw,
        6 => WorkOpcode::LocalInvalidate,
        128 => WorkOpcode::Receive,
        129 => WorkOpcode::ReceiveWriteImm,
        _ => WorkOpcode::Send,
    }
}

#[inline]
const fn vendor_err(value: u8) -> VendorError {
    match value {
        1 => VendorError::NoQp,
        2 => VendorError::OtherPeer,
        3 => VendorError::NoRoom,
        4 => VendorError::QpGone,
        5 => VendorError::NoNode,
        6 => VendorError::NotSharing,
        _ => VendorError::None,
    }
}

/// QP of an entry.
#[inline]
pub(super) const fn qpn(words: [u64; CQE_WORDS]) -> Qpn {
    Qpn::from_wire(words[2] as u32)
}
