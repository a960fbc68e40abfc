//! Many programs, one after the other and at once.

use super::peers::{Neighbour, Peer};
use super::{alone, count, memory_files, new_service, play, within};
use crate::common::service;
use std::time::{Duration, Instant};
use trunkline::{Access, Mr, Node, QpAddress, Remote};

#[test]
fn a_thousand_programs_one_after_the_other_leave_nothing() {
    let _alone = alone();
    let (service, path) = new_service();
    let cycle = |number: u32| {
        let node = Node::attach(&path).unwrap();
        if number.is_multiple_of(4) {
            let end = Peer::of(node);
            let ((qa, _ca), (qb, cb)) = (end.qp(), end.qp());
            cb.arm(false);
            qa.connect(qb.address()).unwrap();
            if number.is_multiple_of(8) {
                drop(end);
            }
        }
    };
    (0..50).for_each(cycle);
    let settled = || {
        within(Duration::from_secs(5), "all are gone", || {
            service.clients().is_empty() && !closing()
        });
        (count("fd"), count("task"), memory_files())
    };
    let (before, resident) = (settled(), crate::common::resident());
    let start = Instant::now();
    (0..1000).for_each(cycle);
    println!("{:?} for 1000", start.elapsed());
    within(Duration::from_secs(5), "as many as before", || {
        settled() <= before
    });
    let more = crate::common::resident().saturating_sub(resident);
    println!("{before:?}, {more} bytes more");
    assert!(more < 8 << 20, "{more} bytes more");
    assert_eq!(service.node().live_objects().qps, 0);
    assert_eq!(service.violations(), 0);
}

/// Whether a thread closes what a program left.
fn closing() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .into_iter()
        .any(|name| name.starts_with("trunkline-close"))
}

#[test]
fn threads_of_a_program_get_memory_of_segments_that_are_new_to_it_at_once() {
    const THREADS: usize = 8;
    const REGIONS: usize = 60;
    // Seven of them take a segment: threads often hear of the same new one one after the other.
    const BYTES: usize = 560 << 10;
    let (_service, path) = new_service();
    let node = Node::attach(&path).unwrap();
    let pd = node.alloc_pd();
    let register = |_| pd.register(BYTES, Access::ALL).unwrap();
    let one_thread = || (0..REGIONS).map(register).collect::<Vec<Mr>>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one_thread)).collect();
        let regions = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        for (number, region) in regions.enumerate() {
            region.write(BYTES - 8, &number.to_ne_bytes()).unwrap();
        }
    });
}

#[test]
fn many_programs_at_once_share_connections_and_are_reaped_together() {
    const PROGRAMS: usize = 64;
    const QPS: usize = 20;
    const POOL: u32 = 4;
    let _alone = alone();
    let builder = Node::builder().address(crate::common::address()).pool(POOL);
    let (service, path) = service(builder);
    let peer = Peer::new();
    let beside = Neighbour::start(&path, &peer).stop().2;
    let mut processes: Vec<_> = (0..PROGRAMS)
        .map(|_| play(&format!("many {QPS}"), &path))
        .collect();
    let mut qps = Vec::new();
    let mut at = 0;
    for (seed, process) in (1_u64..).zip(&mut processes) {
        let addresses: Vec<QpAddress> = process.hear();
        let mut peers: Vec<(QpAddress, Remote)> = Vec::new();
        for address in addresses {
            let (qp, cq) = peer.qp();
            qp.connect(address).unwrap();
            peers.push((qp.address(), peer.mr.remote(at)));
            qps.push((qp, cq));
            at += 8;
        }
        process.tell(&(seed, peers));
    }
    for process in &mut processes {
        let () = process.hear();
    }
    assert_eq!(service.clients().len(), PROGRAMS + 1);
    let connections = service.node().connection_count();
    println!("{connections} connections");
    assert!(connections <= POOL as usize, "{connections}");
    for program in 0..PROGRAMS {
        for qp in 0..QPS {
            let mut word = [0; 8];
            peer.mr.read(8 * (program * QPS + qp), &mut word).unwrap();
            let word = u64::from_ne_bytes(word);
            assert_eq!(word >> 16, (program as u64 + 1) << 16 | qp as u64);
            assert!(word & 0xffff > 0);
        }
    }
    let neighbour = Neighbour::exchange(beside, &peer);
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    for process in &mut processes {
        process.child.kill().unwrap();
    }
    within(Duration::from_secs(5), "one is left", || {
        service.clients().len() == 1
    });
    println!("clients() after {:?}", start.elapsed());
    let before = Peer::of(Node::attach(&path).unwrap());
    within(Duration::from_secs(5), "few QPs are left", || {
        service.node().live_objects().qps <= 1
    });
    println!("reaped after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
    std::thread::sleep(Duration::from_millis(100));
    let (rounds, slowest, _beside) = neighbour.stop();
    println!("{rounds} messages beside, {slowest:?} the slowest");
    // The processors are those of the 64 that are killed, too.
    assert!(slowest < Duration::from_millis(250), "{slowest:?}");
    drop(before);
}
