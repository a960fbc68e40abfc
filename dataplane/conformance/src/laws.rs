//! What a port does for those who use it well.

use crate::end::{is_same, pattern};
use crate::{Link, PATIENCE, Side, Suite};
use std::time::{Duration, Instant};
use trunkline_dataplane::{Identification, MemoryConfig, MemoryPort};
use trunkline_testkit::netns::ip;
use trunkline_wire::Path;

const QUIET: Duration = Duration::from_millis(300);

/// Datagrams of every size arrive as they were sent.
pub fn datagrams_of_every_size_arrive_as_they_were_sent(suite: &Suite) {
    suite.each_pair(|_, [from, to]| {
        let mtu = from.kind.mtu.min(to.kind.mtu);
        let most = from.port.capabilities().max_datagram;
        let headers = if from.address.is_ipv4() { 28 } else { 48 };
        assert_eq!(most, mtu - headers);
        let path = from.path_to(to.address);
        let sizes = [
            16,
            17,
            63,
            64,
            65,
            1000,
            1471,
            1473,
            4095,
            4096,
            most - 1,
            most,
        ];
        for (number, size) in sizes.into_iter().filter(|size| *size <= most).enumerate() {
            let sent = pattern(number, size);
            from.send(&path, &sent);
            from.port.flush().unwrap();
            let got = to.receive(1, PATIENCE);
            assert!(
                is_same(&got[0], &sent),
                "{size} bytes: {:?}",
                got[0].arrival
            );
            assert_eq!(got[0].arrival.path, path);
            assert!(!got[0].arrival.ce);
        }
    });
}

/// What is sent first to a neighbour arrives, in order, whether the kernel knows it or not: nothing
/// sends again what UC and UD lose.
pub fn what_is_sent_first_arrives_in_order_be_the_neighbour_known_or_not(suite: &Suite) {
    const COUNT: usize = 20;
    suite.each_kind_on(&[Link::Kernels], |_, [near, far]| {
        for is_known in [true, false] {
            near.port = Box::new(MemoryPort::pair(MemoryConfig::default()).0);
            near.port = (near.kind.open)(Side::Near, near.address);
            if !is_known {
                ip("neigh flush dev near");
            }
            let path = near.path_to(far.address);
            for number in 0..COUNT {
                near.send(&path, &pattern(number, 16));
            }
            near.port.flush().unwrap();
            let (begin, mut got) = (Instant::now(), Vec::new());
            while got.len() < COUNT {
                assert!(begin.elapsed() < PATIENCE, "{} of {COUNT} came", got.len());
                near.receive(0, Duration::ZERO);
                near.port.flush().unwrap();
                got.extend(far.receive(COUNT - got.len(), Duration::from_millis(1)));
            }
            let in_order = |(number, got)| is_same(got, &pattern(number, 16));
            assert!(got.iter().enumerate().all(in_order));
        }
    });
}

/// Bursts arrive once and in order in both directions.
pub fn bursts_arrive_once_and_in_order_in_both_directions(suite: &Suite) {
    const BURST: usize = 100;
    suite.each_pair(|_, [near, far]| {
        let (there, back) = (near.path_to(far.address), far.path_to(near.address));
        for (round, size) in [64, 4000, 333, 1024]
            .into_iter()
            .cycle()
            .take(40)
            .enumerate()
        {
            let size = size.min(near.large()).min(far.large());
            let sent: Vec<_> = (0..BURST)
                .map(|n| pattern(round * BURST + n, size))
                .collect();
            for one in &sent {
                near.send(&there, one);
                far.send(&back, one);
            }
            near.port.flush().unwrap();
            far.port.flush().unwrap();
            for to in [&mut *far, &mut *near] {
                let got = to.receive(BURST, PATIENCE);
                assert_eq!(got.len(), BURST, "round {round}: {:?}", to.counters());
                let same = got.iter().zip(&sent).all(|(got, sent)| is_same(got, sent));
                assert!(same, "round {round}");
            }
        }
        let (sent, received) = (near.counters(), far.counters());
        assert!(sent.sent >= 4000 && received.received >= 4000);
        assert_eq!((received.malformed, sent.refused), (0, 0));
    });
}

/// A mark of congestion and a traffic class arrive.
pub fn a_mark_of_congestion_and_a_traffic_class_arrive(suite: &Suite) {
    suite.each_pair(|_, [near, far]| {
        for traffic_class in [0, 2, 3, 0x68, 0x6b] {
            let path = Path {
                traffic_class,
                ..near.path_to(far.address)
            };
            near.send(&path, &pattern(1, 100));
            near.port.flush().unwrap();
            let got = far.receive(1, PATIENCE);
            assert_eq!(got[0].arrival.path.traffic_class, traffic_class);
            assert_eq!(got[0].arrival.ce, traffic_class & 3 == 3);
        }
    });
}

