//! What a port does for those who use it well.

use super::*;

const QUIET: Duration = Duration::from_millis(300);

#[test]
#[ignore = "needs root and network namespaces"]
fn datagrams_of_every_size_arrive_as_they_were_sent() {
    each_pair(|_, [near, far]| {
        for [from, to] in [[&mut *near, &mut *far]].into_iter() {
            let most = from.port.capabilities().max_datagram;
            let headers = if from.address.is_ipv4() { 28 } else { 48 };
            assert_eq!(most, 4200 - headers);
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
            for (number, size) in sizes.into_iter().enumerate() {
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
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn bursts_arrive_once_and_in_order_in_both_directions() {
    const BURST: usize = 100;
    each_pair(|_, [near, far]| {
        let (there, back) = (near.path_to(far.address), far.path_to(near.address));
        for (round, size) in [64, 4000, 333, 1024]
            .into_iter()
            .cycle()
            .take(40)
            .enumerate()
        {
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

#[test]
#[ignore = "needs root and network namespaces"]
fn a_mark_of_congestion_and_a_traffic_class_arrive() {
    each_pair(|_, [near, far]| {
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

#[test]
#[ignore = "needs root and network namespaces"]
fn its_descriptor_says_when_something_has_come_and_nothing_before() {
    each_pair(|_, [near, far]| {
        far.receive(usize::MAX, Duration::from_millis(20));
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

#[test]
#[ignore = "needs root and network namespaces"]
fn what_a_node_sends_to_itself_comes_back_and_wakes_it() {
    each_kind(|_, [near, _]| {
        let path = near.path_to(near.address);
        for (number, size) in [16, 4000, 64].into_iter().enumerate() {
            let sent = pattern(number, size);
            near.send(&path, &sent);
            near.port.flush().unwrap();
            assert!(near.wait(PATIENCE));
            let got = near.receive(1, PATIENCE);
            assert!(is_same(&got[0], &sent), "{size}");
            assert_eq!(got[0].arrival.path, path);
            assert!(near.receive(1, Duration::from_millis(5)).is_empty());
            assert!(!near.wait(Duration::from_millis(5)));
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_slot_that_is_not_committed_is_given_out_again() {
    each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let first = near.port.reserve(&path, 4000).unwrap().identification;
        let again = near.port.reserve(&path, 4000).unwrap();
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

#[test]
#[ignore = "needs root and network namespaces"]
fn a_port_that_is_full_has_room_again_once_it_was_flushed() {
    each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let mut sent = 0;
        while near.try_send(&path, &pattern(sent, 4000)) {
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
        assert!(near.try_send(&path, &pattern(sent, 4000)));
        near.port.flush().unwrap();
        let last = far.receive(usize::MAX, Duration::from_millis(50));
        assert!(is_same(last.last().unwrap(), &pattern(sent, 4000)));
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn super_packets_of_sockets_are_taken_apart_wherever_they_are_made() {
    // Each in another length of runs, with a shorter one at the end.
    each_pair(|_, [near, far]| {
        let path = near.path_to(far.address);
        for (size, count) in [(100, 64), (1024, 50), (4000, 16), (64, 1), (1000, 3)] {
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
