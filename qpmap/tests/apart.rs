//! A program in another process: of its queues, completions and doorbells it shares the memory with
//! the engine and nothing else. It is served like any other, and whatever it writes there is its
//! own loss.

use crate::common::{Pair, RingMemory};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_conn::mem::{Access, Sge};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{BindMw, Completion, OwnOp, SendFlags, SendOp, Status};
use trunkline_qpmap::cq::{CQE_WORDS, CompletionQueue, HEADER, Writer};
use trunkline_qpmap::doorbell::{Apart, Bells, Rung};
use trunkline_qpmap::queue::Producer;
use trunkline_qpmap::regions::MwType;
use trunkline_qpmap::ring::RingMemory as Memory;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{QpModify, QpQueues, QpState, QpType};
use trunkline_wire::Lkey;

/// Bells of the program, and the one of its QP.
const BELLS: u32 = 200;
const BELL: u32 = 130;
/// Rounds after which nobody looks at the bells of a silent program, and some more.
const LONG: u64 = SECOND;

/// What the program has, and what node 0 has for it.
struct Program {
    send: Producer<RingMemory>,
    receive: Producer<RingMemory>,
    cq: CompletionQueue<RingMemory>,
    bells: Bells<Apart<RingMemory>>,
    /// The memory of the send queue and of the bells.
    memory: [RingMemory; 2],
    called: u32,
    qp: Arc<QpQueues<RingMemory>>,
    peer: Arc<QpQueues<RingMemory>>,
}

impl Program {
    fn new(pair: &mut Pair) -> Self {
        let (header, entries) = (zeroed(HEADER), zeroed(64 * CQE_WORDS));
        let writer = Writer::over(header.clone(), entries.clone()).expect("lengths that fit");
        let cq = CompletionQueue::over(header, entries).expect("lengths that fit");
        let node = &mut pair.nodes[0];
        let own = std::mem::replace(&mut node.cq_index, node.engine.adopt_cq(writer, None));
        let qp = pair.qp(0, QpType::Rc);
        pair.nodes[0].cq_index = own;
        let peer = pair.qp(1, QpType::Rc);
        pair.connect(0, &qp, &peer);
        pair.connect(1, &peer, &qp);

        let receives = qp.receive.as_ref().expect("no SRQ here");
        let [send, receive] = [qp.send.size(), receives.size()];
        let [sent, received] = [send, receive].map(|size| zeroed(size.ring_words()));
        assert!(qp.send.begin(sent.clone()) && receives.begin(received.clone()));

        let rung = zeroed(Bells::<Apart<RingMemory>>::words_for(BELLS));
        let side = || Bells::over(rung.clone(), BELLS).expect("a length that fits");
        let engine = &mut pair.nodes[0].engine;
        let called = engine.add_program(side());
        let assigned = engine.assign_bell(called, BELL, Some(qp.qpn));
        assigned.expect("a QP and a bell that are there");
        Self {
            send: Producer::new(send, sent.clone()),
            receive: Producer::new(receive, received),
            cq,
            bells: side(),
            memory: [sent, rung],
            called,
            qp,
            peer,
        }
    }

    fn post(&self, wr_id: u64, sges: &[Sge]) -> Rung {
        let request = SendWr {
            wr_id,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            sges,
            inline: None,
            route: 0,
        };
        self.send.post(&[request]).expect("room in the queue");
        self.bells.ring_and_look(BELL)
    }

    /// What a service does that the program has woken.
    fn wake(&self, pair: &mut Pair, rung: Rung) {
        if rung == Rung::Unheard {
            let heard = pair.nodes[0].engine.hear_program(self.called);
            heard.expect("the program is there");
        }
    }

    fn completions(&self) -> Vec<(u64, Status)> {
        let mut out = [Completion::BLANK; 64];
        let count = self.cq.poll(&mut out).expect("the CQ is large enough");
        let done = out[..count].iter();
        done.map(|done| (done.wr_id, done.status)).collect()
    }

