//! A program that is attached: what it has.

use super::ClientStatus;
use super::bells::Bells;
use super::events::ClientEvents;
use super::graves::Graves;
use super::limits::Limits;
use super::objects::{CqEntry, MrEntry, QpEntry, SrqEntry};
use super::reply::{Refusal, Reply};
use super::users::Budgets;
use crate::verbs::mr::Pd;
use crate::verbs::mw::Mw;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use trunkline_dataplane::ProcessMemory;
use trunkline_host::closer::Closer;
use trunkline_host::control::Answer;
use trunkline_host::piece::PieceName;
use trunkline_host::socket::{Peer, SocketError, try_send_with_fds};
use trunkline_host::{Lent, Piece, Pieces, Share, Table, Words};
use trunkline_qpmap::Tenant;

/// Most segments that a program is lent: each is a mapping and a descriptor of the service.
const MAX_LENT: u32 = 64;

/// How often a program may ask for a userfaultfd device, of which it needs one.
pub(super) const MAX_USERFAULTS: u32 = 16;

/// How far a program has come.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// It has not said who it is.
    Silent,
    /// The descriptor that it sent is being judged.
    Judged,
    /// It holds the service, and is no program.
    Holding,
    /// It is attached.
    Attached,
}

/// What the service has of a program.
#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    pub(super) peer: Peer,
    pub(super) name: String,
    pub(super) stage: Stage,
    /// The thread that judges, or has judged, the descriptor that it sent.
    pub(super) judge: Option<JoinHandle<()>>,
    /// Its memory, if it gave a descriptor of that.
    pub(super) memory: Option<ProcessMemory>,
    pub(super) closer: Closer,
    pub(super) events: ClientEvents,
    pub(super) belongings: Belongings,
}

/// The objects of a program, and the memory that they lie in. It is dropped in steps.
#[derive(Debug)]
pub(super) struct Belongings {
    /// By whose weight its QPs share connections with those of others.
    pub(super) tenant: Tenant,
    pub(super) qps: Table<QpEntry>,
    pub(super) srqs: Table<SrqEntry>,
    pub(super) cqs: Table<CqEntry>,
    pub(super) mws: Table<Mw>,
    pub(super) mrs: Table<MrEntry>,
    pub(super) pds: Table<Pd>,
    pub(super) memories: Table<Arc<Piece>>,
    /// Segments whose pages it gives out by itself.
    pub(super) lent: Table<Arc<Lent>>,
    /// How often it has asked for a userfaultfd device: what it got it keeps.
    pub(super) userfaults: u32,
    pub(super) bells: Bells,
    pub(super) graves: Graves,
    pub(super) pieces: Pieces,
    /// Bytes of the program's own memory that are registered.
    pub(super) foreign: Share,
    /// Bytes of it in promoted pages, once for each region, which are not among these.
    pub(super) promoted: u64,
}

/// The last that is said to a program, which lets go of its memory when it hears that: so nobody
/// may touch that any more.
#[derive(Debug)]
pub(super) struct Farewell {
    socket: OwnedFd,
    message: Vec<u8>,
}

/// What a program of that user leaves: it is dropped in steps.
#[derive(Debug)]
pub(super) struct Estate {
    pub(super) uid: u32,
    pub(super) farewell: Farewell,
    pub(super) memory: Option<ProcessMemory>,
    pub(super) belongings: Belongings,
}

