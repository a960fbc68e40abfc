//! What the programs of harnesses post.

use crate::input::Input;
use trunkline_conn::mem::{AtomicOp, Sge};
use trunkline_conn::work::{Remote, SendOp};
use trunkline_wire::{Lkey, Rkey};

/// An operation, each as likely as another. What it names at the peer is the peer's business.
pub(crate) fn operation(input: &mut Input<'_>) -> SendOp {
    let remote = Remote {
        addr: 0x1000,
        rkey: Rkey(7),
    };
    match input.byte() & 7 {
        0 => SendOp::Send,
        1 => SendOp::SendImm(1),
        2 => SendOp::SendInvalidate(Rkey(7)),
        3 => SendOp::Write(remote),
        4 => SendOp::WriteImm(remote, 2),
        5 => SendOp::Read(remote),
        6 => SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 1 }),
        _ => SendOp::Atomic(
            remote,
            AtomicOp::CompareSwap {
                compare: 0,
                swap: 1,
            },
        ),
    }
}

/// Up to three pieces of the `used` bytes from `addr` on, of the region that has `key`.
pub(crate) fn sges(addr: u64, used: usize, key: Rkey, input: &mut Input<'_>) -> Vec<Sge> {
    let count = usize::from(input.byte() & 3);
    let sge = |input: &mut Input<'_>| {
        let offset = usize::from(input.u16()) % used;
        let length = usize::from(input.u16()) % (used - offset + 1);
        Sge {
            addr: addr + offset as u64,
            length: length as u32,
            lkey: Lkey(key.0),
        }
    };
    (0..count).map(|_| sge(input)).collect()
}
