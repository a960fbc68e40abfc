//! A shortage of file descriptors. Alone in its program, since the limit is the whole process's.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE, address};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::time::{Duration, Instant};
use trunkline::{Error, Node, QpOptions, SendOp, Status};

#[test]
fn a_shortage_of_descriptors_does_not_end_a_worker() {
    let [a, b] = [(); 2].map(|()| End::new(Node::builder().address(address())));
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let inline = common::inline().build().unwrap();
    let write = |id| {
        a.post(&qa, id, SendOp::Write(b.mr.remote(0)), 0, 64);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(done) = a.send_cq.poll_one().unwrap() {
                assert_eq!((done.wr_id, done.status), (id, Status::Success));
                return;
            }
            std::thread::yield_now();
        }
        panic!("WRITE {id} does not end: {:?}", a.node.health());
    };
    write(1);
    let before = getrlimit(Resource::Nofile);
    let mut none = before;
    none.current = Some(0);
    setrlimit(Resource::Nofile, none).unwrap();
    // An inline node has no descriptor to wait on then, and has one later.
    let refused = inline.try_wait().unwrap_err();
    assert!(matches!(refused, Error::System { .. }), "{refused}");
    // Who waits for it in a call looks again and again.
    inline.wait(PATIENCE).unwrap();
    // The workers go to sleep meanwhile, and wake, and do it again: at least every 100 ms.
    for id in 2..8 {
        std::thread::sleep(Duration::from_millis(60));
        write(id);
    }
    setrlimit(Resource::Nofile, before).unwrap();
    write(8);
    assert!(inline.fd().is_ok() && inline.try_wait().unwrap());
    assert_eq!((a.node.health().down, b.node.health().down), (None, None));
}