impl Client {
    /// # Errors
    /// No descriptor is left for its events: gives the socket back, which is to be closed.
    pub(super) fn new(
        socket: OwnedFd,
        peer: Peer,
        workers: u8,
        limits: &Limits,
        budgets: &Budgets,
    ) -> Result<Self, OwnedFd> {
        let Ok(events) = ClientEvents::new() else {
            return Err(socket);
        };
        Ok(Self {
            socket,
            peer,
            name: String::new(),
            stage: Stage::Silent,
            judge: None,
            memory: None,
            closer: Closer::new(),
            events,
            belongings: Belongings {
                tenant: Tenant::OWN,
                qps: Table::sharing(limits.qps, &budgets.qps),
                srqs: Table::sharing(limits.cqs, &budgets.srqs),
                cqs: Table::sharing(limits.cqs, &budgets.cqs),
                mws: Table::sharing(limits.mrs, &budgets.mws),
                mrs: Table::sharing(limits.mrs, &budgets.mrs),
                pds: Table::sharing(limits.mrs, &budgets.pds),
                memories: Table::new(limits.mrs),
                lent: Table::new(MAX_LENT),
                userfaults: 0,
                bells: Bells::new(workers, limits.qps),
                graves: Graves::default(),
                pieces: Pieces::sharing(limits.segment_bytes, &budgets.segment_bytes),
                foreign: Share::of(&budgets.registered_bytes),
                promoted: 0,
            },
        })
    }

    /// Its socket, which is to be closed.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends an answer, and notes the segment that went with it.
    ///
    /// # Errors
    /// The client has no room for it, as it does not read, or is gone.
    pub(super) fn send(&self, number: u32, reply: &Reply) -> Result<(), SocketError> {
        let segment = reply.segment.as_ref();
        let first = segment.map(|segment| segment.file.as_fd());
        let second = reply.descriptor.as_ref().map(AsFd::as_fd);
        let descriptors: Vec<_> = first.into_iter().chain(second).collect();
        let message = reply.answer.to_bytes(number);
        try_send_with_fds(self.socket(), &message, &descriptors)?;
        if let Some(segment) = segment {
            self.belongings.pieces.sent(segment.number);
        }
        Ok(())
    }

    /// What it leaves: what may be busy with its descriptors still, and its belongings. It is to
    /// hear the `last` answer. Its events are among what is to be closed.
    pub(super) fn into_parts(
        self,
        number: u32,
        last: &Answer,
    ) -> (Option<JoinHandle<()>>, Closer, Estate) {
        let mut belongings = self.belongings;
        belongings.graves.bury(self.events.into_fds());
        let estate = Estate {
            uid: self.peer.uid,
            farewell: Farewell {
                socket: self.socket,
                message: last.to_bytes(number),
            },
            memory: self.memory,
            belongings,
        };
        (self.judge, self.closer, estate)
    }

    pub(super) fn status(&self) -> ClientStatus {
        let all = &self.belongings;
        ClientStatus {
            name: self.name.clone(),
            pid: self.peer.pid.map(Into::into),
            uid: self.peer.uid,
            pds: all.pds.len(),
            cqs: all.cqs.len(),
            srqs: all.srqs.len(),
            qps: all.qps.len(),
            mrs: all.mrs.len(),
            mws: all.mws.len(),
            foreign_bytes: all.foreign.amount(),
            promoted_bytes: all.promoted,
            segment_bytes: all.pieces.taken(),
        }
    }
}

impl Farewell {
    /// Says it. Gives the socket, which is to be closed.
    pub(super) fn say(self) -> OwnedFd {
        // The program may be gone, or not read.
        let _ = try_send_with_fds(self.socket.as_fd(), &self.message, &[]);
        self.socket
    }
}

impl Belongings {
    /// Memory for a ring.
    ///
    /// # Errors
    /// The client's quota is used up.
    pub(super) fn piece(&self, words: usize) -> Result<Arc<Piece>, Refusal> {
        let words = u32::try_from(words).unwrap_or(u32::MAX);
        Ok(Arc::new(self.pieces.allocate(words)?))
    }

    /// The answer that names a piece, and its segment if that is new to the client.
    pub(super) fn name<A: Into<Answer>>(
        &self,
        piece: &Piece,
        answer: impl FnOnce(PieceName, Option<u64>) -> A,
    ) -> Reply {
        let name = piece.name();
        let segment = self.pieces.unsent(name.segment);
        let bytes = segment.as_ref().map(|segment| segment.bytes);
        Reply {
            segment,
            ..Reply::from(answer(name, bytes))
        }
    }
}

/// The words of a piece.
pub(super) fn words(piece: &Arc<Piece>) -> Words {
    Words::of(Arc::clone(piece), Piece::as_slice)
}
