#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod blocked;

use super::*;
use crate::mapping::Mapping;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

const PAGE: usize = 4096;

fn descriptor_of(process: &str) -> OwnedFd {
    let path = format!("/proc/{process}/mem");
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.unwrap().into()
}

fn memory_of(process: &str) -> ProcessMemory {
    ProcessMemory::new(descriptor_of(process)).unwrap()
}

/// Memory that a thread of its own reaches, within that patience.
fn patient(process: &str, patience: &Arc<Patience>) -> ProcessMemory {
    let (memory, patience) = (descriptor_of(process), Arc::clone(patience));
    ProcessMemory::with_patience(memory, patience, || {}).unwrap()
}

/// All memory of a process, reached in both ways.
fn both_ways(process: &str) -> [ProcessMemory; 2] {
    [memory_of(process), patient(process, &Arc::default())]
}

fn own(at: &Mapping, len: usize) -> [ProcessRegion; 2] {
    let addr = at.base().as_ptr().addr() as u64;
    both_ways("self").map(|memory| memory.region(addr, len).unwrap())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// A process that does nothing, until it is killed.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        let mut command = Command::new("cat");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Before it answers its stack may be moved still (execve(2)).
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let answer = child.stdout.as_mut().unwrap();
        answer.read_exact(&mut [0]).unwrap();
        Self(child)
    }

    /// The page in which its stack begins.
    fn stack(&self) -> [ProcessRegion; 2] {
        let process = self.0.id().to_string();
        let find = || {
            let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
            let line = maps.lines().find(|line| line.ends_with("[stack]"))?;
            let end = line.split(['-', ' ']).nth(1)?;
            u64::from_str_radix(end, 16).ok()
        };
        let end = find().unwrap();
        both_ways(&process).map(|all| all.region(end - PAGE as u64, PAGE).unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_was_copied_in_comes_out_with_the_right_sum() {
    const LENGTH: usize = 50 * PAGE;
    let mapping = Mapping::new(LENGTH).unwrap();
    for region in own(&mapping, LENGTH) {
        for (offset, length) in [
            (0, 0),
            (0, 1),
            (3, 5),
            (17, 777),
            (0, 16 * PAGE),
            (0, LENGTH),
            (100, 9000),
        ] {
            let data = pattern(length);
            let mut expected = Crc::resume(0x1234_5678);
            expected.update(&data);
            let (mut sum_in, mut sum_out) = (Crc::resume(0x1234_5678), Crc::resume(0x1234_5678));
            region
                .copy_in(offset, &data, Order::LastByteLast, Some(&mut sum_in))
                .unwrap();
            let mut out = vec![0; length];
            let read = region.copy_out(offset, &mut out, Some(&mut sum_out));
            read.unwrap();
            assert!(out == data, "{length} bytes at {offset}");
            assert_eq!((sum_in, sum_out), (expected, expected));
        }
        region
            .copy_in(0, &vec![0; LENGTH], Order::Any, None)
            .unwrap();
    }
}

/// Calls of write(2) and the like that `act` makes (proc_pid_io(5)).
fn writes_of(act: impl FnOnce()) -> u64 {
    let so_far = || {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("syscw: "));
        line.expect("the kernel counts them")
            .parse::<u64>()
            .unwrap()
    };
    let before = so_far();
    act();
    so_far() - before
}

#[test]
fn a_byte_that_is_to_be_last_is_written_by_a_call_of_its_own() {
    let mapping = Mapping::new(PAGE).unwrap();
    let [region, _] = own(&mapping, PAGE);
    for (length, order, calls) in [
        (PAGE, Order::Any, 1),
        (PAGE, Order::LastByteLast, 2),
        (1, Order::Any, 1),
        (1, Order::LastByteLast, 1),
        (0, Order::LastByteLast, 0),
    ] {
        let data = pattern(length);
        let made = writes_of(|| region.copy_in(0, &data, order, None).unwrap());
        assert_eq!(made, calls, "{length} bytes, {order:?}");
    }
}

#[test]
fn another_process_is_reached_until_it_ends() {
    let sleeper = Sleeper::start();
    let stacks = sleeper.stack();
    let mut got = [0; 64];
    for (stack, data) in stacks.iter().zip([pattern(64), vec![9; 64]]) {
        stack.copy_out(PAGE - 64, &mut got, None).unwrap();
        assert_ne!(got[..], data[..]);
        stack
            .copy_in(PAGE - 64, &data, Order::LastByteLast, None)
            .unwrap();
        stack.copy_out(PAGE - 64, &mut got, None).unwrap();
        assert_eq!(got[..], data[..]);
    }
    drop(sleeper);
    for stack in stacks {
        assert_eq!(stack.copy_out(0, &mut got, None), Err(Unreachable));
        assert_eq!(
            stack.copy_in(0, &got, Order::LastByteLast, None),
            Err(Unreachable)
        );
        let add = AtomicOp::FetchAdd { add: 1 };
        assert_eq!(stack.atomic(0, add), Err(Unreachable));
    }
}

#[test]
fn a_hole_is_an_error_and_what_comes_before_it_is_written() {
    let mapping = Mapping::new(3 * PAGE).unwrap();
    let middle = mapping.base().as_ptr().wrapping_add(PAGE);
    // SAFETY: the middle page of the mapping, which nothing refers to.
    let unmapped = unsafe { libc::munmap(middle.cast(), PAGE) };
    assert_eq!(unmapped, 0);
    for (region, byte) in own(&mapping, 3 * PAGE).into_iter().zip([7, 8]) {
        let data = vec![byte; 2 * PAGE];
        assert_eq!(
            region.copy_in(10, &data, Order::LastByteLast, None),
            Err(Unreachable)
        );
        let mut out = vec![0; PAGE - 10];
        assert_eq!(region.copy_out(10, &mut out, None), Ok(()));
        assert!(out.iter().all(|got| *got == byte));
        let mut two = [0; 2];
        for offset in [PAGE - 1, PAGE] {
            assert_eq!(region.copy_out(offset, &mut two, None), Err(Unreachable));
        }
        assert_eq!(
            region.copy_in(2 * PAGE, &[1], Order::LastByteLast, None),
            Ok(())
        );
        let swap = AtomicOp::CompareSwap {
            compare: 0,
            swap: 1,
        };
        assert_eq!(region.atomic(PAGE, swap), Err(Unreachable));
    }
}

#[test]
fn atomics_of_one_process_do_not_lose_one_another() {
    const EACH: u64 = 2000;
    let mapping = Mapping::new(PAGE).unwrap();
    for (memory, cell) in both_ways("self").into_iter().zip([0, 64]) {
        let addr = mapping.base().as_ptr().addr() as u64 + cell;
        let region = memory.region(addr, 16).unwrap();
        let other = memory.region(addr + 8, 8).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        region.atomic(8, AtomicOp::FetchAdd { add: 1 }).unwrap();
                    }
                });
            }
        });
        let miss = AtomicOp::CompareSwap {
            compare: 1,
            swap: 5,
        };
        let hit = AtomicOp::CompareSwap {
            compare: 4 * EACH,
            swap: 5,
        };
        assert_eq!(other.atomic(0, miss), Ok(4 * EACH));
        assert_eq!(other.atomic(0, hit), Ok(4 * EACH));
        assert_eq!(other.atomic(0, miss), Ok(5));
    }
}

#[test]
fn only_files_of_proc_and_ranges_that_do_not_wrap_are_taken() {
    let other = File::open("/dev/zero").unwrap();
    let refused = ProcessMemory::new(other.into()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let all = memory_of("self");
    let refused = all.region(u64::MAX - 7, 9).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let top = all.region(u64::MAX - 8, 8).unwrap();
    assert_eq!(top.copy_out(0, &mut [0; 8], None), Err(Unreachable));
    // One that is open for something else.
    let status = File::open("/proc/self/status").unwrap();
    let region = ProcessMemory::new(status.into()).unwrap();
    let region = region.region(0, 8).unwrap();
    assert_eq!(
        region.copy_in(0, &[0; 8], Order::Any, None),
        Err(Unreachable)
    );
}

#[test]
#[should_panic(expected = "2 bytes at 15 of a region of 16")]
fn a_range_that_reaches_past_the_end_is_outside() {
    let region = memory_of("self").region(0, 16).unwrap();
    let _ = region.copy_out(15, &mut [0; 2], None);
}
