//! What comes back to the requester: acknowledgements, READ data, results of atomics.

use super::early::Early;
use super::{Entry, Requester};
use crate::host::Host;
use crate::mem::Memory;
use crate::rc::config::Config;
use crate::rc::segment;
use crate::rc::stats::{Dropped, Stats};
use crate::time::Instant;
use crate::work::{Local, SendOp, Status};
use trunkline_wire::{Aeth, NakCode, Operation, Packet, Position, Psn, Syndrome};

/// Answers that overtake a missing one until it counts as lost.
const REORDERED: u32 = 3;
/// Requests that an answer ahead of its turn is looked for among.
const LOOK_AHEAD: usize = 64;

/// The oldest request ends with this status, and the QP goes to error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::rc) struct Fatal(pub(in crate::rc) Status);

/// What a response led to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::rc) struct Outcome {
    pub(in crate::rc) verdict: Result<(), Dropped>,
    pub(in crate::rc) fatal: Option<Fatal>,
}

impl Outcome {
    const DONE: Self = Self {
        verdict: Ok(()),
        fatal: None,
    };

    const fn dropped(reason: Dropped) -> Self {
        Self {
            verdict: Err(reason),
            fatal: None,
        }
    }

    /// The peer says that the oldest request failed.
    const fn refused(status: Status) -> Self {
        Self {
            verdict: Ok(()),
            fatal: Some(Fatal(status)),
        }
    }

    /// The program's memory for an answer is gone.
    const FAULT: Self = Self {
        verdict: Err(Dropped::LocalMemory),
        fatal: Some(Fatal(Status::LocalProtection)),
    };

    const BAD: Self = Self {
        verdict: Err(Dropped::BadResponse),
        fatal: Some(Fatal(Status::BadResponse)),
    };
}

impl Requester {
    /// A response packet of this QP.
    pub(in crate::rc) fn handle(
        &mut self,
        config: &Config,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        let (una, psn) = (self.una(), packet.bth.psn);
        let ahead = segment::distance(una, psn);
        if ahead >= self.outstanding() {
            let stale = psn.offset_from(una) < 0;
            if stale {
                // It may tell of receives that were posted since.
                self.take_credits(packet);
            }
            return Outcome::dropped(if stale {
                Dropped::StaleResponse
            } else {
                Dropped::UnexpectedResponse
            });
        }
        self.take_credits(packet);
        let syndrome = packet.aeth.map(|aeth| aeth.syndrome);
        match (packet.opcode().operation(), syndrome) {
            (Some(Operation::Acknowledge), Some(Syndrome::Ack { .. })) => {
                self.on_ack(config, now, ahead + 1, host, stats)
            }
            (Some(Operation::Acknowledge), Some(Syndrome::RnrNak { timer })) => {
                stats.rnr_naks_received += 1;
                self.on_rnr_nak(config, now, (ahead, timer), host, stats)
            }
            (Some(Operation::Acknowledge), Some(Syndrome::Nak(code))) => {
                self.on_nak(config, now, (ahead, code), host, stats)
            }
            (
                Some(Operation::ReadResponse | Operation::AtomicResponse),
                None | Some(Syndrome::Ack { .. }),
            ) => self.on_data(config, now, packet, ahead, host, stats),
            _ => Outcome::dropped(Dropped::UnexpectedResponse),
        }
    }

    /// What an acknowledgement says of the peer's receives.
    fn take_credits(&mut self, packet: &Packet<'_>) {
        if let Some(Aeth {
            syndrome: Syndrome::Ack { credits },
            msn,
        }) = packet.aeth
        {
            self.credits.grant(credits, msn);
        }
    }

    /// The next `count` PSNs are acknowledged. `false` when data of a READ or atomic among them
    /// has not come.
    fn acknowledge(
        &mut self,
        config: &Config,
        now: Instant,
        count: u32,
        host: &mut impl Host,
    ) -> bool {
        let mut left = count;
        while left > 0 {
            let head = self
                .queue
                .front_mut()
                .expect("outstanding PSNs belong to requests");
            if head.request.op.has_response_data() {
                break;
            }
            let step = left.min(head.packets - head.progress);
            head.progress += step;
            left -= step;
            self.settle_head(host);
        }
        if left < count {
            self.on_progress(config, now);
        }
        left == 0
    }

