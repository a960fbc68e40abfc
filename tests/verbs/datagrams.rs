//! Unreliable datagrams and address handles.

use crate::common::{End, Pair, ah_to, inline, next, pattern};
use crate::{TARGET, ended, verbs_error};
use trunkline::{
    Access, AhAttributes, Allowed, Attributes, Error, Extra, GRH_LEN, Gid, PostError, Qp, QpModify,
    QpOptions, QpType, SendOp, SendWr, Status, VerbsError, WorkOpcode,
};

const QKEY: u32 = 0x1111_2222;

fn ready(end: &End) -> Qp {
    let qp = end.qp(&QpOptions {
        kind: QpType::Ud,
        ..QpOptions::default()
    });
    let attributes = Attributes {
        qkey: QKEY,
        sq_psn: qp.address().psn,
        ..Attributes::default()
    };
    let access = Access::LOCAL_READ;
    qp.modify(&QpModify::Init { access }).unwrap();
    qp.modify(&QpModify::Rtr(attributes)).unwrap();
    qp.modify(&QpModify::Rts(attributes)).unwrap();
    qp
}

#[test]
fn a_datagram_says_who_sent_it_and_is_answered() {
    let pair = Pair::new();
    let (qa, qb) = (ready(&pair.a), ready(&pair.b));
    let to_b = pair.a.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    let to_a = pair.b.pd.create_ah(&ah_to(pair.a.node.gid())).unwrap();
    let data = pattern(1, 1000);
    pair.a.mr.write(0, &data).unwrap();
    pair.b.receive(&qb, 7, TARGET, 1100);
    pair.a
        .post(&qa, 1, to_b.send_imm(qb.qpn(), QKEY, 99), 0, 1000);
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!(ended(&received), (7, Status::Success, WorkOpcode::Receive));
    assert_eq!(received.byte_len as usize, 1000 + GRH_LEN);
    assert_eq!(received.src_qp, qa.qpn());
    assert_eq!(received.extra, Extra::Immediate(99));
    assert!(pair.b.bytes(TARGET + GRH_LEN, 1000) == data);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (1, Status::Success, WorkOpcode::Send)
    );

    pair.a.receive(&qa, 8, TARGET, 100);
    pair.b
        .post(&qb, 2, to_a.send(received.src_qp, QKEY), TARGET, 10);
    let answer = pair.next(&pair.a.recv_cq);
    assert_eq!((answer.wr_id, answer.byte_len), (8, 50));
}

#[test]
fn a_datagram_without_a_handle_of_its_domain_is_an_error_of_its_qp() {
    let pair = Pair::new();
    let other = pair.a.node.alloc_pd();
    let strange = other.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    let qpn = ready(&pair.b).qpn();
    for op in [SendOp::Send, strange.send(qpn, QKEY)] {
        let qa = ready(&pair.a);
        pair.a.post(&qa, 1, op, 0, 10);
        let done = pair.next(&pair.a.send_cq);
        assert_eq!(done.status, Status::LocalQpOperation, "{op:?}");
    }
}

#[test]
fn queued_datagrams_go_where_their_handles_led() {
    let pair = Pair::new();
    let c = End::new(inline());
    let (qa, qb, qc) = (ready(&pair.a), ready(&pair.b), ready(&c));
    let nodes = [&pair.a.node, &pair.b.node, &c.node];
    pair.b.receive(&qb, 1, TARGET, 1000);
    c.receive(&qc, 1, TARGET, 1000);
    let to_b = pair.a.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    // The same QP number and key at either.
    pair.a.post(&qa, 1, to_b.send_imm(qb.qpn(), QKEY, 1), 0, 8);
    drop(to_b);
    let to_c = pair.a.pd.create_ah(&ah_to(c.node.gid())).unwrap();
    pair.a.post(&qa, 2, to_c.send_imm(qc.qpn(), QKEY, 2), 0, 8);
    drop(to_c);
    let received = next(&nodes, &pair.b.recv_cq);
    assert_eq!(received.extra, Extra::Immediate(1));
    assert_eq!(next(&nodes, &c.recv_cq).extra, Extra::Immediate(2));
    for wr_id in [1, 2] {
        let done = next(&nodes, &pair.a.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }
}

#[test]
fn handles_of_another_node_are_refused() {
    let pair = Pair::new();
    let (qa, qb) = (ready(&pair.a), ready(&pair.b));
    let theirs = pair.b.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    let ours = pair.a.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    let sges = [pair.a.mr.sge(0, 8)];
    let request = |wr_id, ah: &trunkline::Ah| {
        SendWr::new(ah.send(qb.qpn(), QKEY))
            .wr_id(wr_id)
            .sges(&sges)
            .signaled()
    };
    let list = [request(0, &ours), request(1, &theirs), request(2, &ours)];
    let what = "address handle";
    let error = VerbsError::InvalidArgument { what };
    match qa.post_send(&list) {
        Err(Error::Post(found)) => assert_eq!(found, PostError { posted: 1, error }),
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.next(&pair.a.send_cq).wr_id, 0);
    pair.run_for(std::time::Duration::from_millis(1));
    assert_eq!(pair.a.send_cq.poll_one().unwrap(), None);
}

#[test]
fn connected_qps_take_no_datagrams() {
    let pair = Pair::new();
    let ah = pair.a.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    for kind in [QpType::Rc, QpType::Uc] {
        let options = QpOptions {
            kind,
            ..QpOptions::default()
        };
        let (qa, qb) = pair.qps_with(&options, &Attributes::default());
        pair.a.post(&qa, 1, ah.send(qb.qpn(), QKEY), 0, 10);
        let done = pair.next(&pair.a.send_cq);
        assert_eq!(done.status, Status::LocalQpOperation, "{kind}");
    }
}

#[test]
fn peers_of_another_family_are_refused() {
    let pair = Pair::new();
    let v6 = Gid::from(std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]));
    let refused = |error| matches!(verbs_error(error), VerbsError::OtherFamily { .. });
    assert!(refused(pair.a.pd.create_ah(&ah_to(v6)).unwrap_err()));
    for kind in [QpType::Rc, QpType::Uc] {
        let qp = pair.a.qp(&QpOptions {
            kind,
            ..QpOptions::default()
        });
        let mut peer = qp.address();
        peer.gid = v6;
        assert!(refused(qp.connect(peer).unwrap_err()), "{kind}");
    }
}

