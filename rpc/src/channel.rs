//! One connection: what is said on it, and what has become of it.

use crate::calls::Calls;
use crate::error::{OpenError, RpcError};
use crate::hello::Hello;
use crate::lane::{Lane, Work};
use crate::lock;
use crate::receives::Seat;
use crate::served::Served;
use crate::service::Door;
use crate::state::{Role, State, of_call};
use crate::transfers::Transfer;
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use trunkline::{Completion, LookAhead, Qp, Status};
use trunkline_tokio::rdma_cm::Connection;

/// A connection of a lane. What each message touches comes first, on as few cache lines as may be.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Channel {
    /// It is in the lane's list of those that have something to say.
    queued: AtomicBool,
    state: Mutex<State>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) peer: SocketAddr,
    qpn: u32,
    /// Of its QP, which is behind the lock.
    look_ahead: LookAhead,
    /// What answers requests, at a server.
    pub(crate) door: Option<Door>,
}

impl Channel {
    /// A connection that does not stand yet. The lane knows it from now on.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub(crate) fn prepare(
        lane: &Arc<Lane>,
        (qp, seat): (&Qp, Seat),
        peer: SocketAddr,
        door: Option<Door>,
    ) -> Result<Arc<Self>, OpenError> {
        let role = match door {
            Some(_) => Role::Server(Served::new(lane.options.requests, lane.regions.share())),
            None => Role::Client(Calls::new(0)),
        };
        let state = State::opening(lane, role, (qp, seat));
        let channel = Arc::new(Self {
            lane: Arc::clone(lane),
            peer,
            qpn: qp.qpn().get(),
            look_ahead: qp.look_ahead(),
            door,
            queued: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        if !lane.add(channel.qpn, &channel) {
            channel.close(RpcError::Closed);
            return Err(OpenError::TooMany);
        }
        Ok(channel)
    }

    /// The connection stands, and the peer takes so much.
    pub(crate) fn open(self: &Arc<Self>, connection: Connection, takes: Hello) {
        let mut work = Work::default();
        let mut state = self.state();
        // Nothing that completes from now on overtakes them.
        for (done, message) in state.open(&self.lane, connection, takes) {
            // Where one of them ends it, the others still count.
            if let Err(why) = state.heed(self, &done, message, &mut work) {
                work.wakers.extend(self.fail(&mut state, why));
            }
        }
        drop(state);
        work.run(self);
        self.mark();
        self.retire();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Brings its state into the cache.
    #[inline]
    pub(crate) fn look_at(&self) -> bool {
        self.state.is_poisoned()
    }

    /// Brings into the cache what it sends with.
    #[inline]
    pub(crate) fn look_at_queue(&self) {
        std::hint::black_box(self.look_at());
        self.look_ahead.post_send();
    }

    /// It has something to say: the lane says it when the tasks that are ready have had their turn.
    pub(crate) fn mark(self: &Arc<Self>) {
        // Who has just changed the state sees here whether its flush is still to come: a flush
        // takes the mark before it locks the state.
        if !self.queued.load(Ordering::Acquire) && !self.queued.swap(true, Ordering::AcqRel) {
            self.lane.mark(Arc::clone(self));
        }
    }

    /// Takes up a completion, and the message that it brings if it is of a receive. What follows
    /// from it is added to `work`.
    pub(crate) fn heed(
        self: &Arc<Self>,
        done: &Completion,
        message: Option<Bytes>,
        work: &mut Work,
    ) {
        let heeded = self.state().heed(self, done, message, work);
        match heeded {
            Ok(()) => self.mark(),
            Err(why) => self.close(why),
        }
        if done.status != Status::Success {
            self.retire();
        }
    }

    /// Lets its QP go, if it has ended and all that it had has come back.
    fn retire(&self) {
        let retired = self.state().take_retired();
        if let Some(retired) = retired {
            self.lane.forget(self.qpn);
            drop(retired);
        }
    }

    /// Lets its QP go, if it has ended: nobody takes up completions any more.
    pub(crate) fn give_up(&self) {
        let retired = self.state().give_up();
        drop(retired);
    }

    /// Says what waits to be said, as far as the peer has room for it.
    pub(crate) fn flush(&self) {
        self.queued.store(false, Ordering::Release);
        let flushed = self.state().flush(&self.lane);
        if let Err(error) = flushed {
            self.close(of_call(&error));
        }
    }

    /// Ends it: nobody waits any more. The first reason counts.
    pub(crate) fn close(&self, why: RpcError) {
        let woken = self.fail(&mut self.state(), why);
        woken.into_iter().for_each(Waker::wake);
        self.retire();
    }

    /// The same under its lock. Returns who is to be woken when nothing is locked.
    fn fail(&self, state: &mut State, why: RpcError) -> Vec<Waker> {
        if matches!(why, RpcError::Violation(_)) {
            self.lane.counters.violations.add(1);
            tracing::warn!(peer = %self.peer, "{why}");
        }
        state.fail(&self.lane, why).unwrap_or_default()
    }

    /// Begins a transfer that a program asks for, or lets it wait for others.
    ///
    /// # Errors
    /// Why there is no connection any more.
    pub(crate) fn transfer(&self, transfer: Transfer) -> Result<(), RpcError> {
        let mut state = self.state();
        if let Some(why) = state.failed() {
            return Err(why.clone());
        }
        state.transfers.push(transfer);
        let begun = state.transfer(&self.lane);
        drop(state);
        begun.inspect_err(|why| self.close(why.clone()))
    }

    /// Takes no more requests, and tells the peer so.
    pub(crate) fn drain(self: &Arc<Self>) {
        self.state().drain();
        self.mark();
    }

    /// Whether the peer has all that it is owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().is_idle()
    }
}
