//! Descriptors that a program shares with the service, once they are of no more use.
//!
//! To close an eventfd may take as long as a program likes that watches it by an epoll instance of
//! its own. So they are closed by a thread for each program, one after the other.

use super::objects::CqSignal;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use trunkline_host::Closer;

/// Most descriptors of a program that wait to be closed; with more it gets no more CQs, and no
/// memory is lent to it.
const MOST: usize = 1024;

/// What waits to be closed of a program.
#[derive(Debug, Default)]
pub(super) struct Graves {
    /// A worker may be about to raise it still.
    signals: Vec<Arc<CqSignal>>,
    descriptors: Vec<OwnedFd>,
}

impl Graves {
    pub(super) fn bury_signal(&mut self, signal: Arc<CqSignal>) {
        self.signals.push(signal);
    }

    pub(super) fn bury(&mut self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        self.descriptors.extend(descriptors);
    }

    /// Takes the descriptors of signals that no worker has any more.
    fn settle(&mut self) {
        for signal in std::mem::take(&mut self.signals) {
            match Arc::try_unwrap(signal) {
                Ok(signal) => self.descriptors.extend(signal.0.into_fds()),
                Err(shared) => self.signals.push(shared),
            }
        }
    }

    /// Hands over what can be closed now. True where the program has left too much unclosed.
    pub(super) fn close(&mut self, closer: &Closer) -> bool {
        self.settle();
        while let Some(descriptor) = self.descriptors.pop() {
            if let Err(left) = closer.try_close(descriptor) {
                self.descriptors.push(left);
                break;
            }
        }
        self.descriptors.len() > MOST
    }

    /// Everything that is to be closed, once no worker has any of it; `None` until then.
    pub(super) fn all(&mut self) -> Option<Vec<OwnedFd>> {
        self.settle();
        let settled = self.signals.is_empty();
        settled.then(|| std::mem::take(&mut self.descriptors))
    }
}
