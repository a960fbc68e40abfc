//! What a program with a subscriber of `tracing` reads of its nodes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::faulty::{self, Fault};
use common::written::Written;
use common::{End, Pair, address, inline, until};
use std::net::IpAddr;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;
use trunkline::{
    ConnectionOptions, ConnectionState, Errno, Gid, NoConnection, QpAddress, QpOptions, QpState,
    SendOp,
};

/// Reads what inline nodes of this thread say while `run` runs.
fn log_of(level: LevelFilter, run: impl FnOnce(&Written)) -> Written {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(level)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || run(&written));
    written
}

#[test]
fn a_log_tells_of_nodes_that_meet_and_part() {
    let log = log_of(LevelFilter::INFO, |_| {
        let pair = Pair::new();
        let (qa, qb) = pair.qps();
        pair.until("them to meet", || {
            qa.connection().is_some() && qb.connection().is_some()
        });
        // Whether everything was acknowledged does not matter here.
        let _ = pair.a.node.shutdown(Duration::ZERO);
    });
    assert_eq!(log.lines("node started").len(), 2);
    let met = log.lines("peer met");
    assert_eq!(met.len(), 2, "{met:?}");
    // Whose node says so stands beside it.
    assert!(
        met.iter().all(|line| line.contains("worker{node=127.")),
        "{met:?}"
    );
    // One was shut down, the other one let go of.
    assert_eq!(log.lines("node ended").len(), 2);
    assert!(log.lines("handshake").is_empty() && log.lines("WARN").is_empty());
}

#[test]
fn a_log_tells_each_step_of_a_connection_and_what_its_end_took_along() {
    let log = log_of(LevelFilter::DEBUG, |log| {
        let a = End::new(inline().peer_timeout(Duration::from_millis(50)));
        let pair = Pair {
            a,
            b: End::new(inline()),
        };
        let (qa, qb) = pair.qps();
        pair.until("them to be bound", || {
            qa.connection().is_some() && qb.connection().is_some()
        });
        assert!(log.lines("WARN").is_empty());
        // The peer is driven no more.
        let write = SendOp::Write(pair.b.mr.remote(0));
        pair.a.post(&qa, 1, write, 0, 64);
        until(&[&pair.a.node], "the QP to fail", || {
            qa.state() == QpState::Error
        });
    });
    let steps = log.lines("connection_setup{between=\"nodes\"");
    for from_to in [
        "from=\"gone\" to=\"req_sent\"",
        "to=\"rep_sent\"",
        "to=\"established\"",
    ] {
        assert!(
            steps.iter().any(|line| line.contains(from_to)),
            "{from_to}: {steps:?}"
        );
    }
    assert!(log.lines("connection opened").len() >= 2);
    let silent = log.lines("WARN");
    assert!(
        silent
            .iter()
            .any(|line| line.contains("nothing came from its peer")),
        "{silent:?}"
    );
}

#[test]
fn a_log_says_why_a_program_gets_no_connection() {
    let log = log_of(LevelFilter::INFO, |_| {
        let end = End::new(inline());
        let options = ConnectionOptions::default();
        let nobody = "127.1.2.3".parse().unwrap();
        let opened = end.node.open_connection(nobody, &options).unwrap();
        until(&[&end.node], "the failure", || {
            opened.state() != ConnectionState::Opening
        });
    });
    let said = log.lines("no connection");
    assert!(
        matches!(&said[..], [line] if line.contains("peer=127.1.2.3")
            && line.contains("no node runs there")),
        "{said:?}"
    );
}

/// Opens a connection to `peer` and drives the node until that has failed.
fn fails_to_open(end: &End, peer: IpAddr) -> ConnectionState {
    let options = ConnectionOptions::default();
    let opened = end.node.open_connection(peer, &options).unwrap();
    until(&[&end.node], "the failure", || {
        opened.state() != ConnectionState::Opening
    });
    opened.state()
}

