//! Brings each packet to the socket of its worker, inside the kernel.
//!
//! The sockets of one port share its address (`SO_REUSEPORT`, socket(7)). A classic BPF program
//! (`SO_ATTACH_REUSEPORT_CBPF`) picks among them: it reads the number of ours that a packet names,
//! whose low bits are the worker's ([`Workers`]), and answers the worker's index, which is the
//! order in which the sockets were bound. Offsets count from the BTH, wherever that is in what
//! the kernel shows to a program; what a packet is too short for makes the program answer 0.
//!
//! ```text
//!  BTH.DestQP other than 1:  the number itself
//!  REQ to a Trunkline node:  the byte of its hello that says which worker is asked
//!  REQ:                      the QP that asks, spread ([`Workers::spread`])
//!  SIDR_REQ:                 the number of the question, spread
//!  other CM messages:        the communication ID of ours, above its lowest bit
//! ```

use crate::bpf::{alu, answer_a, attach as attach_program, equal, go, jump, load};
use libc::{
    BPF_AND, BPF_B, BPF_H, BPF_JGE, BPF_JMP, BPF_K, BPF_MUL, BPF_RSH, BPF_SUB, BPF_W, sock_filter,
};
use socket2::Socket;
use std::io;
use trunkline_wire::{Qpn, Workers};

/// Word of the BTH whose lower 24 bits are DestQP.
const DEST_QP: u32 = 4;
/// Attribute of a MAD behind BTH and DETH: which message it is (IBTA Vol 1, 13.4.2, 12.6).
const ATTRIBUTE: u32 = 36;
const REQ: u32 = 0x10;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;
/// First word of the message: the sender's communication ID, or the number of a question.
const FIRST_ID: u32 = 44;
/// The receiver's communication ID.
const SECOND_ID: u32 = 48;
/// First word of a REQ's service ID, and what it is where nodes meet.
const SERVICE: u32 = 52;
const NODES: u32 = u32::from_be_bytes(*b"trnk");
/// Word of a REQ whose upper 24 bits are the QP that asks.
const ASKING_QP: u32 = 76;
/// Which worker the hello in a REQ's private data is for.
const TOWARD: u32 = 44 + 140 + 87;

/// The program for so many workers, where the BTH is at `bth`.
pub(crate) fn program(workers: Workers, bth: u32) -> [sock_filter; 29] {
    let count = u32::from(workers.count());
    let mask = (1 << workers.bits()) - 1;
    let load = |size, at: u32| load(size, bth.wrapping_add(at));
    [
        load(BPF_W, DEST_QP),
        alu(BPF_AND, 0x00ff_ffff),
        equal(Qpn::GSI.get(), 0, 22), // else: MASK
        load(BPF_H, ATTRIBUTE),
        equal(REQ, 9, 0),      // ASK
        equal(SIDR_REQ, 6, 0), // QUESTION
        equal(SIDR_REP, 2, 0), // FIRST
        load(BPF_W, SECOND_ID),
        go(1),                 // SHIFT
        load(BPF_W, FIRST_ID), // FIRST:
        alu(BPF_RSH, 1),       // SHIFT:
        go(13),                // MASK
        load(BPF_W, FIRST_ID), // QUESTION:
        go(6),                 // SPREAD
        load(BPF_W, SERVICE),  // ASK:
        equal(NODES, 0, 2),    // else: HOST
        load(BPF_B, TOWARD),
        go(7),                  // MASK
        load(BPF_W, ASKING_QP), // HOST:
        alu(BPF_RSH, 8),
        alu(BPF_MUL, Workers::SPREAD), // SPREAD:
        alu(BPF_RSH, 16),
        alu(BPF_MUL, count),
        alu(BPF_RSH, 16),
        answer_a(),
        alu(BPF_AND, mask), // MASK:
        jump(BPF_JMP | BPF_JGE | BPF_K, count, 0, 1),
        alu(BPF_SUB, count),
        answer_a(),
    ]
}

/// Attaches the program to the sockets that share the address of `socket`.
pub(super) fn attach(socket: &Socket, workers: Workers) -> io::Result<()> {
    let option = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    attach_program(socket, option, &mut program(workers, 0))
}
