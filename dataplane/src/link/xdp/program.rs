//! The program that picks packets out of what arrives: instructions of eBPF
//! (Documentation/bpf/standardization/instruction-set.rst) in the order in which they run.
//!
//! A frame goes to the socket of its queue when it is an untagged IPv4 packet without options that
//! is no fragment, or an IPv6 packet without extension headers, for our address, that holds a UDP
//! datagram for RoCEv2's port. Everything else goes on to the kernel, and so does a frame of a
//! queue that has no socket. A VLAN tag that the card takes off a frame is not seen here: such a
//! frame counts as untagged.

use std::net::IpAddr;
use std::os::fd::RawFd;

/// UDP port of RoCEv2 (IBTA Vol 1, annex A17).
const ROCE_PORT: u16 = 4791;

/// One instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Instruction {
    /// Its class, and what it does.
    pub(super) code: u8,
    /// Where it writes, and what it reads.
    registers: u8,
    /// Bytes from an address, or instructions to skip.
    pub(super) offset: i16,
    /// A constant.
    pub(super) immediate: i32,
}

/// Classes and operations that are used.
pub(super) mod code {
    /// Loads a word of 32, 16 or 8 bits from memory.
    pub(in super::super) const LOAD_WORD: u8 = 0x61;
    pub(in super::super) const LOAD_HALF: u8 = 0x69;
    pub(in super::super) const LOAD_BYTE: u8 = 0x71;
    /// Loads a constant of 64 bits, which takes two instructions.
    pub(in super::super) const LOAD_WIDE: u8 = 0x18;
    /// Copies a register, or a constant, or adds one, all of 64 bits.
    pub(in super::super) const COPY: u8 = 0xbf;
    pub(in super::super) const SET: u8 = 0xb7;
    pub(in super::super) const ADD: u8 = 0x07;
    /// Keeps some of the lower 32 bits.
    pub(in super::super) const AND: u8 = 0x54;
    /// Jumps when the lower 32 bits differ from a constant.
    pub(in super::super) const JUMP_DIFFERENT: u8 = 0x56;
    /// Jumps when a register is greater than another.
    pub(in super::super) const JUMP_GREATER: u8 = 0x2d;
    pub(in super::super) const CALL: u8 = 0x85;
    pub(in super::super) const EXIT: u8 = 0x95;
}

/// `bpf_redirect_map` of bpf-helpers(7).
pub(super) const REDIRECT_MAP: i32 = 51;
/// The frame goes on to the kernel.
pub(super) const PASS: i32 = 2;
/// Says that a wide constant is the descriptor of a map.
pub(super) const MAP_DESCRIPTOR: u8 = 1;

/// Where `struct xdp_md` has the addresses of the frame's begin and end, and its queue.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// Registers: arguments and results are passed in these.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const FRAME: u8 = 2;
const END: u8 = 3;
const BEHIND: u8 = 4;
const FIELD: u8 = 5;

impl Instruction {
    const fn new(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Self {
        // A pair of bit fields in C, so their order is that of the machine.
        let registers = if cfg!(target_endian = "little") {
            to | from << 4
        } else {
            to << 4 | from
        };
        Self {
            code,
            registers,
            offset,
            immediate,
        }
    }

    /// The register that it writes, and the one that it reads.
    #[cfg(test)]
    pub(super) const fn registers(self) -> (u8, u8) {
        let (low, high) = (self.registers & 15, self.registers >> 4);
        if cfg!(target_endian = "little") {
            (low, high)
        } else {
            (high, low)
        }
    }
}

/// Builds a program whose jumps all lead to where the frame is passed.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
}

impl Assembler {
    fn add(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        let instruction = Instruction::new(code, to, from, offset, immediate);
        self.code.push(instruction);
    }