#[test]
fn a_handle_gives_back_the_attributes_that_it_was_made_with() {
    let pair = Pair::new();
    let remote = pair.b.node.gid();
    let usual = AhAttributes::default();
    let least = (usual.flow_label, usual.hop_limit, usual.service_level);
    assert_eq!((usual.traffic_class, least), (0, (0, 0, 0)));
    let most = AhAttributes {
        remote,
        traffic_class: u8::MAX,
        flow_label: (1 << 20) - 1,
        hop_limit: u8::MAX,
        service_level: 7,
    };
    let qpn = ready(&pair.b).qpn();
    for attributes in [ah_to(remote), most] {
        let ah = pair.a.pd.create_ah(&attributes).unwrap();
        assert_eq!(*ah.attributes(), attributes);
        assert_eq!(ah.remote(), remote);
        let SendOp::SendTo(to) = ah.send_imm(qpn, QKEY, 7) else {
            panic!("a datagram");
        };
        let class = attributes.traffic_class;
        assert_eq!((to.remote, to.traffic_class), (remote, class));
        let ip = (to.ip.flow_label(), to.ip.hop_limit());
        assert_eq!(ip, (attributes.flow_label, attributes.hop_limit));
        assert_eq!((to.qkey, to.imm), (QKEY, Some(7)));
    }
}

#[test]
fn attributes_out_of_range_are_refused_by_name_and_make_no_handle() {
    let pair = Pair::new();
    let usual = ah_to(pair.b.node.gid());
    let label = AhAttributes {
        flow_label: 1 << 20,
        ..usual
    };
    let level = AhAttributes {
        service_level: 8,
        ..usual
    };
    let (labels, levels) = (Allowed::Range(0, (1 << 20) - 1), Allowed::Range(0, 7));
    for (attributes, error) in [
        (label, labels.refuse("flow_label", 1 << 20)),
        (level, levels.refuse("sl", 8)),
    ] {
        let refused = pair.a.pd.create_ah(&attributes).unwrap_err();
        assert_eq!(verbs_error(refused), error);
    }
}

#[test]
fn a_datagram_arrives_whatever_its_handle_says_of_classes_and_hops() {
    let pair = Pair::new();
    let (qa, qb) = (ready(&pair.a), ready(&pair.b));
    let attributes = AhAttributes {
        traffic_class: 0x28,
        flow_label: 0x1_2345,
        hop_limit: 1,
        service_level: 3,
        ..ah_to(pair.b.node.gid())
    };
    let ah = pair.a.pd.create_ah(&attributes).unwrap();
    pair.b.receive(&qb, 7, TARGET, 1100);
    pair.a.post(&qa, 1, ah.send_imm(qb.qpn(), QKEY, 9), 0, 64);
    assert_eq!(pair.next(&pair.b.recv_cq).extra, Extra::Immediate(9));
    // What is received begins with the header that it came with.
    let header = pair.b.bytes(TARGET, GRH_LEN);
    let class = header[GRH_LEN - 19];
    assert_eq!(class & !0b11, 0x28, "the second of 20 bytes of IPv4");
}
