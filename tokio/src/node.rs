//! A node that a runtime drives.

use crate::cq::Cq;
use crate::driver::Driver;
use crate::events::{self, Events};
use crate::mailbox::Sorter;
use crate::stream::Both;
use crate::waiters::{Waiter, Waiters, lock};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use trunkline::{Builder, Down, Drive, Error};

/// Pause between two looks at whether a node that ends has done all it had to.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// A node on a runtime: a task for each of its workers drives it, on the runtime's own threads.
///
/// Clones name the same node, and so does all of this crate that was made of it. With the last of
/// them the node ends, as with [`shutdown`](Self::shutdown) that waits for nothing.
///
/// It dereferences to [`trunkline::Node`], whose domains, regions and QPs are used as they are:
/// what is posted to them wakes the task, if it sleeps, without a system call.
///
/// ```
/// # async fn program() -> Result<(), trunkline::Error> {
/// use std::time::Duration;
/// use trunkline::{QpOptions, SendFlags, SendOp, SendWr};
/// use trunkline_tokio::Node;
///
/// let node = Node::new(trunkline::Node::builder().address([127, 9, 0, 1].into()))?;
/// let (pd, cq) = (node.alloc_pd(), node.create_cq(64)?);
/// let qp = pd.create_qp(cq.verbs(), cq.verbs(), &QpOptions::default())?;
/// let mr = pd.register(64, trunkline::Access::ALL)?;
/// qp.connect(qp.address())?; // to itself
/// let (op, flags) = (SendOp::Write(mr.remote(32)), SendFlags::SIGNALED);
/// let sges = [mr.sge(0, 32)];
/// qp.post_send(&[SendWr { wr_id: 7, op, flags, sges: &sges, inline: None, route: 0 }])?;
/// assert_eq!(cq.next().await?.wr_id, 7);
/// node.shutdown(Duration::from_secs(1)).await
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
/// #     .block_on(program()).unwrap();
/// ```
#[derive(Clone)]
pub struct Node(Arc<LastHandle>);

/// What goes with the last handle.
struct LastHandle(Arc<Shared>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::SeqCst);
        self.0.driving.iter().for_each(|task| task.wake_all());
    }
}

/// What a node's tasks and handles share.
pub(crate) struct Shared {
    node: trunkline::Node,
    pub(crate) runtime: Handle,
    /// What each driver is woken by.
    driving: Vec<Arc<Waiters>>,
    /// The last handle is gone.
    closing: AtomicBool,
    /// The node has ended, and all its requests were flushed.
    over: AtomicBool,
    /// Who hears of that.
    listeners: Mutex<Vec<Weak<Waiters>>>,
    /// Streams that the next turn of a driver concerns.
    due: Mutex<Vec<Weak<Both>>>,
    /// Held by who gives those their turn, until all have had it.
    turning: Mutex<()>,
    pub(crate) events: events::Shared,
    /// Made when the first ID of RDMA-CM is.
    sorter: Mutex<Option<Arc<Sorter>>>,
}

impl Shared {
    pub(crate) const fn node(&self) -> &trunkline::Node {
        &self.node
    }

    /// Whether the last handle is gone.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Whether the node has ended, and all its requests were flushed. Who waits for more than that
    /// registers before this look.
    pub(crate) fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Wakes these, too, when the node has ended.
    pub(crate) fn tell_end_to(&self, waiters: &Arc<Waiters>) {
        let mut listeners = lock(&self.listeners);
        if listeners.len() == listeners.capacity() {
            listeners.retain(|listener| listener.strong_count() > 0);
        }
        listeners.push(Arc::downgrade(waiters));
    }

    /// A driver's next turn is a stream's, too: it sends the message that it has begun, and its
    /// reader may take more.
    pub(crate) fn take_part_in_next_turn(&self, stream: &Arc<Both>) {
        let mut due = lock(&self.due);
        due.push(Arc::downgrade(stream));
        let first = due.len() == 1;
        drop(due);
        if first && let Some(task) = self.driving.first() {
            task.wake_all();
        }
    }

