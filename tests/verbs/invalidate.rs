//! Keys that the program's own work requests take away.

use crate::common::{End, Pair, inline, src_qp};
use crate::{TARGET, ended, verbs_error};
use trunkline::{Access, Mr, Qp, Rkey, SendWr, Status, VerbsError, WorkOpcode};

/// Two nodes whose QPs share connections, and two whose QPs do not.
fn pairs() -> [Pair; 2] {
    let alone = || End::new(inline().sharing(false));
    let (a, b) = (alone(), alone());
    [Pair::new(), Pair { a, b }]
}

fn ends(pair: &Pair) -> (u64, Status, WorkOpcode) {
    ended(&pair.next(&pair.a.send_cq))
}

/// Posts a long WRITE out of a region, its invalidation, and a second WRITE out of it.
fn use_invalidate_use(pair: &Pair, qp: &Qp, mr: &Mr) {
    let (long, short) = ([mr.sge(0, mr.len())], [mr.sge(0, 8)]);
    let remote = pair.b.mr.remote(TARGET);
    let requests = [
        SendWr::write(remote).wr_id(1).sges(&long).signaled(),
        SendWr::local_invalidate(mr.rkey()).wr_id(2).signaled(),
        SendWr::write(remote).wr_id(3).sges(&short).signaled(),
    ];
    qp.post_send(&requests).unwrap();
}

#[test]
fn a_local_invalidation_takes_effect_behind_what_precedes_it_and_before_what_follows() {
    for pair in pairs() {
        let (qa, _qb) = pair.qps();
        let mr = pair.a.pd.register(1 << 20, Access::ALL).unwrap();
        mr.write(0, &vec![6; mr.len()]).unwrap();
        use_invalidate_use(&pair, &qa, &mr);
        assert_eq!(ends(&pair), (1, Status::Success, WorkOpcode::Write));
        let done = (2, Status::Success, WorkOpcode::LocalInvalidate);
        assert_eq!(ends(&pair), done);
        assert_eq!(WorkOpcode::LocalInvalidate as u8, 6);
        assert_eq!(ends(&pair), (3, Status::LocalProtection, WorkOpcode::Write));
        assert!(pair.b.bytes(TARGET, mr.len()).iter().all(|byte| *byte == 6));
    }
}

#[test]
fn requests_behind_a_local_invalidation_go_on() {
    for pair in pairs() {
        let (qa, qb) = pair.qps();
        let sges = [pair.a.mr.sge(0, 100_000)];
        let gone = [(); 20].map(|()| pair.a.pd.register(64, Access::ALL).unwrap());
        for (round, gone) in (0..).zip(&gone) {
            pair.b.receive(&qb, round, TARGET, 100_000);
            let requests = [
                SendWr::local_invalidate(gone.rkey()),
                SendWr::send().wr_id(round).sges(&sges).signaled(),
            ];
            qa.post_send(&requests).unwrap();
        }
        for round in 0..20 {
            assert_eq!(ends(&pair), (round, Status::Success, WorkOpcode::Send));
        }
    }
}

#[test]
fn a_key_that_the_domain_does_not_have_is_not_invalidated() {
    for pair in pairs() {
        let other = pair.a.node.alloc_pd();
        let foreign = other.register(64, Access::ALL).unwrap();
        for key in [foreign.rkey(), Rkey(!foreign.rkey().0)] {
            let (qa, _qb) = pair.qps();
            let invalidate = SendWr::local_invalidate(key).wr_id(1);
            qa.post_send(&[invalidate, SendWr::send().wr_id(2)])
                .unwrap();
            let failed = (1, Status::MemoryManagement, WorkOpcode::LocalInvalidate);
            assert_eq!(ends(&pair), failed, "it is reported unsignalled, too");
            assert_eq!(Status::MemoryManagement as u8, 6);
            assert_eq!(ends(&pair), (2, Status::Flushed, WorkOpcode::Send));
        }
    }
}

#[test]
fn what_sends_nothing_has_no_bytes_and_app_managed_qps_do_not_have_it() {
    crate::not_served!("it has app-managed QPs");
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let (sges, invalidate) = ([pair.a.mr.sge(0, 8)], SendWr::local_invalidate(Rkey(1)));
    let refused = |request: SendWr<'_>| verbs_error(qa.post_send(&[request]).unwrap_err());
    let error = refused(invalidate.sges(&sges));
    assert_eq!(error, VerbsError::TooManySge { count: 1, max: 0 });
    let error = refused(invalidate.inline(b"x"));
    assert!(matches!(error, VerbsError::BadFlags { .. }));
    let managed = src_qp(&pair.a, None);
    managed.post_send(&[invalidate.wr_id(5)]).unwrap();
    let failed = (5, Status::LocalQpOperation, WorkOpcode::LocalInvalidate);
    assert_eq!(ends(&pair), failed);
}
