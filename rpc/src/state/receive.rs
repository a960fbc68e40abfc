//! What completes, and what comes.

use super::{GRANT, Link, MESSAGE, Role, State, TRANSFER, buffer_of, cookie, of_call};
use crate::channel::Channel;
use crate::error::RpcError;
use crate::frame::{Entry, Word};
use crate::lane::{Lane, Work};
use crate::service::Incoming;
use crate::transfers::{Then, Transfer};
use bytes::Bytes;
use std::sync::Arc;
use trunkline::{Completion, Extra, LAST_WQE, SendWr, Status, WorkOpcode};

/// What a peer does that has no receives for its messages.
const TOO_MANY: &str = "more messages than it was granted receives for";

/// The word of a message that came.
///
/// # Errors
/// What is wrong with it.
fn word_of(done: &Completion, lane: &Lane) -> Result<Word, &'static str> {
    let Extra::Immediate(word) = done.extra else {
        return Err("a message without its word");
    };
    if !matches!(done.opcode, WorkOpcode::Receive) || done.byte_len > lane.options.message_bytes {
        return Err("a message that is no SEND");
    }
    Word::parse(word)
}

impl State {
    /// Takes up a completion, and the message that it brings if it is of a receive.
    ///
    /// # Errors
    /// Why the connection fails.
    pub(crate) fn heed(
        &mut self,
        channel: &Arc<Channel>,
        done: &Completion,
        message: Option<Bytes>,
        work: &mut Work,
    ) -> Result<(), RpcError> {
        self.last |= done.wr_id == LAST_WQE;
        let own = usize::from(channel.lane.options.receives);
        match &mut self.link {
            Link::Opening(_, early) => {
                // It has granted no more, and what comes last.
                if early.len() > own {
                    return Err(RpcError::Violation(TOO_MANY));
                }
                early.push((*done, message));
                return Ok(());
            }
            Link::Open(..) | Link::Failed(_) => {}
        }
        self.sending -= u32::from(buffer_of(done.wr_id).is_some());
        if let Link::Failed(_) = self.link {
            return Ok(());
        }
        let lane = &channel.lane;
        if done.status != Status::Success {
            let down = lane.node.verbs().health().down;
            return Err(down.map_or_else(|| RpcError::of(done), RpcError::Node));
        }
        if let Some(message) = message {
            return self.receive(channel, done, message, work);
        }
        let number = done.wr_id as u32;
        match done.wr_id >> 32 {
            MESSAGE => {}
            GRANT => self.granting = false,
            _ => {
                if let Some(transfer) = self.transfers.end(number) {
                    self.transferred(channel, transfer, work);
                }
                self.transfer(lane)?;
            }
        }
        Ok(())
    }

    /// A message came.
    fn receive(
        &mut self,
        channel: &Arc<Channel>,
        done: &Completion,
        message: Bytes,
        work: &mut Work,
    ) -> Result<(), RpcError> {
        let lane = &channel.lane;
        let word = word_of(done, lane).map_err(RpcError::Violation)?;
        self.credits.repost();
        if self.credits.is_overrun() {
            return Err(RpcError::Violation(TOO_MANY));
        }
        lane.counters.messages_received.add(1);
        self.parse(channel, word, message, work)
            .map_err(RpcError::Violation)?;
        self.transfer(lane)
    }

    fn parse(
        &mut self,
        channel: &Arc<Channel>,
        word: Word,
        mut message: Bytes,
        work: &mut Work,
    ) -> Result<(), &'static str> {
        let taken = self.credits.take(word.posted);
        taken.map_err(|_| trunkline_tokio::Overgrant::WHY)?;
        if word.drains && !self.peer_drains {
            self.peer_drains = true;
            if let Role::Client(calls) = &mut self.role {
                work.wakers.extend(calls.dismiss());
            }
        }
        let mut entries = 0;
        while !message.is_empty() {
            self.take_up(channel, Entry::parse(&mut message)?, work)?;
            entries += 1;
        }
        if let Role::Client(_) = self.role {
            channel.lane.counters.responses_received.add(entries);
        }
        Ok(())
    }

    fn take_up(
        &mut self,
        channel: &Arc<Channel>,
        entry: Entry,
        work: &mut Work,
    ) -> Result<(), &'static str> {
        let Self {
            role,
            outbox,
            transfers,
            ..
        } = self;
        match role {
            Role::Client(calls) => {
                crate::responses::take_up(calls, entry, &channel.lane, transfers, outbox, work)
            }
            Role::Server(served) => {
                served.take_up(channel, entry, self.drains, transfers, outbox, work)
            }
        }
    }

    /// Begins transfers that wait.
    pub(crate) fn transfer(&mut self, lane: &Lane) -> Result<(), RpcError> {
        let Link::Open(qp, _) = &self.link else {
            return Ok(());
        };
        while let Some((number, transfer)) = self.transfers.begin() {
            let (sges, remote) = ([transfer.memory.sge()], transfer.extent.remote);
            let request = match transfer.written {
                Some(_) => SendWr::write(remote),
                None => SendWr::read(remote),
            };
            let request = request.sges(&sges).wr_id(cookie(TRANSFER, number));
            let posted = qp.post_send(&[request.signaled()]);
            posted.map_err(|error| of_call(&error))?;
            let length = transfer.extent.length;
            lane.counters.bytes_transferred.add(length.into());
            if let Some(id) = transfer.written {
                // Requests of a QP arrive in order: when this comes, the bytes are there.
                self.outbox.push(&Entry::Written { id, length });
            }
        }
        Ok(())
    }

    /// A transfer is done.
    fn transferred(&mut self, channel: &Arc<Channel>, transfer: Transfer, work: &mut Work) {
        match transfer.then {
            Then::Run(head) => {
                let Role::Server(served) = &mut self.role else {
                    return;
                };
                if served.arrived(&channel.lane, head.id, &mut self.outbox) {
                    let body = transfer.memory.read().into();
                    work.requests.push(Incoming::new(head, body));
                }
            }
            Then::Respond { id } => {
                self.outbox.push(&Entry::Release { id });
                let body = transfer.memory.read().into();
                work.wakers.extend(self.calls().finish_read(id, body));
            }
            Then::Nothing => {}
            // Who has read it may not wait for it any more.
            Then::Tell(reader) => drop(reader.send(())),
        }
    }
}
