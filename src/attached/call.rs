//! Requests and their answers over the socket.

use super::{ServiceAddress, texts};
use crate::error::Error;
use crate::node::life::{Down, Life};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, connect, shutdown, socket_with,
};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use trunkline_dataplane::process::with_signals_blocked;
use trunkline_host::control::answers::{Detached, Failed, Refused};
use trunkline_host::control::requests::Detach;
use trunkline_host::control::{Answer, MAX_MESSAGE, Request};
use trunkline_host::piece::{PieceName, PieceNameError};
use trunkline_host::segment::SegmentError;
use trunkline_host::socket::{MAX_DESCRIPTORS, SocketError, peer, recv_with_fds, send_with_fds};
use trunkline_host::{Piece, SegmentTable};
use trunkline_qpmap::VerbsError;

/// How long a service has to let a program in. One that is stopped (SIGSTOP) never does.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long it has, at least, to part with a program.
const PARTING_TAKES: Duration = Duration::from_secs(1);
/// Pause between two looks at whether a request is under way still.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// What is said of a service that did not.
pub(super) const SILENT: &str = "it does not answer within 10 s: is it stopped?";

/// An answer, and the descriptors that came with it.
pub(super) type Reply<T> = (T, [Option<OwnedFd>; MAX_DESCRIPTORS]);

/// An answer that names a piece, the piece, unless this process has no memory for it, and the other
/// descriptor that came.
pub(super) type Placed<T> = (T, Result<Piece, Error>, Option<OwnedFd>);

/// The socket to the service, and what came over it.
pub(super) struct Line {
    life: Arc<Life>,
    socket: OwnedFd,
    /// Who has it comes before all that do not wait for the state yet.
    turn: Mutex<()>,
    /// Who has it has the only request that is under way.
    state: Mutex<State>,
}

struct State {
    /// That of the last request.
    number: u32,
    segments: Segments,
    buffer: Box<[u8; MAX_MESSAGE]>,
}

/// The segments that the service sent, each of them once.
#[derive(Default)]
struct Segments {
    mapped: SegmentTable,
    /// Those that this process had no memory for.
    unmapped: HashMap<u32, (OwnedFd, u64)>,
}

impl State {
    const fn next_number(&mut self) -> u32 {
        self.number = match self.number.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        self.number
    }
}

impl Line {
    /// A service has a time limit for its answers until [`welcomed`](Self::welcomed).
    pub(super) fn open(address: &ServiceAddress, life: Arc<Life>) -> Result<Self, Error> {
        let socket = connect_to(address)?;
        Ok(Self {
            life,
            socket,
            turn: Mutex::default(),
            state: Mutex::new(State {
                number: 0,
                segments: Segments::default(),
                buffer: Box::new([0; MAX_MESSAGE]),
            }),
        })
    }

    /// The program is attached: its requests take as long as they take.
    pub(super) fn welcomed(&self) -> Result<(), Error> {
        limit(self.socket(), None)
    }

