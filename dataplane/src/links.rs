//! Changes of the link of an interface, as the kernel tells of them (rtnetlink(7)).

use crate::netlink;
use crate::udp::interface;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use socket2::Socket;
use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Who tells that a link went down or came up.
pub trait LinkChanges: fmt::Debug {
    /// Returns whether the link works since the oldest change that was not given yet. `None`: no
    /// more is known. A change may be given that changes nothing.
    fn next_change(&mut self) -> Option<bool>;

    /// A descriptor that is readable when [`next_change`](Self::next_change) may give something,
    /// until it gives `None`.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// The link of the interface that has an address of ours, as the kernel sees it. The link works
/// while the interface is up and running (`IFF_UP`, `IFF_RUNNING`: netdevice(7)). An interface that
/// is removed is down; when another one gets the address, that one counts.
///
/// It belongs to the network namespace in which it was opened.
#[derive(Debug)]
pub struct KernelLink {
    local: IpAddr,
    /// Index of the interface; `None`: no interface has the address.
    interface: Option<u32>,
    netlink: Socket,
    message: Box<[u8]>,
    /// Changes were lost, and the kernel is to be asked once all that waits was read.
    has_lost: bool,
}

impl KernelLink {
    /// Opens the link of the interface that has `local`. Its first change is its state now, if an
    /// interface has the address.
    ///
    /// # Errors
    /// The system has no descriptor left, or does not let the program listen.
    pub fn open(local: IpAddr) -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let netlink = netlink::open(groups.cast_unsigned())?;
        // Changes are heard already: none is missed in between.
        let mut link = Self {
            local,
            interface: interface::index(local)?,
            netlink,
            message: vec![0; netlink::LONGEST].into_boxed_slice(),
            has_lost: false,
        };
        link.ask()?;
        Ok(link)
    }

    /// The changes of that link, as a port tells of them: `None` for a loop, which never changes,
    /// and where the system tells nobody.
    pub(crate) fn changes(local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        if local.is_loopback() {
            return None;
        }
        let link = Self::open(local).ok()?;
        Some(Box::new(link))
    }

    /// Asks how the link is: the answer comes as if it had changed.
    fn ask(&mut self) -> io::Result<()> {
        let Some(interface) = self.interface else {
            return Ok(());
        };
        let mut question = LinkMessage::default();
        question.header.index = interface;
        netlink::ask(&self.netlink, 0, Message::GetLink(question))
    }

    /// Changes were lost, as nobody read them for long: what counts is how the link is now.
    fn ask_anew(&mut self) {
        if let Ok(interface) = interface::index(self.local) {
            self.interface = interface.or(self.interface);
        }
        // Where this fails, too, the next change tells.
        let _ = self.ask();
    }

    /// What a message says of our link.
    fn heed(&mut self, payload: NetlinkPayload<Message>) -> Option<bool> {
        let message = match payload {
            NetlinkPayload::InnerMessage(message) => message,
            // The interface that was asked for is not there.
            NetlinkPayload::Error(_) => {
                self.interface = None;
                return Some(false);
            }
            _ => return None,
        };
        match message {
            Message::NewLink(link) if self.is_ours(&link) => {
                let both = LinkFlags::Up | LinkFlags::Running;
                Some(link.header.flags.contains(both))
            }
            Message::DelLink(link) if self.is_ours(&link) => {
                self.interface = None;
                // Another one may have the address, too.
                self.ask_anew();
                self.interface.is_none().then_some(false)
            }
            Message::NewAddress(address) => {
                let moved = self.interface != Some(address.header.index);
                if moved && self.has_ours(&address) {
                    self.ask_anew();
                }
                None
            }
            _ => None,
        }
    }

    /// Whether a message is about our interface itself, and not about its place in a bridge.
    fn is_ours(&self, link: &LinkMessage) -> bool {
        let header = &link.header;
        header.interface_family == AddressFamily::Unspec && self.interface == Some(header.index)
    }

    fn has_ours(&self, address: &AddressMessage) -> bool {
        let attributes = address.attributes.iter();
        let local = attributes.clone().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
        let other = || {
            attributes.clone().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })
        };
        // Where both are told, the other one is that of the peer at the far end.
        local.or_else(other) == Some(self.local)
    }
}

impl LinkChanges for KernelLink {
    fn next_change(&mut self) -> Option<bool> {
        loop {
            let length = match (&self.netlink).read(&mut self.message) {
                Ok(length) => length,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    // An answer would be lost, too, before all that waits was read.
                    self.has_lost = true;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.has_lost => {
                    self.has_lost = false;
                    self.ask_anew();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return None,
            };
            let message = NetlinkMessage::<Message>::deserialize(&self.message[..length]);
            let change = message.ok().and_then(|message| self.heed(message.payload));
            if change.is_some() {
                return change;
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

#[cfg(test)]
mod tests;
