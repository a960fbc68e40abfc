//! What a connection keeps: what its peer takes, what is under way, and what waits.

mod receive;
mod send;

use crate::calls::Calls;
use crate::error::RpcError;
use crate::hello::Hello;
use crate::lane::Lane;
use crate::memory::Buffer;
use crate::outbox::Outbox;
use crate::receives::Seat;
use crate::served::{Answer, Served};
use crate::service::Incoming;
use crate::transfers::{TRANSFERS, Transfers};
use bytes::Bytes;
use std::task::Waker;
use tokio::task::AbortHandle;
use trunkline::{Completion, Error, Qp, QpModify};
use trunkline_tokio::Credits;
use trunkline_tokio::rdma_cm::Connection;

/// Messages that may be under way from an end, whatever its peer grants.
const SENDS: u32 = 32;
/// Requests to send that a connection may have outstanding: messages, one that only grants
/// receives, and transfers.
pub(crate) const SEND_WRS: u32 = SENDS + 1 + TRANSFERS;
/// What a request to send was, in the high half of its cookie. The low half is a buffer or a
/// transfer.
const MESSAGE: u64 = 1;
const GRANT: u64 = 2;
const TRANSFER: u64 = 3;

const fn cookie(what: u64, number: u32) -> u64 {
    what << 32 | number as u64
}

/// The buffer that the message of a cookie was sent from, if it is of a message.
pub(crate) const fn buffer_of(cookie: u64) -> Option<Buffer> {
    match cookie >> 32 {
        MESSAGE => Some(Buffer::numbered(cookie as u32)),
        _ => None,
    }
}

/// What an end of a connection is.
#[derive(Debug)]
pub(crate) enum Role {
    Client(Calls),
    Server(Served),
}

/// What has completed before the connection stood, with the message of a receive.
type Early = (Completion, Option<Bytes>);

#[derive(Debug)]
enum Link {
    /// The QP has its receives, and the connection does not stand yet. What completes waits.
    Opening(Qp, Vec<Early>),
    /// The QP beside what it is of: fewer lines to follow for each message.
    Open(Qp, Box<Connection>),
    Failed(RpcError),
}

/// What has failed, until all that its QP had has come back: a receive that it had taken for half a
/// message, and buffers that it sends from, are among its completions.
#[derive(Debug)]
pub(crate) struct Retired {
    _qp: Qp,
    /// What it is of, if that stood.
    _connection: Option<Box<Connection>>,
}

/// What is behind a channel's lock.
#[derive(Debug)]
pub(crate) struct State {
    link: Link,
    /// What the peer takes.
    pub(crate) takes: Hello,
    credits: Credits,
    pub(crate) outbox: Outbox,
    /// Messages whose completion has not come.
    sending: u32,
    retired: Option<Retired>,
    /// The last of what was posted before it failed has completed.
    last: bool,
    /// Its receives, for as long as it stands.
    seat: Option<Seat>,
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

/// What a call that was refused means for a connection.
pub(crate) fn of_call(error: &Error) -> RpcError {
    match error {
        Error::Down(down) => RpcError::Node(down.clone()),
        _ => RpcError::Reset,
    }
}

impl State {
    /// Of a connection that does not stand yet.
    pub(crate) fn opening(lane: &Lane, role: Role, (qp, seat): (&Qp, Seat)) -> Self {
        Self {
            link: Link::Opening(qp.clone(), Vec::new()),
            takes: lane.hello(0),
            credits: Credits::new(lane.options.receives, 0),
            outbox: Outbox::default(),
            sending: 0,
            retired: None,
            last: false,
            seat: Some(seat),
            granting: false,
            transfers: Transfers::default(),
            role,
            drains: false,
            drain_due: false,
            peer_drains: false,
        }
    }

