//! Captured answers into our requester.

use super::{config, refused, refused_for_good};
use crate::common::capture::{Conversation, Seen};
use crate::common::{Port, Qp, Region, Sent, request, sge};
use std::collections::VecDeque;
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::rc::{Config, Dropped, ReliableConnection, State};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Remote, Request, SendFlags, SendOp, Status};
use trunkline_wire::{NakCode, Operation, Psn, Syndrome};

const LOCAL: u32 = 0xfeed_0002;
const LOCAL_ADDR: u64 = 0x6000_0000;
/// Local memory of one message.
const ROOM: u64 = 1 << 19;

/// A message put together from its captured packets.
#[derive(Clone, Debug, Default)]
struct Message {
    packets: Vec<Seen>,
    /// Its last packet was captured.
    complete: bool,
}

/// The messages of a conversation; what was sent again is left out.
fn messages(talk: &Conversation) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::new();
    let mut next: Option<Psn> = None;
    for packet in talk.requests() {
        if next.is_some_and(|next| packet.bth.psn.offset_from(next) < 0) {
            continue;
        }
        next = Some(packet.bth.psn.advance(1));
        if packet.position().starts() {
            found.push(Message::default());
        }
        let message = found.last_mut().expect("a capture starts with a message");
        message.complete = packet.position().ends();
        message.packets.push(packet.clone());
    }
    found
}

impl Message {
    /// As it was posted, from or to its own local memory.
    fn request(&self, number: u64) -> Request {
        let (first, last) = (&self.packets[0], &self.packets[self.packets.len() - 1]);
        let carried: usize = self.packets.iter().map(|packet| packet.payload.len()).sum();
        // Of a message that was cut off there was more.
        let carried = carried as u32 + u32::from(!self.complete);
        let remote = first.reth.map(|reth| Remote {
            addr: reth.va,
            rkey: reth.rkey,
        });
        let length = match (first.operation(), first.reth) {
            (Operation::ReadRequest | Operation::Write, Some(reth)) => reth.length,
            (Operation::CompareSwap | Operation::FetchAdd, _) => 8,
            _ => carried,
        };
        let remote = remote.unwrap_or_else(|| {
            first.atomic.map_or(Remote::default(), |atomic| Remote {
                addr: atomic.va,
                rkey: atomic.rkey,
            })
        });
        let op = match (first.operation(), last.imm, last.ieth) {
            (Operation::Send, Some(imm), _) => SendOp::SendImm(imm.0),
            (Operation::Send, _, Some(ieth)) => SendOp::SendInvalidate(ieth.0),
            (Operation::Send, ..) => SendOp::Send,
            (Operation::Write, Some(imm), _) => SendOp::WriteImm(remote, imm.0),
            (Operation::Write, ..) => SendOp::Write(remote),
            (Operation::ReadRequest, ..) => SendOp::Read(remote),
            _ => SendOp::Atomic(remote, self.atomic()),
        };
        let mut request = request(number, op, sge(LOCAL, LOCAL_ADDR + number * ROOM, length));
        if last.bth.solicited {
            request.flags = request.flags.with(SendFlags::SOLICITED);
        }
        request
    }

    fn atomic(&self) -> AtomicOp {
        let header = self.packets[0].atomic.expect("atomics have their header");
        match self.packets[0].operation() {
            Operation::FetchAdd => AtomicOp::FetchAdd {
                add: header.swap_or_add,
            },
            _ => AtomicOp::CompareSwap {
                compare: header.compare,
                swap: header.swap_or_add,
            },
        }
    }
}

struct Replay<'a> {
    name: &'a str,
    engine: ReliableConnection,
    qp: Qp,
    port: Port,
    sent: VecDeque<Seen>,
    compared: usize,
}

impl Replay<'_> {
    fn drain(&mut self, now: Instant) {
        while self
            .engine
            .poll_transmit(now, &mut self.qp, &mut self.port)
            .is_packet()
        {}
        while let Some(datagram) = self.port.take() {
            self.sent.push_back(Seen::new(now.as_nanos(), &datagram));
        }
    }

    /// A captured answer. One to a packet that was sent twice may come twice.
    fn answer(&mut self, now: Instant, packet: &Seen, repeated: &mut u32) {
        let parsed = packet.packet();
        let verdict = self.engine.handle_packet(now, &parsed, false, &mut self.qp);
        if verdict == Err(Dropped::StaleResponse) && *repeated > 0 {
            *repeated -= 1;
        } else {
            assert_eq!(verdict, Ok(()), "{}", self.name);
        }
    }

    /// Our next packet is the captured one.
    fn compare(&mut self, theirs: &Seen) {
        let place = format!("{}: PSN {}", self.name, theirs.bth.psn.get());
        let ours = self.sent.pop_front();
        let ours = ours.unwrap_or_else(|| panic!("{place} was not sent"));
        let fields = |one: &Seen| {
            let bth = one.bth;
            let headers = (one.reth, one.atomic, one.imm, one.ieth);
            (
                bth.opcode,
                bth.psn,
                bth.pad,
                bth.solicited,
                bth.dest_qp,
                bth.pkey,
                headers,
            )
        };
        assert_eq!(fields(&ours), fields(theirs), "{place}");
        assert!(ours.payload == theirs.payload, "{place}: payload");
        assert!(
            !theirs.position().ends() || ours.bth.ack_req,
            "{place}: AckReq"
        );
        self.compared += 1;
    }
}

