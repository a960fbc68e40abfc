//! What the kernel lets through to a device, and which worker gets it.

use crate::bpf::{alu, answer, equal, load};
use libc::{BPF_AND, BPF_B, BPF_H, BPF_W, sock_filter};
use std::net::IpAddr;
use trunkline_wire::{ROCE_PORT, Workers};

const UDP: u32 = 17;
/// Keeps all of a frame.
const WHOLE: u32 = 0x4_0000;
/// Offsets from here on count from the network header (`SKF_NET_OFF`).
const NETWORK: u32 = 0_u32.wrapping_sub(0x10_0000);

/// RoCEv2 for `address`, in frames from the Ethernet header on: IP without options or extension
/// headers, and no fragment but the first. Of IPv6 that is all; what else is wrong with a frame is
/// seen when it is taken apart.
pub(super) fn program(address: IpAddr) -> Vec<sock_filter> {
    let mut wanted = match address {
        IpAddr::V4(ours) => vec![
            (load(BPF_H, 12), None, u32::from(libc::ETH_P_IP as u16)),
            (load(BPF_B, 14), None, 0x45),
            (load(BPF_B, 23), None, UDP),
            (load(BPF_H, 20), Some(0x1fff), 0),
            (load(BPF_H, 36), None, ROCE_PORT.into()),
            (load(BPF_W, 30), None, ours.to_bits()),
        ],
        IpAddr::V6(ours) => {
            let mut wanted = vec![
                (load(BPF_H, 12), None, u32::from(libc::ETH_P_IPV6 as u16)),
                (load(BPF_B, 20), None, UDP),
                (load(BPF_H, 56), None, ROCE_PORT.into()),
            ];
            for (at, word) in (38..).step_by(4).zip(ours.octets().as_chunks::<4>().0) {
                wanted.push((load(BPF_W, at), None, u32::from_be_bytes(*word)));
            }
            wanted
        }
    };
    let mut program = Vec::new();
    // The last of all is what is answered to whatever differs.
    let lengths = wanted
        .iter()
        .map(|(_, mask, _)| 2 + usize::from(mask.is_some()));
    let mut left: usize = lengths.sum();
    for (load, mask, value) in wanted.drain(..) {
        program.push(load);
        if let Some(mask) = mask {
            program.push(alu(BPF_AND, mask));
        }
        left -= 2 + usize::from(mask.is_some());
        program.push(equal(value, 0, left as u8 + 1));
    }
    program.push(answer(WHOLE));
    program.push(answer(0));
    program
}

/// Which of so many workers gets a frame.
pub(super) fn steering(address: IpAddr, workers: Workers) -> Vec<sock_filter> {
    let headers = match address {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    };
    crate::udp::steering(workers, NETWORK.wrapping_add(headers)).to_vec()
}
