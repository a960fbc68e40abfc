//! Sockets of programs that are not let in.
//!
//! To close one closes what lies in its queue, which may take as long as its sender likes. So a
//! thread for each user does that; where it is held up sockets wait open, and where many wait
//! nobody else is accepted: the rest wait to be.

use super::spare::Spare;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use trunkline_host::Closer;

/// Sockets that wait before nobody is accepted any more.
const MOST: usize = 256;

/// A socket that is closed when it is dropped. It becomes the spare descriptor of its service where
/// there is none.
#[derive(Debug)]
struct Leaving {
    socket: Option<OwnedFd>,
    spare: Arc<Spare>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.spare.replace(socket);
        }
    }
}

/// Those that are being closed.
#[derive(Debug)]
pub(super) struct TurnedAway {
    /// By user; `None`: it could not be told.
    closers: HashMap<Option<u32>, Closer<Leaving>>,
    waiting: Vec<(Option<u32>, Leaving)>,
    spare: Arc<Spare>,
}

impl TurnedAway {
    /// Of a service with this spare descriptor.
    pub(super) fn new(spare: &Arc<Spare>) -> Self {
        Self {
            closers: HashMap::new(),
            waiting: Vec::new(),
            spare: Arc::clone(spare),
        }
    }

    /// Has a socket closed.
    pub(super) fn close(&mut self, uid: Option<u32>, socket: OwnedFd) {
        let leaving = Leaving {
            socket: Some(socket),
            spare: Arc::clone(&self.spare),
        };
        self.try_close(uid, leaving);
    }

    fn try_close(&mut self, uid: Option<u32>, socket: Leaving) {
        let closer = self.closers.entry(uid).or_default();
        if let Err(socket) = closer.try_close(socket) {
            self.waiting.push((uid, socket));
        }
    }

    /// Goes on with those that wait. True while there are some.
    pub(super) fn go_on(&mut self) -> bool {
        for (uid, socket) in std::mem::take(&mut self.waiting) {
            self.try_close(uid, socket);
        }
        self.closers.retain(|_, closer| closer.pending() > 0);
        !self.waiting.is_empty()
    }

    /// Whether nobody else is to be accepted.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MOST
    }
}
