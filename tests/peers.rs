//! How nodes meet, and what becomes of QPs when the other node goes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::faulty::{self, Fault};
use common::stranger::{Stranger, offer};
use common::{End, PATIENCE, Pair, address, inline, next, pattern, turn, until};
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Attributes, Clock, Drive, Error, Event, Gid, Node, QpAddress, QpOptions, QpState, Qpn,
    SendOp, Status, VendorError,
};
use trunkline_cm::{Bounds, NodeCm};
use trunkline_conn::time::{MICROSECOND, MILLISECOND, SECOND};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// Where received bytes go.
const TARGET: usize = 2 << 20;
/// A node finds a peer dead after this long.
const DEAD_AFTER: Duration = Duration::from_millis(300);

#[test]
fn nodes_that_ask_each_other_at_once_share_one_connection() {
    let pair = Pair::new();
    let (qa, qb) = (
        pair.a.qp(&QpOptions::default()),
        pair.b.qp(&QpOptions::default()),
    );
    // Neither has run since: both send their question before either hears the other's.
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    pair.a.node.poll().unwrap();
    pair.b.node.poll().unwrap();
    for (from, to, sender, receiver) in [(&pair.a, &pair.b, &qa, &qb), (&pair.b, &pair.a, &qb, &qa)]
    {
        to.receive(receiver, 1, TARGET, 64);
        from.post(sender, 2, SendOp::Send, 0, 64);
        assert_eq!(pair.next(&from.send_cq).status, Status::Success);
        assert_eq!(pair.next(&to.recv_cq).status, Status::Success);
    }
    pair.run_for(Duration::from_millis(50));
    assert_eq!(
        (
            pair.a.node.connection_count(),
            pair.b.node.connection_count()
        ),
        (1, 1)
    );
}

#[test]
fn the_end_that_connects_first_waits_for_the_other() {
    let pair = Pair::new();
    let (qa, qb) = (
        pair.a.qp(&QpOptions::default()),
        pair.b.qp(&QpOptions::default()),
    );
    qa.connect(qb.address()).unwrap();
    pair.a.post(&qa, 1, SendOp::Send, 0, 64);
    pair.run_for(Duration::from_millis(50));
    assert!(
        pair.a.send_cq.poll_one().unwrap().is_none(),
        "the other end is in RESET"
    );
    qb.connect(qa.address()).unwrap();
    pair.b.receive(&qb, 1, TARGET, 64);
    assert_eq!(pair.next(&pair.b.recv_cq).status, Status::Success);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
}

#[test]
fn qps_of_one_node_talk_to_each_other_whatever_carries_its_packets() {
    let (port, _other) = MemoryPort::pair(MemoryConfig::default());
    let nodes = [
        inline().build().unwrap(),
        inline().build_on(Box::new(port)).unwrap(),
    ];
    for end in nodes.map(End::of) {
        let (qa, qb) = (end.qp(&QpOptions::default()), end.qp(&QpOptions::default()));
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        end.mr.write(0, &pattern(3, 10_000)).unwrap();
        end.receive(&qb, 1, TARGET, 10_000);
        end.post(&qa, 2, SendOp::Send, 0, 10_000);
        let received = next(&[&end.node], &end.recv_cq);
        assert_eq!((received.wr_id, received.status), (1, Status::Success));
        let sent = next(&[&end.node], &end.send_cq);
        assert_eq!((sent.wr_id, sent.status), (2, Status::Success));
        assert_eq!(end.bytes(TARGET, 10_000), pattern(3, 10_000));
    }
}

