//! Runs the program, without a kernel.

use crate::link::xdp::program::{Instruction, MAP_DESCRIPTOR, PASS, REDIRECT_MAP, code, program};
use std::net::IpAddr;

/// Where the frame and its description would lie.
const FRAME: u64 = 0x10_0000;
const CONTEXT: u64 = 0x20_0000;
const MAP: i32 = 77;
const QUEUE: u32 = 5;
/// What a frame that is redirected gives.
const REDIRECT: u64 = 4;

/// Reads like the processor does, and refuses what the kernel's verifier would.
fn load(frame: &[u8], address: u64, bytes: usize) -> u64 {
    if let Some(at) = address.checked_sub(CONTEXT) {
        assert_eq!(bytes, 4);
        return match at {
            0 => FRAME,
            4 => FRAME + frame.len() as u64,
            16 => QUEUE.into(),
            _ => panic!("field {at} of the context"),
        };
    }
    let at = usize::try_from(address - FRAME).unwrap();
    let read = frame.get(at..at + bytes).expect("a read behind the end");
    let mut word = [0; 8];
    if cfg!(target_endian = "little") {
        word[..bytes].copy_from_slice(read);
    } else {
        word[8 - bytes..].copy_from_slice(read);
    }
    u64::from_ne_bytes(word)
}

/// What the program answers for a frame.
fn run(code: &[Instruction], frame: &[u8]) -> u64 {
    let mut registers = [0_u64; 11];
    registers[1] = CONTEXT;
    let mut next = 0;
    loop {
        let instruction = code[next];
        next += 1;
        let (to, from) = instruction.registers();
        let (to, from) = (usize::from(to), usize::from(from));
        let immediate = i64::from(instruction.immediate) as u64;
        let address = registers[from].wrapping_add_signed(instruction.offset.into());
        let mut jump = |yes: bool| {
            assert!(instruction.offset > 0, "a program only goes forward");
            if yes {
                next += instruction.offset as usize;
            }
        };
        match instruction.code {
            code::LOAD_WORD => registers[to] = load(frame, address, 4),
            code::LOAD_HALF => registers[to] = load(frame, address, 2),
            code::LOAD_BYTE => registers[to] = load(frame, address, 1),
            code::LOAD_WIDE => {
                assert_eq!(from, usize::from(MAP_DESCRIPTOR));
                assert_eq!(code[next].code, 0);
                next += 1;
                registers[to] = immediate;
            }
            code::COPY => registers[to] = registers[from],
            code::SET => registers[to] = immediate,
            code::ADD => registers[to] = registers[to].wrapping_add(immediate),
            code::AND => registers[to] &= immediate & u64::from(u32::MAX),
            code::JUMP_DIFFERENT => jump(registers[to] as u32 != instruction.immediate as u32),
            code::JUMP_GREATER => jump(registers[to] > registers[from]),
            code::CALL => {
                assert_eq!(instruction.immediate, REDIRECT_MAP);
                let [_, map, queue, otherwise, ..] = registers;
                assert_eq!((map, queue), (MAP as u64, QUEUE.into()));
                assert_eq!(otherwise, PASS as u64);
                registers = [u64::MAX; 11];
                registers[0] = REDIRECT;
            }
            code::EXIT => return registers[0],
            other => panic!("instruction {other:#x}"),
        }
    }
}

const V4: [u8; 4] = [10, 200, 0, 255];

/// A packet of IPv4 that the program takes.
fn packet_v4() -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8 + 16];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[20] = 0x40;
    frame[23] = 17;
    frame[30..34].copy_from_slice(&V4);
    frame[36..38].copy_from_slice(&4791_u16.to_be_bytes());
    frame
}

fn packet_v6(address: [u8; 16]) -> Vec<u8> {
    let mut frame = vec![0; 14 + 40 + 8 + 16];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14..16].copy_from_slice(&[0x6c, 0xff]);
    frame[20] = 17;
    frame[38..54].copy_from_slice(&address);
    frame[56..58].copy_from_slice(&4791_u16.to_be_bytes());
    frame
}

/// All frames that differ from a good one in a bit: those are passed whose bit is among `matters`.
fn differ(code: &[Instruction], good: &[u8], matters: &[(usize, u8)]) {
    assert_eq!(run(code, good), REDIRECT);
    for at in 0..good.len() {
        let mask = matters.iter().find(|(byte, _)| *byte == at);
        for bit in 0..8 {
            let mut other = good.to_vec();
            other[at] ^= 1 << bit;
            let is_passed = mask.is_some_and(|(_, mask)| mask >> bit & 1 == 1);
            let answer = if is_passed { PASS as u64 } else { REDIRECT };
            assert_eq!(run(code, &other), answer, "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn packets_of_ipv4_are_taken_by_kind_address_and_port() {
    let code = program(IpAddr::from(V4), MAP);
    let mut matters = vec![(12, 0xff), (13, 0xff), (14, 0xff), (23, 0xff)];
    matters.extend([(20, 0x3f), (21, 0xff)]);
    matters.extend([30, 31, 32, 33, 36, 37].map(|at| (at, 0xff)));
    differ(&code, &packet_v4(), &matters);
}

#[test]
fn packets_of_ipv6_are_taken_by_kind_address_and_port() {
    let address = std::array::from_fn(|at| 0xf8_u8.wrapping_add(at as u8));
    let code = program(IpAddr::from(address), MAP);
    let mut matters = vec![(12, 0xff), (13, 0xff), (14, 0xf0), (20, 0xff)];
    matters.extend((38..54).chain(56..58).map(|at| (at, 0xff)));
    differ(&code, &packet_v6(address), &matters);
}

#[test]
fn what_is_no_packet_for_us_is_passed() {
    let code = program(IpAddr::from(V4), MAP);
    let pass = |frame: &[u8]| assert_eq!(run(&code, frame), PASS as u64, "{frame:02x?}");
    let good = packet_v4();
    // Cut short, and what is just long enough.
    for length in 0..42 {
        pass(&good[..length]);
    }
    assert_eq!(run(&code, &good[..42]), REDIRECT);
    // With options.
    let mut options = good.clone();
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 1]);
    pass(&options);
    // Fragments: the first, and one behind.
    for fragment in [[0x20, 0], [0, 1], [0x3f, 0xff]] {
        let mut other = good.clone();
        other[20..22].copy_from_slice(&fragment);
        pass(&other);
    }
    // Tagged, once and twice.
    for tags in [&[0x81, 0, 0, 7][..], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 7]] {
        let mut tagged = good.clone();
        tagged.splice(12..12, tags.iter().copied());
        pass(&tagged);
    }
    // Of the other family, and ARP.
    pass(&packet_v6([0xfd; 16]));
    let mut arp = good.clone();
    arp[13] = 6;
    pass(&arp);
}

#[test]
fn a_cut_packet_of_ipv6_is_passed() {
    let code = program(IpAddr::from([0xfd; 16]), MAP);
    let good = packet_v6([0xfd; 16]);
    for length in 0..62 {
        assert_eq!(run(&code, &good[..length]), PASS as u64);
    }
    assert_eq!(run(&code, &good[..62]), REDIRECT);
    assert_eq!(run(&code, &packet_v4()), PASS as u64);
}
