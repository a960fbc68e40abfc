//! Packets that are broken, forged, replayed or out of date: each is counted under one reason, and
//! nothing else moves.

use crate::common::liar::{Liar, entry, generation_of};
use crate::common::{Pair, RingMemory};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{Attributes, Counters, FIRST_MSN, QpQueues, QpType};
use trunkline_wire::{
    Answer, ControlKind, IpFields, NakCode, Opcode, Path, Qpn, ROCE_PORT, Rkey, Syndrome, icrc,
};

/// Bytes of the WRITE that is tampered with.
const LENGTH: usize = 100;
/// Where it goes.
const TARGET: usize = 4096;

/// Where fields stand in a packet of a shared connection: see docs/wire-format.md.
mod at {
    pub(super) const CONNECTION: usize = 7;
    pub(super) const NUMBER: usize = 9;
    pub(super) const VERSION: usize = 12;
    pub(super) const GENERATION: usize = 15;
    pub(super) const TOKEN: usize = 19;
    pub(super) const REPLAY_EPOCH: usize = 23;
    pub(super) const QP: usize = 26;
    pub(super) const NUMBER_HIGH: usize = 31;
    pub(super) const MSN: usize = 32;
    pub(super) const ACK: usize = 48;
    pub(super) const PAYLOAD: usize = 68;
}

/// Two nodes with a WRITE from the first to the second that has not arrived.
struct Stage {
    pair: Pair,
    qps: [Arc<QpQueues<RingMemory>>; 2],
    write: Vec<u8>,
    path: Path,
}

impl Stage {
    fn new() -> Self {
        Self::of(Pair::new(1))
    }

    fn of(mut pair: Pair) -> Self {
        let qps = pair.connected();
        pair.run(5 * MILLISECOND);
        let held = Arc::new(Mutex::new(Vec::new()));
        let copies = Arc::clone(&held);
        pair.fate = Box::new(move |from, datagram| {
            let opcode = Opcode(datagram[0]);
            let wanted = from == 0 && matches!(opcode, Opcode::SRC_WRITE | Opcode::RC_WRITE_ONLY);
            if wanted {
                let mut copies = copies.lock().expect("no test panics while it holds it");
                copies.push(datagram.to_vec());
            }
            usize::from(!wanted)
        });
        pair.nodes[0].buffer.set(0, &[7; LENGTH]);
        let stage_path = Path {
            src: address(0),
            dst: address(1),
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let mut stage = Self {
            pair,
            qps,
            write: Vec::new(),
            path: stage_path,
        };
        stage.post();
        stage.pair.step(0);
        let mut held = held.lock().expect("no test panics while it holds it");
        stage.write = held.pop().expect("the WRITE went out");
        drop(held);
        stage.pair.fate = Box::new(|_, _| 1);
        stage
    }

    fn post(&self) {
        let pair = &self.pair;
        let target = Remote {
            addr: pair.nodes[1].buffer.addr + TARGET as u64,
            rkey: pair.nodes[1].key,
        };
        let from = [pair.sge(0, 0, LENGTH as u32)];
        pair.post(0, &self.qps[0], 1, SendOp::Write(target), &from);
    }

    /// The second node receives a datagram that took `path`.
    fn deliver(&mut self, path: &Path, datagram: &[u8]) {
        self.pair.deliver(1, &[(*path, datagram.to_vec())]);
    }

    /// Delivers; gives the counters that went up, each by one.
    fn counted(&mut self, path: &Path, datagram: &[u8]) -> Vec<&'static str> {
        let counters = |stage: &Self| -> Counters { stage.pair.nodes[1].engine.counters() };
        let before = counters(self);
        self.deliver(path, datagram);
        let after = counters(self);
        let mut found = Vec::new();
        for ((name, old), (_, new)) in before.named().zip(after.named()) {
            if name != "received" && new != old {
                assert_eq!(new, old + 1, "{name}");
                found.push(name);
            }
        }
        found
    }

    fn written(&self) -> bool {
        self.pair.nodes[1].buffer.get(TARGET, LENGTH) != [0; LENGTH]
    }

    /// All is as if nothing had happened: the WRITE arrives at last, and completes.
    fn goes_on(&mut self, what: &str) {
        assert!(!self.written(), "{what}");
        self.pair.run(500 * MILLISECOND);
        assert!(self.written(), "{what}");
        let done = self.pair.completions(0);
        assert_eq!(done.len(), 1, "{what}");
        assert_eq!(done[0].status, Status::Success, "{what}");
    }
}

