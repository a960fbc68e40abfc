//! The program's side of a node that a service carries (docs/adr/0030).
//!
//! The program has its halves of the rings, in segments that the service made, and rings bells
//! there. All else it asks for over a socket: one request at a time, which is answered at once. A
//! thread waits for the end of the service, and for CQs that notify in a way of their own.

mod address;
mod attributes;
mod bells;
mod call;
mod completions;
mod events;
mod memory;
mod promotion;
mod queues;
pub(crate) mod steps;
mod texts;
mod watcher;

pub(crate) use address::ServiceAddress;
pub(crate) use call::connect_to;
pub(crate) use completions::Signals;
pub(crate) use events::{cq_id, srq_id};
pub(crate) use memory::{Memory, Registration};
pub use promotion::{AttachOptions, Promotion};
pub(crate) use queues::{QpObjects, ServedQp, is_offered};

use crate::error::Error;
use crate::node::Node;
use crate::node::life::Life;
use crate::node::shared::Shared;
use bells::WorkerBells;
use call::Line;
use events::Numbers;
use promotion::Promoter;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use trunkline_host::control::answers::{EventsWatched, RingGiven, Welcome};
use trunkline_host::control::attributes::RingKind;
use trunkline_host::control::requests::{Hello, Magic, RequestRing, WatchEvents};
use trunkline_host::control::{Answer, Request, Text, VERSION};
use trunkline_host::{Handle, Piece, Words};
use trunkline_wire::Workers;
use watcher::Watcher;

/// What a program has of the service that carries its node.
pub(crate) struct Client {
    line: Arc<Line>,
    /// Readable while asynchronous events wait.
    events: OwnedFd,
    /// Its doorbells at each worker, from the first QP there on.
    bells: Vec<OnceLock<WorkerBells>>,
    max_qps: u32,
    /// What events of QPs call them.
    numbers: Mutex<Numbers>,
    /// The version of the service, if it is another one than that of this program.
    fw_ver: OnceLock<&'static str>,
    watcher: Watcher,
    promoter: Promoter,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Node {
    /// Attaches the program to a service (`trunkline serve`), whose node carries its QPs from then
    /// on: the connections to a peer are shared by all programs that are attached. `path` is that
    /// of the service's socket; one that begins with `@` is a name without a file (an abstract one,
    /// unix(7)), which belongs to the network namespace.
    ///
    /// The node that this gives has the API of one inside the program, and its own threads drive
    /// it. What it does not offer yet is refused with [`Error::NotOffered`]: connections that
    /// the program opens itself, app-managed QPs, RDMA-CM. Its counters are 0: those of the service
    /// count for all programs.
    ///
    /// Posting and polling are stores and loads, and a system call where the service sleeps;
    /// whatever else a handle does is a message and its answer. Memory that
    /// [`Pd::register`](crate::Pd::register) allocates is shared with the service; other memory of
    /// the program the service reads and writes through `/proc/self/mem`, but for pages that are
    /// promoted ([`Promotion`]).
    ///
    /// When the service ends the node is down ([`Node::health`] says why), the event
    /// [`DeviceFatal`](crate::Event::DeviceFatal) comes, and CQs give an error once all that
    /// completed before was polled.
    ///
    /// # Errors
    /// [`Error::System`]: nobody serves there, or this process has no descriptor or thread left.
    /// A service that does not answer within 10 seconds is given up.
    /// [`Error::Down`]: the service does not take the program, and says why.
    pub fn attach(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::attach_with(path, &AttachOptions::default())
    }

    /// Attaches the program to a service in a way of its own.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_with(path: impl AsRef<Path>, options: &AttachOptions) -> Result<Self, Error> {
        let address = ServiceAddress::of(path.as_ref())?;
        let life = Arc::new(Life::new(Vec::new())?);
        let line = Arc::new(Line::open(&address, Arc::clone(&life))?);
        let hello = Hello {
            magic: Magic,
            version: VERSION,
            name: Text::clipped(&own_name()),
        };
        let memory = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        let memory = memory.map_err(Error::system("/proc/self/mem"))?;
        let (welcome, _) = line.ask::<Welcome>(hello, &[memory.as_fd()])?;
        let (_, [events, _]) = line.ask::<EventsWatched>(WatchEvents { cq: None }, &[])?;
        let events = events.ok_or_else(|| line.broken("no descriptor came for events"))?;
        // Who waits for events hears of the end, whatever the service still watches there.
        let (end, token) = (line.life().end_fd()?, EventData::new_u64(0));
        epoll::add(&events, end, token, EventFlags::IN)
            .map_err(|e| Error::system("epoll of a node")(e.into()))?;
        line.welcomed()?;
        let workers = Workers::new(welcome.workers)
            .ok_or_else(|| line.broken("its node has no workers, or too many"))?;
        let watcher = Watcher::start(&line)?;
        let client = Client {
            promoter: Promoter::new(options.promotion, &line),
            line,
            events,
            bells: (0..workers.count()).map(|_| OnceLock::new()).collect(),
            max_qps: welcome.max_qps,
            numbers: Mutex::default(),
            fw_ver: OnceLock::new(),
            watcher,
        };
        let shared = Shared::attached(life, welcome.gid, workers, client);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

/// What this program is called: the name of its executable.
fn own_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

impl Client {
    /// Asks the service, and waits for its answer.
    fn ask<T: TryFrom<Answer>>(&self, request: impl Into<Request>) -> Result<T, Error> {
        Ok(self.line.ask(request, &[])?.0)
    }

    /// Tells the service to destroy an object. Nobody waits for the answer of a service that is
    /// gone: it has destroyed everything.
    fn destroy(&self, request: impl Into<Request>) {
        let done = self
            .line
            .ask::<trunkline_host::control::answers::Done>(request, &[]);
        let fine = done.is_ok() || !self.line.life().is_up();
        debug_assert!(fine, "an object that its handle keeps: {done:?}");
    }

    /// Ends the node in order, and waits until the service touches no memory of the program any
    /// more: for so long at most, and a second at least. Gives whether it was up.
    pub(crate) fn detach(&self, time: Duration) -> bool {
        self.line.detach(time)
    }

    /// Waits for another thread that [detaches](Self::detach).
    pub(crate) fn settle(&self) {
        self.line.settle();
    }

    /// The memory of a ring, and the descriptor that came with it.
    fn ring(
        &self,
        ring: RingKind,
        object: Option<Handle>,
        worker: u8,
    ) -> Result<(Words, Option<OwnedFd>), Error> {
        let request = RequestRing {
            ring,
            object,
            worker,
        };
        let place = |given: &RingGiven| (given.piece, given.new_segment);
        let (_, piece, descriptor) = self.line.ask_for_piece(request, place)?;
        Ok((words_of(piece?), descriptor))
    }
}

fn words_of(piece: Piece) -> Words {
    Words::of(Arc::new(piece), Piece::as_slice)
}
