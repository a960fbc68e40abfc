//! What happens to the IDs of RDMA-CM, sorted by whom it concerns: a task takes it out of the
//! node's one event channel.

use crate::node::{Node, Shared};
use crate::readable::readable;
use crate::waiters::{Waiter, Waiters, lock};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll};
use tokio::io::unix::AsyncFd;
use trunkline::Error;
use trunkline::rdma_cm::sync::ConnectError;
use trunkline::rdma_cm::{CmEvent, CmEventKind, CmId, Data, EventChannel, Kind, PortSpace};

/// The event channel of a node, and who hears what comes out of it.
#[derive(Debug)]
pub(crate) struct Sorter {
    channel: EventChannel,
    mailboxes: Mutex<HashMap<u64, Weak<Mailbox>>>,
}

impl Sorter {
    /// Begins to sort, on the node's runtime.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Arc<Self>, Error> {
        let _runtime = shared.runtime.enter();
        let channel = shared.node().create_event_channel()?;
        let fd = readable(channel.fd())?;
        let mailboxes = Mutex::default();
        let sorter = Arc::new(Self { channel, mailboxes });
        let sorting = sort(Arc::clone(&sorter), Arc::clone(shared), fd);
        shared.runtime.spawn(sorting);
        Ok(sorter)
    }

    fn mailbox(self: &Arc<Self>, id: &CmId) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox {
            number: id.number(),
            sorter: Arc::downgrade(self),
            letters: Mutex::default(),
            established: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waiters: Arc::default(),
            end_listener: OnceLock::new(),
        });
        let mut mailboxes = lock(&self.mailboxes);
        mailboxes.insert(mailbox.number, Arc::downgrade(&mailbox));
        drop(mailboxes);
        mailbox
    }

    /// What concerns an ID that is gone goes with it.
    fn deliver(self: &Arc<Self>, event: CmEvent) {
        let CmEvent { id, kind } = event;
        let (to, letter) = match kind {
            CmEventKind::ConnectRequest {
                listener,
                peer,
                data,
                ..
            } => {
                let mailbox = self.mailbox(&id);
                let data = Box::new(data);
                let request = Letter::Request(id, mailbox, peer, data);
                (listener.number(), request)
            }
            kind => (id.number(), Letter::News(Box::new(kind))),
        };
        let mailbox = lock(&self.mailboxes).get(&to).and_then(Weak::upgrade);
        if let Some(mailbox) = mailbox {
            mailbox.put(letter);
        }
    }
}

/// Hands out what happens until the node has ended.
async fn sort(sorter: Arc<Sorter>, shared: Arc<Shared>, fd: AsyncFd<OwnedFd>) {
    while !shared.over() {
        // What comes from here on makes it ready anew.
        match fd.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return,
        }
        while let Some(event) = sorter.channel.poll_event() {
            sorter.deliver(event);
        }
        if sorter.channel.check().is_err() {
            return;
        }
    }
}

/// What came for one ID.
#[derive(Debug)]
pub(crate) struct Mailbox {
    number: u64,
    sorter: Weak<Sorter>,
    letters: Mutex<VecDeque<Letter>>,
    established: AtomicBool,
    ended: AtomicBool,
    waiters: Arc<Waiters>,
    /// Who else hears of the end.
    end_listener: OnceLock<Arc<Waiters>>,
}

#[derive(Debug)]
enum Letter {
    News(Box<CmEventKind>),
    /// Of a listener: a new ID, its mailbox, where it connects from, its private data.
    Request(CmId, Arc<Mailbox>, SocketAddr, Box<Data>),
}

impl Mailbox {
    fn put(&self, letter: Letter) {
        if let Letter::News(kind) = &letter {
            match **kind {
                CmEventKind::Established { .. } => self.established.store(true, Ordering::SeqCst),
                CmEventKind::ConnectError
                | CmEventKind::Unreachable { .. }
                | CmEventKind::Nobody
                | CmEventKind::Rejected { .. }
                | CmEventKind::Disconnected { .. } => self.ended.store(true, Ordering::SeqCst),
                _ => {}
            }
        }
        lock(&self.letters).push_back(letter);
        self.waiters.wake_all();
        self.wake_if_ended();
    }