    /// The oldest request got further: it may be done, and what is done is not sent again.
    fn settle_head(&mut self, host: &mut impl Host) {
        let head = self.queue.front().expect("it got further");
        if head.progress == head.packets {
            let request = self.pop().expect("it is there");
            let length = request.length;
            host.sent(request, Status::Success, length);
        } else if self.cursor == 0 {
            self.packet = self.packet.max(head.progress);
        }
    }

    fn on_progress(&mut self, config: &Config, now: Instant) {
        self.implied = None;
        self.probing = false;
        self.overtook = 0;
        let una = self.una();
        self.window.acknowledged(config, now, una, self.next_psn);
        self.timers.stop_gap();
        if !self.early.is_empty() {
            self.timers.start_gap(now);
        }
        let waiting = self.is_waiting();
        self.timers.progress(config, now, waiting);
    }

    fn on_ack(
        &mut self,
        config: &Config,
        now: Instant,
        count: u32,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        if self.acknowledge(config, now, count, host) {
            return Outcome::DONE;
        }
        self.on_missing(now, stats)
    }

    /// Data of the oldest request is missing although something later was answered.
    fn on_missing(&mut self, now: Instant, stats: &mut Stats) -> Outcome {
        Outcome {
            verdict: Err(Dropped::MissingResponse),
            fatal: self.overtaken(now, stats),
        }
    }

    /// A later answer came before one that is missing: late, or lost (an implied NAK, IBTA Vol 1,
    /// 9.7.5.1.1). It counts as lost when several have overtaken it, or some time after the first.
    fn overtaken(&mut self, now: Instant, stats: &mut Stats) -> Option<Fatal> {
        self.overtook += 1;
        if self.overtook < REORDERED {
            self.timers.start_gap(now);
            return None;
        }
        self.ask_for_missing(stats)
    }

    /// Asks for missing answers again: once, until there is progress or the timer runs out.
    pub(super) fn ask_for_missing(&mut self, stats: &mut Stats) -> Option<Fatal> {
        let una = self.una();
        if self.implied == Some(una) || !self.is_waiting() {
            return None;
        }
        self.implied = Some(una);
        self.timers.stop_gap();
        stats.implied_naks += 1;
        self.window.lost(self.next_psn);
        self.retry()
    }

    fn on_rnr_nak(
        &mut self,
        config: &Config,
        now: Instant,
        (ahead, timer): (u32, u8),
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        if !self.acknowledge(config, now, ahead, host) {
            return self.on_missing(now, stats);
        }
        if !self.is_waiting() {
            // What it refuses has not been sent again since it was refused last.
            return Outcome::dropped(Dropped::StaleResponse);
        }
        if !self.timers.start_rnr(now, timer) {
            return Outcome::refused(Status::RnrRetryExceeded);
        }
        self.go_back();
        Outcome::DONE
    }

    fn on_nak(
        &mut self,
        config: &Config,
        now: Instant,
        (ahead, code): (u32, NakCode),
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        let status = match code {
            NakCode::PsnSequence => {
                stats.sequence_naks_received += 1;
                return self.on_sequence_nak(config, now, ahead, host, stats);
            }
            NakCode::InvalidRequest => Status::RemoteInvalidRequest,
            NakCode::RemoteAccess => Status::RemoteAccess,
            NakCode::RemoteOperational => Status::RemoteOperation,
            NakCode::InvalidRd | NakCode::Reserved(_) => {
                return Outcome::dropped(Dropped::UnexpectedResponse);
            }
        };
        // A READ may be refused in the middle of its response.
        let head = self
            .queue
            .front()
            .expect("outstanding PSNs belong to requests");
        let refuses_head = ahead < head.packets - head.progress;
        if refuses_head || self.acknowledge(config, now, ahead, host) {
            return Outcome::refused(status);
        }
        self.on_missing(now, stats)
    }

    fn on_sequence_nak(
        &mut self,
        config: &Config,
        now: Instant,
        ahead: u32,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        if !self.acknowledge(config, now, ahead, host) {
            return self.on_missing(now, stats);
        }
        if !self.is_waiting() {
            return Outcome::dropped(Dropped::StaleResponse);
        }
        self.window.lost(self.next_psn);
        Outcome {
            verdict: Ok(()),
            fatal: self.retry(),
        }
    }

