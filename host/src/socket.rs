//! Messages and descriptors over a Unix socket of type SOCK_SEQPACKET (unix(7)), and who is at its
//! other end.
//!
//! A message and the descriptors that belong to it arrive together or not at all. A side that is
//! sent what it did not ask for closes it.

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
    /// A system call failed. [`io::ErrorKind::WouldBlock`]: the socket does not block, and has no
    /// message or no room for one.
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
/// it is sent or nothing.
///
/// # Errors
/// The message is empty or too long, there are too many descriptors, or the system refuses: the
/// peer is gone (`EPIPE`; no signal is raised), or it does not read.
pub fn send_with_fds(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
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
    let send = || rustix::net::sendmsg(socket, &message, &mut ancillary, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(send)?;
    Ok(())
}

/// Receives a message and the descriptors that came with it. `None` when the peer has closed its
/// end, or sent a message of no bytes, which nobody who keeps to the protocol does.
///
/// # Errors
/// The message or its descriptors are more than they may be, or were cut short, or the system
/// refuses. The descriptors that came are closed then, and the next message can be received.
pub fn recv_with_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; MAX_MESSAGE],
) -> Result<Option<Received>, SocketError> {
    receive_into(socket, buffer, &mut [MaybeUninit::uninit(); ROOM])
}

/// As [`recv_with_fds`], with `room` for what comes with the message.
fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; MAX_MESSAGE],
    room: &mut [MaybeUninit<u8>],
) -> Result<Option<Received>, SocketError> {
    let mut ancillary = RecvAncillaryBuffer::new(room);
    let mut message = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let receive = || rustix::net::recvmsg(socket, &mut message, &mut ancillary, flags);
    let received = rustix::io::retry_on_intr(receive)?;
    let (descriptors, too_many) = take(&mut ancillary);
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(SocketError::DescriptorsLost);
    }
    if too_many {
        return Err(SocketError::TooManyDescriptors);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(SocketError::Truncated);
    }
    let bytes = received.bytes;
    Ok((bytes > 0).then_some(Received { bytes, descriptors }))
}

/// The descriptors of a message, and whether there were more than a message has, which are closed.
fn take(ancillary: &mut RecvAncillaryBuffer<'_>) -> ([Option<OwnedFd>; MAX_DESCRIPTORS], bool) {
    let mut descriptors = [const { None }; MAX_DESCRIPTORS];
    let mut places = descriptors.iter_mut();
    let mut too_many = false;
    for message in ancillary.drain() {
        let RecvAncillaryMessage::ScmRights(rights) = message else {
            continue;
        };
        for descriptor in rights {
            match places.next() {
                Some(place) => *place = Some(descriptor),
                None => too_many = true,
            }
        }
    }
    (descriptors, too_many)
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
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// A message and its descriptors.
    type Message = (Vec<u8>, Vec<OwnedFd>);

    fn receive(socket: &OwnedFd) -> Result<Option<Message>, SocketError> {
        let mut buffer = [0; MAX_MESSAGE];
        let received = recv_with_fds(socket.as_fd(), &mut buffer)?;
        Ok(received.map(|received| {
            let descriptors = received.descriptors.into_iter().flatten().collect();
            (buffer[..received.bytes].to_vec(), descriptors)
        }))
    }

    /// Sends without the checks of the sender.
    fn send_anything(socket: &OwnedFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let message = [IoSlice::new(message)];
        rustix::net::sendmsg(socket, &message, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    }

    /// A pipe whose reading end tells when the last writing end is closed.
    fn pipe() -> (std::io::PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, writer.into())
    }

    #[test]
    fn messages_keep_their_bounds_and_their_descriptors() {
        let (here, there) = pair();
        let (mut reader, writer) = pipe();
        let all = [writer.as_fd(), here.as_fd()];
        for count in 0..=2 {
            let message = vec![count as u8; if count == 2 { MAX_MESSAGE } else { 1 }];
            send_with_fds(here.as_fd(), &message, &all[..count]).unwrap();
        }
        drop(writer);
        let (none, descriptors) = receive(&there).unwrap().unwrap();
        assert_eq!((none, descriptors.len()), (vec![0], 0));
        let (one, descriptors) = receive(&there).unwrap().unwrap();
        assert_eq!((one, descriptors.len()), (vec![1], 1));
        let flags = fcntl_getfd(&descriptors[0]).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
        let mut writer = File::from(descriptors.into_iter().next().unwrap());
        writer.write_all(b"x").unwrap();
        drop(writer);
        let (two, descriptors) = receive(&there).unwrap().unwrap();
        assert_eq!((two, descriptors.len()), (vec![2; MAX_MESSAGE], 2));
        drop(descriptors);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x", "and no writing end is left open");
    }

    #[test]
    fn nothing_to_read_and_a_closed_end_are_told_apart() {
        let (here, there) = pair();
        match receive(&there) {
            Err(SocketError::System(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            }
            other => panic!("{other:?}"),
        }
        drop(here);
        assert!(receive(&there).unwrap().is_none());
        match send_with_fds(there.as_fd(), b"x", &[]) {
            Err(SocketError::System(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_no_message_has_is_not_sent() {
        let (here, there) = pair();
        for bytes in [0, MAX_MESSAGE + 1] {
            let refused = send_with_fds(here.as_fd(), &vec![0; bytes], &[]).unwrap_err();
            assert!(matches!(refused, SocketError::BadLength { bytes: b } if b == bytes));
        }
        let refused = send_with_fds(here.as_fd(), b"x", &[here.as_fd(); 3]).unwrap_err();
        assert!(matches!(refused, SocketError::TooManyDescriptors));
        assert!(receive(&there).is_err(), "nothing has arrived");
    }

    #[test]
    fn descriptors_beyond_the_most_are_an_error_and_all_are_closed() {
        for count in [3, 4, 5, 60] {
            let (here, there) = pair();
            let (mut reader, writer) = pipe();
            send_anything(&here, b"many", &vec![writer.as_fd(); count]);
            send_anything(&here, b"next", &[]);
            drop(writer);
            let refused = receive(&there).unwrap_err();
            assert!(
                matches!(
                    refused,
                    SocketError::DescriptorsLost | SocketError::TooManyDescriptors
                ),
                "{refused:?}"
            );
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            let (next, descriptors) = receive(&there).unwrap().unwrap();
            assert_eq!((&next[..], descriptors.len()), (&b"next"[..], 0));
        }
    }

    #[test]
    fn descriptors_that_the_kernel_drops_are_an_error() {
        let (here, there) = pair();
        send_with_fds(here.as_fd(), b"x", &[here.as_fd()]).unwrap();
        let refused = receive_into(there.as_fd(), &mut [0; MAX_MESSAGE], &mut []).unwrap_err();
        assert!(matches!(refused, SocketError::DescriptorsLost));
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error_and_its_descriptors_are_closed() {
        let (here, there) = pair();
        let (mut reader, writer) = pipe();
        send_anything(&here, &[7; MAX_MESSAGE + 1], &[writer.as_fd()]);
        drop(writer);
        assert!(matches!(receive(&there), Err(SocketError::Truncated)));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (here, _there) = pair();
        let found = peer(here.as_fd()).unwrap();
        let expected = Peer {
            pid: NonZeroU32::new(std::process::id()),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        assert_eq!(found, expected);
        let file = File::open("/dev/null").unwrap();
        assert!(peer(file.as_fd()).is_err());
        let flags = SocketFlags::CLOEXEC;
        let alone = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let refused = peer(alone.as_fd()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
    }
}