#[test]
fn a_machine_that_refuses_to_send_is_told_once_for_each_peer_with_its_reason() {
    let peers: [IpAddr; 3] = [address(), address(), address()];
    let log = log_of(LevelFilter::DEBUG, |log| {
        let (node, fault) = faulty::node(address(), inline());
        let end = End::of(node);
        fault.set(Fault::Refuses);
        let why = NoConnection::Unsent(Errno::new(libc::EPERM));
        for peer in [peers[0], peers[1], peers[0]] {
            assert_eq!(fails_to_open(&end, peer), ConnectionState::Failed(why));
        }
        // QPs that wait for a silent peer say the same.
        let qp = end.qp(&QpOptions::default());
        let gid = Gid::from(peers[2]);
        qp.connect(QpAddress {
            gid,
            ..qp.address()
        })
        .unwrap();
        until(&[&end.node], "the end of the ask", || {
            log.lines("no connection").len() == 4
        });
    });
    let warned = log.lines("WARN");
    assert_eq!(warned.len(), peers.len(), "{warned:?}");
    for (line, peer) in warned.iter().zip(peers) {
        assert!(line.contains("refuses to send datagrams"), "{line}");
        assert!(line.contains(&format!("peer={peer} ")), "{line}");
        assert!(line.contains("Operation not permitted"), "{line}");
        assert!(line.contains("firewall"), "{line}");
    }
    let failed = log.lines("no connection");
    assert_eq!(failed.len(), 4, "{failed:?}");
    assert!(
        failed.iter().all(|line| line.contains("refuses to send")),
        "{failed:?}"
    );
}

#[test]
fn a_refusal_of_the_kernel_is_told() {
    let log = log_of(LevelFilter::DEBUG, |_| {
        let end = End::new(inline());
        // No datagram leaves a machine from a loopback address.
        let far = "192.0.2.1".parse().unwrap();
        let ConnectionState::Failed(why) = fails_to_open(&end, far) else {
            panic!("it is open");
        };
        assert_ne!(why, NoConnection::Silent);
    });
    let warned = log.lines("WARN");
    assert!(
        matches!(&warned[..], [line] if line.contains("refuses to send datagrams")
            && line.contains("peer=192.0.2.1")),
        "{warned:?}"
    );
    assert!(log.lines("does not answer").is_empty());
}

#[test]
fn a_log_tells_of_a_cq_that_overruns_and_of_each_of_its_qps_once() {
    let mut said = Vec::new();
    let log = log_of(LevelFilter::WARN, |_| {
        let pair = Pair::new();
        let small = pair.a.node.create_cq(2).unwrap();
        let qps = [(); 2].map(|()| {
            let options = QpOptions::default();
            let qp = pair.a.pd.create_qp(&small, &pair.a.recv_cq, &options);
            let (near, far) = (qp.unwrap(), pair.b.qp(&options));
            near.connect(far.address()).unwrap();
            far.connect(near.address()).unwrap();
            (near, far)
        });
        for wr_id in 0..4 {
            let write = SendOp::Write(pair.b.mr.remote(0));
            pair.a.post(&qps[0].0, wr_id, write, 0, 64);
        }
        pair.until("their end", || {
            qps.iter().all(|(qp, _)| qp.state() == QpState::Error)
        });
        pair.run_for(Duration::from_millis(20));
        let cq = small.id().index();
        said.push(format!(
            "a CQ overran: it is in error, and its QPs go to error cq={cq} "
        ));
        let own = qps.iter().map(|(qp, _)| qp.qpn().get());
        said.extend(own.map(|qp| format!("QP went to error with its CQ qp={qp} cq={cq}")));
    });
    let warned = log.lines("WARN");
    assert_eq!(warned.len(), said.len(), "{warned:?}");
    for line in said {
        assert_eq!(log.lines(&line).len(), 1, "{line}: {warned:?}");
    }
}
