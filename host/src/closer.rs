//! Closes descriptors whose close(2) may take long.
//!
//! A client sends what descriptors it likes: one of a socket that lingers (`SO_LINGER`, socket(7)),
//! of a file on a FUSE of its own, of an eventfd that an epoll instance of it watches. To close the
//! last one of such a file takes as long as the client wants. So does closing the client's socket,
//! in which there may be such descriptors. The service leaves that to a thread, one for each
//! client, so that a client holds up nobody but itself.
//!
//! # Bounds
//!
//! At most [`MAX_PENDING`] are pending. Where there is no room the service keeps the descriptor
//! and reads nothing of that client until there is. A client that ended counts as one until nothing
//! of it is [pending](Closer::pending), so there are no more threads than there may be clients.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Most descriptors of a client that are not closed yet.
pub const MAX_PENDING: usize = 16;

/// Bytes of the stack of a thread that does nothing but close.
const STACK: usize = 64 << 10;

/// Closes the descriptors of one client, one after the other, by dropping what has them. There is a
/// thread for it while descriptors wait; it closes them all, whether or not the `Closer` still
/// exists.
#[derive(Debug)]
pub struct Closer<T = OwnedFd>(Arc<Mutex<Queue<T>>>);

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<T>,
    /// Those that wait, and the one that is being closed. There is a thread while there are some.
    pending: usize,
}

impl<T> Default for Closer<T> {
    fn default() -> Self {
        let queue = Queue {
            waiting: VecDeque::new(),
            pending: 0,
        };
        Self(Arc::new(Mutex::new(queue)))
    }
}

impl<T: Send + 'static> Closer<T> {
    /// Nothing to close, and no thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has a descriptor closed soon.
    ///
    /// # Errors
    /// Gives it back where [`MAX_PENDING`] are pending, or the system has no thread to give.
    pub fn try_close(&self, descriptor: T) -> Result<(), T> {
        let mut queue = lock(&self.0);
        if queue.pending == MAX_PENDING {
            return Err(descriptor);
        }
        if queue.pending == 0 {
            let shared = Arc::clone(&self.0);
            let thread = thread::Builder::new()
                .name("trunkline-close".into())
                .stack_size(STACK);
            if thread.spawn(move || close_all(&shared)).is_err() {
                return Err(descriptor);
            }
        }
        queue.waiting.push_back(descriptor);
        queue.pending += 1;
        Ok(())
    }

    /// Descriptors that are not closed yet.
    pub fn pending(&self) -> usize {
        lock(&self.0).pending
    }
}

/// What the thread does, which there is because something waits.
fn close_all<T>(queue: &Mutex<Queue<T>>) {
    loop {
        let next = lock(queue).waiting.pop_front();
        drop(next);
        let mut queue = lock(queue);
        queue.pending -= 1;
        if queue.pending == 0 {
            return;
        }
    }
}

fn lock<T>(queue: &Mutex<Queue<T>>) -> MutexGuard<'_, Queue<T>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_linger;
    use std::io::{PipeReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    /// Longer than any test waits for what does not depend on it.
    const LINGER: Duration = Duration::from_secs(60);

    /// A pipe whose reading end tells when the writing end is closed.
    fn pipe() -> (PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, writer.into())
    }

    fn wait_until_closed(mut reader: PipeReader) {
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    /// A socket whose close waits until the other end has read everything, or is closed.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        set_socket_linger(&socket, Some(LINGER)).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        (socket.into(), other)
    }

    #[test]
    fn what_is_given_is_closed_and_then_nothing_is_pending() {
        let closer = Closer::new();
        for _ in 0..100 {
            let (reader, writer) = pipe();
            closer.try_close(writer).unwrap();
            wait_until_closed(reader);
            let start = Instant::now();
            while closer.pending() > 0 {
                assert!(start.elapsed() < LINGER);
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_close_that_takes_long_holds_up_its_client_alone() {
        let [slow, quick] = [Closer::new(), Closer::new()];
        let (socket, other) = lingering();
        let start = Instant::now();
        slow.try_close(socket).unwrap();
        let behind = (1..MAX_PENDING).map(|_| {
            let (reader, writer) = pipe();
            slow.try_close(writer).unwrap();
            reader
        });
        let behind: Vec<_> = behind.collect();
        assert_eq!(slow.pending(), MAX_PENDING);
        let (reader, writer) = pipe();
        let back = slow.try_close(writer).unwrap_err();
        quick.try_close(back).unwrap();
        wait_until_closed(reader);
        // What is pending is closed though nobody has the closer any more.
        drop((slow, other));
        behind.into_iter().for_each(wait_until_closed);
        assert!(start.elapsed() < LINGER / 2, "nobody waited for the socket");
    }
}