fn address(node: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, 1 + node])
}

/// Makes the sum right again, for the path `path`.
fn seal(path: &Path, datagram: &mut [u8]) {
    icrc::seal(path, 0, datagram);
}

#[test]
fn packets_cut_short_are_malformed_or_damaged_and_move_nothing() {
    let mut stage = Stage::new();
    let (path, write) = (stage.path, stage.write.clone());
    for length in 0..write.len() {
        let found = stage.counted(&path, &write[..length]);
        let expected = if length < at::PAYLOAD + icrc::LEN {
            "malformed"
        } else {
            "bad_icrc"
        };
        assert_eq!(found, [expected], "{length} bytes");
    }
    stage.goes_on("cut short");
}

#[test]
fn a_flipped_bit_anywhere_moves_nothing() {
    let mut stage = Stage::new();
    let (path, write) = (stage.path, stage.write.clone());
    for bit in 0..write.len() * 8 {
        // Switches may change the byte of congestion bits in the BTH: its sum leaves it out.
        if bit / 8 == 4 {
            continue;
        }
        let mut datagram = write.clone();
        datagram[bit / 8] ^= 1 << (bit % 8);
        let found = stage.counted(&path, &datagram);
        assert_eq!(found.len(), 1, "bit {bit}: {found:?}");
        assert!(!stage.written(), "bit {bit}");
    }
    stage.goes_on("flipped bits");
}

#[test]
fn forged_packets_are_counted_by_what_gives_them_away() {
    type Forge = fn(&mut [u8]);
    let forgeries: [(&str, Forge, &str); 7] = [
        ("another version", |p| p[at::VERSION] ^= 0x30, "malformed"),
        (
            "a sum over the headers of a last packet",
            |p| p[at::VERSION] |= 2,
            "malformed",
        ),
        (
            "an opcode nobody defined",
            |p| p[0] = 0xa5,
            "unknown_opcode",
        ),
        (
            "a guessed connection",
            |p| p[at::CONNECTION] ^= 1,
            "unknown_connection",
        ),
        ("a guessed token", |p| p[at::TOKEN] ^= 1, "bad_token"),
        (
            "a number far ahead",
            |p| p[at::NUMBER_HIGH] ^= 1,
            "outside_window",
        ),
        (
            "an opcode of ordinary hosts",
            |p| {
                p[0] = Opcode::RC_WRITE_ONLY.0;
            },
            "ibta_unknown_qp",
        ),
    ];
    for (what, forge, counter) in forgeries {
        let mut stage = Stage::new();
        let (path, mut datagram) = (stage.path, stage.write.clone());
        forge(&mut datagram);
        seal(&path, &mut datagram);
        assert_eq!(stage.counted(&path, &datagram), [counter], "{what}");
        stage.goes_on(what);
    }
    // From another address, with all numbers right.
    let mut stage = Stage::new();
    let (mut path, mut datagram) = (stage.path, stage.write.clone());
    path.src = address(8);
    seal(&path, &mut datagram);
    assert_eq!(stage.counted(&path, &datagram), ["bad_source"]);
    stage.goes_on("another address");
}

#[test]
fn a_packet_that_comes_again_is_not_executed_again() {
    let mut stage = Stage::new();
    let (path, write) = (stage.path, stage.write.clone());
    assert_eq!(stage.counted(&path, &write), ["executed"]);
    assert!(stage.written());
    stage.pair.nodes[1].buffer.set(TARGET, &[0; LENGTH]);
    for _ in 0..100 {
        assert_eq!(stage.counted(&path, &write), ["duplicate"]);
    }
    assert!(!stage.written());
    // So late that its number has long left the window.
    stage.pair.run(50 * MILLISECOND);
    for _ in 0..3 {
        for _ in 0..50 {
            stage.post();
        }
        stage.pair.run(50 * MILLISECOND);
    }
    stage.pair.nodes[1].buffer.set(TARGET, &[0; LENGTH]);
    assert_eq!(stage.counted(&path, &write), ["duplicate"]);
    assert!(!stage.written());
}

