//! What a connection keeps: what its peer takes, what is under way, and what waits.

mod send;

use crate::calls::Calls;
use crate::channel::Channel;
use crate::error::RpcError;
use crate::frame::{Entry, Word};
use crate::hello::Hello;
use crate::lane::{Lane, Work};
use crate::lock;
use crate::memory::Buffer;
use crate::outbox::Outbox;
use crate::served::{Answer, Served};
use crate::transfers::{TRANSFERS, Then, Transfer, Transfers};
use bytes::Bytes;
use std::sync::Arc;
use std::task::Waker;
use trunkline::{Completion, Error, Extra, Qp, RecvWr, SendWr, Status, WorkOpcode};
use trunkline_tokio::Credits;
use trunkline_tokio::rdma_cm::Connection;

/// Messages that may be under way from an end, whatever its peer grants.
const SENDS: u32 = 32;
/// Requests to send that a connection may have outstanding: messages, one that only grants
/// receives, and transfers.
pub(crate) const SEND_WRS: u32 = SENDS + 1 + TRANSFERS;
/// What a work request was, in the high half of its cookie. The low half is a buffer or a transfer.
const RECEIVE: u64 = 0;
const BUFFERED: u64 = 1;
const INLINED: u64 = 2;
const GRANT: u64 = 3;
const TRANSFER: u64 = 4;

const fn cookie(what: u64, number: u32) -> u64 {
    what << 32 | number as u64
}

/// What an end of a connection is.
#[derive(Debug)]
pub(crate) enum Role {
    Client(Calls),
    Server(Served),
}

#[derive(Debug)]
enum Link {
    /// The QP has its receives, and the connection does not stand yet. What completes waits.
    Opening(Vec<Completion>),
    Open(Box<Connection>),
    Failed(RpcError),
}

/// What is behind a channel's lock.
#[derive(Debug)]
pub(crate) struct State {
    link: Link,
    /// What the peer takes.
    pub(crate) takes: Hello,
    credits: Credits,
    pub(crate) outbox: Outbox,
    /// Messages under way, and the buffers of those that have one.
    sending: u32,
    sent: Vec<Buffer>,
    receives: Vec<Buffer>,
    /// A message that only grants receives is under way.
    granting: bool,
    pub(crate) transfers: Transfers,
    pub(crate) role: Role,
    /// This end takes no more requests; and the peer has yet to be told.
    pub(crate) drains: bool,
    drain_due: bool,
    /// The peer takes no more.
    pub(crate) peer_drains: bool,
}

fn post_receive(lane: &Lane, qp: &Qp, buffer: Buffer) -> Result<(), Error> {
    let bytes = lane.options.message_bytes as usize;
    let sges = [lock(&lane.buffers).sge(buffer, bytes)];
    let wr_id = cookie(RECEIVE, buffer.number());
    qp.post_recv(&[RecvWr::new().wr_id(wr_id).sges(&sges)])
}

/// What a call that was refused means for a connection.
pub(crate) fn of_call(error: &Error) -> RpcError {
    match error {
        Error::Down(down) => RpcError::Node(down.clone()),
        _ => RpcError::Reset,
    }
}

