//! Memory windows between two nodes.

use crate::common::{End, Pair, inline};
use crate::{ended, verbs_error};
use trunkline::{
    Access, AtomicOp, BindMw, BindOptions, Mr, MwType, Qp, QpModify, Remote, Rkey, SendFlags,
    SendOp, SendWr, Status, VerbsError, WorkOpcode,
};

/// Two nodes whose QPs share connections, and two whose QPs do not.
fn pairs() -> [Pair; 2] {
    let alone = || End::new(inline().sharing(false));
    let (a, b) = (alone(), alone());
    [Pair::new(), Pair { a, b }]
}

/// A region of `b` that peers may not use by its own key.
fn region(pair: &Pair) -> Mr {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    pair.b.pd.register(4096, access).unwrap()
}

/// Posts a request to a QP of `b`; how it ended.
fn own(pair: &Pair, qb: &Qp, request: SendWr<'_>) -> (Status, WorkOpcode) {
    qb.post_send(&[request.signaled()]).unwrap();
    let (_, status, opcode) = ended(&pair.next(&pair.b.send_cq));
    (status, opcode)
}

/// Runs a request of `a` by a key at an address.
fn from_afar(pair: &Pair, qa: &Qp, op: impl Fn(Remote) -> SendOp, rkey: Rkey, addr: u64) -> Status {
    pair.a.post(qa, 1, op(Remote { addr, rkey }), 0, 8);
    pair.next(&pair.a.send_cq).status
}

const BOUND: (Status, WorkOpcode) = (Status::Success, WorkOpcode::BindMw);

#[test]
fn a_bound_window_serves_writes_reads_and_atomics_until_it_is_invalidated() {
    let add = |remote| SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 1 });
    for pair in pairs() {
        let mr = region(&pair);
        let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
        let bind = mw.bind_to(&mr, 64, 64, Access::ALL);
        let access = Access::from_bits(0b1110);
        let bind = BindMw { access, ..bind };
        for round in 0..2 {
            let (qa, qb) = pair.qps();
            assert_eq!(own(&pair, &qb, SendWr::bind_mw(bind)), BOUND);
            assert_eq!(WorkOpcode::BindMw as u8, 5);
            let done = |op: fn(Remote) -> SendOp| from_afar(&pair, &qa, op, bind.rkey, bind.addr);
            assert_eq!(done(SendOp::Write), Status::Success);
            assert_eq!(done(SendOp::Read), Status::Success);
            assert_eq!(done(add), Status::Success);
            if round == 0 {
                let invalidate = SendWr::local_invalidate(bind.rkey);
                let gone = (Status::Success, WorkOpcode::LocalInvalidate);
                assert_eq!(own(&pair, &qb, invalidate), gone);
            } else {
                pair.b.receive(&qb, 9, 0, 64);
                let invalidate = SendOp::SendInvalidate(bind.rkey);
                pair.a.post(&qa, 1, invalidate, 0, 8);
                assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
            }
            assert_eq!(done(SendOp::Write), Status::RemoteAccess);
        }
    }
}

#[test]
fn a_window_of_type_2_is_not_for_other_qps_and_ends_with_its_own() {
    for pair in pairs() {
        let mr = region(&pair);
        let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
        let bind = mw.bind_to(&mr, 64, 64, Access::REMOTE_WRITE);
        let (qa, qb) = pair.qps();
        let (other, _peer) = pair.qps();
        assert_eq!(own(&pair, &qb, SendWr::bind_mw(bind)), BOUND);
        let write = |qp| from_afar(&pair, qp, SendOp::Write, bind.rkey, bind.addr);
        assert_eq!(write(&qa), Status::Success);
        assert_eq!(write(&other), Status::RemoteAccess, "another QP's");
        assert_eq!(write(&qa), Status::Success);
        let again = own(&pair, &qb, SendWr::bind_mw(bind));
        assert_eq!(again, (Status::MemoryManagement, WorkOpcode::BindMw));
        qb.modify(&QpModify::Reset).unwrap();
        let (_qa, qb) = pair.qps();
        let rebound = own(&pair, &qb, SendWr::bind_mw(bind));
        assert_eq!(rebound, BOUND, "it was bound no more");
    }
}

#[test]
fn a_message_that_follows_a_bind_finds_it_done() {
    for pair in pairs() {
        let mr = region(&pair);
        let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
        let bind = mw.bind_to(&mr, 0, 64, Access::REMOTE_WRITE);
        let (qa, qb) = pair.qps();
        for _ in 0..20 {
            pair.a.receive(&qa, 3, 64, 64);
            let invalidate = SendWr::local_invalidate(bind.rkey);
            let requests = [SendWr::bind_mw(bind), SendWr::send().inline(b"yours")];
            qb.post_send(&requests).unwrap();
            pair.next(&pair.a.recv_cq);
            let written = from_afar(&pair, &qa, SendOp::Write, bind.rkey, bind.addr);
            assert_eq!(written, Status::Success);
            qb.post_send(&[invalidate]).unwrap();
        }
    }
}

#[test]
fn windows_of_type_1_are_bound_by_a_call_and_serve_every_qp() {
    let pair = Pair::new();
    let mr = region(&pair);
    let (qa, qb) = pair.qps();
    let (other, _peer) = pair.qps();
    let mut mw = pair.b.pd.alloc_mw(MwType::Type1).unwrap();
    let bind = mw.bind_to(&mr, 64, 64, Access::REMOTE_WRITE);
    let how = BindOptions {
        wr_id: 7,
        flags: SendFlags::SIGNALED,
    };
    let key = qb.bind_mw(&mut mw, &bind, how).unwrap();
    let done = (7, Status::Success, WorkOpcode::BindMw);
    assert_eq!(ended(&pair.next(&pair.b.send_cq)), done);
    for qp in [&qa, &other] {
        let written = from_afar(&pair, qp, SendOp::Write, key, bind.addr);
        assert_eq!(written, Status::Success);
    }
    let (mr, error) = mr.deregister().unwrap_err();
    assert!(matches!(
        verbs_error(error),
        VerbsError::Busy { users: 1, .. }
    ));
    let next = qb.bind_mw(&mut mw, &bind, how).unwrap();
    assert_eq!(ended(&pair.next(&pair.b.send_cq)), done);
    assert_eq!((next.0 >> 8, mw.rkey()), (key.0 >> 8, next));
    let stale = from_afar(&pair, &qa, SendOp::Write, key, bind.addr);
    assert_eq!(stale, Status::RemoteAccess);
    drop(mw);
    let gone = from_afar(&pair, &other, SendOp::Write, next, bind.addr);
    assert_eq!(gone, Status::RemoteAccess);
    assert!(mr.deregister().is_ok());
    let mut second = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
    let error = qb.bind_mw(&mut second, &bind, how).unwrap_err();
    assert!(matches!(
        verbs_error(error),
        VerbsError::InvalidArgument { .. }
    ));
}