#[test]
fn a_requester_is_three_replay_epochs_ahead_at_most() {
    for (ahead, taken) in [(1, true), (3, true), (4, false), (127, false), (255, false)] {
        let mut stage = Stage::new();
        let (path, mut datagram) = (stage.path, stage.write.clone());
        datagram[at::REPLAY_EPOCH] = datagram[at::REPLAY_EPOCH].wrapping_add(ahead);
        seal(&path, &mut datagram);
        let counted = stage.counted(&path, &datagram);
        assert_eq!(counted == ["stale"], !taken, "{ahead}: {counted:?}");
        assert_eq!(stage.written(), taken, "{ahead}");
        // What is refused changes nothing: the epoch in which the peer is goes on.
        let mut next = stage.write.clone();
        next[at::NUMBER + 2] += 1;
        seal(&path, &mut next);
        stage.deliver(&path, &next);
        assert!(stage.written(), "{ahead}");
    }
}

#[test]
fn what_a_peer_says_out_of_date_or_out_of_place_is_counted_and_ignored() {
    type Change = fn(&mut [u8]);
    let changes: [(&str, Change, &str); 5] = [
        (
            "another incarnation of the QP",
            |p| p[at::GENERATION] ^= 1,
            "stale",
        ),
        (
            "an earlier replay epoch",
            |p| p[at::REPLAY_EPOCH] = p[at::REPLAY_EPOCH].wrapping_sub(1),
            "stale",
        ),
        ("no such QP", |p| p[at::QP] ^= 1, "unknown_qp"),
        ("no such packet", |p| p[0] = 0xfe, "unknown_opcode"),
        (
            "answers that are cut off",
            |p| p[0] = Opcode::SRC_ANSWERS.0,
            "malformed",
        ),
    ];
    for (what, change, counter) in changes {
        let mut stage = Stage::new();
        let (path, mut datagram) = (stage.path, stage.write.clone());
        change(&mut datagram);
        seal(&path, &mut datagram);
        assert_eq!(stage.counted(&path, &datagram), [counter], "{what}");
        assert!(!stage.written(), "{what}");
    }
}

#[test]
fn packets_that_find_no_room_to_wait_come_again() {
    const WRITES: usize = 20;
    const EACH: usize = 1000;
    let mut pair = Pair::with_staging(1, 1104, 16_384);
    let [a, _b] = pair.connected();
    pair.run(5 * MILLISECOND);
    // The first WRITE is lost: all others have to wait for it.
    let mut lost = false;
    pair.fate = Box::new(move |from, datagram| {
        let first = from == 0 && Opcode(datagram[0]) == Opcode::SRC_WRITE && !lost;
        lost |= first;
        usize::from(!first)
    });
    for at in 0..WRITES {
        pair.nodes[0].buffer.set(at * EACH, &[at as u8 + 1; EACH]);
        let target = Remote {
            addr: pair.nodes[1].buffer.addr + (TARGET + at * EACH) as u64,
            rkey: pair.nodes[1].key,
        };
        let from = [pair.sge(0, (at * EACH) as u64, EACH as u32)];
        pair.post(0, &a, at as u64, SendOp::Write(target), &from);
    }
    pair.run(500 * MILLISECOND);
    let counters = pair.nodes[1].engine.counters();
    assert!(
        counters.staged > 0 && counters.staging_full > 0,
        "{counters:?}"
    );
    let done = pair.completions(0);
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert!(done.iter().map(|done| done.wr_id).eq(0..WRITES as u64));
    for at in 0..WRITES {
        let found = pair.nodes[1].buffer.get(TARGET + at * EACH, EACH);
        assert_eq!(found, [at as u8 + 1; EACH], "WRITE {at}");
    }
}

/// The stage's WRITE as message `msn`, in the packet `behind` the first one.
fn another(stage: &Stage, msn: u32, behind: u64) -> Vec<u8> {
    let mut datagram = stage.write.clone();
    let mut number = [0; 8];
    number[..5].copy_from_slice(&datagram[at::NUMBER_HIGH - 4..=at::NUMBER_HIGH]);
    number[5..].copy_from_slice(&datagram[at::NUMBER..at::NUMBER + 3]);
    let number = (u64::from_be_bytes(number) + behind).to_be_bytes();
    datagram[at::NUMBER_HIGH - 4..=at::NUMBER_HIGH].copy_from_slice(&number[..5]);
    datagram[at::NUMBER..at::NUMBER + 3].copy_from_slice(&number[5..]);
    let first = u32::from_be_bytes(datagram[at::MSN..at::MSN + 4].try_into().expect("4 bytes"));
    datagram[at::MSN..at::MSN + 4].copy_from_slice(&first.wrapping_add(msn).to_be_bytes());
    seal(&stage.path, &mut datagram);
    datagram
}