    /// Passes frames of fewer bytes.
    fn at_least(&mut self, bytes: i32) {
        self.add(code::LOAD_WORD, FRAME, CONTEXT, DATA, 0);
        self.add(code::LOAD_WORD, END, CONTEXT, DATA_END, 0);
        self.add(code::COPY, BEHIND, FRAME, 0, 0);
        self.add(code::ADD, BEHIND, 0, 0, bytes);
        self.add(code::JUMP_GREATER, BEHIND, END, 0, 0);
    }

    /// Passes frames that have another byte at `at`, of the bits of `mask`.
    fn byte(&mut self, at: i16, mask: u8, value: u8) {
        self.add(code::LOAD_BYTE, FIELD, FRAME, at, 0);
        if mask != u8::MAX {
            self.add(code::AND, FIELD, 0, 0, mask.into());
        }
        self.add(code::JUMP_DIFFERENT, FIELD, 0, 0, value.into());
    }

    /// The same with two bytes.
    fn half(&mut self, at: i16, mask: u16, value: u16) {
        // As the machine reads what lies in the order of the network.
        let [mask, value] = [mask, value].map(|bits| u16::from_ne_bytes(bits.to_be_bytes()));
        self.add(code::LOAD_HALF, FIELD, FRAME, at, 0);
        if mask != u16::MAX {
            self.add(code::AND, FIELD, 0, 0, mask.into());
        }
        self.add(code::JUMP_DIFFERENT, FIELD, 0, 0, value.into());
    }

    /// The same with bytes by the four.
    fn words(&mut self, mut at: i16, bytes: &[u8]) {
        for word in bytes.as_chunks::<4>().0 {
            self.add(code::LOAD_WORD, FIELD, FRAME, at, 0);
            let word = i32::from_ne_bytes(*word);
            self.add(code::JUMP_DIFFERENT, FIELD, 0, 0, word);
            at += 4;
        }
    }

    /// Brings what is left to the socket that the map has for the queue, or passes it.
    fn finish(mut self, map: RawFd) -> Vec<Instruction> {
        self.add(code::LOAD_WORD, 2, CONTEXT, QUEUE, 0);
        self.add(code::LOAD_WIDE, 1, MAP_DESCRIPTOR, 0, map);
        self.add(0, 0, 0, 0, 0);
        // What the helper answers where the map has no entry.
        self.add(code::SET, 3, 0, 0, PASS);
        self.add(code::CALL, 0, 0, 0, REDIRECT_MAP);
        self.add(code::EXIT, 0, 0, 0, 0);
        let pass = self.code.len();
        self.add(code::SET, RESULT, 0, 0, PASS);
        self.add(code::EXIT, 0, 0, 0, 0);
        for (at, instruction) in self.code.iter_mut().enumerate() {
            if matches!(instruction.code, code::JUMP_DIFFERENT | code::JUMP_GREATER) {
                // Counted from the next one; there are some dozens.
                instruction.offset = (pass - at - 1) as i16;
            }
        }
        self.code
    }
}

/// The program for packets to `address`, whose sockets are in `map`.
pub(super) fn program(address: IpAddr, map: RawFd) -> Vec<Instruction> {
    let mut assembler = Assembler::default();
    match address {
        // Ethernet has 14 bytes, IPv4 20 (RFC 791), UDP 8.
        IpAddr::V4(address) => {
            assembler.at_least(42);
            assembler.half(12, u16::MAX, 0x0800);
            assembler.byte(14, u8::MAX, 0x45);
            // More fragments follow, or it is not the first.
            assembler.half(20, 0x3fff, 0);
            assembler.byte(23, u8::MAX, 17);
            assembler.words(30, &address.octets());
            assembler.half(36, u16::MAX, ROCE_PORT);
        }
        // IPv6 has 40 (RFC 8200).
        IpAddr::V6(address) => {
            assembler.at_least(62);
            assembler.half(12, u16::MAX, 0x86dd);
            assembler.byte(14, 0xf0, 0x60);
            assembler.byte(20, u8::MAX, 17);
            assembler.words(38, &address.octets());
            assembler.half(56, u16::MAX, ROCE_PORT);
        }
    }
    assembler.finish(map)
}
