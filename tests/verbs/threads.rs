//! Threaded nodes: completions by descriptor, many threads on one node.

use super::common::{End, PATIENCE, address, pattern};
use super::{TARGET, ended};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Completion, Cq, Node, QpOptions, RecvWr, SendFlags, SendOp, SendWr, Status, WorkOpcode,
};

/// Sleeps on the CQ's descriptor, as a program that must not spin does.
fn sleep_for(cq: &Cq) -> Completion {
    let started = Instant::now();
    loop {
        cq.arm(false);
        if let Some(done) = cq.poll_one().unwrap() {
            return done;
        }
        let mut fds = [PollFd::from_borrowed_fd(cq.fd(), PollFlags::IN)];
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&second)).unwrap();
        cq.take_events();
        assert!(started.elapsed() < PATIENCE, "no completion");
    }
}

fn threaded() -> End {
    End::new(Node::builder().address(address()))
}

#[test]
fn a_sleeping_program_is_woken_by_its_completions() {
    let (a, b) = (threaded(), threaded());
    assert!(!a.node.is_inline());
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    for round in 0..100 {
        let data = pattern(round, 1000);
        b.receive(&qb, round, TARGET, 1000);
        a.mr.write(0, &data).unwrap();
        if round % 10 == 0 {
            // Long enough for both workers to fall asleep.
            std::thread::sleep(Duration::from_millis(2));
        }
        a.post(&qa, round, SendOp::Send, 0, 1000);
        let expected = (round, Status::Success, WorkOpcode::Receive);
        assert_eq!(ended(&sleep_for(&b.recv_cq)), expected);
        assert!(b.bytes(TARGET, 1000) == data);
        let expected = (round, Status::Success, WorkOpcode::Send);
        assert_eq!(ended(&sleep_for(&a.send_cq)), expected);
    }
}

#[test]
fn a_queue_armed_for_solicited_completions_sleeps_through_others() {
    let (a, b) = (threaded(), threaded());
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    for wr_id in 0..2 {
        b.receive(&qb, wr_id, TARGET, 64);
    }
    b.recv_cq.arm(true);
    a.post(&qa, 1, SendOp::Send, 0, 64);
    assert_eq!(sleep_for(&a.send_cq).status, Status::Success);
    assert_eq!(b.recv_cq.take_events(), 0, "nobody asked for that one");
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    a.try_post(&qa, 2, SendOp::Send, flags, 0, 64).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(b.recv_cq.fd(), PollFlags::IN)];
    let long = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut fds, Some(&long)).unwrap(), 1);
    assert_eq!(b.recv_cq.take_events(), 1);
    let both = [
        b.recv_cq.poll_one().unwrap().unwrap(),
        b.recv_cq.poll_one().unwrap().unwrap(),
    ];
    assert_eq!(both.map(|done| done.solicited), [false, true]);
}

#[test]
fn threads_post_and_poll_on_one_node_at_once() {
    const THREADS: u64 = 8;
    const MESSAGES: u64 = 500;
    let (a, b) = (threaded(), threaded());
    let one_thread = &|thread: u64| {
        let (send, recv) = (a.node.create_cq(64).unwrap(), b.node.create_cq(64).unwrap());
        let qa = a.pd.create_qp(&send, &send, &QpOptions::default()).unwrap();
        let qb = b.pd.create_qp(&recv, &recv, &QpOptions::default()).unwrap();
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        let from = a.pd.register(4096, Access::ALL).unwrap();
        let to = b.pd.register(4096, Access::ALL).unwrap();
        for message in 0..MESSAGES {
            let data = pattern(thread << 32 | message, 200);
            from.write(0, &data).unwrap();
            let sges = [to.sge(0, 200)];
            qb.post_recv(&[RecvWr::new().wr_id(message).sges(&sges)])
                .unwrap();
            let sges = [from.sge(0, 200)];
            let request = SendWr::send().wr_id(message).sges(&sges).signaled();
            qa.post_send(&[request]).unwrap();
            for cq in [&recv, &send] {
                let done = sleep_for(cq);
                assert_eq!((done.wr_id, done.status), (message, Status::Success));
            }
            let mut found = vec![0; 200];
            to.read(0, &mut found).unwrap();
            assert!(found == data, "message {message} of thread {thread}");
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || one_thread(thread));
        }
    });
    assert_eq!(b.carrier.counters().executed, THREADS * MESSAGES);
}

#[test]
fn a_node_stops_when_its_last_handle_goes() {
    crate::not_served!("its node ends with the service");
    let at = address();
    for round in 0..5 {
        let end = End::new(Node::builder().address(at));
        let qp = end.qp(&QpOptions::default());
        let End {
            node,
            pd,
            send_cq,
            recv_cq,
            mr,
            ..
        } = end;
        drop((node, pd, send_cq, recv_cq));
        assert_eq!(
            qp.address().gid,
            at.into(),
            "a QP keeps its node, round {round}"
        );
        drop((qp, mr));
    }
}