/// How the messages end, as far as the capture has their answers.
fn expected(talk: &Conversation, messages: &[Message], requests: &[Request]) -> Vec<Sent> {
    let refusal = refused_for_good(talk);
    let not_ready = refused(talk, |one| matches!(one, Syndrome::RnrNak { .. }));
    let failure = refusal
        .map(|(psn, code)| (psn, status(code)))
        .or(not_ready.map(|psn| (psn, Status::RnrRetryExceeded)));
    let acked = talk.responses().filter(|one| {
        let positive = |aeth: trunkline_wire::Aeth| matches!(aeth.syndrome, Syndrome::Ack { .. });
        one.aeth.is_none_or(positive)
    });
    let last_acked = acked.last().map(|one| one.bth.psn);
    let mut ends = Vec::new();
    for (message, request) in messages.iter().zip(requests) {
        let first = message.packets[0].bth.psn;
        let last = message.packets[message.packets.len() - 1].bth.psn;
        let refused =
            failure.filter(|(psn, _)| psn.offset_from(first) >= 0 && last.offset_from(*psn) >= 0);
        let done = message.complete && last_acked.is_some_and(|acked| acked.offset_from(last) >= 0);
        let (status, byte_len) = match refused {
            Some((_, status)) => (status, 0),
            None if done => (Status::Success, request.length),
            None => continue,
        };
        ends.push(Sent {
            wr_id: request.wr_id,
            opcode: (&request.op).into(),
            status,
            byte_len,
        });
    }
    ends
}

fn status(code: NakCode) -> Status {
    match code {
        NakCode::RemoteAccess => Status::RemoteAccess,
        NakCode::InvalidRequest => Status::RemoteInvalidRequest,
        NakCode::RemoteOperational => Status::RemoteOperation,
        other => panic!("{other:?} was captured"),
    }
}

/// READ data and results of atomics stand in local memory.
fn check_results(name: &str, talk: &Conversation, requests: &[Request], qp: &Qp) {
    let data = talk
        .responses()
        .filter(|one| one.operation() != Operation::Acknowledge);
    let mut brought: Vec<u8> = Vec::new();
    for one in data {
        brought.extend(&one.payload);
        brought.extend(one.atomic_ack.iter().flat_map(|value| value.to_ne_bytes()));
    }
    let mut at = 0;
    for request in requests.iter().filter(|one| one.op.has_response_data()) {
        let length = request.length as usize;
        let Some(part) = brought.get(at..at + length) else {
            break;
        };
        let placed = qp
            .ram
            .bytes(LOCAL, LOCAL_ADDR + request.wr_id * ROOM, length);
        assert!(placed == part, "{name}: result of {:?}", request.op);
        at += length;
    }
    assert_eq!(at, brought.len(), "{name}: answers without a request");
}

pub(crate) fn replay(name: &str, talk: &Conversation) -> usize {
    let responder = config(name, talk);
    let messages = messages(talk);
    let requests: Vec<Request> = (0..)
        .zip(&messages)
        .map(|(i, one)| one.request(i))
        .collect();
    let mut qp = Qp::default();
    let mut memory = vec![0; ROOM as usize * messages.len()];
    for (message, chunk) in messages.iter().zip(memory.chunks_mut(ROOM as usize)) {
        let mut rest = chunk;
        for packet in &message.packets {
            let (place, after) = rest.split_at_mut(packet.payload.len());
            place.copy_from_slice(&packet.payload);
            rest = after;
        }
    }
    qp.ram.regions.push(Region::new(LOCAL, LOCAL_ADDR, memory));
    let config = Config {
        qpn: responder.dest_qpn,
        dest_qpn: responder.qpn,
        // So long that no answer of that peer counts as late.
        timeout: 20,
        rnr_retry: 3,
        // The captured peer had up to so many in flight.
        window: 512,
        initial_window: 512,
        ..responder
    };
    let mut replay = Replay {
        name,
        engine: ReliableConnection::new(config),
        qp,
        port: Port::default(),
        sent: VecDeque::new(),
        compared: 0,
    };
    let (mut posted, mut repeated, mut crossed) = (0, 0, 0);
    for packet in &talk.packets {
        let now = Instant::from_nanos(packet.time_ns);
        if packet.is_response() {
            replay.answer(now, packet, &mut repeated);
        } else if posted < messages.len() && packet.bth.psn == messages[posted].packets[0].bth.psn {
            let back = replay.engine.post_send(requests[posted].clone());
            assert!(back.is_ok(), "{name}: the queue is long enough");
            posted += 1;
            replay.drain(now);
            replay.compare(packet);
        } else {
            if replay.sent.is_empty() {
                repeated += 1;
                // The real one's timer ran out, so ours does.
                let Some(timer) = replay.engine.poll_timeout() else {
                    // It had not seen the answer yet that was captured before.
                    crossed += 1;
                    continue;
                };
                let now = now.max(timer);
                replay.engine.handle_timeout(now, &mut replay.qp);
                replay.drain(now);
            }
            replay.compare(packet);
        }
    }
    let ends = expected(talk, &messages, &requests);
    assert!(!ends.is_empty(), "{name}: nothing completed");
    assert_eq!(replay.qp.sent, ends, "{name}");
    check_results(name, talk, &requests, &replay.qp);
    let failed = ends.iter().any(|one| one.status != Status::Success);
    let state = if failed { State::Error } else { State::Ready };
    assert_eq!(replay.engine.state(), state, "{name}");
    assert!(crossed <= 1, "{name}: {crossed}");
    assert_eq!(replay.compared + crossed, talk.requests().count(), "{name}");
    replay.compared
}
