//! What peers hear of programs that end in order, and of those that are killed.

use super::peers::{Asking, Peer};
use super::{Process, alone, new_service, play};
use std::time::{Duration, Instant};
use trunkline::{Remote, Status};

/// How long requests wait for another life of a QP that has left.
const GRACE: Duration = Duration::from_millis(100);

/// How long after a program ends by `end` a READ of its memory fails.
fn fails_after(role: &str, end: impl FnOnce(&mut Process) -> Instant) -> Duration {
    let (_service, path) = new_service();
    let peer = Peer::new();
    let mut process = play(role, &path);
    let (qp, cq) = peer.qp();
    qp.connect(process.hear()).unwrap();
    process.tell(&(qp.address(), peer.mr.remote(0)));
    let remote: Remote = process.hear();
    let asking = Asking::start(&peer, (qp, cq), "idle read", remote);
    std::thread::sleep(Duration::from_millis(50));
    let at = end(&mut process);
    let (heard, status) = asking.end();
    assert_eq!(status, Status::RetryExceeded);
    heard - at
}

#[test]
fn peers_of_a_program_that_is_killed_hear_of_it_at_once() {
    let _alone = alone();
    // The machine may be busy; but who left in order would be waited for each time.
    let mut took = Vec::new();
    while took.len() < 10 && took.last().is_none_or(|last| *last >= GRACE) {
        took.push(fails_after("idle", Process::kill));
    }
    assert!(took.last().is_some_and(|last| *last < GRACE), "{took:?}");
}

#[test]
fn peers_of_a_program_that_ends_in_order_are_left() {
    let _alone = alone();
    let took = fails_after("leaving", |process| {
        let at = Instant::now();
        process.tell(&());
        at
    });
    println!("{took:?}");
    assert!(took >= GRACE, "{took:?}");
}
