//! What nodes believe of the path, on real sockets.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{PATIENCE, Pair, address, next};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Qp, SendOp};

const QPS: usize = 32;
const DEPTH: usize = 16;

/// The least time that 64 bytes take through the kernel, from the call that sends them to the end
/// of the one that receives them, on one thread: nothing else could make it longer.
fn one_way() -> Duration {
    let [from, to] = [(); 2].map(|()| UdpSocket::bind((address(), 0)).unwrap());
    let target = to.local_addr().unwrap();
    let mut buffer = [0; 64];
    let times = (0..5000).map(|_| {
        let began = Instant::now();
        from.send_to(&[7; 64], target).unwrap();
        to.recv(&mut buffer).unwrap();
        began.elapsed()
    });
    times.min().unwrap()
}

#[test]
fn no_round_trip_of_a_busy_sender_is_shorter_than_the_path() {
    let floor = one_way();
    let pair = Pair::new();
    let qps: Vec<(Qp, Qp)> = (0..QPS).map(|_| pair.qps()).collect();
    let target = SendOp::Write(pair.b.mr.remote(0));
    for (qa, _) in &qps {
        pair.a.post(qa, 0, target, 0, 64);
        next(&[&pair.a.node, &pair.b.node], &pair.a.send_cq);
    }
    let done = AtomicBool::new(false);
    let mut least = u64::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                pair.b.node.poll().unwrap();
            }
        });
        let began = Instant::now();
        let mut total = 0;
        for (at, (qa, _)) in qps.iter().enumerate() {
            (0..DEPTH).for_each(|_| pair.a.post(qa, at as u64, target, 0, 64));
        }
        while total < 100_000 && began.elapsed() < PATIENCE {
            pair.a.node.poll().unwrap();
            while let Some(completion) = pair.a.send_cq.poll_one().unwrap() {
                let (qa, _) = &qps[completion.wr_id as usize];
                pair.a.post(qa, completion.wr_id, target, 0, 64);
                total += 1;
            }
            for connection in pair.a.node.connections(pair.b.node.gid().address()) {
                let rtt = connection.stats().unwrap().delivery.min_rtt_ns;
                least = if rtt == 0 { least } else { least.min(rtt) };
            }
        }
        done.store(true, Ordering::Release);
        assert!(total > 1000, "{total} requests");
    });
    let least = Duration::from_nanos(least);
    println!("one way {floor:?} at least, round trip {least:?}");
    // What either end does before the kernel's clock and after its calls is not the path's: once
    // one way is less than there and back.
    assert!(least >= floor, "{least:?}, one way takes {floor:?}");
}