#[test]
fn many_qps_share_few_connections() {
    let (a, b) = (End::new(inline().pool(2)), End::new(inline().pool(2)));
    let pair = Pair { a, b };
    let qps: Vec<_> = (0..1500).map(|_| pair.qps()).collect();
    let mut done = 0;
    for (at, (qa, _)) in qps.iter().enumerate() {
        pair.a.post(
            qa,
            at as u64,
            SendOp::Write(pair.b.mr.remote(TARGET)),
            0,
            64,
        );
        pair.turn();
        while let Some(completion) = pair.a.send_cq.poll_one().unwrap() {
            assert_eq!(completion.status, Status::Success);
            done += 1;
        }
    }
    pair.until("all WRITEs", || {
        done += std::iter::from_fn(|| pair.a.send_cq.poll_one().unwrap()).count();
        done == qps.len()
    });
    pair.until("a second connection", || {
        pair.a.node.connection_count() == 2
    });
    pair.run_for(Duration::from_millis(50));
    assert_eq!(
        (
            pair.a.node.connection_count(),
            pair.b.node.connection_count()
        ),
        (2, 2)
    );
}

#[test]
fn a_peer_that_vanishes_fails_its_qps_within_a_third_more_than_the_configured_time() {
    for dead_after in [20, 200, 2_000].map(Duration::from_millis) {
        let clock = Clock::manual();
        let timed = || inline().clock(clock.clone());
        let a = End::new(timed().peer_timeout(dead_after));
        let b = End::new(timed());
        let pair = Pair { a, b };
        let (qa, _qb) = pair.qps();
        let write = SendOp::Write(pair.b.mr.remote(TARGET));
        // Passing time a tenth of a millisecond at a time.
        let tick = || clock.set(clock.now() + 100 * MICROSECOND);
        pair.a.post(&qa, 1, write, 0, 64);
        pair.until("the first WRITE", || {
            tick();
            let done = pair.a.send_cq.poll_one().unwrap();
            done.is_some_and(|done| done.status == Status::Success)
        });
        // Node b is driven no more, as if its process had stopped.
        pair.a.post(&qa, 2, write, 0, 100_000);
        pair.a.post(&qa, 3, write, 0, 64);
        let started = clock.now();
        let mut failed = Vec::new();
        until(&[&pair.a.node], "both to fail", || {
            tick();
            failed.extend(pair.a.send_cq.poll_one().unwrap());
            failed.len() == 2
        });
        let took = Duration::from_nanos(clock.now().since(started));
        let failed: Vec<_> = failed
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect();
        assert_eq!(failed, [(2, Status::RetryExceeded), (3, Status::Flushed)]);
        assert_eq!(qa.state(), QpState::Error);
        let range = dead_after * 9 / 10..=dead_after * 4 / 3;
        assert!(
            range.contains(&took),
            "{dead_after:?}: given up after {took:?}"
        );
        let node = &pair.a.node;
        let counted = (node.cm_stats().down, node.cm_counters()[0].nodes.silent);
        assert_eq!((node.connection_count(), counted), (0, (1, 1)));
    }
}

#[test]
fn qps_that_connect_late_give_a_silent_peer_the_time_of_an_ask() {
    let clock = Clock::manual();
    let timed = || inline().clock(clock.clone()).peer_timeout(DEAD_AFTER);
    let pair = Pair {
        a: End::new(timed()),
        b: End::new(timed()),
    };
    let (both, one) = ([&pair.a.node, &pair.b.node], [&pair.a.node]);
    let wait = |nodes: &[&Node], what: &str, done: &mut dyn FnMut() -> bool| {
        let end = clock.now() + 10 * SECOND;
        while !done() {
            clock.set(clock.now() + MILLISECOND);
            turn(nodes);
            assert!(clock.now() < end, "still waiting for: {what}");
        }
        clock.now()
    };
    let (early, _its_peer) = pair.qps();
    let write = SendOp::Write(pair.b.mr.remote(TARGET));
    pair.a.post(&early, 1, write, 0, 64);
    wait(&both, "the first WRITE", &mut || {
        pair.a
            .send_cq
            .poll_one()
            .unwrap()
            .is_some_and(|done| done.status == Status::Success)
    });
    // Node b is driven no more: its connection dies, and it is asked for another one.
    pair.a.post(&early, 2, write, 0, 64);
    let asked = wait(&one, "the end of the connection", &mut || {
        pair.a.node.connection_count() == 0
    });
    let options = QpOptions::default();
    let half = asked + 30 * MILLISECOND;
    wait(&one, "half the ask", &mut || clock.now() >= half);
    let (late, other) = (pair.a.qp(&options), pair.b.qp(&options));
    late.connect(other.address()).unwrap();
    let failed = wait(&one, "the end of the ask", &mut || {
        early.state() == QpState::Error
    });
    assert_eq!(late.state(), QpState::Rts, "it has waited half as long");
    let given_up = wait(&one, "the next one's", &mut || {
        late.state() == QpState::Error
    });
    assert!(
        given_up.since(failed) >= 150 * MILLISECOND,
        "{failed:?} to {given_up:?}"
    );
}

