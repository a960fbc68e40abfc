//! Whether a program is at an interface, whoever attached it (rtnetlink(7)).

use crate::netlink;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};
use socket2::Socket;
use std::io::{self, Read};

/// Asks the kernel whether an interface has an XDP program: for those who had one attached by
/// others, and get no frames once it is gone. One that belongs to an [`XdpDevice`] stays as long as
/// that.
///
/// It belongs to the network namespace in which it was made.
///
/// [`XdpDevice`]: super::XdpDevice
#[derive(Debug)]
pub struct XdpWatch {
    netlink: Socket,
    interface: u32,
    /// Of the last question.
    sequence: u32,
    message: Box<[u8]>,
}

impl XdpWatch {
    /// For the interface of that index.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(interface: u32) -> io::Result<Self> {
        Ok(Self {
            netlink: netlink::open(0)?,
            interface,
            sequence: 0,
            message: vec![0; netlink::LONGEST].into_boxed_slice(),
        })
    }

    /// Whether it has a program now.
    ///
    /// # Errors
    /// The kernel does not say: the interface is gone, or there is no memory for the answer.
    pub fn has_program(&mut self) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut question = LinkMessage::default();
        question.header.index = self.interface;
        netlink::ask(&self.netlink, self.sequence, Message::GetLink(question))?;
        loop {
            // The kernel answers while it is asked.
            let length = match (&self.netlink).read(&mut self.message) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let answer = NetlinkMessage::<Message>::deserialize(&self.message[..length]);
            let answer = answer.map_err(io::Error::other)?;
            // An earlier question may have been given up.
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(Message::NewLink(link)) => Ok(has_program(&link)),
                NetlinkPayload::Error(error) => Err(error.to_io()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

fn has_program(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::Xdp(said) => said
            .iter()
            .any(|said| matches!(said, LinkXdp::Attached(how) if *how != XdpAttached::None)),
        _ => false,
    })
}
