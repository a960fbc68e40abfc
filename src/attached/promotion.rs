//! Pages of the program's own memory that it shares with the service while they are registered
//! (docs/adr/0033).

use super::call::{Line, Reply};
use crate::error::Error;
use crate::observe::log;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_conn::mem::{Access, RegionMemory};
use trunkline_dataplane::Region;
use trunkline_dataplane::promotion::{Held, Lender, NotPromoted, hold};
use trunkline_host::Handle;
use trunkline_host::control::answers::{Done, MemoryLent, UserfaultOpened};
use trunkline_host::control::attributes::RegionPlace;
use trunkline_host::control::requests::{LendMemory, OpenUserfault, ReturnMemory};
use trunkline_host::lent::{Arena, KEPT, LentPages};
use trunkline_host::segment::Mapping;

/// Regions of up to so many bytes are promoted without being asked: that takes up to 3 ms.
const SMALL: usize = 4 << 20;

/// Which memory of the program is promoted when it is registered: the pages that are wholly in the
/// region become memory that program and service share, and private memory again at its end.
///
/// The service reaches promoted pages without system calls, and atomics of peers are atomic there
/// towards the program's own instructions ([`Mr::shared_len`](crate::Mr::shared_len)). Threads that
/// store to the pages meanwhile wait about a millisecond. Memory is promoted only if it is private
/// memory to read and write, of no file, no hugepages, no stack of the process or of the thread
/// that registers it, if no other region has some of it, and if the service's quota has room
/// (`segment-bytes`). Other memory is registered as with [`Never`](Self::Never).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Promotion {
    /// None.
    Never,
    /// Regions for [`Access::REMOTE_ATOMIC`], and those of up to 4 MiB.
    #[default]
    Auto,
    /// All regions of up to 1 GiB. It takes about 0.6 s for each.
    Always,
}

impl Promotion {
    fn wants(self, length: usize, access: Access) -> bool {
        match self {
            Self::Never => false,
            Self::Auto => length <= SMALL || access.contains(Access::REMOTE_ATOMIC),
            Self::Always => true,
        }
    }
}

/// How a program attaches to a service ([`Node::attach_with`](crate::Node::attach_with)).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AttachOptions {
    /// Which memory is promoted.
    pub promotion: Promotion,
}

/// Promotes memory of the program for one service.
pub(super) struct Promoter {
    promotion: Promotion,
    line: Arc<Line>,
    arena: Arena,
    /// This process gets no userfaultfd, which was said.
    is_hopeless: AtomicBool,
}

/// Memory of the program's own that is registered, some of which may be promoted.
#[derive(Debug)]
pub(super) struct Promotable {
    /// What is promoted stays so until it is dropped.
    _held: Held,
    shared: Option<Shared>,
}

/// Its promoted part, as the service knows it.
#[derive(Clone, Copy, Debug)]
struct Shared {
    lent: Handle,
    start: u64,
    length: u64,
    offset: u64,
}

impl Promotable {
    pub(super) fn shared_len(&self) -> usize {
        self.shared.map_or(0, |shared| shared.length as usize)
    }

    /// Where the service finds it, as `addr` is where it begins.
    pub(super) fn place(&self, addr: u64) -> RegionPlace {
        match self.shared {
            None => RegionPlace::Foreign { addr },
            Some(shared) => RegionPlace::Promoted {
                lent: shared.lent,
                addr,
                start: shared.start,
                length: shared.length,
                offset: shared.offset,
            },
        }
    }
}

impl Promoter {
    pub(super) fn new(promotion: Promotion, line: &Arc<Line>) -> Self {
        let to = Arc::clone(line);
        Self {
            promotion,
            line: Arc::clone(line),
            arena: Arena::new(move |lent| give_back(&to, lent)),
            is_hopeless: AtomicBool::new(false),
        }
    }

    /// Holds memory of the program as a region for `access`, and promotes it where that is wanted
    /// and can be.
    pub(super) fn hold(&self, region: &Region, access: Access) -> Promotable {
        let wants =
            self.promotion.wants(region.len(), access) && !self.is_hopeless.load(Ordering::Relaxed);
        let held = hold(region, wants.then_some(self));
        if let Some(why) = held.refused() {
            let is_over = matches!(why, NotPromoted::NoUserfault(_));
            match is_over && !self.is_hopeless.swap(true, Ordering::Relaxed) {
                true => log::never_promoted(why),
                false => log::not_promoted(region.addr(), region.len(), why),
            }
        }
        let shared = held.shared().and_then(|(start, pages)| {
            // Those of another service are none of this one's.
            let (lent, offset) = self.arena.name(pages.addr() as usize)?;
            Some(Shared {
                lent,
                start: start as u64,
                length: pages.len() as u64,
                offset,
            })
        });
        Promotable {
            _held: held,
            shared,
        }
    }

    /// Has the service lend a segment.
    fn borrow(&self, bytes: u64) -> Result<(), Error> {
        let (MemoryLent { lent }, [file, _]): Reply<_> =
            self.line.ask(LendMemory { bytes }, &[])?;
        let file = file.ok_or_else(|| self.line.broken("no memory came"))?;
        let mapping = Mapping::of_sealed(file.as_fd(), bytes).map_err(|error| {
            give_back(&self.line, lent);
            Error::system("memory of the service")(io::Error::other(error))
        });
        self.arena.add(lent, mapping?);
        Ok(())
    }

    /// Has it lend one with room for so many bytes: with more, and more each time, where it has as
    /// many, so that not each region needs one.
    fn borrow_for(&self, bytes: u64) -> Result<(), Error> {
        let mut wanted = bytes.max(KEPT << self.arena.segments().min(4));
        loop {
            match self.borrow(wanted) {
                Err(_) if wanted > bytes => wanted = bytes.max(wanted / 2),
                done => return done,
            }
        }
    }
}

/// Tells the service of a segment that is not needed any more.
fn give_back(line: &Line, lent: Handle) {
    // One that is gone has taken it back.
    let _ = line.ask::<Done>(ReturnMemory { lent }, &[]);
}

impl Lender for Promoter {
    fn lend(&self, len: usize) -> Option<Region> {
        let pages = self.arena.take(len).or_else(|| {
            self.borrow_for(len as u64).ok()?;
            self.arena.take(len)
        });
        Some(Region::of_words(Arc::new(pages?), LentPages::words))
    }

    fn userfault_device(&self) -> io::Result<OwnedFd> {
        let opened: Result<Reply<UserfaultOpened>, _> = self.line.ask(OpenUserfault {}, &[]);
        let (_, [device, _]) = opened.map_err(io::Error::other)?;
        device.ok_or_else(|| io::Error::other("the service sent none"))
    }
}
