//! Messages and descriptors over a Unix socket of type SOCK_SEQPACKET (unix(7)), and who is at its
//! other end.
//!
//! A message and the descriptors that belong to it arrive together or not at all. A side that is
//! sent what it did not ask for closes it.
//!
//! A service never waits for a client: it uses [`try_send_with_fds`] and [`try_recv_with_fds`],
//! which do not block even where somebody has set the socket to blocking mode. A client may wait.

#![allow(unsafe_code, reason = "asks for the credentials of a peer")]

use crate::control::MAX_MESSAGE;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Most descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 2;

/// Room for the descriptors of a message, in bytes.
const ROOM: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));
/// Room for as many as a message can bring at all (`SCM_MAX_FD`, unix(7)).
const MOST_ROOM: usize = rustix::cmsg_space!(ScmRights(253));

/// Why a message was not sent or not received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The message has no bytes, or more than [`MAX_MESSAGE`].
    #[error("a message cannot have {bytes} bytes")]
    BadLength {
        /// Bytes of the message.
        bytes: usize,
    },
    /// More than [`MAX_DESCRIPTORS`] descriptors belong to the message. All of them are closed if
    /// it was received.
    #[error("a message has at most {MAX_DESCRIPTORS} descriptors")]
    TooManyDescriptors,
    /// The message that was received is longer than [`MAX_MESSAGE`].
    #[error("a message longer than {MAX_MESSAGE} bytes was cut short")]
    Truncated,
    /// The kernel dropped descriptors (`MSG_CTRUNC`): more came than there is room for, or this
    /// process has as many open as it may. Those that arrived are closed.
    #[error("descriptors of a message were lost")]
    DescriptorsLost,
    /// A system call failed. [`io::ErrorKind::WouldBlock`]: the call does not block, and there is
    /// no message or no room for one.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for SocketError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// A message that was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message, which are at the start of the buffer.
    pub bytes: usize,
    /// The descriptors that came with it, in their order; they are closed on exec.
    pub descriptors: [Option<OwnedFd>; MAX_DESCRIPTORS],
}

/// Sends a message, and up to [`MAX_DESCRIPTORS`] descriptors with it, which stay open here. All of
/// it is sent or nothing. Waits for room if the socket is in blocking mode.
///
/// # Errors
/// The message is empty or too long, there are too many descriptors, or the system refuses: the
/// peer is gone (`EPIPE`; no signal is raised), or it does not read.
pub fn send_with_fds(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), SocketError> {
    send(socket, message, descriptors, SendFlags::empty())
}

/// As [`send_with_fds`], and never waits.
///
/// # Errors
/// As there; [`io::ErrorKind::WouldBlock`] where there is no room.
pub fn try_send_with_fds(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), SocketError> {
    send(socket, message, descriptors, SendFlags::DONTWAIT)
}

fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), SocketError> {
    let bytes = message.len();
    if bytes == 0 || bytes > MAX_MESSAGE {
        return Err(SocketError::BadLength { bytes });
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(SocketError::TooManyDescriptors);
    }
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(pushed, "the room was reckoned for as many");
    }
    let message = [IoSlice::new(message)];
    let flags = flags | SendFlags::NOSIGNAL;
    let send = || rustix::net::sendmsg(socket, &message, &mut ancillary, flags);
    rustix::io::retry_on_intr(send)?;
    Ok(())
}

/// Receives a message and the descriptors that came with it. `None` when the peer has closed its
/// end, or sent a message of no bytes, which nobody who keeps to the protocol does. Waits for a
/// message if the socket is in blocking mode.
///
/// # Errors
/// The message or its descriptors are more than they may be, or were cut short, or the system
/// refuses. The descriptors that came are closed then, and the next message can be received.
pub fn recv_with_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; MAX_MESSAGE],
) -> Result<Option<Received>, SocketError> {
    let room = &mut [MaybeUninit::uninit(); ROOM];
    receive_into(socket, buffer, room, RecvFlags::empty(), &mut Vec::new())
}

/// As [`recv_with_fds`], and never waits.
///
/// # Errors
/// As there; [`io::ErrorKind::WouldBlock`] where there is no message.
pub fn try_recv_with_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; MAX_MESSAGE],
) -> Result<Option<Received>, SocketError> {
    try_recv_leaving(socket, buffer, &mut Vec::new())
}

/// As [`try_recv_with_fds`], but closes nothing: descriptors of what is no message are `left` to
/// the caller, who may not wait for them to be closed.
///
/// # Errors
/// As there.
pub fn try_recv_leaving(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; MAX_MESSAGE],
    left: &mut Vec<OwnedFd>,
) -> Result<Option<Received>, SocketError> {
    let room = &mut [MaybeUninit::uninit(); MOST_ROOM];
    receive_into(socket, buffer, room, RecvFlags::DONTWAIT, left)
}

/// Receives with `room` for what comes with the message. What comes with no message is `left`.
fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; MAX_MESSAGE],
    room: &mut [MaybeUninit<u8>],
    flags: RecvFlags,
    left: &mut Vec<OwnedFd>,
) -> Result<Option<Received>, SocketError> {
    let mut ancillary = RecvAncillaryBuffer::new(room);
    let mut message = [IoSliceMut::new(buffer)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut receive = || rustix::net::recvmsg(socket, &mut message, &mut ancillary, flags);
    let mut received = rustix::io::retry_on_intr(&mut receive);
    // A peer that closed before it had read everything is told once, before what it said last
    // (unix(7)).
    if let Err(Errno::CONNRESET) = received {
        received = rustix::io::retry_on_intr(&mut receive);
    }
    let received = received?;
    let before = left.len();
    take(&mut ancillary, left);
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(SocketError::DescriptorsLost);
    }
    if left.len() - before > MAX_DESCRIPTORS {
        return Err(SocketError::TooManyDescriptors);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(SocketError::Truncated);
    }
    let bytes = received.bytes;
    if bytes == 0 {
        return Ok(None);
    }
    let mut came = left.drain(before..);
    let descriptors = [(); MAX_DESCRIPTORS].map(|()| came.next());
    drop(came);
    Ok(Some(Received { bytes, descriptors }))
}

/// Takes the descriptors of a message.
fn take(ancillary: &mut RecvAncillaryBuffer<'_>, taken: &mut Vec<OwnedFd>) {
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            taken.extend(rights);
        }
    }
}

/// Who opened the other end of a socket, as the kernel noted it then (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// Process, if it is in the PID namespace of this process or in one below. Its number may be
    /// another one's once it has ended.
    pub pid: Option<NonZeroU32>,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// Who is at the other end of a connected Unix socket.
///
/// The function of rustix is no use here: its type for the credentials cannot hold process 0, which
/// the kernel tells of a peer that is outside the PID namespace.
///
/// # Errors
/// It is no such socket.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut found = libc::ucred {
        pid: 0,
        uid: NOBODY,
        gid: NOBODY,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `found` has; it is plain numbers.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    if found.uid == NOBODY {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(Peer {
        pid: u32::try_from(found.pid).ok().and_then(NonZeroU32::new),
        uid: found.uid,
        gid: found.gid,
    })
}

/// What the kernel tells where there is no peer; no user and no group has this number.
const NOBODY: u32 = u32::MAX;

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
