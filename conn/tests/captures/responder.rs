//! Captured requests into our responder.

use super::{UNUSABLE, config, refused, refused_for_good};
use crate::common::capture::{Conversation, Seen};
use crate::common::{Port, Qp, Region, receive, sge};
use std::collections::BTreeMap;
use trunkline_conn::rc::{Config, ReliableConnection, State};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Completion, Extra, Status};
use trunkline_wire::{NakCode, Operation, Psn, Syndrome};

const INBOX: u32 = 0xfeed_0001;
const INBOX_ADDR: u64 = 0x5000_0000;
/// Room of a receive, where nothing else is known.
const ROOM: u32 = 1 << 20;
const PAGE: u64 = 4096;
/// The server's memory in the capture of all operations: see the README there.
const ALL_OPERATIONS: &str = "rc-all-ops";

/// Keys with their first and last address, as far as requests name them.
type Ranges = BTreeMap<u32, (u64, u64)>;

/// What the responder's memory has to be: every range that was asked for and not refused.
fn ranges(talk: &Conversation) -> Ranges {
    let denied = refused(talk, |syndrome| {
        syndrome == Syndrome::Nak(NakCode::RemoteAccess)
    });
    let mut found = Ranges::new();
    for packet in talk.requests() {
        let range = match (packet.reth, packet.atomic) {
            (Some(reth), _) => Some((reth.rkey.0, reth.va, u64::from(reth.length))),
            (_, Some(atomic)) => Some((atomic.rkey.0, atomic.va, 8)),
            _ => packet.ieth.map(|ieth| (ieth.0.0, 0, 0)),
        };
        let Some((key, addr, length)) = range else {
            continue;
        };
        if denied == Some(packet.bth.psn) {
            continue;
        }
        let entry = found.entry(key).or_insert((addr, addr + length));
        if length > 0 {
            *entry = (entry.0.min(addr), entry.1.max(addr + length));
        }
    }
    found
}

/// A responder as the capture shows it.
struct Replay<'a> {
    name: &'a str,
    talk: &'a Conversation,
    engine: ReliableConnection,
    qp: Qp,
    port: Port,
    /// Atomics whose memory was set.
    touched: Vec<u64>,
    answers: Vec<Seen>,
}

