//! A completion as the four words of an entry.

use super::entries::CQE_WORDS;
use trunkline_conn::work::{Completion, Extra, Status, VendorError, WorkOpcode};
use trunkline_wire::{Qpn, Rkey};

const FLAG_IMMEDIATE: u8 = 1;
const FLAG_INVALIDATED: u8 = 1 << 1;
const FLAG_SOLICITED: u8 = 1 << 2;

/// Bits of a byte that are flags; those above are of the vendor error.
const FLAG_BITS: u32 = 3;

/// Bytes of the last words in which nothing else is: [`TICK_BITS`](time::TICK_BITS) of a time find
/// room there.
#[cfg(test)]
const FREE: [u64; 2] = [0xff00_0000_ff00_0000, 0x0000_0000_ff00_0000];

/// A time as it is spread over the free bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread([u64; 2]);

impl Spread {
    pub(crate) const fn of(ticks: u32) -> Self {
        let [low, middle, high, _] = ticks.to_le_bytes();
        Self([
            (low as u64) << 24 | (middle as u64) << 56,
            (high as u64) << 24,
        ])
    }

    #[inline(always)]
    const fn ticks(qps: u64, how: u64) -> u32 {
        u32::from_le_bytes([(qps >> 24) as u8, (qps >> 56) as u8, (how >> 24) as u8, 0])
    }
}

#[inline(always)]
pub(super) fn encode(completion: &Completion, at: Spread) -> [u64; CQE_WORDS] {
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
        u64::from(completion.qpn.get()) | u64::from(completion.src_qp.get()) << 32 | at.0[0],
        at.0[1]
            | completion.status as u64
            | (completion.opcode as u64) << 8
            | u64::from(flags) << 16
            | (completion.vendor_err as u64) << (16 + FLAG_BITS)
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
        vendor_err: vendor_err(flags >> FLAG_BITS),
        ticks: Spread::ticks(qps, how),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use trunkline_conn::time::TICK_BITS;

    #[test]
    fn a_time_has_all_bits_that_are_free_and_no_others() {
        assert_eq!(FREE[0].count_ones() + FREE[1].count_ones(), TICK_BITS);
        assert_eq!(Spread::of(u32::MAX).0, FREE);
        assert_eq!(Spread::ticks(FREE[0], FREE[1]), (1 << TICK_BITS) - 1);
        let most = Completion {
            status: Status::General,
            opcode: WorkOpcode::ReceiveWriteImm,
            qpn: Qpn::from_wire(u32::MAX),
            extra: Extra::Immediate(u32::MAX),
            src_qp: Qpn::from_wire(u32::MAX),
            route: u32::MAX,
            solicited: true,
            vendor_err: VendorError::NotSharing,
            ..Completion::BLANK
        };
        let [_, _, qps, how] = encode(&most, Spread::of(0));
        assert_eq!((qps & FREE[0], how & FREE[1]), (0, 0));
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_what_was_encoded(
            words in any::<[u64; CQE_WORDS]>(),
            ticks in 0..1u32 << TICK_BITS,
        ) {
            let completion = Completion { ticks, ..decode(words) };
            prop_assert_eq!(decode(encode(&completion, Spread::of(ticks))), completion);
        }
    }
}
