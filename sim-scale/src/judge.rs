//! Completions and events, held against the model.

use crate::channel::Brings;
use crate::endpoint::{Cookie, Doing, Expect, Posted, Stage};
use crate::failure::{Failure, Verdict};
use crate::options::{MS, US, between};
use crate::setup::refused;
use crate::trace::Event as Traced;
use crate::world::{Action, Doom, World};
use std::collections::VecDeque;
use trunkline::{Completion, Event, Extra, QpEvent, QpState, Status, WorkOpcode};

impl World {
    /// Asynchronous events: a QP that nothing was done to raises none that is bad.
    pub(crate) fn take_events(&mut self, index: usize) -> Verdict {
        while let Some(event) = self.node(index).and_then(trunkline::Node::poll_event) {
            match event {
                Event::CqError { cq } => {
                    return Err(Failure::wrong(format!("{cq:?} of node {index} overran")));
                }
                Event::Qp { qpn, event } => {
                    let bad = matches!(
                        event,
                        QpEvent::RequestError | QpEvent::AccessError | QpEvent::Fatal
                    );
                    let found = self.endpoints.iter().position(|endpoint| {
                        endpoint.node == index
                            && matches!(endpoint.stage, Stage::Live | Stage::Failed)
                            && endpoint.qp.as_ref().is_some_and(|qp| qp.qpn() == qpn)
                    });
                    if let Some(endpoint) = found.filter(|_| bad) {
                        self.may_fail(endpoint, &format!("event {event:?}"))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Something bad was reported of an endpoint: is there a reason?
    pub(crate) fn may_fail(&mut self, endpoint: usize, what: &str) -> Verdict {
        let group = self.endpoints[endpoint].group;
        let doomed = matches!(self.groups[group].doom, Some(Doom::Any(_)));
        if !doomed && self.was_refused_too_often(group) {
            self.act("refused too often", endpoint, group);
            self.groups[group].doom = Some(Doom::Any("a receiver was not ready too often"));
        }
        match self.groups[group].doom {
            Some(_) => Ok(()),
            None if self.kept_silent(group) => {
                self.act("kept silent", endpoint, group);
                self.groups[group].doom = Some(Doom::Silence);
                self.tally.silences += 1;
                Ok(())
            }
            None => Err(Failure::wrong(format!(
                "e{endpoint} of group {group} reports {what}, but nothing was done to it or its \
                 peers"
            ))),
        }
    }

    /// Asks the network at once of QPs of a node that have ended. One with nothing outstanding says
    /// so with its next request only, when a later answer may hide the silence that it ended of.
    pub(crate) fn note_ends(&mut self, index: usize) {
        for endpoint in 0..self.endpoints.len() {
            let state = &self.endpoints[endpoint];
            let group = state.group;
            let ended = |qp: &trunkline::Qp| qp.state() == QpState::Error;
            if state.node == index
                && state.stage == Stage::Live
                && self.groups[group].doom.is_none()
                && state.qp.as_ref().is_some_and(ended)
                && self.kept_silent(group)
            {
                self.groups[group].silenced = true;
            }
        }
    }

    /// Whether the network has let a node of a group seem to be gone to another one of it, now or
    /// when a QP of it ended.
    fn kept_silent(&self, group: usize) -> bool {
        let group = &self.groups[group];
        if group.silenced {
            return true;
        }
        let net = self.network.net();
        let nodes = || group.shapes.iter().map(|shape| shape.node);
        nodes().any(|a| {
            let mut others = nodes().filter(|b| *b > a);
            others.any(|b| net.asks.kept_silent(a, b, group.built_at, self.now))
        })
    }

    /// A process takes all its completions.
    pub(crate) fn read_completions(&mut self, node: usize, process: usize) -> Verdict {
        for queue in 0..self.places[node].processes[process].cqs.len() {
            let cq = self.places[node].processes[process].cqs[queue].clone();
            let next = || {
                cq.poll_one()
                    .map_err(|error| refused("poll_cq")(error.into()))
            };
            while let Some(completion) = next()? {
                self.judge(node, process, &completion)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, node: usize, process: usize, completion: &Completion) -> Verdict {
        let cookie = Cookie::parse(completion.wr_id);
        let endpoint = match cookie {
            Cookie::Send(endpoint, _) | Cookie::Receive(endpoint, _) => Some(endpoint),
            Cookie::Shared(_) => self.endpoints.iter().rposition(|endpoint| {
                endpoint.node == node
                    && endpoint.process == process
                    && endpoint.stage != Stage::Gone
                    && endpoint
                        .qp
                        .as_ref()
                        .is_some_and(|qp| qp.qpn() == completion.qpn)
            }),
        };
        let event = Traced::Completed {
            endpoint: endpoint.map_or(u32::MAX, |endpoint| endpoint as u32),
            wr_id: completion.wr_id,
            status: completion.status as u8,
            opcode: completion.opcode as u8,
            length: completion.byte_len,
        };
        self.network.net().trace.record(self.now, event);
        let Some(endpoint) = endpoint.filter(|at| self.endpoints[*at].stage != Stage::Gone) else {
            return Err(Failure::wrong(format!(
                "{cookie:?} completed as {:?} after its QP {:?} was destroyed or reset",
                completion.status, completion.qpn
            )));
        };
        let state = &self.endpoints[endpoint];
        let qpn = state.qp.as_ref().map(trunkline::Qp::qpn);
        if qpn != Some(completion.qpn) || state.node != node || state.process != process {
            return Err(Failure::wrong(format!(
                "a completion of {:?} names {cookie:?}, whose QP is {qpn:?}",
                completion.qpn
            )));
        }
        match cookie {
            Cookie::Send(_, seq) => self.sent(endpoint, seq, completion),
            Cookie::Receive(_, slot) | Cookie::Shared(slot) => {
                self.received(endpoint, slot, completion)
            }
        }
    }

    /// A send request completed.
    fn sent(&mut self, endpoint: usize, seq: u64, completion: &Completion) -> Verdict {
        let state = &mut self.endpoints[endpoint];
        let Some(at) = state.posted.iter().position(|posted| posted.seq == seq) else {
            return Err(Failure::wrong(format!(
                "e{endpoint} #{seq} completed, but is not outstanding (first that is: {:?})",
                state.posted.front().map(|posted| posted.seq)
            )));
        };
        let signal_all = state.signal_all;
        let good = completion.status == Status::Success;
        // Completions are in order on each channel: an ordinary QP has one, a QP that its program
        // routes several.
        let channel = state.posted[at].channel;
        let failed = self.channels[channel].send_failed;
        let until = |posted: &Posted| posted.channel == channel && posted.seq <= seq;
        let posted = std::mem::take(&mut state.posted).into_iter();
        let (ended, left): (VecDeque<_>, VecDeque<_>) = posted.partition(until);
        state.posted = left;
        for posted in ended {
            let last = posted.seq == seq;
            if !last && (posted.signaled || signal_all || failed) {
                return Err(Failure::wrong(format!(
                    "e{endpoint} #{seq} completed before #{}, which was posted earlier",
                    posted.seq
                )));
            }
            if last && good && !(posted.signaled || signal_all) {
                return Err(Failure::wrong(format!(
                    "e{endpoint} #{seq} completed, but nobody asked for that"
                )));
            }
            if last && !good {
                self.ended_badly(endpoint, posted, completion.status)?;
            } else if failed {
                return Err(Failure::wrong(format!(
                    "e{endpoint} #{} succeeded after an earlier request had failed",
                    posted.seq
                )));
            } else {
                self.ended_well(endpoint, posted, last.then_some(completion))?;
            }
        }
        Ok(())
    }

    fn ended_well(
        &mut self,
        endpoint: usize,
        posted: Posted,
        completion: Option<&Completion>,
    ) -> Verdict {
        let seq = posted.seq;
        if posted.expect != Expect::Success {
            return Err(Failure::wrong(format!(
                "e{endpoint} #{seq} succeeded; it should have ended as {:?}",
                posted.expect
            )));
        }
        self.tally.succeeded += 1;
        self.arrived(posted.channel, seq)?;
        let channel = &mut self.channels[posted.channel];
        channel.proved |= self.calm && posted.at >= self.calm_at;
        if let Some(area) = &mut self.endpoints[channel.to].area {
            channel.settle(area, seq + 1, "its requester was told so")?;
        }
        let opcode = match &posted.doing {
            Doing::Sends => None,
            Doing::ReadsWindow(..) | Doing::ReadsPool(..) => Some(WorkOpcode::Read),
            Doing::Adds { .. } => Some(WorkOpcode::FetchAdd),
            Doing::Swaps { .. } => Some(WorkOpcode::CompareSwap),
        };
        if let (Some(opcode), Some(completion)) = (opcode, completion)
            && opcode != completion.opcode
        {
            return Err(Failure::wrong(format!(
                "e{endpoint} #{seq} completed as {:?}, not {opcode:?}",
                completion.opcode
            )));
        }
        self.landed(endpoint, &posted)
    }

    /// Data came back.
    fn landed(&mut self, endpoint: usize, posted: &Posted) -> Verdict {
        let Some(slot) = posted.doing.landing() else {
            return Ok(());
        };
        let state = &mut self.endpoints[endpoint];
        state.landings.give(slot);
        let start = state.landings.extent(slot).start;
        let length = match &posted.doing {
            Doing::ReadsWindow(_, length) => *length,
            Doing::ReadsPool(_, bytes) => bytes.len(),
            _ => 8,
        };
        let area = state.area.as_mut().expect("a live endpoint has its area");
        let Some(data) = area.actual(start..start + length) else {
            // It was deregistered meanwhile: what came back cannot be seen.
            self.unknown_word(posted);
            return Ok(());
        };
        area.expect(start, &data);
        let around = state.landings.extent(slot);
        area.check(around, &[], "data of a READ or atomic has landed there")?;
        let word = || u64::from_ne_bytes(data[..8].try_into().expect("atomics return 8 bytes"));
        let channel = &mut self.channels[posted.channel];
        let what = |failure: Failure| {
            Failure::wrong(format!("e{endpoint} #{}: {}", posted.seq, failure.what))
        };
        match &posted.doing {
            Doing::Sends => Ok(()),
            Doing::ReadsWindow(..) => match &mut self.endpoints[channel.to].area {
                Some(area) => channel.finish_read(area, posted.seq, &data).map_err(what),
                None => Ok(()),
            },
            Doing::ReadsPool(_, bytes) if *bytes == data => Ok(()),
            Doing::ReadsPool(_, bytes) => {
                let at = bytes.iter().zip(&data).position(|(a, b)| a != b);
                Err(what(Failure::wrong(format!(
                    "READ of {} bytes that never change brought others, from byte {at:?} on",
                    bytes.len()
                ))))
            }
            Doing::Adds {
                word: at, floor, ..
            } => {
                let (value, at, floor) = (word(), *at, *floor);
                match self.process_at(posted.channel) {
                    Some(process) => process.counters[at].found(value, floor).map_err(what),
                    None => Ok(()),
                }
            }
            Doing::Swaps {
                word: at,
                compare,
                swap,
                ..
            } => {
                let (value, at, compare, swap) = (word(), *at, *compare, *swap);
                match self.process_at(posted.channel) {
                    Some(process) => process.cells[at].found(compare, swap, value).map_err(what),
                    None => Ok(()),
                }
            }
        }
    }

    /// The process at the far end of a channel, while it is the one that was there when the channel
    /// was made.
    pub(crate) fn process_at(&mut self, channel: usize) -> Option<&mut crate::endpoint::Process> {
        let to = &self.endpoints[self.channels[channel].to];
        to.area.as_ref()?;
        let (node, process) = (to.node, to.process);
        self.places[node].processes.get_mut(process)
    }

    /// Messages up to number `seq` of a channel were executed: their receives must have completed.
    fn arrived(&mut self, channel: usize, seq: u64) -> Verdict {
        let to = self.channels[channel].to;
        let (node, process) = (self.endpoints[to].node, self.endpoints[to].process);
        if self.channels[channel].closed || self.endpoints[to].stage == Stage::Gone {
            return Ok(());
        }
        if !self.channels[channel].awaits(seq) {
            return Ok(());
        }
        if self.places[node].processes[process].stopped_until > self.now {
            return Ok(());
        }
        self.read_completions(node, process)?;
        if self.channels[channel].awaits(seq) && !self.channels[channel].closed {
            return Err(Failure::wrong(format!(
                "e{} #{seq} completed, but its message has not arrived at e{to}",
                self.channels[channel].from
            )));
        }
        Ok(())
    }

    /// What a receiver has taken with success must not fail at its sender, whatever becomes of the
    /// receiver's QP: as long as the connection lives, it tells what it has executed.
    fn check_not_executed(&self, endpoint: usize, posted: &Posted, status: Status) -> Verdict {
        let t = &self.options.troubles;
        let channel = &self.channels[posted.channel];
        let taken = channel.taken.is_some_and(|taken| posted.seq <= taken);
        let sent = matches!(posted.doing, Doing::Sends) && posted.expect == Expect::Success;
        let cut = [t.closing, t.partitions, t.restarts, t.slow_workers].contains(&true);
        if status != Status::RetryExceeded || !taken || !sent || cut {
            return Ok(());
        }
        let ends = [endpoint, channel.to].map(|end| self.endpoints[end].node);
        let lived = ends.iter().all(|node| {
            let node = self.node(*node);
            node.is_some_and(|node| node.counters().failovers == 0)
        });
        let shared = |qp: &trunkline::Qp| qp.describe().contains("Shared");
        let qp = &self.endpoints[endpoint].qp;
        if lived && qp.as_ref().is_some_and(shared) {
            return Err(Failure::wrong(format!(
                "e{endpoint} #{} ended as {status:?}, but e{} had taken it with success",
                posted.seq, channel.to
            )));
        }
        Ok(())
    }

    fn ended_badly(&mut self, endpoint: usize, posted: Posted, status: Status) -> Verdict {
        let seq = posted.seq;
        self.check_tries(endpoint, &posted, status)?;
        self.may_fail(endpoint, &format!("request #{seq} ended as {status:?}"))?;
        self.check_not_executed(endpoint, &posted, status)?;
        let group = self.endpoints[endpoint].group;
        let channel = &mut self.channels[posted.channel];
        let first = !std::mem::replace(&mut channel.send_failed, true);
        if let Some(Doom::Poison(culprit, poison)) = self.groups[group].doom
            && culprit == endpoint
        {
            let wanted = match posted.expect {
                Expect::Success => None,
                Expect::Fails(wanted) => Some(wanted),
                Expect::Flushed => Some(Status::Flushed),
            };
            let state = &self.endpoints[endpoint];
            let lost = self.network.net().answer_lost(state.node, state.qpn);
            // An IBTA QP whose peer refused, and was not heard in full, asks a QP in error until it
            // gives up on the oldest request that it knows nothing of.
            let unheard = (lost.is_some_and(|at| at >= posted.at) || self.kept_silent(group))
                && status == Status::RetryExceeded;
            // No data of a READ leave a QP in error: what the bad request behind it ended may have
            // been a READ whose data were to be sent again. A QP on a shared connection says so.
            let reads = matches!(posted.doing, Doing::ReadsWindow(..) | Doing::ReadsPool(..));
            let refused = matches!(status, Status::RetryExceeded | Status::RemoteOperation);
            let cut_off = reads && refused;
            let follows = !first && status == Status::Flushed;
            if wanted != Some(status) && !(unheard || cut_off || follows) {
                return Err(Failure::wrong(format!(
                    "e{endpoint} #{seq} ended as {status:?}; only #{poison} was bad, so this one \
                     should have ended as {:?}",
                    wanted.unwrap_or(Status::Success)
                )));
            }
        }
        if self.groups[group].doom == Some(Doom::Silence)
            && !matches!(status, Status::RetryExceeded | Status::Flushed)
        {
            return Err(Failure::wrong(format!(
                "e{endpoint} #{seq} ended as {status:?}, where all that is wrong is a peer that \
                 kept silent"
            )));
        }
        if !first && status != Status::Flushed {
            return Err(Failure::wrong(format!(
                "e{endpoint} #{seq} ended as {status:?} although an earlier one had failed already"
            )));
        }
        self.lose(endpoint, &posted);
        self.failed(endpoint);
        Ok(())
    }

    /// A request ended without having done what it should, as far as anybody knows.
    pub(crate) fn lose(&mut self, endpoint: usize, posted: &Posted) {
        self.tally.failed += 1;
        if let Some(slot) = posted.doing.landing() {
            let state = &mut self.endpoints[endpoint];
            state.landings.give(slot);
            let extent = state.landings.extent(slot);
            if let Some(area) = &mut state.area
                && let Some(bytes) = area.actual(extent.clone())
            {
                area.expect(extent.start, &bytes);
            }
        }
        self.channels[posted.channel].lose_read(posted.seq);
        self.unknown_word(posted);
    }

    fn unknown_word(&mut self, posted: &Posted) {
        match posted.doing {
            Doing::Adds { word, .. } => {
                if let Some(process) = self.process_at(posted.channel) {
                    process.counters[word].lost();
                }
            }
            Doing::Swaps { word, .. } => {
                if let Some(process) = self.process_at(posted.channel) {
                    process.cells[word].lost();
                }
            }
            _ => {}
        }
    }

    /// An endpoint is in error: its group will be closed.
    pub(crate) fn failed(&mut self, endpoint: usize) {
        let state = &mut self.endpoints[endpoint];
        if state.stage == Stage::Failed {
            return;
        }
        state.stage = Stage::Failed;
        let group = state.group;
        self.look_after(group);
    }

    /// A receive completed.
    fn received(&mut self, endpoint: usize, slot: usize, completion: &Completion) -> Verdict {
        let shared = self.endpoints[endpoint].receives.is_none();
        if completion.status == Status::Success {
            self.message(endpoint, slot, completion)?;
        } else {
            let what = format!("receive {slot} ended as {:?}", completion.status);
            self.may_fail(endpoint, &what)?;
            if !shared {
                self.failed(endpoint);
            }
        }
        let (node, process) = (
            self.endpoints[endpoint].node,
            self.endpoints[endpoint].process,
        );
        let state = &mut self.endpoints[endpoint];
        let (receives, area) = match (&mut state.receives, &mut state.area) {
            (Some(receives), Some(area)) => (receives, area),
            _ => match &mut self.places[node].processes[process].srq {
                Some((_, area, receives)) => (receives, area),
                None => return Err(Failure::wrong("a receive of an SRQ that does not exist")),
            },
        };
        receives.completed(slot)?;
        if completion.status != Status::Success {
            let extent = receives.extent(slot);
            if let Some(bytes) = area.actual(extent.clone()) {
                area.expect(extent.start, &bytes);
            }
        }
        if shared {
            self.plan_shared_top_up(node, process);
        } else {
            self.plan_top_up(endpoint);
        }
        Ok(())
    }

    /// A message arrived: the right one, whole, and nothing else was touched.
    fn message(&mut self, endpoint: usize, slot: usize, completion: &Completion) -> Verdict {
        self.tally.received += 1;
        let source = self.endpoints[endpoint]
            .incoming
            .iter()
            .copied()
            .find(|channel| {
                let from = &self.endpoints[self.channels[*channel].from];
                from.qpn == completion.src_qp || self.endpoints[endpoint].incoming.len() == 1
            });
        let Some(channel) = source else {
            return Err(Failure::wrong(format!(
                "e{endpoint} received from {:?}, who does not talk to it",
                completion.src_qp
            )));
        };
        let Some(message) = self.channels[channel].take_message() else {
            return Err(Failure::wrong(format!(
                "e{endpoint} received a message of {} bytes; none is under way",
                completion.byte_len
            )));
        };
        let seq = message.seq;
        let at = format!(
            "e{endpoint} received #{seq} of e{}",
            self.channels[channel].from
        );
        if message.fails {
            return Err(Failure::wrong(format!("{at}, which must not succeed")));
        }
        let (opcode, length, extra) = match message.brings {
            Brings::Nothing => (WorkOpcode::Receive, message.bytes.len() as u32, Extra::None),
            Brings::Immediate(value) => (
                WorkOpcode::Receive,
                message.bytes.len() as u32,
                Extra::Immediate(value),
            ),
            Brings::Invalidates(key, spare) => {
                self.endpoints[endpoint].spares[spare] = (None, false);
                (
                    WorkOpcode::Receive,
                    message.bytes.len() as u32,
                    Extra::Invalidated(key),
                )
            }
            Brings::WriteImmediate(value, length) => {
                (WorkOpcode::ReceiveWriteImm, length, Extra::Immediate(value))
            }
        };
        let found = (completion.opcode, completion.byte_len, completion.extra);
        let wanted = (opcode, length, extra);
        if (found, completion.solicited) != (wanted, message.solicited) {
            return Err(Failure::wrong(format!(
                "{at} as {found:?}, solicited {}, not {wanted:?}, {}",
                completion.solicited, message.solicited
            )));
        }
        let state = &mut self.endpoints[endpoint];
        let (node, process) = (state.node, state.process);
        let through = seq + u64::from(matches!(message.brings, Brings::WriteImmediate(..)));
        if let Some(area) = &mut state.area {
            self.channels[channel].settle(area, through, "a later message was received")?;
        }
        let (receives, area) = match (&state.receives, &mut state.area) {
            (Some(receives), Some(area)) => (receives, area),
            _ => match &mut self.places[node].processes[process].srq {
                Some((_, area, receives)) => (&*receives, area),
                None => return Ok(()),
            },
        };
        for (start, bytes) in receives.placed(slot, &message.bytes) {
            area.expect(start, bytes);
        }
        let why = format!("{at} into slot {slot}");
        area.check(receives.extent(slot), &[], &why)
    }

    pub(crate) fn plan_top_up(&mut self, endpoint: usize) {
        let state = &mut self.endpoints[endpoint];
        if !state.top_up_due && state.stage == Stage::Live {
            state.top_up_due = true;
            let late = state.late && !self.calm;
            let delay = self.lateness(late);
            self.after(delay, Action::TopUp(endpoint));
        }
    }

    pub(crate) fn plan_shared_top_up(&mut self, node: usize, process: usize) {
        let Some(state) = self.places[node].processes.get_mut(process) else {
            return;
        };
        if !state.top_up_due {
            state.top_up_due = true;
            let late = self.options.troubles.late_receives && !self.calm;
            let delay = self.lateness(late);
            self.after(delay, Action::TopUpShared(node, process));
        }
    }

    fn lateness(&mut self, late: bool) -> u64 {
        if late {
            between(&mut self.random, 10 * US, 3 * MS)
        } else {
            0
        }
    }
}
