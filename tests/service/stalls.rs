//! What a program does to memory and descriptors that it shares with the service holds up nobody.
#![allow(unsafe_code, reason = "userfaultfd(2) is bare system calls")]

use super::raw::Raw;
use super::{Neighbours, SOON, is_clean, service};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trunkline_host::control::Answer;
use trunkline_host::control::attributes::RingKind;
use trunkline_host::control::requests::{FreeMemory, ResizeCq};

/// The largest CQ that a quota allows, of which a program says that it is full: to resize it, over
/// and over, is work for its owner's account alone.
#[test]
fn neighbours_go_on_while_the_largest_of_queues_are_resized() {
    let all = service(|_| {});
    let mut neighbours = Neighbours::of(&all.1);
    let alone = (0..50).map(|_| neighbours.exchange()).max().unwrap();
    let mut raw = Raw::attach(&all.1);
    let cq = raw.cq(1 << 16);
    raw.ring(RingKind::CompletionHeader, Some(cq), 0);
    let end = Instant::now() + Duration::from_secs(3);
    let path = all.1.clone();
    let hostile = std::thread::spawn(move || {
        let mut resized = 0;
        while Instant::now() < end {
            for word in raw.pieces[0].as_slice() {
                // Everywhere where a head may be: far from all that was written.
                word.store(u64::from(1_u32 << 31), Ordering::Relaxed);
            }
            let depth = 1 << 16;
            resized += u32::from(matches!(
                raw.ask(ResizeCq { cq, depth }),
                Answer::CqResized(_)
            ));
        }
        (resized, raw)
    });
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        longest = longest.max(neighbours.exchange());
    }
    let start = Instant::now();
    drop(Raw::attach(&path));
    let attached = start.elapsed();
    let (resized, raw) = hostile.join().unwrap();
    eprintln!("{resized} times: {alone:?} alone, {longest:?} beside it; attached in {attached:?}");
    assert!(longest < SOON, "messages took {longest:?}");
    drop((raw, neighbours));
    is_clean(&all.0);
}

/// Bytes whose first access waits until the descriptor is dropped; `None`: this process may not
/// have such (userfaultfd(2)).
fn bytes_that_do_not_come(length: usize) -> Option<(OwnedFd, &'static [u8])> {
    // SAFETY: a system call that makes a descriptor.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    let made = i32::try_from(made).ok().filter(|made| *made >= 0)?;
    // SAFETY: it was made just now, and nobody else has it.
    let faults = unsafe { OwnedFd::from_raw_fd(made) };
    let (protection, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: a new mapping, which stays for ever.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }.ok()?;
    let mut api = [0xAA_u64, 0, 0];
    // SAFETY: UFFDIO_API reads and writes three words.
    let asked = unsafe { libc::ioctl(faults.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()) };
    let mut range = [base.addr() as u64, length as u64, 1, 0];
    // SAFETY: UFFDIO_REGISTER reads and writes four words.
    let watched = unsafe { libc::ioctl(faults.as_raw_fd(), 0xC020_AA00, range.as_mut_ptr()) };
    // SAFETY: they are mapped, and nobody writes them.
    let bytes = unsafe { std::slice::from_raw_parts(base.cast::<u8>().cast_const(), length) };
    (asked == 0 && watched == 0).then_some((faults, bytes))
}

/// Who writes to the file of a segment holds its lock, which the system needs to take pages of it
/// back: for as long as it likes where what it writes does not come.
#[test]
fn nobody_waits_for_who_writes_to_the_file_of_a_segment() {
    let Some((faults, bytes)) = bytes_that_do_not_come(1 << 20) else {
        eprintln!("userfaultfd(2) is not for this process");
        return;
    };
    let all = service(|_| {});
    let mut raw = Raw::attach(&all.1);
    let Answer::MemoryAllocated(allocated) = raw.memory(1 << 20) else {
        panic!("memory");
    };
    for word in raw.pieces[0].as_slice() {
        word.store(1, Ordering::Relaxed);
    }
    let file = raw.files[0].try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let _ = rustix::io::pwrite(&file, bytes, 0);
    });
    std::thread::sleep(Duration::from_millis(100));
    let memory = allocated.memory;
    raw.ask(FreeMemory { memory });
    let (sender, attached) = std::sync::mpsc::channel();
    let path = all.1.clone();
    std::thread::spawn(move || {
        let start = Instant::now();
        drop(Raw::attach(&path));
        let _ = sender.send(start.elapsed());
    });
    let waited = attached.recv_timeout(SOON);
    // Whoever waits goes on now.
    drop(faults);
    writing.join().unwrap();
    assert!(
        waited.is_ok(),
        "a new program waits for who writes to its segment"
    );
    drop(raw);
    is_clean(&all.0);
}

/// Who waits for a CQ in very many ways makes the worker wake very many.
#[test]
fn neighbours_go_on_while_a_queue_wakes_very_many() {
    use rustix::event::{PollFd, PollFlags, poll};
    let all = service(|_| {});
    let mut neighbours = Neighbours::of(&all.1);
    let alone = (0..50).map(|_| neighbours.exchange()).max().unwrap();
    let node = trunkline::Node::attach(&all.1).unwrap();
    let pd = node.alloc_pd();
    let cq = node.create_cq(64).unwrap();
    let mr = pd.register(64, trunkline::Access::ALL).unwrap();
    let qp = pd.create_qp(&cq, &cq, &trunkline::QpOptions::default());
    let qp = qp.unwrap();
    qp.connect(qp.address()).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let (mut longest, mut rounds) = (Duration::ZERO, 0_u32);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut all: Vec<_> = (0..10_000)
                    .map(|_| PollFd::new(&cq, PollFlags::IN))
                    .collect();
                while !is_over.load(Ordering::Relaxed) {
                    let pause = rustix::event::Timespec {
                        tv_sec: 0,
                        tv_nsec: 50_000_000,
                    };
                    let _ = poll(&mut all, Some(&pause));
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            cq.arm(false);
            qp.post_recv(&[trunkline::RecvWr::new().sges(&[mr.sge(0, 8)])])
                .unwrap();
            let send = trunkline::SendWr::send().signaled();
            qp.post_send(&[send.sges(&[mr.sge(8, 8)])]).unwrap();
            longest = longest.max(neighbours.exchange());
            rounds += 1;
            while cq.poll_one().unwrap().is_some() {}
        }
        is_over.store(true, Ordering::Relaxed);
    });
    eprintln!("{rounds} rounds: {alone:?} alone, {longest:?} beside it");
    assert!(longest < SOON, "messages took {longest:?}");
}