impl State {
    /// Of a connection that does not stand yet.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn opening(lane: &Lane, role: Role) -> Result<Self, Error> {
        let own = lane.options.receives;
        let mut buffers = lock(&lane.buffers);
        let receives: Result<_, _> = (0..own).map(|_| buffers.take()).collect();
        Ok(Self {
            link: Link::Opening(Vec::new()),
            takes: lane.hello(0),
            credits: Credits::new(own, 0),
            outbox: Outbox::default(),
            sending: 0,
            sent: Vec::new(),
            receives: receives?,
            granting: false,
            transfers: Transfers::default(),
            role,
            drains: false,
            drain_due: false,
            peer_drains: false,
        })
    }

    /// # Errors
    /// The QP does not take them.
    pub(crate) fn post_receives(&self, lane: &Lane, qp: &Qp) -> Result<(), Error> {
        let mut buffers = self.receives.iter();
        buffers.try_for_each(|buffer| post_receive(lane, qp, *buffer))
    }

    /// The connection stands. Returns what has completed until now, to be heeded next.
    pub(crate) fn open(
        &mut self,
        lane: &Lane,
        connection: Connection,
        takes: Hello,
    ) -> Vec<Completion> {
        self.takes = takes;
        self.credits = Credits::new(lane.options.receives, takes.receives);
        if let Role::Client(calls) = &mut self.role {
            *calls = Calls::new(takes.requests);
        }
        match &mut self.link {
            Link::Opening(early) => {
                let early = std::mem::take(early);
                self.link = Link::Open(Box::new(connection));
                early
            }
            Link::Open(_) | Link::Failed(_) => Vec::new(),
        }
    }

    /// Takes no more requests, and has to tell the peer so.
    pub(crate) const fn drain(&mut self) {
        self.drain_due |= !self.drains;
        self.drains = true;
    }

    /// Whether the peer has all that it is owed.
    pub(crate) fn is_idle(&self) -> bool {
        let busy = match &self.role {
            Role::Client(_) => false,
            Role::Server(served) => served.is_busy(),
        };
        let silent = self.outbox.is_empty() && self.sending == 0 && self.transfers.is_empty();
        !matches!(self.link, Link::Open(_)) || !busy && silent && !self.drain_due
    }

    /// Why the connection is none any more.
    pub(crate) const fn failed(&self) -> Option<&RpcError> {
        match &self.link {
            Link::Failed(why) => Some(why),
            Link::Opening(_) | Link::Open(_) => None,
        }
    }

    /// Requests of this end that are under way.
    pub(crate) const fn calls(&mut self) -> &mut Calls {
        match &mut self.role {
            Role::Client(calls) => calls,
            Role::Server(_) => panic!("only clients call"),
        }
    }

    /// Takes up a completion.
    ///
    /// # Errors
    /// Why the connection fails.
    pub(crate) fn heed(
        &mut self,
        channel: &Arc<Channel>,
        done: &Completion,
        work: &mut Work,
    ) -> Result<(), RpcError> {
        match &mut self.link {
            Link::Opening(early) => {
                early.push(*done);
                return Ok(());
            }
            Link::Failed(_) => return Ok(()),
            Link::Open(_) => {}
        }
        let lane = &channel.lane;
        if done.status != Status::Success {
            let down = lane.node.verbs().health().down;
            return Err(down.map_or_else(|| RpcError::of(done), RpcError::Node));
        }
        let number = done.wr_id as u32;
        match done.wr_id >> 32 {
            RECEIVE => return self.receive(channel, done, work),
            BUFFERED => {
                self.sending -= 1;
                let buffer = Buffer::numbered(number);
                self.sent.retain(|sent| *sent != buffer);
                lock(&lane.buffers).give_back(buffer);
            }
            INLINED => self.sending -= 1,
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
        work: &mut Work,
    ) -> Result<(), RpcError> {
        let Link::Open(connection) = &self.link else {
            return Ok(());
        };
        let lane = &channel.lane;
        let buffer = Buffer::numbered(done.wr_id as u32);
        let message = lock(&lane.buffers).read(buffer, done.byte_len as usize);
        post_receive(lane, connection.qp(), buffer).map_err(|error| of_call(&error))?;
        self.credits.repost();
        lane.counters.messages_received.add(1);
        self.parse(channel, done, message.into(), work)
            .map_err(RpcError::Violation)?;
        self.transfer(lane)
    }

    fn parse(
        &mut self,
        channel: &Arc<Channel>,
        done: &Completion,
        mut message: Bytes,
        work: &mut Work,
    ) -> Result<(), &'static str> {
        let Extra::Immediate(word) = done.extra else {
            return Err("a message without its word");
        };
        if !matches!(done.opcode, WorkOpcode::Receive) {
            return Err("a message that is no SEND");
        }
        let word = Word::parse(word)?;
        let taken = self.credits.take(word.posted);
        taken.map_err(|_| trunkline_tokio::Overgrant::WHY)?;
        if word.drains && !self.peer_drains {
            self.peer_drains = true;
            if let Role::Client(calls) = &mut self.role {
                work.wakers.extend(calls.dismiss());
            }
        }
        while !message.is_empty() {
            self.take_up(channel, Entry::parse(&mut message)?, work)?;
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
                let counters = &channel.lane.counters;
                crate::responses::take_up(calls, entry, &channel.lane, transfers, outbox, work)?;
                counters.responses_received.add(1);
                Ok(())
            }
            Role::Server(served) => {
                served.take_up(channel, entry, self.drains, transfers, outbox, work)
            }
        }
    }

    /// Begins transfers that wait.
    pub(crate) fn transfer(&mut self, lane: &Lane) -> Result<(), RpcError> {
        let Link::Open(connection) = &self.link else {
            return Ok(());
        };
        while let Some((number, transfer)) = self.transfers.begin() {
            let (sges, remote) = ([transfer.memory.sge()], transfer.extent.remote);
            let request = match transfer.written {
                Some(_) => SendWr::write(remote),
                None => SendWr::read(remote),
            };
            let request = request.sges(&sges).wr_id(cookie(TRANSFER, number));
            let posted = connection.qp().post_send(&[request.signaled()]);
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
            Then::Run {
                id,
                deadline,
                place,
            } => {
                let Role::Server(served) = &mut self.role else {
                    return;
                };
                if served.arrived(&channel.lane, id, &mut self.outbox) {
                    let body = transfer.memory.read().into();
                    work.request(channel, id, deadline, place, body);
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

    /// What services have answered.
    pub(crate) fn answer(
        &mut self,
        lane: &Lane,
        answers: impl IntoIterator<Item = Answer>,
    ) -> Result<(), RpcError> {
        let takes = (self.most(lane), self.takes.max_body);
        let Self {
            role,
            outbox,
            transfers,
            ..
        } = self;
        if let Role::Server(served) = role {
            for answer in answers {
                served.answer(lane, answer, takes, transfers, outbox);
            }
        }
        self.transfer(lane)
    }

    /// Most bytes of a message.
    pub(crate) fn most(&self, lane: &Lane) -> usize {
        self.takes.bytes.min(lane.options.message_bytes) as usize
    }

    /// The connection has failed: returns what is to be dropped, and who is to be woken, when
    /// nothing is locked; `None` where it had before.
    pub(crate) fn fail(
        &mut self,
        lane: &Lane,
        why: RpcError,
    ) -> Option<(Option<Box<Connection>>, Vec<Waker>)> {
        if self.failed().is_some() {
            return None;
        }
        let woken = match &mut self.role {
            Role::Client(calls) => calls.fail(&why),
            Role::Server(served) => {
                served.fail(lane);
                Vec::new()
            }
        };
        tracing::debug!("connection closed: {why}");
        let link = std::mem::replace(&mut self.link, Link::Failed(why));
        let connection = match link {
            Link::Open(connection) => {
                // From here on the QP uses no buffer any more.
                connection.end();
                lane.counters.connections_closed.add(1);
                Some(connection)
            }
            Link::Opening(_) | Link::Failed(_) => None,
        };
        self.outbox.clear();
        self.transfers = Transfers::default();
        let mut buffers = lock(&lane.buffers);
        let used = self.receives.drain(..).chain(self.sent.drain(..));
        used.for_each(|buffer| buffers.give_back(buffer));
        Some((connection, woken))
    }
}