    /// The connection stands. Returns what has completed until now, to be heeded next.
    pub(crate) fn open(&mut self, lane: &Lane, connection: Connection, takes: Hello) -> Vec<Early> {
        self.takes = takes;
        self.credits = Credits::new(lane.options.receives, takes.receives);
        if let Role::Client(calls) = &mut self.role {
            *calls = Calls::new(takes.requests);
        }
        match &mut self.link {
            Link::Opening(_, early) => {
                let early = std::mem::take(early);
                lane.counters.connections_opened.add(1);
                tracing::debug!("connection opened");
                self.link = Link::Open(connection.qp().clone(), Box::new(connection));
                early
            }
            Link::Open(..) => Vec::new(),
            Link::Failed(_) => {
                connection.end();
                if let Some(retired) = &mut self.retired {
                    retired._connection = Some(Box::new(connection));
                }
                Vec::new()
            }
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
        let sending = self.sending > 0 || self.granting;
        let silent = self.outbox.is_empty() && !sending && self.transfers.is_empty();
        !matches!(self.link, Link::Open(..)) || !busy && silent && !self.drain_due
    }

    /// Why the connection is none any more.
    pub(crate) const fn failed(&self) -> Option<&RpcError> {
        match &self.link {
            Link::Failed(why) => Some(why),
            Link::Opening(..) | Link::Open(..) => None,
        }
    }

    /// Whether requests can be sent.
    ///
    /// # Errors
    /// Why no more can.
    pub(crate) fn may_call(&self) -> Result<(), RpcError> {
        match self.failed() {
            Some(why) => Err(why.clone()),
            None if self.peer_drains => Err(RpcError::Draining),
            None => Ok(()),
        }
    }

    /// Requests of this end that are under way.
    pub(crate) const fn calls(&mut self) -> &mut Calls {
        match &mut self.role {
            Role::Client(calls) => calls,
            Role::Server(_) => panic!("only clients call"),
        }
    }

    /// The services of these requests are about to begin, as far as anybody waits for them.
    pub(crate) fn begin(&mut self, lane: &Lane, requests: &mut [Incoming]) {
        if let Role::Server(served) = &mut self.role {
            for request in requests {
                request.is_awaited = served.begin(lane, request.head.id, &mut self.outbox);
            }
        }
    }

    /// The service of a request goes on in a task.
    pub(crate) fn runs_in(&mut self, lane: &Lane, id: (u32, u32), task: AbortHandle) {
        if let Role::Server(served) = &mut self.role {
            served.runs_in(lane, id, task, &mut self.outbox);
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

    /// The connection has failed: returns who is to be woken when nothing is locked; `None` where
    /// it had before.
    pub(crate) fn fail(&mut self, lane: &Lane, why: RpcError) -> Option<Vec<Waker>> {
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
        match std::mem::replace(&mut self.link, Link::Failed(why)) {
            Link::Open(qp, connection) => {
                // From here on the QP uses no memory of transfers any more.
                connection.end();
                lane.counters.connections_closed.add(1);
                self.retire(qp, Some(connection));
            }
            Link::Opening(qp, _) => {
                // A QP that cannot end takes no receives, and nothing completes.
                self.last |= qp.modify(&QpModify::Error).is_err();
                self.retire(qp, None);
            }
            Link::Failed(_) => unreachable!("it had not failed"),
        }
        self.outbox.clear();
        self.transfers = Transfers::default();
        self.seat = None;
        Some(woken)
    }

    fn retire(&mut self, qp: Qp, connection: Option<Box<Connection>>) {
        self.retired = Some(Retired {
            _qp: qp,
            _connection: connection,
        });
    }

    /// What is to be dropped of a connection that has failed, when nothing is locked: its last
    /// completion has come.
    pub(crate) fn take_retired(&mut self) -> Option<Retired> {
        let over = self.last && self.sending == 0;
        self.retired.take_if(|_| over)
    }

    /// The same where nobody takes up completions any more.
    pub(crate) const fn give_up(&mut self) -> Option<Retired> {
        self.retired.take()
    }
}
