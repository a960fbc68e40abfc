//! Programs that a service carries.

mod common;

use common::{PATIENCE, address, wait_for};
use std::time::Duration;
use trunkline::service::{Limits, Service};
use trunkline::{Access, Drive, Node, QpOptions, RecvWr, SendWr, Status};

fn service() -> (Service, String) {
    let at = address();
    let node = Node::builder()
        .address(at)
        .drive(Drive::Threaded)
        .build()
        .unwrap();
    let path = format!("@trunkline-test/{at}");
    (
        Service::start(node, &path, &Limits::default()).unwrap(),
        path,
    )
}

#[test]
fn two_programs_of_two_services_talk() {
    let ((near, near_path), (_far, far_path)) = (service(), service());
    let [a, b] = [near_path, far_path].map(|path| Node::attach(path).unwrap());
    let (pa, pb) = (a.alloc_pd(), b.alloc_pd());
    let (ca, cb) = (a.create_cq(64).unwrap(), b.create_cq(64).unwrap());
    let ma = pa.register(1 << 16, Access::ALL).unwrap();
    let mb = pb.register(1 << 16, Access::ALL).unwrap();
    let qa = pa.create_qp(&ca, &ca, &QpOptions::default()).unwrap();
    let qb = pb.create_qp(&cb, &cb, &QpOptions::default()).unwrap();
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    for round in 0..100_u64 {
        ma.write(0, &round.to_ne_bytes()).unwrap();
        qb.post_recv(&[RecvWr::new().wr_id(round).sges(&[mb.sge(0, 64)])])
            .unwrap();
        qa.post_send(&[SendWr::send().wr_id(round).sges(&[ma.sge(0, 8)]).signaled()])
            .unwrap();
        let done = wait_for(&ca);
        assert_eq!((done.wr_id, done.status), (round, Status::Success));
        let done = cb.wait(PATIENCE).unwrap().unwrap();
        assert_eq!((done.wr_id, done.status), (round, Status::Success));
        let mut got = [0; 8];
        mb.read(0, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), round);
        if round == 50 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    println!("{:?}", near.clients());
}
