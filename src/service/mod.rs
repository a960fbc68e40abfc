//! A service: a node whose QPs are those of other programs of the host (docs/adr/0030).
//!
//! Programs attach by [`Node::attach`], over a Unix socket. All of them share the connections to
//! each peer. `trunkline serve` is a service with a node of its own.
//!
//! What a program may do to it is nothing but lose its own objects: whatever comes over the socket
//! or stands in shared memory is judged before it is used, its quotas bound what it has, and
//! nothing waits for it. A program that ends in whatever way, or sends what no library sends, is
//! parted with: its objects are destroyed, a bounded number at a time, and its peers hear of it.

mod bells;
mod board;
mod client;
mod events;
mod graves;
mod greeting;
mod hold;
mod idle;
mod limits;
mod list;
mod listener;
mod objects;
mod reaper;
mod reply;
mod requests;
mod server;
mod shortage;
mod spare;
mod trust;
mod turn;
mod turned_away;
mod users;

pub use board::{ClientStatus, ServiceStatus};
pub use hold::Hold;
pub use limits::Limits;
pub use list::several;
pub use trust::Trusted;

pub(crate) use board::Serving;

use crate::attached::ServiceAddress;
use crate::error::Error;
use crate::node::Node;
use board::Board;
use listener::Listener;
use rustix::event::{EventfdFlags, eventfd};
use server::Server;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use trunkline_dataplane::process::with_signals_blocked;

/// A node that carries the QPs of other programs, until it is dropped or
/// [nobody uses it](Service::end_when_idle).
pub struct Service {
    node: Node,
    board: Arc<Board>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Lets programs attach to a node, at the socket of that `path`: one that begins with `@` is a
    /// name without a file (an abstract one, unix(7)). Who may write to the file may attach; to a
    /// name without a file all users may whom `limits` do not keep out.
    ///
    /// The node is one inside this program with threads of its own. It may have QPs of this program
    /// as well; its [events](Node::poll_event) are taken by the service.
    ///
    /// # Errors
    /// Somebody serves there already, who is named; the path cannot be used; the node is inline, or
    /// carried by a service itself; the operating system has no descriptor or thread left. Memory
    /// is overcommitted strictly (`vm.overcommit_memory`), where a program could end the service by
    /// giving pages of a segment back.
    pub fn start(node: Node, path: impl AsRef<Path>, limits: &Limits) -> Result<Self, Error> {
        let own = node.shared.inside("services")?;
        if node.is_inline() {
            let what = "services on nodes that the program drives";
            return Err(Error::NotOffered { what });
        }
        for handle in node.shared.handles() {
            handle.recorder.keep_peers();
        }
        let listener = Listener::bind(ServiceAddress::of(path.as_ref())?)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake =
            eventfd(0, flags).map_err(|e| Error::system("eventfd of a service")(e.into()))?;
        let (wake, board) = (Arc::new(wake), Arc::new(Board::new(path.as_ref())));
        let server = Server::new(
            node.clone(),
            listener,
            limits.clone(),
            Arc::clone(&board),
            Arc::clone(&wake),
        )?;
        let thread = std::thread::Builder::new().name("trunkline-serve".into());
        let thread = with_signals_blocked(|| thread.spawn(move || server.run()))
            .map_err(Error::system("thread"))?;
        own.serving.begin(&board);
        Ok(Self {
            node,
            board,
            wake,
            thread: Some(thread),
        })
    }

    /// The node.
    pub const fn node(&self) -> &Node {
        &self.node
    }

    /// The programs that are attached at the moment.
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.board.clients().clone()
    }

    /// Has the service end by itself when nobody has used it for that long: no program is attached,
    /// and nobody [holds](Hold) it. Before the first one comes it waits 10 seconds at least. Then
    /// its socket is gone, and [`is_over`](Self::is_over) is true; the node goes on.
    pub fn end_when_idle(&self, after: Duration) {
        self.board.set_idle_after(after);
        self.wake();
    }

    /// Whether it has ended as nobody used it: [`end_when_idle`](Self::end_when_idle).
    pub fn is_over(&self) -> bool {
        self.board.unused.load(Ordering::SeqCst)
    }

    /// Whether its thread has ended, as only a fault of its own makes it: nobody is served.
    pub fn has_failed(&self) -> bool {
        !self.is_over() && self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Wakes its thread.
    fn wake(&self) {
        // It fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// How many programs were parted with because of what they did.
    pub fn violations(&self) -> u64 {
        self.board.violations.load(Ordering::Relaxed)
    }

    /// How many programs were turned away, or parted with, as the service had no descriptor left.
    pub fn without_descriptor(&self) -> u64 {
        self.board.without_descriptor.load(Ordering::Relaxed)
    }

    /// How many requests of programs were refused, as the program, or all of its user, had as much
    /// as they may, and programs that were not let in, as there were as many as there may be.
    pub fn beyond_limits(&self) -> u64 {
        self.board.beyond_limits.load(Ordering::Relaxed)
    }
}

impl Drop for Service {
    /// Parts with all programs, which hear that the service ends.
    fn drop(&mut self) {
        if self.node.shared.life.is_forked() {
            // The thread is the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        self.board.stop.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}