    fn wake_if_ended(&self) {
        if self.ended.load(Ordering::SeqCst)
            && let Some(listener) = self.end_listener.get()
        {
            listener.wake_all();
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if let Some(sorter) = self.sorter.upgrade() {
            lock(&sorter.mailboxes).remove(&self.number);
        }
    }
}

/// A request to a listener: its ID, where it is from, and its private data.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) id: Id,
    pub(crate) peer: SocketAddr,
    pub(crate) data: Box<Data>,
}

/// An ID with its mailbox. Dropping it gives it up: its peer hears.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) id: CmId,
    mailbox: Arc<Mailbox>,
    pub(crate) node: Node,
}

impl Id {
    /// # Errors
    /// There are too many, or the node has ended.
    pub(crate) fn new(node: &Node) -> Result<Self, Error> {
        let sorter = node.shared().sorter()?;
        let id = sorter.channel.create_id(PortSpace::Tcp, Kind::Rc)?;
        let mailbox = sorter.mailbox(&id);
        Ok(Self::with(id, mailbox, node))
    }

    fn with(id: CmId, mailbox: Arc<Mailbox>, node: &Node) -> Self {
        node.shared().tell_end_to(&mailbox.waiters);
        let node = node.clone();
        Self { id, mailbox, node }
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::new(&self.mailbox.waiters)
    }

    /// The next that happens to it.
    ///
    /// # Errors
    /// It is no good, or the node has ended.
    pub(crate) async fn news(&self) -> Result<CmEventKind, ConnectError> {
        loop {
            let letter = self.wait(|mailbox| lock(&mailbox.letters).pop_front());
            if let Letter::News(kind) = letter.await? {
                let down = || self.node.verbs().health().down;
                // A node that ends ends its IDs, which is no fault of their peers.
                let why = |error| down().map_or(error, |down| Error::from(down).into());
                return kind.into_result().map_err(why);
            }
        }
    }

    /// The next request to a listener.
    pub(crate) fn poll_request(
        &self,
        cx: &mut Context<'_>,
        waiter: &mut Waiter,
    ) -> Poll<Result<Incoming, Error>> {
        let request = |mailbox: &Mailbox| loop {
            let letter = lock(&mailbox.letters).pop_front()?;
            if let Letter::Request(id, mailbox, peer, data) = letter {
                let id = Self::with(id, mailbox, &self.node);
                return Some(Incoming { id, peer, data });
            }
        };
        self.poll_for(cx, waiter, request)
    }

    /// Waits until the connection stands.
    ///
    /// # Errors
    /// It came to nothing, or the node has ended.
    pub(crate) async fn established(&self) -> Result<(), ConnectError> {
        let known = |mailbox: &Mailbox| {
            let established = mailbox.established.load(Ordering::SeqCst);
            (established || self.has_ended()).then_some(established)
        };
        match self.wait(known).await? {
            true => Ok(()),
            false => Err(ConnectError::Unreachable),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.mailbox.ended.load(Ordering::SeqCst)
    }

    /// Wakes these, too, when the connection has ended: once it is said for whom.
    pub(crate) fn tell_end_to(&self, waiters: &Arc<Waiters>) {
        let _ = self.mailbox.end_listener.set(Arc::clone(waiters));
        self.mailbox.wake_if_ended();
    }

    /// Waits until the connection, or the attempt at one, is over.
    pub(crate) async fn ended(&self) {
        // So it is where the node has ended.
        let _ = self.wait(|_| self.has_ended().then_some(())).await;
    }

    async fn wait<T>(&self, what: impl Fn(&Mailbox) -> Option<T>) -> Result<T, Error> {
        let mut waiter = self.waiter();
        poll_fn(|cx| self.poll_for(cx, &mut waiter, &what)).await
    }

    fn poll_for<T>(
        &self,
        cx: &mut Context<'_>,
        waiter: &mut Waiter,
        what: impl Fn(&Mailbox) -> Option<T>,
    ) -> Poll<Result<T, Error>> {
        waiter.register(cx.waker());
        let over = self.node.shared().over();
        match what(&self.mailbox) {
            Some(found) => Poll::Ready(Ok(found)),
            None if over => Poll::Ready(Err(self.node.down().into())),
            None => Poll::Pending,
        }
    }
}
