//! How programs and services end, and what is left then: in processes of their own, so that a
//! SIGKILL is one.

#[path = "life/busy.rs"]
mod busy;
#[path = "life/ended.rs"]
mod ended;
#[path = "life/forked.rs"]
mod forked;
#[path = "life/killed.rs"]
mod killed;
#[path = "life/leaving.rs"]
mod leaving;
#[path = "life/many.rs"]
mod many;
#[path = "life/peers.rs"]
mod peers;
#[path = "life/places.rs"]
mod places;
#[path = "life/roles.rs"]
mod roles;
#[path = "life/shortage.rs"]
mod shortage;
#[path = "life/slow.rs"]
mod slow;
#[path = "life/staged.rs"]
mod staged;
#[path = "life/stopped.rs"]
mod stopped;
#[path = "life/truncated.rs"]
mod truncated;

use crate::common::process::{Process, hear, say};
use crate::common::service;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trunkline::Node;
use trunkline::service::Service;

/// Says what a process of these tests is to do.
const ROLE: &str = "TRUNKLINE_TEST_ROLE";
/// Where its service is.
const PATH: &str = "TRUNKLINE_TEST_PATH";
/// Seconds after which a process of these tests ends, whatever happens.
const LIFE: u32 = 90;

/// These tests count descriptors, threads and mappings, so one of them runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
#[ignore = "the others run it in processes of its own"]
fn a_process() {
    if let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(PATH)) {
        // SAFETY: it has no conditions.
        unsafe { libc::alarm(LIFE) };
        roles::play(&role, &path);
    }
}

/// A process that plays a role.
fn play(role: &str, path: &str) -> Process {
    Process::start("life::a_process", &[(ROLE, role), (PATH, path)])
}

/// Does nothing until it is killed.
fn rest() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Waits until something is so, and gives how long that took.
fn within(limit: Duration, what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

/// A service with a node of two workers.
fn new_service() -> (Service, String) {
    service(Node::builder().address(crate::common::address()).workers(2))
}

/// Entries of a folder of this process below /proc.
fn count(folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{folder}"))
        .unwrap()
        .count()
}

/// Mapped pieces of memory files.
fn memory_files() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}
