//! Regions in all their forms, between two nodes.

use crate::common::Pair;
use crate::ended;
use trunkline::{Access, AtomicOp, Mr, Qp, Remote, Reregister, SendOp, SendWr, Status, WorkOpcode};

/// Runs one request of `a` between its region and `remote`.
fn run(pair: &Pair, qp: &Qp, op: SendOp) -> (Status, WorkOpcode) {
    pair.a.post(qp, 1, op, 0, 8);
    let (_, status, opcode) = ended(&pair.next(&pair.a.send_cq));
    (status, opcode)
}

/// WRITE, READ and atomic at the second word of `mr`, a region of `b`.
fn use_from_afar(pair: &Pair, qp: &Qp, mr: &Mr) {
    let remote = mr.remote(8);
    assert_eq!(remote.addr, mr.iova() + 8);
    pair.a.mr.write(0, &41_u64.to_ne_bytes()).unwrap();
    let written = run(pair, qp, SendOp::Write(remote));
    assert_eq!(written, (Status::Success, WorkOpcode::Write));
    let add = SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 1 });
    assert_eq!(run(pair, qp, add), (Status::Success, WorkOpcode::FetchAdd));
    assert_eq!(pair.a.word(0), 41);
    let read = run(pair, qp, SendOp::Read(remote));
    assert_eq!(read, (Status::Success, WorkOpcode::Read));
    assert_eq!(pair.a.word(0), 42);
    let mut bytes = [0; 8];
    mr.read(8, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 42);
}

#[test]
fn zero_based_regions_and_those_with_an_iova_are_named_by_it() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    let zero = Access::ALL | Access::ZERO_BASED;
    let zero = pair.b.pd.register(4096, zero).unwrap();
    let other = pair.b.pd.register_iova(4096, 1 << 40, Access::ALL).unwrap();
    for (mr, iova) in [(&zero, 0), (&other, 1 << 40)] {
        assert_eq!(mr.iova(), iova);
        assert_ne!(mr.addr(), iova);
        use_from_afar(&pair, &qa, mr);
        // The peer sends from it, by the lkey.
        pair.a.receive(&qa, 2, 64, 8);
        let sges = [mr.sge(8, 8)];
        assert_eq!(sges[0].addr, iova + 8);
        qb.post_send(&[SendWr::send().sges(&sges).signaled()])
            .unwrap();
        assert_eq!(pair.next(&pair.b.send_cq).status, Status::Success);
        assert_eq!(pair.next(&pair.a.recv_cq).status, Status::Success);
        assert_eq!(pair.a.word(64), 42);
    }
}

#[test]
fn the_address_of_the_memory_does_not_name_a_region_that_has_another_iova() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let mr = pair.b.pd.register_iova(4096, 1 << 40, Access::ALL).unwrap();
    let remote = Remote {
        addr: mr.addr(),
        rkey: mr.rkey(),
    };
    let refused = run(&pair, &qa, SendOp::Write(remote));
    assert_eq!(refused, (Status::RemoteAccess, WorkOpcode::Write));
}

#[test]
fn a_region_is_registered_anew_under_its_keys() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let mut mr = pair.b.pd.register(4096, Access::ALL).unwrap();
    let (lkey, rkey) = (mr.lkey(), mr.rkey());
    let zero = Access::ALL | Access::ZERO_BASED;
    let change = Reregister::new().access(zero).allocate(64).unwrap();
    mr.reregister(change).unwrap();
    assert_eq!((mr.len(), mr.iova()), (64, 0));
    use_from_afar(&pair, &qa, &mr);
    mr.reregister(Reregister::new().iova(1 << 30).access(Access::ALL))
        .unwrap();
    use_from_afar(&pair, &qa, &mr);
    assert_eq!((mr.lkey(), mr.rkey()), (lkey, rkey));
    mr.reregister(Reregister::new().access(Access::REMOTE_READ))
        .unwrap();
    let read = run(&pair, &qa, SendOp::Read(mr.remote(0)));
    assert_eq!(read, (Status::Success, WorkOpcode::Read));
    let refused = run(&pair, &qa, SendOp::Write(mr.remote(0)));
    assert_eq!(refused, (Status::RemoteAccess, WorkOpcode::Write));
    // In another domain the QPs of this one do not see it.
    let other = pair.b.node.alloc_pd();
    mr.reregister(Reregister::new().pd(&other)).unwrap();
    let (qa, _qb) = pair.qps();
    let refused = run(&pair, &qa, SendOp::Read(mr.remote(0)));
    assert_eq!(refused, (Status::RemoteAccess, WorkOpcode::Read));
    let foreign = pair.a.node.alloc_pd();
    assert!(mr.reregister(Reregister::new().pd(&foreign)).is_err());
    drop(other);
    assert_eq!(mr.remote(0).rkey, rkey);
}

#[test]
fn a_write_under_way_does_not_go_on_where_the_region_allows_it_no_more() {
    crate::not_served!("it stops the node in the middle of a message");
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let length = 2 << 20;
    let mut mr = pair.b.pd.register(length, Access::ALL).unwrap();
    pair.a.mr.write(0, &vec![7; length]).unwrap();
    pair.a.post(&qa, 1, SendOp::Write(mr.remote(0)), 0, length);
    let begun = || {
        let mut first = [0];
        mr.read(0, &mut first).unwrap();
        first == [7]
    };
    pair.until("some of the message to arrive", begun);
    let change = Reregister::new().access(Access::REMOTE_READ);
    mr.reregister(change.allocate(length).unwrap()).unwrap();
    let done = ended(&pair.next(&pair.a.send_cq));
    assert_eq!(done, (1, Status::RemoteAccess, WorkOpcode::Write));
    let mut bytes = vec![1; length];
    mr.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "nothing came after it");
}
