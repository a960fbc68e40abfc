//! The thread that waits for the end of the service, and for events of CQs that notify the program
//! in a way of its own.

use super::Signals;
use super::call::Line;
use crate::error::Error;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use trunkline_dataplane::process::with_signals_blocked;
use trunkline_qpmap::cq::Notify;

/// What the thread waits for; CQs have tokens from [`FIRST`] on.
const SOCKET: u64 = 0;
const QUIT: u64 = 1;
const FIRST: u64 = 2;

/// Ends the program's node when the service closes its end of the socket. Its thread ends with it.
pub(super) struct Watcher {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

struct Watched {
    line: Arc<Line>,
    epoll: OwnedFd,
    quit: OwnedFd,
    cqs: Mutex<Cqs>,
}

struct Cqs {
    next: u64,
    all: HashMap<u64, Notified>,
}

/// A CQ that notifies the program.
struct Notified {
    signals: Signals,
    notify: Arc<dyn Notify>,
}

impl Watcher {
    pub(super) fn start(line: &Arc<Line>) -> Result<Self, Error> {
        let system = |e: rustix::io::Errno| Error::system("epoll of a node")(e.into());
        let quit = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system)?;
        // Answers are for those who ask: of the socket only the end is waited for.
        let watch = |fd, token, flags| {
            epoll::add(&epoll, fd, EventData::new_u64(token), flags).map_err(system)
        };
        watch(line.socket(), SOCKET, EventFlags::RDHUP)?;
        watch(quit.as_fd(), QUIT, EventFlags::IN)?;
        let watched = Arc::new(Watched {
            line: Arc::clone(line),
            epoll,
            quit,
            cqs: Mutex::new(Cqs {
                next: FIRST,
                all: HashMap::new(),
            }),
        });
        let of_thread = Arc::clone(&watched);
        let thread = std::thread::Builder::new().name("trunkline".into());
        let thread = with_signals_blocked(|| thread.spawn(move || of_thread.watch()))
            .map_err(Error::system("thread"))?;
        Ok(Self {
            watched,
            thread: Some(thread),
        })
    }

    /// Notifies a program of the events of a CQ from now on. Gives what it is called until it is
    /// [let go](Self::unwatch).
    ///
    /// # Errors
    /// The system has no room for it.
    pub(super) fn watch(&self, signals: Signals, notify: Arc<dyn Notify>) -> Result<u64, Error> {
        let mut cqs = self.watched.cqs();
        let token = cqs.next;
        let data = EventData::new_u64(token);
        epoll::add(&self.watched.epoll, signals.as_fd(), data, EventFlags::IN)
            .map_err(|e| Error::system("epoll of a node")(e.into()))?;
        cqs.next += 1;
        let program = Arc::clone(&notify);
        cqs.all.insert(token, Notified { signals, notify });
        drop(cqs);
        // The thread may have told those that were there before, and ended.
        if !self.watched.line.life().is_up() {
            program.notify();
        }
        Ok(token)
    }

    pub(super) fn unwatch(&self, token: u64) {
        let mut cqs = self.watched.cqs();
        let Some(cq) = cqs.all.remove(&token) else {
            return;
        };
        // In a child of this process the instance is the parent's still, which goes on.
        if self.watched.line.life().is_forked() {
            return;
        }
        // To close it would not be enough: a child of this process has it, too.
        let deleted = epoll::delete(&self.watched.epoll, cq.signals.as_fd());
        debug_assert!(deleted.is_ok(), "it was added: {deleted:?}");
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.watched.line.life().is_forked() {
            // The thread is the parent's: there is none here to wait for.
            std::mem::forget(thread);
            return;
        }
        let _ = rustix::io::write(&self.watched.quit, &1u64.to_ne_bytes());
        if let Some(thread) = thread {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

impl Watched {
    fn watch(&self) {
        loop {
            let mut ready = [const { MaybeUninit::uninit() }; 16];
            let Ok((ready, _)) = epoll::wait(&self.epoll, &mut ready[..], None) else {
                // A signal, or no memory at the moment.
                std::thread::yield_now();
                continue;
            };
            for event in &*ready {
                match event.data.u64() {
                    SOCKET => self.line.end(),
                    QUIT => return,
                    token => self.notify(token),
                }
            }
            if !self.line.life().is_up() {
                // Whoever waits for a completion looks, and finds that none comes any more.
                let all: Vec<_> = self.cqs().all.values().map(Notified::program).collect();
                return all.iter().for_each(|program| program.notify());
            }
        }
    }

    fn notify(&self, token: u64) {
        let program = {
            let cqs = self.cqs();
            let raised = cqs.all.get(&token).filter(|cq| cq.signals.take() > 0);
            raised.map(Notified::program)
        };
        // It may drop the CQ, which takes the lock.
        if let Some(program) = program {
            program.notify();
        }
    }

    fn cqs(&self) -> MutexGuard<'_, Cqs> {
        // It is whole at any time.
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notified {
    fn program(&self) -> Arc<dyn Notify> {
        Arc::clone(&self.notify)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::super::ServiceAddress;
    use super::*;
    use crate::node::life::Life;
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Heard(AtomicBool);

    impl Notify for Heard {
        fn notify(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_cq_that_comes_when_the_end_was_told_is_told_of_it() {
        let name = format!("@trunkline-test/{}/watcher", std::process::id());
        let address = ServiceAddress::of(Path::new(&name)).unwrap();
        let service = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&service, address.socket()).unwrap();
        listen(&service, 1).unwrap();
        let life = Arc::new(Life::new(Vec::new()).unwrap());
        let line = Arc::new(Line::open(&address, Arc::clone(&life)).unwrap());
        let watcher = Watcher::start(&line).unwrap();
        drop(service);
        while !watcher.thread.as_ref().unwrap().is_finished() {
            std::thread::yield_now();
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let (signals, heard) = (Signals::new(epoll, &life).unwrap(), Arc::default());
        let notify: Arc<Heard> = Arc::clone(&heard);
        watcher.watch(signals, notify).unwrap();
        assert!(heard.0.load(Ordering::SeqCst), "who waits, waits for ever");
    }
}
