use super::*;
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;

fn pair() -> (OwnedFd, OwnedFd) {
    pair_with(SocketFlags::NONBLOCK)
}

fn pair_with(flags: SocketFlags) -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | flags;
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
    would_block(receive(&there));
    drop(here);
    assert!(receive(&there).unwrap().is_none());
    match send_with_fds(there.as_fd(), b"x", &[]) {
        Err(SocketError::System(error)) => {
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
        other => panic!("{other:?}"),
    }
}

fn would_block<T: std::fmt::Debug>(tried: Result<T, SocketError>) {
    match tried {
        Err(SocketError::System(error)) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_tries_does_not_wait_on_a_socket_in_blocking_mode() {
    let (here, there) = pair_with(SocketFlags::empty());
    let buffer = &mut [0; MAX_MESSAGE];
    would_block(try_recv_with_fds(there.as_fd(), buffer));
    let message = [1; MAX_MESSAGE];
    let try_send = || try_send_with_fds(here.as_fd(), &message, &[there.as_fd()]);
    let sent = std::iter::from_fn(|| try_send().ok()).count();
    assert!(sent > 0);
    would_block(try_send());
    for _ in 0..sent {
        let received = try_recv_with_fds(there.as_fd(), buffer).unwrap().unwrap();
        assert_eq!(received.bytes, MAX_MESSAGE);
        assert_eq!(received.descriptors.iter().flatten().count(), 1);
    }
    would_block(try_recv_with_fds(there.as_fd(), buffer));
}

#[test]
fn the_last_words_of_a_peer_that_has_not_read_everything_arrive() {
    for blocking in [SocketFlags::empty(), SocketFlags::NONBLOCK] {
        let (here, there) = pair_with(blocking);
        send_with_fds(there.as_fd(), b"not read", &[]).unwrap();
        send_with_fds(here.as_fd(), b"last words", &[]).unwrap();
        drop(here);
        let (last, _) = receive(&there).unwrap().unwrap();
        assert_eq!(last, b"last words");
        assert!(receive(&there).unwrap().is_none());
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
    let buffer = &mut [0; MAX_MESSAGE];
    let refused = receive_into(
        there.as_fd(),
        buffer,
        &mut [],
        RecvFlags::empty(),
        &mut Vec::new(),
    )
    .unwrap_err();
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

#[test]
fn what_was_left_before_stays_and_counts_for_nothing() {
    let (here, there) = pair();
    let (_reader, writer) = pipe();
    let mut left: Vec<OwnedFd> = (0..3).map(|_| writer.try_clone().unwrap()).collect();
    let before: Vec<_> = left.iter().map(AsRawFd::as_raw_fd).collect();
    send_with_fds(here.as_fd(), b"x", &[writer.as_fd()]).unwrap();
    let received = try_recv_leaving(there.as_fd(), &mut [0; MAX_MESSAGE], &mut left);
    let came = received.unwrap().unwrap().descriptors;
    assert!(came[0].is_some() && came[1].is_none());
    let after: Vec<_> = left.iter().map(AsRawFd::as_raw_fd).collect();
    assert_eq!(after, before);
}