/// Its descriptor says when something has come and nothing before.
pub fn its_descriptor_says_when_something_has_come_and_nothing_before(suite: &Suite) {
    suite.each_pair(|_, [near, far]| {
        far.receive(usize::MAX, Duration::from_millis(20));
        if !far.kind.can_sleep {
            assert!(
                far.port.fd().is_none(),
                "nothing tells when something has come"
            );
            return;
        }
        assert!(!far.wait(Duration::from_millis(20)), "nothing has come");
        for number in 0..3 {
            near.send(&near.path_to(far.address), &pattern(number, 200));
            near.port.flush().unwrap();
            assert!(far.wait(PATIENCE));
            assert_eq!(far.receive(1, PATIENCE).len(), 1);
            assert!(far.receive(1, Duration::from_millis(5)).is_empty());
            assert!(!far.wait(Duration::from_millis(5)), "all was taken");
        }
    });
}

/// What a node sends to itself comes back and wakes it.
pub fn what_a_node_sends_to_itself_comes_back_and_wakes_it(suite: &Suite) {
    suite.each_kind(|_, [near, _]| {
        let path = near.path_to(near.address);
        for (number, size) in [16, near.large(), 64].into_iter().enumerate() {
            let sent = pattern(number, size);
            near.send(&path, &sent);
            near.port.flush().unwrap();
            assert!(!near.kind.can_sleep || near.wait(PATIENCE));
            let got = near.receive(1, PATIENCE);
            assert!(is_same(&got[0], &sent), "{size}");
            assert_eq!(got[0].arrival.path, path);
            assert!(near.receive(1, Duration::from_millis(5)).is_empty());
            assert!(!near.kind.can_sleep || !near.wait(Duration::from_millis(5)));
        }
    });
}

/// A slot that is not committed is given out again.
pub fn a_slot_that_is_not_committed_is_given_out_again(suite: &Suite) {
    suite.each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let large = near.large();
        let first = near.port.reserve(&path, large).unwrap().identification;
        let again = near.port.reserve(&path, large).unwrap();
        assert_eq!(again.identification, first);
        // A shorter one has room, and a flush forgets.
        assert!(near.port.reserve(&path, 100).is_some());
        near.port.flush().unwrap();
        assert!(far.receive(1, Duration::from_millis(20)).is_empty());
        let sent = pattern(3, 777);
        near.send(&path, &sent);
        near.port.flush().unwrap();
        let got = far.receive(2, Duration::from_millis(50));
        assert!(got.len() == 1 && is_same(&got[0], &sent));
    });
}

/// A port that is full has room again once it was flushed.
pub fn a_port_that_is_full_has_room_again_once_it_was_flushed(suite: &Suite) {
    suite.each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let (mut sent, large) = (0, near.large());
        while near.try_send(&path, &pattern(sent, large)) {
            sent += 1;
            assert!(sent < 1_000_000, "it is never full");
        }
        assert!(sent >= 32, "{sent}");
        let mut got = 0;
        let start = Instant::now();
        while got < sent && start.elapsed() < PATIENCE {
            near.port.flush().unwrap();
            got += far.receive(sent - got, Duration::from_millis(50)).len();
            if near.port.full().is_none() && got < sent {
                break;
            }
        }
        assert!(near.try_send(&path, &pattern(sent, large)));
        near.port.flush().unwrap();
        let last = far.receive(usize::MAX, Duration::from_millis(50));
        assert!(is_same(last.last().unwrap(), &pattern(sent, large)));
    });
}

/// Super packets of sockets are taken apart wherever they are made.
pub fn super_packets_of_sockets_are_taken_apart_wherever_they_are_made(suite: &Suite) {
    // Each in another length of runs, with a shorter one at the end.
    suite.each_pair(|_, [near, far]| {
        let path = near.path_to(far.address);
        for (size, count) in [(100, 64), (1024, 50), (4000, 16), (64, 1), (1000, 3)] {
            let size = size.min(near.large()).min(far.large());
            let mut sent: Vec<_> = (0..count).map(|number| pattern(number, size)).collect();
            sent.push(pattern(count, size / 2));
            for one in &sent {
                near.send(&path, one);
            }
            near.port.flush().unwrap();
            let got = far.receive(sent.len(), QUIET);
            assert_eq!(got.len(), sent.len(), "{size}: {:?}", far.counters());
            for (got, sent) in got.iter().zip(&sent) {
                let guess = got.arrival.identification;
                let seen = matches!(guess, Identification::Seen(_));
                // Who only predicts may be wrong where others joined what came.
                assert!(got.datagram.len() == sent.len(), "{size}");
                assert!(!seen || is_same(got, sent), "{size}: {guess:?}");
            }
        }
    });
}
