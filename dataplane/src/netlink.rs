//! Sockets to the kernel's tables of links, addresses, routes and neighbours (netlink(7)).

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of the longest message that is expected: one about an interface, with all its counters.
pub(crate) const LONGEST: usize = 32 << 10;

/// Opens a non-blocking socket of `NETLINK_ROUTE` that hears `groups`, a mask of `RTMGRP_*`, beside
/// the answers to its questions. It belongs to the network namespace of the calling thread.
///
/// # Errors
/// The system has no descriptor left, or does not let the program ask.
pub(crate) fn open(groups: u32) -> io::Result<Socket> {
    let (domain, protocol) = (Domain::from(libc::AF_NETLINK), libc::NETLINK_ROUTE);
    let socket = Socket::new(domain, Type::RAW.cloexec(), Some(Protocol::from(protocol)))?;
    socket.set_nonblocking(true)?;
    // SAFETY: all zeros are a valid `sockaddr_nl`.
    let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    (name.nl_family, name.nl_groups) = (libc::AF_NETLINK as u16, groups);
    let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: `name` is a `sockaddr_nl`, and `length` is its size.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), length) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Sends a question; the kernel's answer carries the same `sequence`.
///
/// # Errors
/// The kernel does not take it.
pub(crate) fn ask(socket: &Socket, sequence: u32, question: Message) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes).map(|_| ())
}
