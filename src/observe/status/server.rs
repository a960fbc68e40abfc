//! The socket at which a node says how it is, to whoever of the same user asks.

use super::Status;
use crate::error::Error;
use crate::node::life::Life;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use trunkline_dataplane::process::with_signals_blocked;

/// Least time between two answers: whoever asks without end gets little of a processor.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Where the node at `address` is asked: a name without a file. Such names belong to a network
/// namespace, as addresses do, and are gone when their owner is.
pub(super) fn name(address: IpAddr) -> String {
    format!("{}{address}", super::PREFIX)
}

/// Answers until it is dropped. It has a thread of its own, sees nothing of the node but what
/// `describe` says, and reads nothing that an asker sends.
#[derive(Debug)]
pub(crate) struct Server {
    life: Arc<Life>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Offers what `describe` says under the node's address.
    ///
    /// # Errors
    /// Somebody else has the name; there is no descriptor or thread left.
    pub(crate) fn start(
        life: &Arc<Life>,
        address: IpAddr,
        describe: impl Fn() -> Status + Send + 'static,
    ) -> Result<Self, Error> {
        let listener = SocketAddr::from_abstract_name(name(address))
            .and_then(|name| UnixListener::bind_addr(&name))
            .map_err(Error::system("name of the status socket (Builder::status)"))?;
        let nonblocking = listener.set_nonblocking(true);
        nonblocking.map_err(Error::system("status socket"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags)
            .map_err(|e| Error::system("eventfd of the status socket")(e.into()))?;
        let stop = Arc::new(stop);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("trunkline-stat".into());
        let serving = move || serve(&listener, &stopped, describe);
        let thread =
            with_signals_blocked(|| thread.spawn(serving)).map_err(Error::system("thread"))?;
        Ok(Self {
            life: Arc::clone(life),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.life.is_forked() {
            // The thread and the descriptor by which it hears are the parent's.
            std::mem::forget(self.thread.take());
            return;
        }
        // It fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, stop: &OwnedFd, describe: impl Fn() -> Status) {
    loop {
        let mut fds = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No memory just now: the descriptors are our own.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        if let Ok((asker, _)) = listener.accept() {
            // Whoever does not take the answer goes without.
            let _ = answer(&asker, &describe);
        }
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&PAUSE)), Ok(1..)) {
            return;
        }
    }
}

/// The whole answer fits into the socket: nothing is waited for.
fn answer(mut asker: &UnixStream, describe: &impl Fn() -> Status) -> io::Result<()> {
    asker.set_nonblocking(true)?;
    let uid = socket_peercred(asker)?.uid;
    if !uid.is_root() && uid != rustix::process::geteuid() {
        return Ok(());
    }
    let text = serde_json::to_vec(&describe())?;
    asker.write_all(&text)
}