    fn scribble(&self, which: usize) {
        let words = self.memory[which].as_slice().iter();
        words.for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
}

fn zeroed(words: usize) -> RingMemory {
    <RingMemory as Memory>::zeroed(words)
}

/// Two nodes, a program apart at the first of them, and two QPs beside its own.
fn scene() -> (Pair, Program, [Arc<QpQueues<RingMemory>>; 2]) {
    let mut pair = Pair::new(1);
    let program = Program::new(&mut pair);
    let others = pair.connected();
    pair.run(5 * MILLISECOND);
    (pair, program, others)
}

/// The QPs beside the program's work.
fn others_work(pair: &mut Pair, others: &[Arc<QpQueues<RingMemory>>; 2]) {
    pair.receive(&others[1], 900, &[pair.sge(1, 4096, 64)]);
    pair.post(0, &others[0], 901, SendOp::Send, &[pair.sge(0, 4096, 64)]);
    pair.run(10 * MILLISECOND);
    let done = pair.completions(0);
    assert_eq!([(done[0].wr_id, done[0].status)], [(901, Status::Success)]);
    assert_eq!(pair.completions(1).len(), 1);
}

#[test]
fn a_program_in_another_process_sends_and_receives() {
    let (mut pair, program, others) = scene();
    let (near, far) = (pair.sge(0, 0, 64), pair.sge(1, 0, 64));
    for round in 0..200_u8 {
        let wr_id = u64::from(round);
        pair.nodes[0].buffer.set(0, &[round; 64]);
        pair.receive(&program.peer, wr_id, &[far]);
        let rung = program.post(wr_id, &[near]);
        program.wake(&mut pair, rung);
        pair.run(200_000);
        assert_eq!(program.completions(), [(wr_id, Status::Success)]);
        assert_eq!(pair.nodes[1].buffer.get(0, 64), [round; 64]);

        let receive = RecvWr {
            wr_id,
            sges: &[near],
        };
        program.receive.post(&[receive]).expect("room in the queue");
        pair.post(1, &program.peer, wr_id, SendOp::Send, &[far]);
        pair.run(200_000);
        assert_eq!(program.completions(), [(wr_id, Status::Success)]);
        assert_eq!(pair.completions(1).len(), 2, "its receive and its request");
    }
    others_work(&mut pair, &others);
}

#[test]
fn a_program_that_was_silent_has_to_wake_who_serves_it() {
    let (mut pair, program, _) = scene();
    for _ in 0..100 {
        pair.step(0);
    }
    assert!(!pair.nodes[0].engine.has_work(), "it costs nothing");
    pair.receive(&program.peer, 1, &[pair.sge(1, 0, 64)]);
    assert_eq!(program.post(2, &[pair.sge(0, 0, 64)]), Rung::Unheard);
    pair.run(LONG);
    assert_eq!(program.completions(), []);
    program.wake(&mut pair, Rung::Unheard);
    pair.run(LONG);
    assert_eq!(program.completions(), [(2, Status::Success)]);
}

#[test]
fn a_send_queue_full_of_nonsense_ends_its_qp_alone() {
    let (mut pair, program, others) = scene();
    program.scribble(0);
    let rung = program.bells.ring_and_look(BELL);
    program.wake(&mut pair, rung);
    pair.run(10 * MILLISECOND);
    assert_eq!(program.qp.state(), QpState::Error);
    others_work(&mut pair, &others);
}

#[test]
fn bells_full_of_nonsense_are_counted_and_end() {
    let (mut pair, program, others) = scene();
    program.scribble(1);
    program.wake(&mut pair, Rung::Unheard);
    pair.run(10 * MILLISECOND);
    let words = u64::from(BELLS.div_ceil(64));
    let counters = pair.nodes[0].engine.counters();
    assert_eq!(counters.bad_doorbell, 64 * words - 1, "all but its QP's");
    assert_eq!(program.qp.state(), QpState::Rts);
    others_work(&mut pair, &others);
}

#[test]
fn who_is_gone_rings_for_nobody() {
    let (mut pair, program, others) = scene();
    pair.receive(&program.peer, 1, &[pair.sge(1, 0, 64)]);
    let _ = program.post(2, &[pair.sge(0, 0, 64)]);
    let engine = &mut pair.nodes[0].engine;
    engine.remove_program(program.called).expect("it is there");
    assert!(engine.hear_program(program.called).is_err());
    pair.run(10 * MILLISECOND);
    assert_eq!(program.completions(), []);
    others_work(&mut pair, &others);
}

/// Claims that all of a send queue's ring is full: of zeros, which are requests.
fn claim_all(memory: &RingMemory) {
    let words = memory.as_slice();
    let slots = ((words.len() - 16) / 8) as u64;
    let head = words[8].load(Ordering::Relaxed) & u64::from(u32::MAX);
    words[0].store(
        head.wrapping_add(slots) & u64::from(u32::MAX),
        Ordering::Release,
    );
}

#[test]
fn a_queue_is_flushed_of_no_more_than_it_was_made_for_at_once() {
    let mut pair = Pair::new(1);
    // The ring has 64 slots.
    pair.depth = 33;
    let program = Program::new(&mut pair);
    claim_all(&program.memory[0]);
    let engine = &mut pair.nodes[0].engine;
    let before = engine.counters().completed;
    let moved = engine.modify_qp(program.qp.qpn, &QpModify::Error);
    moved.expect("any state may be left this way");
    assert_eq!(engine.counters().completed - before, 33);
}

#[test]
fn who_fills_a_queue_in_error_again_and_again_costs_a_round_no_more_than_others() {
    let mut pair = Pair::new(1);
    pair.depth = 1 << 14;
    let program = Program::new(&mut pair);
    let engine = &mut pair.nodes[0].engine;
    let moved = engine.modify_qp(program.qp.qpn, &QpModify::Error);
    moved.expect("any state may be left this way");
    for _ in 0..10 {
        claim_all(&program.memory[0]);
        let rung = program.bells.ring_and_look(BELL);
        program.wake(&mut pair, rung);
        let engine = &mut pair.nodes[0].engine;
        let before = engine.counters().completed;
        engine.handle_doorbells();
        let flushed = engine.counters().completed - before;
        assert!((1..=2048).contains(&flushed), "{flushed}");
    }
}

#[test]
fn a_program_behind_many_that_ring_all_the_time_has_its_turn() {
    let (mut pair, program, _) = scene();
    let engine = &mut pair.nodes[0].engine;
    let loud: Vec<_> = (0..16)
        .map(|_| {
            let memory = zeroed(Bells::<Apart<RingMemory>>::words_for(1000));
            let side = || Bells::over(memory.clone(), 1000).expect("a length that fits");
            engine.add_program(side());
            side()
        })
        .collect();
    pair.receive(&program.peer, 1, &[pair.sge(1, 0, 64)]);
    let rung = program.post(2, &[pair.sge(0, 0, 64)]);
    program.wake(&mut pair, rung);
    for _ in 0..20 {
        for bells in &loud {
            for bell in 0..1000 {
                let _ = bells.ring_and_look(bell);
            }
        }
        pair.run(10_000);
    }
    assert_eq!(program.completions(), [(2, Status::Success)]);
}

#[test]
fn requests_that_end_at_once_take_their_turn_like_others() {
    for ibta in [false, true] {
        let mut pair = Pair::new(usize::from(!ibta));
        (pair.depth, pair.ibta) = (1 << 12, ibta);
        let program = Program::new(&mut pair);
        pair.run(10 * MILLISECOND);
        let node = &pair.nodes[0];
        let rkey = node.engine.regions().alloc_mw(node.pd, MwType::Type1);
        let unbind = BindMw {
            rkey: rkey.expect("a first window"),
            lkey: Lkey(node.key.0),
            addr: 0,
            length: 0,
            access: Access::REMOTE_READ,
        };
        let request = SendWr {
            op: SendOp::Own(OwnOp::BindMw(unbind)),
            flags: SendFlags::default(),
            ..SendWr::send()
        };
        let posted = program.send.post(&vec![request; 1 << 12]);
        posted.expect("room in the queue");
        let rung = program.bells.ring_and_look(BELL);
        program.wake(&mut pair, rung);
        let before = pair.nodes[0].engine.counters().completed;
        pair.step(0);
        let done = pair.nodes[0].engine.counters().completed - before;
        assert!((1..=100).contains(&done), "ibta {ibta}: {done}");
        pair.run(SECOND);
        let done = pair.nodes[0].engine.counters().completed - before;
        assert_eq!(done, 1 << 12, "ibta {ibta}");
    }
}
