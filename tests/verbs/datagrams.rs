//! Unreliable datagrams and address handles.

use crate::common::{End, Pair, inline, next, pattern};
use crate::{TARGET, ended, verbs_error};
use trunkline::{
    Access, Attributes, Error, Extra, GRH_LEN, Gid, PostError, Qp, QpModify, QpOptions, QpType,
    SendOp, SendWr, Status, VerbsError, WorkOpcode,
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
    let to_b = pair.a.pd.create_ah(pair.b.node.gid(), 0).unwrap();
    let to_a = pair.b.pd.create_ah(pair.a.node.gid(), 0).unwrap();
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
    let strange = other.create_ah(pair.b.node.gid(), 0).unwrap();
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
    let to_b = pair.a.pd.create_ah(pair.b.node.gid(), 0).unwrap();
    // The same QP number and key at either.
    pair.a.post(&qa, 1, to_b.send_imm(qb.qpn(), QKEY, 1), 0, 8);
    drop(to_b);
    let to_c = pair.a.pd.create_ah(c.node.gid(), 0).unwrap();
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
    let theirs = pair.b.pd.create_ah(pair.b.node.gid(), 0).unwrap();
    let ours = pair.a.pd.create_ah(pair.b.node.gid(), 0).unwrap();
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
    let ah = pair.a.pd.create_ah(pair.b.node.gid(), 0).unwrap();
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
    assert!(refused(pair.a.pd.create_ah(v6, 0).unwrap_err()));
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
