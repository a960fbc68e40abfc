//! What a service tells of itself.

use crate::observe::status::source::MOST_TOLD;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A program that is attached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClientStatus {
    /// What it says that it is called.
    pub name: String,
    /// Its process, if that can be told from here.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Protection domains.
    pub pds: u32,
    /// CQs.
    pub cqs: u32,
    /// SRQs.
    pub srqs: u32,
    /// QPs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Bytes of its segments, for rings and for regions, which workers reach without a system call.
    pub segment_bytes: u64,
    /// Bytes of its own memory that are in promoted pages, once for each region that has them. The
    /// pages are in segments, and count there, too.
    #[serde(default)]
    pub promoted_bytes: u64,
    /// Bytes of its other regions, which are reached through `/proc/self/mem`.
    pub foreign_bytes: u64,
}

/// A service, as the status of its node has it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// Where programs attach; one that begins with `@` is a name without a file.
    #[serde(default)]
    pub socket: String,
    /// Programs that are attached: at most 256, those with most QPs first.
    pub clients: Vec<ClientStatus>,
    /// How many programs are attached.
    pub client_count: u64,
    /// QPs of all of them.
    pub qps: u64,
    /// How many programs were parted with because of what they did.
    pub violations: u64,
    /// How many programs were turned away, or parted with, as the service had no descriptor left.
    #[serde(default)]
    pub without_descriptor: u64,
    /// How many requests of programs were refused, as the program, or all of its user, had as much
    /// as they may ([`Limits`](super::Limits)), and programs that were not let in, as there were as
    /// many as there may be.
    #[serde(default)]
    pub beyond_limits: u64,
}

/// What the service and its thread share.
#[derive(Debug, Default)]
pub(super) struct Board {
    clients: Mutex<Vec<ClientStatus>>,
    /// Programs that were parted with because of what they did.
    pub(super) violations: AtomicU64,
    /// Programs for which there was no descriptor.
    pub(super) without_descriptor: AtomicU64,
    /// Requests that were refused for a limit.
    pub(super) beyond_limits: AtomicU64,
    /// The thread ends.
    pub(super) stop: AtomicBool,
    /// It has ended as nobody used the service.
    pub(super) unused: AtomicBool,
    /// Nanoseconds without use after which it does, and 1; 0: never.
    idle_after: AtomicU64,
    socket: PathBuf,
}

impl Board {
    /// Of a service at that socket.
    pub(super) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn set_idle_after(&self, after: Duration) {
        let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.idle_after
            .store(ns.saturating_add(1), Ordering::SeqCst);
    }

    pub(super) fn idle_after(&self) -> Option<Duration> {
        let ns = self.idle_after.load(Ordering::SeqCst).checked_sub(1);
        ns.map(Duration::from_nanos)
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, Vec<ClientStatus>> {
        // It is replaced as a whole.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> ServiceStatus {
        let mut clients = self.clients().clone();
        let client_count = clients.len() as u64;
        let qps = clients.iter().map(|client| u64::from(client.qps)).sum();
        clients.sort_by_key(|client| Reverse(client.qps));
        clients.truncate(MOST_TOLD);
        ServiceStatus {
            socket: self.socket.to_string_lossy().into_owned(),
            clients,
            client_count,
            qps,
            violations: self.violations.load(Ordering::Relaxed),
            without_descriptor: self.without_descriptor.load(Ordering::Relaxed),
            beyond_limits: self.beyond_limits.load(Ordering::Relaxed),
        }
    }
}

/// The service of a node, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Serving(Mutex<Weak<Board>>);

impl Serving {
    fn board(&self) -> MutexGuard<'_, Weak<Board>> {
        // It is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A service has begun: it is told of until it has ended.
    pub(super) fn begin(&self, board: &Arc<Board>) {
        *self.board() = Arc::downgrade(board);
    }

    /// How the service is.
    pub(crate) fn status(&self) -> Option<ServiceStatus> {
        let board = self.board().upgrade();
        board.map(|board| board.status())
    }
}