    /// Whether the next turn concerns a stream.
    pub(crate) fn has_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }

    /// Gives streams their turn. When it returns, all messages that they had begun are posted,
    /// whoever did it.
    pub(crate) fn turn(&self) {
        self.turn_each(|stream| {
            stream.turn();
            true
        });
    }

    /// The same without those that another thread uses just now, which may take long: their turn is
    /// the next one.
    pub(crate) fn turn_free(&self) {
        self.turn_each(Both::try_turn);
    }

    /// Gives streams their turn, as far as `turn` does.
    fn turn_each(&self, turn: impl Fn(&Both) -> bool) {
        let _turning = lock(&self.turning);
        let mut due = std::mem::take(&mut *lock(&self.due));
        due.retain(|stream| stream.upgrade().is_some_and(|stream| !turn(&stream)));
        let mut list = lock(&self.due);
        // Its room is used again.
        due.append(&mut list);
        *list = due;
    }

    /// Who tells IDs of RDMA-CM what happens to them.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn sorter(self: &Arc<Self>) -> Result<Arc<Sorter>, Error> {
        let mut sorter = lock(&self.sorter);
        if let Some(sorter) = &*sorter {
            return Ok(Arc::clone(sorter));
        }
        let started = Sorter::start(self)?;
        Ok(Arc::clone(sorter.insert(started)))
    }

    /// The node has ended. All that wait hear it.
    pub(crate) fn is_over(&self) {
        self.over.store(true, Ordering::SeqCst);
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        let listeners = listeners.iter().filter_map(Weak::upgrade);
        listeners.for_each(|waiters| waiters.wake_all());
        self.events.waiters.wake_all();
        self.driving.iter().for_each(|task| task.wake_all());
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verbs().fmt(f)
    }
}

impl std::ops::Deref for Node {
    type Target = trunkline::Node;

    fn deref(&self) -> &trunkline::Node {
        self.verbs()
    }
}

impl Node {
    /// Builds a node on a UDP socket, whatever the builder says of who drives it, and starts to
    /// drive it on the current runtime.
    ///
    /// # Errors
    /// As [`Builder::build`].
    ///
    /// # Panics
    /// Outside a runtime, or one whose I/O or time is not enabled.
    pub fn new(builder: Builder) -> Result<Self, Error> {
        Self::drive(builder.drive(Drive::Inline).build()?)
    }

    /// Drives an inline node that was built in another way, on a port of the program's choice, say.
    ///
    /// # Errors
    /// [`Error::NoFd`]: it has threads of its own, its port has to be polled, or somebody drives it
    /// already; the operating system has no descriptor left.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn drive(node: trunkline::Node) -> Result<Self, Error> {
        // It panics here rather than at the first deadline.
        drop(tokio::time::sleep(Duration::ZERO));
        let workers = 0..node.workers().count();
        let shared = Arc::new(Shared {
            node,
            runtime: Handle::current(),
            driving: workers.clone().map(|_| Arc::default()).collect(),
            closing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            listeners: Mutex::default(),
            due: Mutex::default(),
            turning: Mutex::default(),
            events: events::Shared::default(),
            sorter: Mutex::default(),
        });
        let drivers = workers.zip(&shared.driving);
        let drivers = drivers.map(|(worker, task)| Driver::new(&shared, worker, task));
        for driver in drivers.collect::<Result<Vec<_>, _>>()? {
            shared.runtime.spawn(driver);
        }
        Ok(Self(Arc::new(LastHandle(shared))))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// Returns the node itself.
    pub fn verbs(&self) -> &trunkline::Node {
        self.shared().node()
    }

    /// Returns why it has ended.
    pub(crate) fn down(&self) -> Down {
        self.verbs().health().down.unwrap_or(Down::ShutDown)
    }

    /// Creates a completion queue that tasks can wait for, as
    /// [`create_cq`](trunkline::Node::create_cq).
    ///
    /// # Errors
    /// As there.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::new(self, depth)
    }

    /// Returns its asynchronous events as a stream.
    pub fn events(&self) -> Events {
        Events::new(self)
    }

    /// Ends it: what was posted is done and what peers are owed has reached them, or `timeout` is
    /// over; then as [`shutdown`](trunkline::Node::shutdown) has it. When it returns, all that was
    /// posted has its completion and all that waited was woken. Where this future is dropped early,
    /// the node goes on.
    ///
    /// # Errors
    /// Time was up: [`Error::Unfinished`]. The node is down for another reason than this.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        // What kept it from that, the node says itself, once its drivers have flushed all.
        let drained = tokio::time::timeout(timeout, self.drain()).await;
        if let Some(Down::Forked) = self.verbs().health().down {
            // They belong to another process.
            return Err(Down::Forked.into());
        }
        let ended = match self.verbs().shutdown(Duration::ZERO) {
            // Something has come since it was drained, by a timer or from a peer.
            Err(Error::Unfinished) if matches!(drained, Ok(Ok(()))) => Ok(()),
            ended => ended,
        };
        let shared = self.shared();
        let mut registered: Vec<_> = shared.driving.iter().map(Waiter::new).collect();
        poll_fn(|cx| {
            registered
                .iter_mut()
                .for_each(|waiter| waiter.register(cx.waker()));
            match shared.over() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        ended
    }

    /// Waits until all is done that was posted.
    async fn drain(&self) -> Result<(), Error> {
        self.shared().turn();
        while self.verbs().health().down.is_none() && !self.verbs().is_drained()? {
            tokio::time::sleep(DRAIN_PAUSE).await;
            self.shared().turn();
        }
        Ok(())
    }
}