    pub(super) const fn life(&self) -> &Arc<Life> {
        &self.life
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks the service, and waits for its answer.
    ///
    /// # Errors
    /// It refuses, it is gone, or this process is a child of the program's.
    pub(super) fn ask<T: TryFrom<Answer>>(
        &self,
        request: impl Into<Request>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply<T>, Error> {
        self.ask_with(&mut self.state(), request, descriptors)
    }

    /// Asks the service for a piece, which `place` finds in the answer with the bytes of its
    /// segment, if that is new. Gives the piece, unless this process has no memory for the segment,
    /// and the other descriptor that came with it: that of a segment comes first.
    ///
    /// The segment is taken up before any other request is asked, as the next answer may name it.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(super) fn ask_for_piece<T: TryFrom<Answer>>(
        &self,
        request: impl Into<Request>,
        place: impl FnOnce(&T) -> (PieceName, Option<u64>),
    ) -> Result<Placed<T>, Error> {
        let mut state = self.state();
        let (answer, [first, second]) = self.ask_with(&mut state, request, &[])?;
        let (name, new_segment) = place(&answer);
        let (segment, other) = match new_segment {
            Some(bytes) => (first.map(|file| (file, bytes)), second),
            None => (None, first),
        };
        let piece = self.resolve(&mut state.segments, name, segment);
        Ok((answer, piece, other))
    }

    fn ask_with<T: TryFrom<Answer>>(
        &self,
        state: &mut State,
        request: impl Into<Request>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply<T>, Error> {
        self.life.check()?;
        let number = state.next_number();
        let request = request.into();
        let room = self.room_for_answer(&request)?;
        let message = request.to_bytes(number);
        match send_with_fds(self.socket(), &message, descriptors) {
            Ok(()) => {}
            // The system has no room for it: nothing was sent, and nothing comes.
            Err(SocketError::System(error)) if !is_end(&error) => {
                return Err(match lets_go(&request) {
                    // Nobody asks again, and the service would go on with what is gone here.
                    true => self.give_up(format!("it could not be asked: {error}").into()),
                    false => Error::system("request to the service")(error),
                });
            }
            // It may have said why before it closed its end.
            Err(_) => return Err(self.hear_end(state)),
        }
        drop(room);
        let (answer, descriptors) = match self.hear(state) {
            Some((answered, answer, descriptors)) if answered == number => (answer, descriptors),
            Some((0, Answer::Detached(Detached { text, .. }), _))
            | Some((0, Answer::Refused(Refused { text, .. }), _)) => {
                return Err(self.over(text.as_str().into()));
            }
            Some(_) => return Err(self.broken("it answered what was not asked")),
            None => return Err(self.gone()),
        };
        match answer {
            Answer::Failed(failed) => Err(refusal(&failed)),
            Answer::Refused(Refused { text, .. }) | Answer::Detached(Detached { text, .. }) => {
                Err(self.over(text.as_str().into()))
            }
            answer => match T::try_from(answer) {
                Ok(answer) => Ok((answer, descriptors)),
                Err(_) => Err(self.broken("its answer is to another kind of request")),
            },
        }
    }

    /// Ends the node in order, and tells the service so as the last thing that is said to it. Waits
    /// until that touches no memory of the program any more, for so long at most. Gives whether
    /// the node was up.
    pub(super) fn detach(&self, time: Duration) -> bool {
        let time = time.clamp(PARTING_TAKES, ANSWER_WITHIN);
        let _turn = self.turn();
        // Whoever asks has its answer first, if that comes in time, or waits until this is done.
        let Some(mut state) = self.state_within(time) else {
            let was_up = self.life.end(Down::ShutDown);
            // Whoever waits for an answer hears that none comes, and so does the service.
            let _ = shutdown(self.socket(), Shutdown::Both);
            return was_up;
        };
        let was_up = self.life.end(Down::ShutDown);
        let message = Request::from(Detach {}).to_bytes(state.next_number());
        // A service that is gone has destroyed everything.
        // A signal begins a wait anew: those that come keep nobody here.
        with_signals_blocked(|| {
            if limit(self.socket(), Some(time)).is_ok()
                && send_with_fds(self.socket(), &message, &[]).is_ok()
            {
                self.hear_end(&mut state);
            }
        });
        was_up
    }

    /// Waits until no request is under way, and nobody [detaches](Self::detach).
    pub(super) fn settle(&self) {
        drop(self.state());
    }

    /// Room for the descriptors that the answer may bring: what cannot be received is lost, and the
    /// node with it.
    ///
    /// # Errors
    /// The process has as many descriptors as it may.
    fn room_for_answer(&self, request: &Request) -> Result<Vec<OwnedFd>, Error> {
        let brings = matches!(
            request,
            Request::RequestRing(_)
                | Request::WatchEvents(_)
                | Request::AllocMemory(_)
                | Request::LendMemory(_)
                | Request::OpenUserfault(_)
        );
        match brings {
            true => self.room(),
            false => Ok(Vec::new()),
        }
    }

    /// Room for the descriptors of an answer.
    ///
    /// # Errors
    /// The process has as many descriptors as it may.
    pub(super) fn room(&self) -> Result<Vec<OwnedFd>, Error> {
        let room = (0..MAX_DESCRIPTORS).map(|_| self.socket.try_clone());
        room.collect::<Result<_, _>>()
            .map_err(Error::system("descriptor for an answer"))
    }

    /// This process could not take up what the service has moved a queue to: from there on the two
    /// would use different memory.
    pub(super) fn lost(&self, error: &Error) -> Error {
        self.give_up(format!("it has moved a queue to memory that is not here: {error}").into())
    }

    /// The next message; `None`: none comes any more.
    fn hear(&self, state: &mut State) -> Option<(u32, Answer, [Option<OwnedFd>; MAX_DESCRIPTORS])> {
        let received = match recv_with_fds(self.socket(), &mut state.buffer) {
            Ok(received) => received?,
            Err(SocketError::DescriptorsLost) => {
                // The service does not send them again.
                self.give_up("this process has no descriptor left for what it sent".into());
                return None;
            }
            Err(SocketError::System(error)) if error.kind() == ErrorKind::WouldBlock => {
                self.over(SILENT.into());
                return None;
            }
            Err(_) => return None,
        };
        let (number, answer) = Answer::parse(&state.buffer[..received.bytes]).ok()?;
        Some((number, answer, received.descriptors))
    }

    /// The service closed its end: hears what it said last.
    pub(super) fn end(&self) {
        let mut state = self.state();
        if self.life.is_up() {
            self.hear_end(&mut state);
        }
    }

    fn hear_end(&self, state: &mut State) -> Error {
        while let Some((_, answer, _)) = self.hear(state) {
            if let Answer::Detached(Detached { text, .. }) | Answer::Refused(Refused { text, .. }) =
                answer
            {
                return self.over(text.as_str().into());
            }
        }
        self.gone()
    }

    fn gone(&self) -> Error {
        self.give_up("it is gone".into())
    }

    /// The service does not keep to the protocol.
    pub(super) fn broken(&self, why: &str) -> Error {
        self.give_up(format!("it is of another version, or broken: {why}").into())
    }

    /// The node is down, if it was not, since this side does not go on. The service, if it is there
    /// still, touches no memory of the program from then on, as it does where it says the end.
    fn give_up(&self, why: Arc<str>) -> Error {
        let socket = self.socket();
        if self.life.is_up()
            && limit(socket, Some(PARTING_TAKES)).is_ok()
            && shutdown(socket, Shutdown::Write).is_ok()
        {
            let mut buffer = Box::new([0; MAX_MESSAGE]);
            // What is no message is not the end of them.
            let is_over = |heard| matches!(heard, Ok(None) | Err(SocketError::System(_)));
            // A signal begins a wait anew: those that come keep nobody here.
            with_signals_blocked(|| while !is_over(recv_with_fds(socket, &mut buffer)) {});
        }
        self.over(why)
    }

    /// The node is down, if it was not.
    fn over(&self, why: Arc<str>) -> Error {
        let down = Down::Service { why };
        self.life.end(down.clone());
        // The first reason counts.
        self.life.check().err().unwrap_or_else(|| down.into())
    }

    /// The piece of that name, whose segment may have come just now.
    fn resolve(
        &self,
        segments: &mut Segments,
        name: PieceName,
        new: Option<(OwnedFd, u64)>,
    ) -> Result<Piece, Error> {
        let came = new.or_else(|| segments.unmapped.remove(&name.segment));
        if let Some((file, bytes)) = came {
            match segments.mapped.add(name.segment, file.as_fd(), bytes) {
                Ok(()) => {}
                Err(PieceNameError::Segment(SegmentError::System { error, .. })) => {
                    segments.unmapped.insert(name.segment, (file, bytes));
                    return Err(Error::system("memory that is shared with the service")(
                        error,
                    ));
                }
                Err(error) => return Err(self.broken(&error.to_string())),
            }
        }
        let piece = segments.mapped.resolve(name);
        piece.map_err(|error| self.broken(&error.to_string()))
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if nobody has it any more within that time: a service that is stopped (SIGSTOP)
    /// answers nothing.
    fn state_within(&self, time: Duration) -> Option<MutexGuard<'_, State>> {
        let start = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() < time => {
                    std::thread::sleep(LOOK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        drop(self.turn());
        // A request that a panic cut short leaves an answer of another number, which is found out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket to the service at `address`, on which it has [`ANSWER_WITHIN`] for each answer.
///
/// # Errors
/// Nobody serves there, or one who is not trusted; this process has no descriptor left.
pub(crate) fn connect_to(address: &ServiceAddress) -> Result<OwnedFd, Error> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::system("socket")(e.into()))?;
    limit(socket.as_fd(), Some(ANSWER_WITHIN))?;
    connect(&socket, address.socket()).map_err(|e| match e {
        Errno::AGAIN => address.silent(),
        Errno::ACCESS | Errno::PERM => {
            let error = std::io::Error::from(e);
            let text = format!(
                "user {} may not attach to a service at {address}: {error}: its owner lets others \
                 in by the mode of the socket and of its folder",
                rustix::process::geteuid().as_raw()
            );
            Error::system("connect")(std::io::Error::new(error.kind(), text))
        }
        e => {
            let error = std::io::Error::from(e);
            let text = format!("no service at {address}: {error}");
            Error::system("connect")(std::io::Error::new(error.kind(), text))
        }
    })?;
    // Any user can take a name without a file, and would be sent this program's memory.
    if address.file().is_none() {
        let peer = peer(socket.as_fd()).map_err(Error::system("credentials of the service"))?;
        if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
            let text = format!(
                "{address} is served by user {}, who is not trusted",
                peer.uid
            );
            let error = std::io::Error::new(ErrorKind::PermissionDenied, text);
            return Err(Error::system("connect")(error));
        }
    }
    Ok(socket)
}

/// Limits how long the socket waits for its other end; `None`: for ever.
fn limit(socket: BorrowedFd<'_>, time: Option<Duration>) -> Result<(), Error> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, direction, time)
            .map_err(|e| Error::system("setsockopt")(e.into()))?;
    }
    Ok(())
}

/// Whether a request is for the end of an object, which is gone for the program in any case.
const fn lets_go(request: &Request) -> bool {
    matches!(
        request,
        Request::DeregisterMr(_)
            | Request::DeallocMw(_)
            | Request::DeallocPd(_)
            | Request::DestroyCq(_)
            | Request::DestroyQp(_)
            | Request::DestroySrq(_)
            | Request::FreeMemory(_)
            | Request::ReturnMemory(_)
    )
}

/// Whether a request was not sent as nobody reads it any more, or not in time.
fn is_end(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, WouldBlock};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionReset | NotConnected | WouldBlock
    )
}

fn refusal(failed: &Failed) -> Error {
    let parts = failed.error.map(|parts| parts.map_text(texts::kept));
    match parts.and_then(VerbsError::from_parts) {
        Some(error) => error.into(),
        None => Error::Refused {
            errno: failed.errno,
            why: failed.text.as_str().into(),
        },
    }
}
