//! What the connections of one worker share: a completion queue, memory, and the task that takes up
//! what completes and says what waits to be said.

use crate::channel::Channel;
use crate::counters::Counting;
use crate::error::{OpenError, RpcError};
use crate::hello::Hello;
use crate::lock;
use crate::memory::{Buffers, Regions};
use crate::options::Options;
use crate::receives::{Pools, Receive, Seat};
use crate::served::Answer;
use crate::service::Incoming;
use crate::state::{SEND_WRS, buffer_of, of_call};
use bytes::Bytes;
use hashbrown::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use trunkline::rdma_cm::sync::Resources;
use trunkline::{Completion, Error, LAST_WQE, Pd, QpOptions, Status, WorkOpcode};
use trunkline_tokio::{Completions, Cq, Node};

/// Completions that are taken up before the tasks that they wake have their turn.
const BATCH: usize = 64;
/// Connections whose state stays in the cache by itself.
const NEAR: usize = 256;
/// Connections whose queues are read before the first of them is posted to: about as many loads
/// as a processor has under way.
const GROUP: usize = 16;

/// The connections of one worker.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) node: Node,
    pub(crate) options: Options,
    pub(crate) counters: Counting,
    pub(crate) channels: Mutex<HashMap<u32, Arc<Channel>>>,
    pub(crate) buffers: Mutex<Buffers>,
    pub(crate) regions: Arc<Regions>,
    pools: Pools,
    pd: Pd,
    cq: Cq,
    due: Mutex<Due>,
    closing: AtomicBool,
}

/// What the lane's task has to do beside completions.
#[derive(Debug, Default)]
struct Due {
    channels: Vec<Arc<Channel>>,
    task: Option<Waker>,
}