impl<'a> Replay<'a> {
    fn new(name: &'a str, talk: &'a Conversation, config: Config) -> Self {
        let mut qp = Qp::default();
        for (key, (first, last)) in ranges(talk) {
            let base = first & !(PAGE - 1);
            let known = name.ends_with(ALL_OPERATIONS) && key < 1 << 16;
            let byte = |i: u64| if known { (i * 13 + 5) as u8 } else { 0 };
            let bytes = (0..last - base).map(byte).collect();
            qp.ram.regions.push(Region::new(key, base, bytes));
        }
        let inbox = vec![0; ROOM as usize];
        qp.ram.regions.push(Region::new(INBOX, INBOX_ADDR, inbox));
        Self {
            name,
            talk,
            engine: ReliableConnection::new(config),
            qp,
            port: Port::default(),
            touched: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// As many receives as were taken, of the size that shows.
    fn post_receives(&mut self, room: u32, usable: u32) {
        let mut last: Vec<Psn> = Vec::new();
        for packet in self.talk.requests() {
            let takes = match packet.operation() {
                Operation::Send => packet.position().starts(),
                _ => packet.imm.is_some(),
            };
            if takes && !last.contains(&packet.bth.psn) {
                last.push(packet.bth.psn);
            }
        }
        let not_ready = refused(self.talk, |one| matches!(one, Syndrome::RnrNak { .. }));
        last.retain(|psn| Some(*psn) != not_ready);
        for number in 0..last.len() as u64 {
            self.qp
                .receives
                .push_back(receive(number, sge(INBOX, INBOX_ADDR, room)));
        }
        let region = self.qp.ram.regions.last().expect("it was put there");
        region.bytes.borrow_mut().truncate(usable as usize);
    }

    /// Where the capture alone knows what memory held, takes it from the answer.
    fn prepare(&mut self, request: &Seen) {
        let answer = |wanted: Operation| {
            let psn = request.bth.psn;
            self.talk
                .responses()
                .filter(move |one| one.operation() == wanted)
                .filter(move |one| one.bth.psn.offset_from(psn) >= 0)
        };
        if self.name.ends_with(ALL_OPERATIONS) {
            return;
        }
        match (request.operation(), request.reth, request.atomic) {
            (Operation::ReadRequest, Some(reth), _) => {
                let data: Vec<u8> = answer(Operation::ReadResponse)
                    .flat_map(|one| one.payload.iter().copied())
                    .take(reth.length as usize)
                    .collect();
                if !data.is_empty() {
                    self.qp.ram.set(reth.rkey.0, reth.va, &data);
                }
            }
            (_, _, Some(atomic)) if !self.touched.contains(&atomic.va) => {
                let value = answer(Operation::AtomicResponse).find_map(|one| one.atomic_ack);
                let value = value.expect("captured atomics were answered");
                self.qp
                    .ram
                    .set(atomic.rkey.0, atomic.va, &value.to_ne_bytes());
                self.touched.push(atomic.va);
            }
            _ => {}
        }
    }

    fn run(&mut self) {
        let talk = self.talk;
        for request in talk.requests() {
            self.prepare(request);
            let now = Instant::from_nanos(request.time_ns);
            // What it is dropped for shows in the answers.
            let _ = self
                .engine
                .handle_packet(now, &request.packet(), false, &mut self.qp);
            while self
                .engine
                .poll_transmit(now, &mut self.qp, &mut self.port)
                .is_packet()
            {}
            while let Some(datagram) = self.port.take() {
                self.answers.push(Seen::new(request.time_ns, &datagram));
            }
        }
    }

    /// Compares answer by answer. The real responder may have acknowledged several packets at
    /// once, where ours, asked one by one, says more.
    fn compare(&self, syndromes_too: bool) -> usize {
        let mut ours = self.answers.iter();
        let mut compared = 0;
        for theirs in self.talk.responses() {
            let same =
                |one: &&Seen| one.bth.opcode == theirs.bth.opcode && one.bth.psn == theirs.bth.psn;
            let skipped = |one: &&Seen| {
                let acked = one.syndrome() == Some(Syndrome::ACK_WITHOUT_CREDITS.byte());
                let plain = one.operation() == Operation::Acknowledge && acked;
                assert!(
                    plain && !same(one),
                    "{}: {one:?} is not in the capture",
                    self.name
                );
                one.bth.psn.offset_from(theirs.bth.psn) < 0
            };
            let mut found = ours.next();
            while let Some(one) = found
                && !same(&one)
            {
                assert!(skipped(&one), "{}: {theirs:?} was not said", self.name);
                found = ours.next();
            }
            let one = found.unwrap_or_else(|| panic!("{}: {theirs:?} was not said", self.name));
            let msn = |packet: &Seen| packet.aeth.map(|aeth| aeth.msn);
            assert_eq!(msn(one), msn(theirs), "{}", self.name);
            assert_eq!(one.atomic_ack, theirs.atomic_ack, "{}", self.name);
            assert!(one.payload == theirs.payload, "{}: READ data", self.name);
            assert_eq!(one.bth.pad, theirs.bth.pad, "{}", self.name);
            assert_eq!(one.bth.dest_qp, theirs.bth.dest_qp, "{}", self.name);
            if syndromes_too {
                assert_eq!(one.syndrome(), theirs.syndrome(), "{}", self.name);
            }
            compared += 1;
        }
        compared
    }

    /// What the program at the responder sees.
    fn check_completions(&self) {
        let mut sizes = Vec::new();
        let mut size = 0;
        let mut seen = Vec::new();
        for packet in self.talk.requests() {
            if seen.contains(&packet.bth.psn) {
                continue;
            }
            seen.push(packet.bth.psn);
            size = if packet.position().starts() { 0 } else { size } + packet.payload.len() as u32;
            let takes = packet.operation() == Operation::Send || packet.imm.is_some();
            if packet.position().ends() && takes {
                let extra = match (packet.imm, packet.ieth) {
                    (Some(imm), _) => Extra::Immediate(imm.0),
                    (_, Some(ieth)) => Extra::Invalidated(ieth.0),
                    _ => Extra::None,
                };
                sizes.push((size, extra, packet.bth.solicited));
            }
        }
        let not_ready = refused(self.talk, |one| matches!(one, Syndrome::RnrNak { .. }));
        if not_ready.is_some() {
            sizes.pop();
        }
        let good = |one: &&Completion| one.status == Status::Success;
        let done: Vec<_> = self
            .qp
            .received
            .iter()
            .filter(good)
            .map(|one| (one.byte_len, one.extra, one.solicited))
            .collect();
        if refused_for_good(self.talk).is_none() {
            assert_eq!(done, sizes, "{}", self.name);
        }
    }
}

/// Bytes that could be received: all of the packets before the refused one.
fn room_before_refusal(config: &Config, psn: Psn) -> u32 {
    psn.offset_from(config.rq_psn).unsigned_abs() * config.path_mtu.bytes()
}

pub(crate) fn replay(name: &str, talk: &Conversation) -> usize {
    let config = config(name, talk);
    let refusal = refused_for_good(talk);
    let mut replay = Replay::new(name, talk, config);
    match refusal {
        Some((psn, _)) if name.ends_with(UNUSABLE) => {
            replay.post_receives(ROOM, room_before_refusal(&config, psn));
        }
        _ => replay.post_receives(ROOM, ROOM),
    }
    replay.run();
    let compared = replay.compare(true);
    assert_eq!(compared, talk.responses().count(), "{name}");
    replay.check_completions();
    let expected = if refusal.is_some() {
        State::Error
    } else {
        State::Ready
    };
    assert_eq!(replay.engine.state(), expected, "{name}");
    if name.ends_with(UNUSABLE) {
        let status = replay.qp.received.last().map(|one| one.status);
        assert_eq!(status, Some(Status::LocalProtection), "{name}");
    }
    compared
}

/// The same but for the code, when the receive is usable and ends where memory ended.
pub(crate) fn replay_short_receive(name: &str, talk: &Conversation) -> usize {
    let config = config(name, talk);
    let (psn, code) = refused_for_good(talk).expect("the capture is of a refusal");
    assert_eq!(code, NakCode::RemoteOperational, "{name}");
    let mut replay = Replay::new(name, talk, config);
    replay.post_receives(room_before_refusal(&config, psn), ROOM);
    replay.run();
    let status = replay.qp.received.last().map(|one| one.status);
    assert_eq!(status, Some(Status::LocalLength), "{name}");
    let ours = replay.answers.last().and_then(|one| one.aeth);
    let ours = ours.map(|aeth| aeth.syndrome);
    let invalid = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(ours, Some(invalid), "{name}");
    replay.compare(false)
}
