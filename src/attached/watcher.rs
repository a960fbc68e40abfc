//! The thread that waits for the end of the service.

use super::call::Line;
use crate::error::Error;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use trunkline_dataplane::process::with_signals_blocked;

/// Ends the program's node when the service closes its end of the socket. Its thread ends with it.
pub(super) struct Watcher {
    line: Arc<Line>,
    quit: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(line: &Arc<Line>) -> Result<Self, Error> {
        let quit = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::system("eventfd of a node")(e.into()))?;
        let quit = Arc::new(quit);
        let (watched, stop) = (Arc::clone(line), Arc::clone(&quit));
        let thread = std::thread::Builder::new().name("trunkline".into());
        let thread = with_signals_blocked(|| thread.spawn(move || watch(&watched, &stop)))
            .map_err(Error::system("thread"))?;
        Ok(Self {
            line: Arc::clone(line),
            quit,
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.line.life().is_forked() {
            // The thread is the parent's: there is none here to wait for.
            std::mem::forget(thread);
            return;
        }
        let _ = rustix::io::write(&self.quit, &1u64.to_ne_bytes());
        if let Some(thread) = thread {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

fn watch(line: &Line, quit: &OwnedFd) {
    loop {
        // Answers are for those who ask: only the end is waited for.
        let socket = PollFd::from_borrowed_fd(line.socket(), PollFlags::RDHUP);
        let mut fds = [socket, PollFd::new(quit, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if fds[1].revents().contains(PollFlags::IN) => return,
            Ok(_) if !fds[0].revents().is_empty() => return line.end(),
            // A signal, or no memory at the moment.
            Ok(_) | Err(_) => std::thread::yield_now(),
        }
    }
}