    fn on_data(
        &mut self,
        config: &Config,
        now: Instant,
        packet: &Packet<'_>,
        ahead: u32,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        // An answer to a request acknowledges those before it.
        if !self.acknowledge(config, now, ahead, host) {
            return self.on_early(config, now, packet, host, stats);
        }
        let head = self
            .queue
            .front()
            .expect("outstanding PSNs belong to requests");
        match place(config, head, head.progress, packet, host) {
            Placed::Done => {}
            Placed::Unfit => return Outcome::BAD,
            Placed::Fault => return Outcome::FAULT,
        }
        self.advance(host);
        self.catch_up(config, now, host);
        self.on_progress(config, now);
        Outcome::DONE
    }

    /// Data came before some that is missing: it is placed and need not come again.
    fn on_early(
        &mut self,
        config: &Config,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Outcome {
        let psn = packet.bth.psn;
        let una = self.una();
        if self.early.has(una, psn) {
            return Outcome::dropped(Dropped::StaleResponse);
        }
        let found = self.find(psn);
        let placed = found.map(|(entry, at)| place(config, entry, at, packet, host));
        match placed {
            Some(Placed::Done) => {}
            Some(Placed::Fault) => return Outcome::FAULT,
            Some(Placed::Unfit) | None => return self.on_missing(now, stats),
        }
        self.early.mark(una, psn);
        Outcome {
            verdict: Ok(()),
            fatal: self.overtaken(now, stats),
        }
    }

    /// The request that an answer ahead of its turn is for, and which of its packets; `None` where
    /// that is too far ahead.
    fn find(&self, psn: Psn) -> Option<(&Entry, u32)> {
        if !Early::reaches(self.una(), psn) {
            return None;
        }
        let near = self.queue.iter().take(self.started.min(LOOK_AHEAD));
        near.map(|entry| (entry, segment::distance(entry.psn, psn)))
            .find(|(entry, at)| *at < entry.packets)
    }

    /// The next packet of the oldest request, a READ or atomic, has come.
    fn advance(&mut self, host: &mut impl Host) {
        let head = self.queue.front_mut().expect("its data came");
        let answered = head.progress + 1 == head.pieces.end(head.progress, head.packets);
        head.progress += 1;
        self.read_psns -= 1;
        self.reads -= u32::from(answered);
        self.settle_head(host);
    }

    /// Goes on over what came early, and over what that acknowledges.
    fn catch_up(&mut self, config: &Config, now: Instant, host: &mut impl Host) {
        while let Some(last) = self.early.last() {
            if self.early.take(self.una()) {
                self.advance(host);
                continue;
            }
            let before = self.una();
            self.acknowledge(config, now, segment::distance(before, last), host);
            if self.una() == before {
                return;
            }
        }
    }
}

/// What became of data.
enum Placed {
    Done,
    /// It is no packet `at` of that request's answer.
    Unfit,
    /// The program's memory is gone.
    Fault,
}

/// Puts packet `at` of the answer to a request where it belongs.
fn place(
    config: &Config,
    entry: &Entry,
    at: u32,
    packet: &Packet<'_>,
    host: &mut impl Host,
) -> Placed {
    let is_read = packet.opcode().operation() == Some(Operation::ReadResponse);
    let memory = host.memory();
    let placed = match (&entry.request.op, &entry.request.local) {
        (SendOp::Read(_), Local::Sges(sges)) if is_read => {
            let mtu = config.path_mtu.bytes();
            let (offset, length) = segment::part(entry.request.length, mtu, at);
            let last = at + 1 == entry.pieces.end(at, entry.packets);
            if packet.payload.len() != length as usize
                || !fits(packet, entry.pieces.is_first(at), last)
            {
                return Placed::Unfit;
            }
            memory.scatter(config.pd, sges, offset, packet.payload, None)
        }
        (SendOp::Atomic(..), Local::Sges(sges)) if !is_read => {
            let value = packet.atomic_ack.map_or(0, |header| header.0);
            memory.scatter(config.pd, sges, 0, &value.to_ne_bytes(), None)
        }
        _ => return Placed::Unfit,
    };
    match placed {
        Ok(()) => Placed::Done,
        Err(_) => Placed::Fault,
    }
}

/// Whether the opcode suits a packet of a READ response, the `first` or the `last` of its piece. A
/// repeated request begins anew in the middle, so that only these two are certain.
fn fits(packet: &Packet<'_>, first: bool, last: bool) -> bool {
    match packet.opcode().position() {
        Some(Position::Only) => last,
        Some(Position::Last) => last && !first,
        Some(Position::First) => !last,
        Some(Position::Middle) => !last && !first,
        None => false,
    }
}
