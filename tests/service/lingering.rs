//! Descriptors that take as long to close as their sender likes: nobody else waits for them.

use super::raw::{Raw, hello, lingering, send_any};
use super::{SOON, is_clean, service, still_serves, until};
use crate::common::PATIENCE;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline::service::Service;
use trunkline_host::control::attributes::{Reason, RingKind};
use trunkline_host::control::requests::{AllocPd, DestroyCq, Detach, ResizeCq};
use trunkline_host::control::{Answer, MAX_MESSAGE, Request, VERSION};

fn alloc_pd() -> Vec<u8> {
    Request::from(AllocPd {}).to_bytes(1)
}

/// Sends a message with so many lingering descriptors, which nobody else has then. Gives what lets
/// go of them.
fn send_lingering(raw: &Raw, message: &[u8], count: usize) -> Vec<TcpStream> {
    let (descriptors, others): (Vec<_>, Vec<_>) = (0..count).map(|_| lingering()).unzip();
    send_last(raw, message, descriptors);
    others
}

/// Sends descriptors, and lets go of them before the service can. The thread is there already, and
/// is the one that waits where the service was faster.
fn send_last(raw: &Raw, message: &[u8], descriptors: Vec<OwnedFd>) {
    let copies: Vec<_> = descriptors
        .iter()
        .map(|it| it.try_clone().unwrap())
        .collect();
    let (ready, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let told = (Arc::clone(&ready), Arc::clone(&sent));
    std::thread::spawn(move || {
        told.0.store(true, Ordering::SeqCst);
        while !told.1.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(copies);
    });
    while !ready.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let all: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let message = message.to_vec();
    send_any(raw.socket(), &message, &all);
    // There are the copies still, so this waits for nobody.
    drop(descriptors);
    sent.store(true, Ordering::SeqCst);
}

/// A program that comes now is let in, and told apart from one that has to wait.
fn nobody_waits(all: &(Service, String), what: &str) {
    let start = Instant::now();
    let raw = Raw::attach(&all.1);
    drop(raw);
    let waited = start.elapsed();
    assert!(waited < SOON, "{what}: others waited for {waited:?}");
}

#[test]
fn nobody_waits_for_descriptors_of_a_request() {
    let all = service(|_| {});
    let raw = Raw::attach(&all.1);
    let held = send_lingering(&raw, &alloc_pd(), 2);
    nobody_waits(&all, "a request with two");
    drop((held, raw));
    still_serves(&all);
}

#[test]
fn nobody_waits_for_descriptors_of_a_message_that_is_too_long() {
    let all = service(|_| {});
    let raw = Raw::attach(&all.1);
    let held = send_lingering(&raw, &[0; MAX_MESSAGE + 1], 1);
    nobody_waits(&all, "a message that is too long");
    drop((held, raw));
    still_serves(&all);
}

#[test]
fn nobody_waits_for_descriptors_of_an_empty_message() {
    let all = service(|_| {});
    let raw = Raw::attach(&all.1);
    let held = send_lingering(&raw, &[], 1);
    nobody_waits(&all, "an empty message");
    drop((held, raw));
    still_serves(&all);
}

#[test]
fn nobody_waits_for_more_descriptors_than_a_message_has() {
    let all = service(|_| {});
    let raw = Raw::attach(&all.1);
    let held = send_lingering(&raw, &alloc_pd(), 4);
    nobody_waits(&all, "four descriptors");
    drop((held, raw));
    still_serves(&all);
}

#[test]
fn nobody_waits_for_more_descriptors_than_may_be_pending() {
    let all = service(|_| {});
    let raw = Raw::attach(&all.1);
    let mut held = Vec::new();
    // Of some of them this process may be the last that closes them.
    for _ in 0..60 {
        held.extend(send_lingering(&raw, &alloc_pd(), 1));
    }
    nobody_waits(&all, "sixty messages with one each");
    drop((held, raw));
    still_serves(&all);
}

#[test]
fn nobody_waits_for_descriptors_that_are_judged() {
    let all = service(|_| {});
    let raw = Raw::connect(&all.1);
    let bytes = Request::from(hello(VERSION)).to_bytes(1);
    let held = send_lingering(&raw, &bytes, 1);
    nobody_waits(&all, "the descriptor of a first message");
    drop((held, raw));
    still_serves(&all);
}

#[test]
fn nobody_waits_for_descriptors_of_who_is_turned_away() {
    let all = service(|limits| limits.clients = 1);
    let mut inside = Raw::attach(&all.1);
    let mut held = Vec::new();
    for _ in 0..4 {
        let (descriptor, other) = lingering();
        held.push(other);
        let depth = 1 << 16;
        let cq = inside.cq(depth);
        inside.ring(RingKind::CompletionHeader, Some(cq), 0);
        for word in inside.pieces.last().unwrap().as_slice() {
            // Its completions are all that there is room for.
            word.store(1 << 31, Ordering::Relaxed);
        }
        // While the service is at work with these, somebody comes and brings the descriptor.
        for _ in 0..8 {
            assert!(inside.say(ResizeCq { cq, depth }));
        }
        let raw = Raw::connect(&all.1);
        send_last(&raw, &alloc_pd(), vec![descriptor]);
        let start = Instant::now();
        for _ in 0..8 {
            inside.hear();
        }
        inside.ask(DestroyCq { cq });
        let waited = start.elapsed();
        assert!(waited < SOON, "who is inside waited for {waited:?}");
    }
    drop((held, inside));
    is_clean(&all.0);
}

#[test]
fn nobody_waits_for_descriptors_that_were_not_read() {
    let all = service(|_| {});
    let mut raw = Raw::attach(&all.1);
    assert!(raw.say(Detach {}));
    let mut held = Vec::new();
    for _ in 0..8 {
        held.extend(send_lingering(&raw, &alloc_pd(), 1));
    }
    nobody_waits(&all, "what came after its end");
    drop((held, raw));
    still_serves(&all);
}

/// Who leaves descriptors that are not closed counts as one of the programs until they are.
#[test]
fn what_is_not_closed_counts_as_a_program() {
    let all = service(|limits| limits.clients = 3);
    let mut held = Vec::new();
    let start = Instant::now();
    loop {
        let mut raw = Raw::connect(&all.1);
        // Who is turned away may be so before it has said anything.
        let _ = raw.say(hello(VERSION));
        if let Some((_, Answer::Refused(why))) = raw.hear() {
            assert_eq!(why.reason, Reason::TooManyClients);
            break;
        }
        // Of some descriptors this process may be the last that closes them.
        assert!(
            start.elapsed() < PATIENCE,
            "{} descriptors left a thread that closes something",
            held.len()
        );
        for _ in 0..8 {
            held.extend(send_lingering(&raw, &alloc_pd(), 1));
            assert!(raw.hear().is_some());
        }
        drop(raw);
        until("it is parted with", || all.0.clients().is_empty());
    }
    drop(held);
    std::thread::sleep(Duration::from_millis(200));
    still_serves(&all);
    is_clean(&all.0);
}

/// The same of a descriptor that is being judged.
#[test]
fn what_is_being_judged_counts_as_a_program() {
    let all = service(|limits| limits.clients = 3);
    let mut held = Vec::new();
    let start = Instant::now();
    loop {
        let mut raw = Raw::connect(&all.1);
        let bytes = Request::from(hello(VERSION)).to_bytes(1);
        held.extend(send_lingering(&raw, &bytes, 1));
        // It is let in, and then its descriptor is judged, or it is not.
        std::thread::sleep(Duration::from_millis(100));
        rustix::net::shutdown(raw.socket(), rustix::net::Shutdown::Write).unwrap();
        let (reason, _) = raw.end();
        if reason == Reason::TooManyClients {
            break;
        }
        // Of some descriptors this process may be the last that closes them.
        assert!(
            start.elapsed() < PATIENCE,
            "{} programs left a thread that judges something",
            held.len()
        );
    }
    drop(held);
    std::thread::sleep(Duration::from_millis(200));
    still_serves(&all);
    is_clean(&all.0);
}
