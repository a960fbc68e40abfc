//! How a program drives an inline node: it polls, and waits in between.

use crate::error::Error;
use crate::node::Node;
use crate::worker::sleep::{self, WaitFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use trunkline_conn::time::Instant;
use trunkline_qpmap::cq::Notify;

impl Node {
    /// Whether the program drives it.
    pub fn is_inline(&self) -> bool {
        self.shared.is_inline()
    }

    /// One round of all workers of an inline node: takes packets in, sends packets, runs timers,
    /// publishes completions. Gives whether anything happened. A threaded node needs no polling;
    /// calling it there is harmless.
    ///
    /// # Errors
    /// The node does not work any more ([`health`](Self::health)), or an error that passes: poll
    /// again then. It is the first one of a worker; the others had their round all the same.
    pub fn poll(&self) -> Result<bool, Error> {
        let mut any = Ok(false);
        for worker in 0..self.shared.workers.count() {
            let polled = self.poll_worker(worker);
            any = any.and_then(|any| Ok(any | polled?));
        }
        any
    }

    /// The same of one worker, from 0: for programs with a thread for each.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    ///
    /// # Panics
    /// There is no such worker.
    pub fn poll_worker(&self, worker: u8) -> Result<bool, Error> {
        if self.shared.client().is_some() {
            // Its service drives it.
            self.shared.life.check()?;
            return Ok(false);
        }
        let handle = self.shared.handle(worker);
        // The descriptors of a child are its parent's.
        if self.is_inline() && !self.shared.life.is_forked() {
            handle.awake();
        }
        handle.round().inspect_err(|error| match error {
            Error::Port(error) if error.is_passing() => self.shared.life.note_passing(),
            // Where the node is down already this changes nothing.
            error => {
                handle.fail(&error.to_string());
                self.shared.bury();
            }
        })
    }

    /// Blocks an inline node until a packet comes, a port that was full takes more, a timer is due,
    /// another thread has work for it, or `timeout` is over. Returns at once when there is
    /// something to do, and now and then for no reason. Some thread has to [`poll`](Self::poll)
    /// before it waits again: what it was woken by stays until then, for all that wait, in this
    /// call or on the node's [`fd`](Self::fd).
    ///
    /// A clock that is [turned by hand](crate::Clock::manual) wakes nobody.
    ///
    /// # Errors
    /// The node does not work any more.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.shared.life.check()?;
        if let Some(client) = self.shared.client() {
            return sleep::wait_for(&self.shared, client.event_fd(), timeout);
        }
        let handles = self.shared.all_handles();
        if self.is_inline() {
            sleep::wait_inline(&handles, None, timeout)
        } else {
            // Words for its workers are for their threads.
            sleep::wait(&handles, None, timeout)
        }
    }

    /// A descriptor that is readable when an inline node has something to do: a packet came, a
    /// port that was full takes more, a timer is due, or another thread has work for it. It is for
    /// programs that wait for other things too: by poll(2), an epoll instance, level or edge
    /// triggered, or the event loop of a runtime. It is the same at each call and stays open as
    /// long as the node lives; nothing is read from it or written to it.
    ///
    /// It tells the truth from a [`try_wait`](Self::try_wait) that gave `true` to the next
    /// [`poll`](Self::poll), by whichever thread; other calls, [`wait`](Self::wait) among them,
    /// change nothing of that:
    ///
    /// ```no_run
    /// # fn wait_for_readable(_: std::os::fd::BorrowedFd<'_>) {}
    /// # fn drive(node: &trunkline::Node) -> Result<(), trunkline::Error> {
    /// loop {
    ///     while node.poll()? {}
    ///     if node.try_wait()? {
    ///         wait_for_readable(node.fd()?);
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoFd`]: threads drive the node, its port has to be polled, or its clock is
    /// [turned by hand](crate::Clock::manual); the operating system has no descriptor left; the
    /// node is another process's.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.shared.life.check_own()?;
        if self.shared.handles().len() == 1 {
            return self.worker_fd(0);
        }
        if let Some(fd) = self.shared.here().wait_fd.get() {
            return Ok(fd.as_fd());
        }
        let workers = 0..self.shared.workers.count();
        let fds: Result<Vec<_>, _> = workers.map(|worker| self.worker_fd(worker)).collect();
        let fd = sleep::readable(fds?)?;
        Ok(self.shared.here().wait_fd.get_or_init(|| fd).as_fd())
    }

    /// The same of one worker, from 0.
    ///
    /// # Errors
    /// As [`fd`](Self::fd).
    ///
    /// # Panics
    /// There is no such worker.
    pub fn worker_fd(&self, worker: u8) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.wait_fd(worker)?.as_fd())
    }

    /// Gets an inline node ready to be waited for on its [`fd`](Self::fd), and sets its timer.
    /// `false`: it has something to do, and is to be polled first.
    ///
    /// # Errors
    /// As [`fd`](Self::fd); the node does not work any more.
    pub fn try_wait(&self) -> Result<bool, Error> {
        for worker in 0..self.shared.workers.count() {
            if !self.try_wait_worker(worker)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same of one worker, from 0.
    ///
    /// # Errors
    /// As [`try_wait`](Self::try_wait).
    ///
    /// # Panics
    /// There is no such worker.
    pub fn try_wait_worker(&self, worker: u8) -> Result<bool, Error> {
        self.shared.life.check()?;
        self.wait_fd(worker)?.try_wait(self.shared.handle(worker))
    }

    /// Has whoever has work for a worker of an inline node call `notify` while that is waited for,
    /// instead of making its descriptor readable: packets, timers and room in a full port still
    /// do. It is for programs that wake the one who drives the worker without a system call, a task
    /// of a runtime, say. It comes before all waiting, and stays.
    ///
    /// Any thread may call it, with locks of the node taken: `notify` wakes, and calls nothing of
    /// the node. It is also called when the node is down. [`wait`](Self::wait) does not hear of
    /// what it is called for.
    ///
    /// # Errors
    /// [`Error::NoFd`]: threads drive the node, or somebody waits for the worker already.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn wake_by(&self, worker: u8, notify: Arc<dyn Notify>) -> Result<(), Error> {
        self.check_driven()?;
        self.shared.handle(worker).wakeup.wake_by(notify)
    }

    fn wait_fd(&self, worker: u8) -> Result<&WaitFd, Error> {
        self.check_driven()?;
        self.shared.handle(worker).wait_fd()
    }

    /// Checks that the program drives the node, and this process's.
    fn check_driven(&self) -> Result<(), Error> {
        self.shared.life.check_own()?;
        if !self.is_inline() {
            let why = "the node's own threads drive it";
            return Err(Error::NoFd { why });
        }
        Ok(())
    }

    /// When a timer of an inline node is due next, by its clock.
    pub fn next_timeout(&self) -> Option<Instant> {
        let handles = self.shared.handles().iter();
        handles
            .filter_map(|handle| handle.core().ok()?.next_timeout())
            .min()
    }

    /// The same of one worker, from 0.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn worker_timeout(&self, worker: u8) -> Option<Instant> {
        let handle = self.shared.handles().get(usize::from(worker))?;
        handle.core().ok()?.next_timeout()
    }

    /// Whether an inline node has something to do right now, apart from packets that come in.
    pub fn is_busy(&self) -> bool {
        let workers = 0..self.shared.workers.count();
        workers
            .into_iter()
            .any(|worker| self.is_worker_busy(worker))
    }

    /// The same of one worker, from 0.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn is_worker_busy(&self, worker: u8) -> bool {
        let handle = self.shared.handles().get(usize::from(worker));
        handle.is_some_and(|handle| handle.is_busy().unwrap_or(false))
    }
}
