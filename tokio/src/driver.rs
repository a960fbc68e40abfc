//! The task that drives a worker of a node.

use crate::node::Shared;
use crate::readable::readable;
use crate::waiters::{Waiter, Waiters};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::yield_now;
use tokio::time::Sleep;
use trunkline::{Error, Spin};

/// Pause after an error of the operating system that passes.
const TROUBLE_PAUSE: Duration = Duration::from_millis(1);

/// Rounds between two looks of the runtime at other descriptors.
const ROUNDS: u32 = 4;

/// One round of its worker a turn: then the tasks that it woke have theirs. It ends with the node
/// or the last handle to it, and the node ends with it.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    worker: u8,
    waiter: Waiter,
    fd: AsyncFd<OwnedFd>,
    spin: Spin,
    /// It is on a runtime of one thread. On others a task that waits for the runtime's own look at
    /// descriptors stays with its thread, whatever the next task there does for how long.
    alone: bool,
    /// Rounds since the runtime looked at other descriptors.
    rounds: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Driver {
    /// The one of this worker, which `waiters` wake from now on.
    ///
    /// # Errors
    /// The node has no descriptor to wait on, or none is left.
    ///
    /// # Panics
    /// Outside a runtime, or one whose I/O is not enabled.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        worker: u8,
        waiters: &Arc<Waiters>,
    ) -> Result<Self, Error> {
        let node = shared.node();
        node.wake_by(worker, Arc::clone(waiters) as _)?;
        let fd = readable(node.worker_fd(worker)?)?;
        Ok(Self {
            shared: Arc::clone(shared),
            worker,
            waiter: Waiter::new(waiters),
            fd,
            spin: Spin::new(),
            alone: Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread,
            rounds: 0,
            pause: None,
        })
    }

    /// Has another round, after others.
    fn look_again(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.rounds = (self.rounds + 1) % ROUNDS;
        match self.rounds {
            0 if self.alone => after_all(cx),
            _ => after_tasks(cx),
        }
    }

    /// Waits until there is something to do.
    fn sleep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.waiter.register(cx.waker());
        match self.shared.node().try_wait_worker(self.worker) {
            Ok(true) => {}
            Ok(false) => return after_tasks(cx),
            Err(_) => return Poll::Ready(()),
        }
        if self.shared.is_closing() {
            return Poll::Ready(());
        }
        if self.shared.has_due() {
            return after_tasks(cx);
        }
        match ready!(self.fd.poll_read_ready(cx)) {
            Ok(mut guard) => {
                // What comes from here on makes it ready anew; what came before is looked at next.
                guard.clear_ready();
                after_tasks(cx)
            }
            // The runtime ends.
            Err(_) => Poll::Ready(()),
        }
    }
}

/// On a runtime of one thread all else has its turn first: the other tasks, the future that it was
/// entered with, and other descriptors, which the runtime looks at by a system call.
fn after_all(cx: &mut Context<'_>) -> Poll<()> {
    // It was never polled, so it is not ready.
    let _ = pin!(yield_now()).poll(cx);
    Poll::Pending
}

/// The tasks that are ready have their turn first.
fn after_tasks(cx: &Context<'_>) -> Poll<()> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.shared.is_closing() {
            return Poll::Ready(());
        }
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        if this.shared.has_due() {
            this.shared.turn_free();
        }
        let polled = this.shared.node().poll_worker(this.worker);
        this.shared.events.look(this.shared.node());
        match polled {
            Ok(true) => {
                this.spin.worked();
                this.look_again(cx)
            }
            Ok(false) if this.spin.looks_again() => this.look_again(cx),
            Ok(false) => this.sleep(cx),
            Err(Error::Port(error)) if error.is_passing() => {
                this.pause = Some(Box::pin(tokio::time::sleep(TROUBLE_PAUSE)));
                after_tasks(cx)
            }
            Err(_) => Poll::Ready(()),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Nobody would drive the node: it ends, if it has not yet.
        let _ = self.shared.node().shutdown(Duration::ZERO);
        self.shared.is_over();
    }
}