#[test]
fn a_packet_that_many_waited_for_makes_only_so_much_work_at_a_time() {
    const MANY: u32 = 1000;
    let mut stage = Stage::new();
    let (path, write) = (stage.path, stage.write.clone());
    for msn in 1..=MANY {
        let datagram = another(&stage, msn, msn.into());
        stage.deliver(&path, &datagram);
    }
    let counters = |stage: &Stage| stage.pair.nodes[1].engine.counters();
    assert_eq!(counters(&stage).staged, MANY.into());
    stage.deliver(&path, &write);
    let mut done = counters(&stage).executed;
    assert!((1..=65).contains(&done), "{done}");
    // The rest runs in later rounds of the loop, which the engine asks for.
    let mut rounds = 0;
    while done <= MANY.into() {
        assert!(stage.pair.nodes[1].engine.is_busy());
        stage.pair.sent_by(1);
        let now = counters(&stage).executed;
        assert!(now > done && now - done <= 256, "{} at once", now - done);
        (done, rounds) = (now, rounds + 1);
    }
    assert!(rounds > 3);
    assert_eq!(done, u64::from(MANY) + 1);
    assert_eq!(stage.pair.nodes[1].engine.live_objects().staged, 0);
}

#[test]
fn packets_that_wait_leave_room_to_other_flows_of_their_peer() {
    const STAGING: usize = 64 << 10;
    let mut stage = Stage::of(Pair::with_staging(1, 1104, STAGING));
    let path = stage.path;
    for msn in 1..=1000 {
        let datagram = another(&stage, msn, msn.into());
        stage.deliver(&path, &datagram);
    }
    let counters = stage.pair.nodes[1].engine.counters();
    assert!(counters.staging_full > 0);
    // A quarter, at 512 bytes for 173.
    assert_eq!(counters.staged, (STAGING / 4 / 512) as u64);
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_counted() {
    let mut stage = Stage::new();
    let (path, mut datagram) = (stage.path, stage.write.clone());
    datagram[at::ACK..at::ACK + 4].fill(0x7f);
    seal(&path, &mut datagram);
    assert_eq!(
        stage.counted(&path, &datagram),
        ["bad_acknowledgement", "executed"]
    );
}

#[test]
fn plain_connections_drop_what_is_not_of_their_peer_or_out_of_order() {
    type Forge = fn(&mut [u8], &mut Path);
    let forgeries: [(&str, Forge, &str); 4] = [
        ("damaged", |p, _| p[40] ^= 1, "bad_icrc"),
        (
            "another address",
            |_, path| path.src = address(8),
            "bad_source",
        ),
        (
            "no such QP",
            |p, _| p[at::CONNECTION] ^= 1,
            "ibta_unknown_qp",
        ),
        (
            "a number far off",
            |p, _| p[at::NUMBER] ^= 0x40,
            "ibta_dropped",
        ),
    ];
    for (what, forge, counter) in forgeries {
        let mut pair = Pair::new(0);
        pair.ibta = true;
        let mut stage = Stage::of(pair);
        let (mut path, mut datagram) = (stage.path, stage.write.clone());
        forge(&mut datagram, &mut path);
        if counter != "bad_icrc" {
            seal(&path, &mut datagram);
        }
        assert_eq!(stage.counted(&path, &datagram), [counter], "{what}");
        stage.goes_on(what);
    }
}

/// An RC QP of node 1, bound to QP 5 of a liar that has heard its first `count` SENDs.
fn talking(pair: &mut Pair, liar: &mut Liar, count: u64) -> (Arc<QpQueues<RingMemory>>, u16) {
    let qp = pair.qp(1, QpType::Rc);
    let attributes = Attributes {
        remote: liar.address(),
        dest_qpn: Qpn::from_wire(5),
        ..Attributes::default()
    };
    pair.take_to_rts(1, &qp, attributes, attributes);
    let bind = liar.hears_control(pair)[0];
    assert_eq!((bind.kind, bind.src_qp), (ControlKind::Bind, qp.qpn));
    let bound = entry(ControlKind::Bound, 5, qp.qpn, bind.generation, 1);
    liar.control(pair, &[bound]);
    for wr_id in 0..count {
        let from = [pair.sge(1, 0, 8)];
        pair.post(1, &qp, wr_id, SendOp::Send, &from);
    }
    let heard = liar.hears(pair);
    let is_send = |datagram: &&Vec<u8>| Opcode(datagram[0]) == Opcode::SRC_SEND;
    assert_eq!(heard.iter().filter(is_send).count() as u64, count);
    (qp, generation_of(bind.generation, 1))
}

#[test]
fn of_what_was_not_sent_in_a_round_a_peer_can_say_nothing() {
    let mut pair = Pair::new(0);
    let mut liar = Liar::new(&mut pair, 9);
    let (qp, generation) = talking(&mut pair, &mut liar, 4);
    let say = |syndrome, round| Answer {
        requester: qp.qpn,
        syndrome,
        msn: FIRST_MSN,
        generation,
        replay_epoch: round,
        responder: Qpn::from_wire(5),
    };
    let entries: Vec<Answer> = (0..20)
        .flat_map(|_| [0, 1, 2])
        .flat_map(|round| {
            let not_ready = Syndrome::RnrNak { timer: 0 };
            let again = Syndrome::Nak(NakCode::PsnSequence);
            [say(not_ready, round), say(again, round)]
        })
        .take(60)
        .collect();
    for _ in 0..100 {
        liar.answers(&mut pair, &entries);
    }
    // Each pause would be a timer.
    let counters = pair.nodes[1].engine.counters();
    assert_eq!(counters.rnr_received, 1, "{counters:?}");
    assert!(counters.stale > 1000, "{counters:?}");
    // And the QP goes on.
    liar.hears(&mut pair);
    let done = Answer {
        msn: FIRST_MSN.wrapping_add(4),
        ..say(Syndrome::ACK_WITHOUT_CREDITS, 1)
    };
    liar.answers(&mut pair, &[done]);
    let ended = pair.completions(1);
    assert!(ended.iter().all(|done| done.status == Status::Success));
    assert_eq!(ended.len(), 4);
}

/// The shortest of a few calls.
#[expect(clippy::disallowed_methods, reason = "real work is what it measures")]
fn shortest(mut act: impl FnMut()) -> Duration {
    let time = |_| {
        let before = Instant::now();
        act();
        before.elapsed()
    };
    (0..64).map(time).min().expect("there are some")
}

#[test]
fn what_is_said_of_a_message_costs_the_same_however_many_wait_for_a_read_before_it() {
    let refusals = |count: u32| {
        let mut pair = Pair::new(0);
        pair.depth = 1 << 15;
        let mut liar = Liar::new(&mut pair, 9);
        let (qp, generation) = talking(&mut pair, &mut liar, 0);
        let target = Remote {
            addr: 0,
            rkey: Rkey(1),
        };
        pair.post(1, &qp, 0, SendOp::Read(target), &[pair.sge(1, 0, 8)]);
        let say = |syndrome, msn: u32| Answer {
            requester: qp.qpn,
            syndrome,
            msn: FIRST_MSN.wrapping_add(msn),
            generation,
            replay_epoch: 0,
            responder: Qpn::from_wire(5),
        };
        // All SENDs but the last one are executed, which the READ has to answer for.
        let (mut sent, mut acked) = (1_u32, 0);
        while acked < count {
            for _ in 0..(count - acked).min(16) {
                let from = [pair.sge(1, 0, 8)];
                pair.post(1, &qp, sent.into(), SendOp::Send, &from);
                (sent, acked) = (sent + 1, acked + 1);
            }
            liar.hears(&mut pair);
            liar.answers(&mut pair, &[say(Syndrome::ACK_WITHOUT_CREDITS, acked)]);
        }
        let refused = say(Syndrome::Nak(NakCode::RemoteAccess), acked);
        shortest(|| liar.answers(&mut pair, &[refused]))
    };
    let (few, many) = (refusals(32), refusals(16_000));
    // A walk over them would cost a hundred times as much.
    assert!(many < few * 10, "{few:?} for few, {many:?} for many");
}