#[test]
fn a_peer_that_restarts_is_another_one() {
    let a = End::new(inline().peer_timeout(DEAD_AFTER));
    let at = address();
    let first = End::new(Node::builder().address(at).drive(Drive::Inline));
    let (qa, qb) = (a.qp(&QpOptions::default()), first.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let stale = first.mr.remote(TARGET);
    a.post(&qa, 1, SendOp::Write(stale), 0, 64);
    assert_eq!(
        next(&[&a.node, &first.node], &a.send_cq).status,
        Status::Success
    );
    drop((first, qb));

    let second = End::new(Node::builder().address(at).drive(Drive::Inline));
    let nodes = [&a.node, &second.node];
    a.post(&qa, 2, SendOp::Write(stale), 0, 64);
    let done = next(&nodes, &a.send_cq);
    assert_eq!((done.wr_id, done.status), (2, Status::RetryExceeded));
    assert_eq!(qa.state(), QpState::Error);
    // QPs that are made now meet the new one.
    let (qa, qb) = (
        a.qp(&QpOptions::default()),
        second.qp(&QpOptions::default()),
    );
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let data = pattern(1, 10_000);
    a.mr.write(0, &data).unwrap();
    a.post(
        &qa,
        3,
        SendOp::Write(second.mr.remote(TARGET)),
        0,
        data.len(),
    );
    let done = next(&nodes, &a.send_cq);
    assert_eq!((done.wr_id, done.status), (3, Status::Success));
    assert!(second.bytes(TARGET, data.len()) == data);
}

#[test]
fn a_restarted_peer_that_asks_first_is_recognised() {
    let a = End::new(inline());
    let at = address();
    let first = End::new(Node::builder().address(at).drive(Drive::Inline));
    let (old, qb) = (a.qp(&QpOptions::default()), first.qp(&QpOptions::default()));
    old.connect(qb.address()).unwrap();
    qb.connect(old.address()).unwrap();
    a.post(&old, 1, SendOp::Write(first.mr.remote(TARGET)), 0, 64);
    assert_eq!(
        next(&[&a.node, &first.node], &a.send_cq).status,
        Status::Success
    );
    drop((first, qb));

    let second = End::new(Node::builder().address(at).drive(Drive::Inline));
    let nodes = [&a.node, &second.node];
    let (qa, qb) = (
        a.qp(&QpOptions::default()),
        second.qp(&QpOptions::default()),
    );
    qb.connect(qa.address()).unwrap();
    // The last word of the old incarnation, or the question of the new one, ends its connections.
    let gone = Event::PeerQpGone { qpn: old.qpn() };
    until(&nodes, "the old QP to be left", || {
        a.node.poll_event() == Some(gone)
    });
    until(&nodes, "the old connections to end", || {
        a.node.cm_stats().down == 1
    });
    qa.connect(qb.address()).unwrap();
    second.post(&qb, 2, SendOp::Write(a.mr.remote(TARGET)), 0, 64);
    assert_eq!(next(&nodes, &second.send_cq).status, Status::Success);
}

#[test]
fn a_taken_address_names_its_owner() {
    let taken = inline().build().unwrap();
    let at = taken.gid().address();
    let error = Node::builder().address(at).build().unwrap_err();
    assert!(matches!(error, Error::Open(_)), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(&at.to_string()) && text.contains("this process"),
        "{text}"
    );
    drop(taken);
    Node::builder().address(at).build().unwrap();
}

#[test]
fn an_address_where_nobody_is_fails_in_bounded_time() {
    let a = End::new(inline());
    // 4.096 us * 2^10, twice: after three unanswered questions the QP is plain RC.
    let attributes = Attributes {
        timeout: 10,
        retry_count: 1,
        ..Attributes::default()
    };
    let qp = a.qp(&QpOptions::default());
    let peer = QpAddress {
        gid: Gid::from(address()),
        qpn: Qpn::from_wire(77),
        psn: qp.address().psn,
    };
    qp.connect_with(peer, Access::ALL, &attributes).unwrap();
    a.post(&qp, 1, SendOp::Send, 0, 64);
    let started = Instant::now();
    let done = next(&[&a.node], &a.send_cq);
    assert_eq!((done.wr_id, done.status), (1, Status::RetryExceeded));
    assert_eq!(qp.state(), QpState::Error);
    assert!(
        started.elapsed() < PATIENCE / 3,
        "took {:?}",
        started.elapsed()
    );
    // Its host says that nobody is there, where it says anything.
    let counters = a.node.cm_counters()[0].nodes;
    let ended = counters.silent + counters.nobody;
    assert_eq!((a.node.connection_count(), ended), (0, 1));
}

#[test]
fn a_socket_that_is_no_node_gets_plain_rc_packets() {
    let a = End::new(inline());
    let at = address();
    let stranger = UdpSocket::bind((at, 4791)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let attributes = Attributes {
        timeout: 10,
        retry_count: 1,
        ..Attributes::default()
    };
    let qp = a.qp(&QpOptions::default());
    let peer = QpAddress {
        gid: Gid::from(at),
        qpn: Qpn::from_wire(0x4321),
        psn: qp.address().psn,
    };
    qp.connect_with(peer, Access::ALL, &attributes).unwrap();
    a.post(&qp, 1, SendOp::Send, 0, 64);
    assert_eq!(next(&[&a.node], &a.send_cq).status, Status::RetryExceeded);
    let (mut questions, mut sends) = (0, 0);
    let mut packet = [0; 2048];
    while let Ok((length, from)) = stranger.recv_from(&mut packet) {
        assert_eq!(from.ip(), a.node.gid().address());
        let opcode = packet[0];
        match opcode {
            // UD SEND ONLY to QP 1: the question.
            0x64 => questions += 1,
            // RC SEND ONLY of 64 bytes to the QP.
            0x04 => {
                assert_eq!(
                    (&packet[5..8], length),
                    (&[0x00, 0x43, 0x21][..], 12 + 64 + 4)
                );
                sends += 1;
            }
            other => panic!("opcode {other:#04x}"),
        }
    }
    assert_eq!(
        (questions, sends),
        (3, 2),
        "three questions; one try and one retry"
    );
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let windows = "a power of two, 64 to 65536";
    for (builder, what, allowed) in [
        (inline().window(100), "window cannot be 100", windows),
        (inline().window(32), "window cannot be 32", windows),
        (
            inline().max_datagram(255),
            "max_datagram cannot be 255",
            "256 or more",
        ),
        (inline().pool(0), "pool cannot be 0", "1 to 254"),
        (
            inline().connect_requests(0),
            "connect_requests cannot be 0",
            "1 to 65536",
        ),
        (inline().workers(65), "workers cannot be 65", "1 to 64"),
        (
            inline().keep_alive(Duration::ZERO),
            "keep_alive cannot be 0ns",
            "1ms or more",
        ),
        // Every connection would be dead at once, or never.
        (
            inline().peer_timeout(Duration::from_micros(1)),
            "peer_timeout cannot be 1µs",
            "1ms or more",
        ),
        (
            inline().peer_timeout(Duration::ZERO),
            "peer_timeout cannot be 0ns",
            "1ms or more",
        ),
        // Nothing would ever be sent.
        (
            inline().link_rate(0),
            "link_rate cannot be 0",
            "1000000 or more",
        ),
        (
            inline().extra_source_ports(8),
            "extra_source_ports cannot be 8",
            "0 to 7",
        ),
    ] {
        let complaint = format!("{what}: {allowed}");
        assert_eq!(builder.build().unwrap_err().to_string(), complaint);
    }
}

#[test]
fn addresses_that_no_node_can_have_are_refused_in_words() {
    for (address, why) in [
        (
            "0.0.0.0",
            "a node has one address, which its peers know it by",
        ),
        ("::", "a node has one address, which its peers know it by"),
        ("224.0.0.1", "it is a multicast address"),
        ("ff02::1", "it is a multicast address"),
        ("255.255.255.255", "it is the broadcast address"),
        (
            "fe80::1",
            "it is of one link, and an address alone does not say of which",
        ),
    ] {
        let refused = Node::builder().address(address.parse().unwrap()).build();
        let words = format!("{address} cannot be used: {why}");
        assert_eq!(refused.unwrap_err().to_string(), words);
    }
}

#[test]
fn an_ipv4_address_that_is_mapped_into_ipv6_is_the_ipv4_address() {
    let plain = address();
    let IpAddr::V4(v4) = plain else {
        panic!("{plain}")
    };
    let builder = inline().address(v4.to_ipv6_mapped().into());
    assert_eq!(builder.build().unwrap().gid().address(), plain);
}

#[test]
fn a_peer_that_has_no_room_is_asked_again_later() {
    let a = End::new(inline());
    let mut stranger = Stranger::new(&a.node);
    let roomy = *stranger.manager.config();
    let mut crowded = roomy;
    crowded.limits.half_open = 0;
    let random: fn() -> u64 = || 0x1234_5678_9abc_def0;
    stranger.manager = NodeCm::new(crowded, random);
    let qp = a.qp(&QpOptions::default());
    let peer = QpAddress {
        gid: Gid::from(stranger.route.local),
        qpn: Qpn::from_wire(77),
        psn: qp.address().psn,
    };
    qp.connect(peer).unwrap();
    until(&[&a.node], "three refusals", || {
        stranger.turn();
        stranger.manager.counters().busy >= 3
    });
    assert_eq!(qp.state(), QpState::Rts, "it waits for the peer");
    stranger.manager = NodeCm::new(roomy, random);
    until(&[&a.node], "the connection", || {
        stranger.turn();
        while let Some(event) = stranger.manager.poll_event() {
            if let trunkline_cm::Event::Incoming { id, .. } = event {
                let (now, bounds) = (trunkline::Instant::ZERO, Bounds::default());
                stranger.manager.accept(now, id, offer(64), bounds).unwrap();
            }
        }
        a.node.connection_count() == 1
    });
}

#[test]
fn a_peer_whose_answers_were_lost_is_asked_again_once_it_is_known_to_be_a_node() {
    let a = End::new(inline());
    let mut stranger = Stranger::new(&a.node);
    let qp = a.qp(&QpOptions::default());
    let peer = QpAddress {
        gid: Gid::from(stranger.route.local),
        qpn: Qpn::from_wire(77),
        psn: qp.address().psn,
    };
    qp.connect(peer).unwrap();
    // It is asked, and says nothing to that, but opens a connection of its own.
    stranger.ask(64);
    until(&[&a.node], "its connection", || {
        stranger.turn();
        a.node.connection_count() == 1
    });
    let mut asks = Vec::new();
    until(&[&a.node], "another ask", || {
        stranger.turn();
        while let Some(event) = stranger.manager.poll_event() {
            if let trunkline_cm::Event::Incoming { id, .. } = event {
                asks.push(id);
            }
        }
        asks.len() == 2
    });
    assert_eq!(qp.state(), QpState::Rts, "it waits for the peer");
    let (now, bounds) = (trunkline::Instant::ZERO, Bounds::default());
    stranger
        .manager
        .accept(now, asks[1], offer(128), bounds)
        .unwrap();
    until(&[&a.node], "the connection of the pool", || {
        stranger.turn();
        a.node.connection_count() == 2
    });
}

#[test]
fn a_peer_may_offer_any_window() {
    let a = End::new(inline());
    let mut stranger = Stranger::new(&a.node);
    // In units of 64 packets.
    for (at, window) in [1, 3, 1023, 1024].into_iter().enumerate() {
        stranger.ask(window);
        until(&[&a.node], "the connection", || {
            stranger.turn();
            a.node.connection_count() == at + 1
        });
    }
}

#[test]
fn a_connection_to_an_address_of_another_family_is_refused_for_that() {
    let pair = Pair::new();
    let there = IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
    let refused = pair.a.node.open_connection(there, &Default::default());
    let why = refused.map(drop).unwrap_err().to_string();
    assert!(why.starts_with("::1 is an IPv6 address"), "{why}");
}

#[test]
fn requests_tell_a_host_without_a_node_from_one_that_shares_no_connections() {
    for shares_none in [false, true] {
        let a = End::new(inline().peer_timeout(DEAD_AFTER));
        let at = address();
        let (node, fault) = faulty::node(at, inline());
        let first = End::of(node);
        let (qa, qb) = (a.qp(&QpOptions::default()), first.qp(&QpOptions::default()));
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        let write = SendOp::Write(first.mr.remote(TARGET));
        a.post(&qa, 1, write, 0, 64);
        let done = next(&[&a.node, &first.node], &a.send_cq);
        assert_eq!(done.status, Status::Success);
        // It goes without a word.
        fault.set(Fault::Silent);
        drop((first, qb));
        let second = shares_none.then(|| inline().address(at).sharing(false).build().unwrap());
        let nodes: Vec<&Node> = [&a.node].into_iter().chain(&second).collect();
        a.post(&qa, 2, write, 0, 64);
        let done = next(&nodes, &a.send_cq);
        let why = if shares_none {
            VendorError::NotSharing
        } else {
            VendorError::NoNode
        };
        assert_eq!((done.status, done.vendor_err), (Status::RetryExceeded, why));
    }
}

/// Timeout 8 is a millisecond: two tries of at most four times as long. The default leaves three
/// seconds for failover before.
#[test]
fn a_qp_waits_for_a_peer_that_is_not_ready_as_long_as_failover_may_take_and_its_own_time() {
    let attributes = Attributes {
        timeout: 8,
        retry_count: 1,
        ..Attributes::default()
    };
    let none = Some(Duration::ZERO);
    for (grace, least, most) in [(none, 2, 10), (None, 3_000, 12_010)] {
        let clock = Clock::manual();
        let timed = || {
            let builder = inline().clock(clock.clone());
            match grace {
                Some(grace) => builder.failover_grace(grace),
                None => builder,
            }
        };
        let pair = Pair {
            a: End::new(timed()),
            b: End::new(timed()),
        };
        let options = QpOptions::default();
        let (asker, idle) = (pair.a.qp(&options), pair.b.qp(&options));
        // Another pair has met before, so that nothing but the QP is waited for.
        let _met = pair.qps();
        for _ in 0..100 {
            clock.set(clock.now() + MILLISECOND);
            pair.turn();
        }
        asker
            .connect_with(idle.address(), Access::ALL, &attributes)
            .unwrap();
        pair.a.post(&asker, 1, SendOp::Send, 0, 8);
        let began = clock.now();
        while asker.state() == QpState::Rts && clock.now() < began + 20 * SECOND {
            clock.set(clock.now() + MILLISECOND);
            pair.turn();
        }
        let waited = clock.now().since(began) / MILLISECOND;
        assert!(
            (least..=most).contains(&waited),
            "grace {grace:?}: {waited} ms"
        );
        let done = pair.a.send_cq.poll_one().unwrap().unwrap();
        assert_eq!(done.status, Status::RetryExceeded);
    }
}