impl Lane {
    /// That of a worker. Its task runs on the current runtime.
    ///
    /// # Errors
    /// The node has no room for its completion queue, or has ended.
    pub(crate) fn start(
        node: &Node,
        pd: &Pd,
        worker: u8,
        options: Options,
        regions: Arc<Regions>,
    ) -> Result<Arc<Self>, Error> {
        let per_connection = u32::from(options.receives) + SEND_WRS + 1;
        let cq = node.create_cq(options.connections.saturating_mul(per_connection))?;
        let qp_options = QpOptions {
            max_send_wr: SEND_WRS,
            max_recv_wr: 0,
            max_inline: 0,
            complete_last_wqe: true,
            max_send_sge: 1,
            worker: Some(worker),
            ..QpOptions::default()
        };
        let lane = Arc::new(Self {
            node: node.clone(),
            options,
            counters: Counting::default(),
            channels: Mutex::default(),
            buffers: Mutex::new(Buffers::new(pd.clone(), options.message_bytes as usize)),
            regions,
            pools: Pools::new(pd.clone(), &options, qp_options),
            pd: pd.clone(),
            cq,
            due: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        tokio::spawn(Task {
            completions: lane.cq.completions(),
            lane: Arc::clone(&lane),
            batch: [Completion::BLANK; BATCH],
            work: Work::default(),
        });
        Ok(lane)
    }

    /// Gives a connection its receives.
    ///
    /// # Errors
    /// There are as many connections as there may be, there is no memory, or the node has ended.
    pub(crate) fn seat(&self) -> Result<Seat, OpenError> {
        let seat = self.pools.seat(&self.buffers)?;
        seat.ok_or(OpenError::TooMany)
    }

    /// What the QP of a connection is made with.
    pub(crate) fn resources<'a>(&'a self, seat: &'a Seat) -> Resources<'a> {
        Resources {
            pd: &self.pd,
            send_cq: self.cq.verbs(),
            recv_cq: self.cq.verbs(),
            options: seat.qp_options(),
        }
    }

    /// No completion of a connection comes any more.
    pub(crate) fn forget(&self, qpn: u32) {
        lock(&self.channels).remove(&qpn);
    }

    /// Begins to bring into the cache what completions are about: it is little, and far apart where
    /// thousands of connections say little each.
    fn look_at(&self, batch: &[Completion]) {
        let channels = lock(&self.channels);
        let known = batch
            .iter()
            .filter_map(|done| channels.get(&done.qpn.get()));
        // No load waits for the one before it.
        std::hint::black_box(known.filter(|channel| channel.look_at()).count());
    }

    /// Takes back the buffer of a completion, whatever has become of its connection. Of a message
    /// that came it returns the bytes.
    ///
    /// # Errors
    /// The node has ended.
    fn reclaim(&self, done: &Completion) -> Result<Option<Bytes>, Error> {
        if done.wr_id == LAST_WQE {
            return Ok(None);
        }
        let Some(receive) = Receive::of(done.wr_id) else {
            if let Some(buffer) = buffer_of(done.wr_id) {
                lock(&self.buffers).give_back(buffer);
            }
            return Ok(None);
        };
        let is_message = done.status == Status::Success
            && matches!(done.opcode, WorkOpcode::Receive)
            && done.byte_len <= self.options.message_bytes;
        // What was written somewhere else has lengths of its own, and no bytes here.
        let message = match is_message {
            true => lock(&self.buffers).read(receive.buffer, done.byte_len as usize),
            false => Vec::new(),
        };
        self.pools.recycle(&self.buffers, receive)?;
        Ok(Some(message.into()))
    }

    /// What this end says of itself, with so many requests that it takes at a time.
    pub(crate) const fn hello(&self, requests: u16) -> Hello {
        Hello {
            receives: self.options.receives,
            requests,
            bytes: self.options.message_bytes,
            max_body: self.options.max_body,
        }
    }

    /// Whether there is room for one more connection.
    pub(crate) fn has_room(&self) -> bool {
        !self.closing.load(Ordering::SeqCst) && self.may_have(&lock(&self.channels))
    }

    fn may_have(&self, channels: &HashMap<u32, Arc<Channel>>) -> bool {
        channels.len() < self.options.connections as usize
    }

    /// Knows one more connection from now on, if there is room for it, and somebody who takes up
    /// what completes.
    pub(crate) fn add(&self, qpn: u32, channel: &Arc<Channel>) -> bool {
        let mut channels = lock(&self.channels);
        let may = !self.closing.load(Ordering::SeqCst) && self.may_have(&channels);
        if may {
            channels.insert(qpn, Arc::clone(channel));
        }
        may
    }

    /// A channel has something to say.
    pub(crate) fn mark(&self, channel: Arc<Channel>) {
        let mut due = lock(&self.due);
        if self.closing.load(Ordering::SeqCst) {
            // Nobody would say it.
            return;
        }
        due.channels.push(channel);
        let task = due.task.take();
        drop(due);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Ends all its connections, and its task.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(task) = lock(&self.due).task.take() {
            task.wake();
        }
    }

    /// Ends all connections.
    fn fail(&self, why: &RpcError) {
        let channels: Vec<_> = lock(&self.channels).values().cloned().collect();
        channels
            .iter()
            .for_each(|channel| channel.close(why.clone()));
    }

    fn flush(&self) {
        let mut channels = std::mem::take(&mut lock(&self.due).channels);
        let is_near = lock(&self.channels).len() <= NEAR;
        for group in channels.chunks(GROUP) {
            if !is_near {
                group.iter().for_each(|channel| channel.look_at_queue());
                lock(&self.buffers).look_at(group.len());
            }
            group.iter().for_each(|channel| channel.flush());
        }
        channels.clear();
        let mut due = lock(&self.due);
        if due.channels.capacity() == 0 {
            // The room is used again.
            due.channels = channels;
        }
    }
}

/// What follows from completions of a connection, to be done when nothing is locked.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) requests: Vec<Incoming>,
    pub(crate) answers: Vec<Answer>,
}

impl Work {
    pub(crate) fn run(&mut self, channel: &Arc<Channel>) {
        self.wakers.drain(..).for_each(Waker::wake);
        if !self.requests.is_empty() {
            channel.serve(self);
        }
    }
}

/// Drives a lane.
struct Task {
    lane: Arc<Lane>,
    completions: Completions,
    batch: [Completion; BATCH],
    work: Work,
}

impl Task {
    /// The completions that were taken, as far as their connections are there. Those of one
    /// connection mostly come together.
    fn take_up(&mut self, count: usize) {
        let Self {
            lane, batch, work, ..
        } = self;
        lane.look_at(&batch[..count]);
        let mut last: Option<(u32, Arc<Channel>)> = None;
        for done in &batch[..count] {
            let qpn = done.qpn.get();
            let message = lane.reclaim(done);
            if last.as_ref().is_none_or(|(known, _)| *known != qpn) {
                let channel = lock(&lane.channels).get(&qpn).cloned();
                last = channel.map(|channel| (qpn, channel));
            }
            if let Some((_, channel)) = &last {
                match message {
                    Ok(message) => channel.heed(done, message, work),
                    Err(error) => channel.close(of_call(&error)),
                }
                // At once: what it touches is in the cache still.
                work.run(channel);
            }
        }
    }
}

impl Drop for Task {
    /// Nobody drives the lane any more: it ended, or its runtime, or it panicked.
    fn drop(&mut self) {
        self.lane.closing.store(true, Ordering::SeqCst);
        self.lane.fail(&RpcError::Closed);
        lock(&self.lane.due).channels.clear();
        let channels = std::mem::take(&mut *lock(&self.lane.channels));
        channels.values().for_each(|channel| channel.give_up());
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let taken = this.completions.poll_many(cx, &mut this.batch);
        let again = match taken {
            Poll::Ready(Ok(count)) => {
                this.take_up(count);
                true
            }
            Poll::Ready(Err(_)) => {
                let down = this.lane.node.verbs().health().down;
                let why = down.map_or(RpcError::Reset, RpcError::Node);
                this.lane.fail(&why);
                return Poll::Ready(());
            }
            Poll::Pending => false,
        };
        this.lane.flush();
        let mut due = lock(&this.lane.due);
        if this.lane.closing.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if again || !due.channels.is_empty() {
            // The tasks that were woken have their turn first: what they say goes together.
            due.task = None;
            drop(due);
            cx.waker().wake_by_ref();
        } else {
            due.task = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
