//! A thread that does what a Data Streaming Accelerator does with descriptors of copies.

use super::trap::{Descriptor, take};
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{JoinHandle, yield_now};
use trunkline_dataplane::prng::Prng;

/// Operations, by their number in a descriptor.
const BATCH: u64 = 1;
const MEMORY_MOVE: u64 = 3;
/// States of a completion record.
const SUCCESS: u8 = 1;
const PAGE_FAULT: u8 = 3;
const SOME_OF_BATCH_FAILED: u8 = 5;
const INVALID_OPCODE: u8 = 0x10;

/// Words of a descriptor, and where the operation is in the first of them.
const OPERATION_SHIFT: u32 = 56;
const RECORD: usize = 1;
const SOURCE: usize = 2;
const DESTINATION: usize = 3;
const SIZE: usize = 4;

/// The thread, which ends with this.
#[derive(Debug)]
pub(crate) struct Player {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    /// One that fails at so many of a million copies, and leaves half of what those were to write
    /// undone.
    pub(crate) fn start(seed: u64, error_ppm: u32) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let run = move || {
            let mut prng = Prng::new(seed);
            while !told.load(Ordering::Relaxed) {
                match take() {
                    Some(descriptor) => play(&descriptor, &mut prng, error_ppm),
                    None => yield_now(),
                }
                if prng.chance(1_000) {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
        };
        Self {
            ends,
            thread: Some(std::thread::spawn(run)),
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn play(descriptor: &Descriptor, prng: &mut Prng, error_ppm: u32) {
    let size = descriptor[SIZE] as u32;
    if descriptor[0] >> OPERATION_SHIFT != BATCH {
        let status = copy(descriptor, prng, error_ppm);
        complete(descriptor[RECORD], status, size);
        return;
    }
    let mut status = SUCCESS;
    let members = with_exposed_provenance_mut::<Descriptor>(descriptor[SOURCE] as usize);
    for at in 0..size as usize {
        // SAFETY: the batch has so many, which are the device's until the batch is over.
        let member = unsafe { members.wrapping_add(at).read() };
        let one = copy(&member, prng, error_ppm);
        if one != SUCCESS {
            // A member that succeeds writes no record: nobody asked for it.
            complete(member[RECORD], one, 0);
            status = SOME_OF_BATCH_FAILED;
        }
    }
    complete(descriptor[RECORD], status, size);
}

/// Does one copy; gives its state.
fn copy(descriptor: &Descriptor, prng: &mut Prng, error_ppm: u32) -> u8 {
    if descriptor[0] >> OPERATION_SHIFT != MEMORY_MOVE {
        return INVALID_OPCODE;
    }
    let fails = prng.chance(error_ppm);
    let size = descriptor[SIZE] as u32 as usize;
    let length = if fails { size / 2 } else { size };
    let from = with_exposed_provenance_mut::<u8>(descriptor[SOURCE] as usize);
    let to = with_exposed_provenance_mut::<u8>(descriptor[DESTINATION] as usize);
    // SAFETY: who submitted the copy promised both until it is over.
    unsafe { to.copy_from_nonoverlapping(from, length) };
    if fails { PAGE_FAULT } else { SUCCESS }
}

/// Writes a completion record, its state last.
fn complete(record: u64, status: u8, completed: u32) {
    let record = with_exposed_provenance_mut::<u8>(record as usize);
    // Its size is in its second word.
    let size = record.wrapping_add(4).cast::<u32>();
    // SAFETY: the record is the device's until its state says otherwise.
    unsafe { size.write(completed) };
    // SAFETY: the driver polls this byte.
    let state = unsafe { AtomicU8::from_ptr(record) };
    state.store(status, Ordering::Release);
}
