//! What ICMP errors tell a socket: its error queue (`IP_RECVERR`, ip(7)).
//!
//! An error that waits makes the next call on the socket fail, whatever that was about. So a call
//! that failed is repeated after the queue was read, if anything of the network was in it.

use super::batch::{Name, empty_header};
use super::control::Control;
use crate::port::{PortEvent, Quoted};
use std::os::fd::RawFd;

/// Most errors read at a time.
const MOST: usize = 64;

/// What was in the queue.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    /// Errors that came from the network.
    pub(crate) arrived: usize,
    /// Those which say that nobody listens.
    pub(crate) refused: Vec<PortEvent>,
}

impl Errors {
    /// Empties the queue of a socket, up to a bound.
    pub(crate) fn read(socket: RawFd) -> Self {
        let mut errors = Self::default();
        for _ in 0..MOST {
            let mut bytes = [0_u8; Quoted::MOST];
            let (mut name, mut control) = (Name::new(), Control::new());
            let mut piece = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            let mut header = empty_header().msg_hdr;
            header.msg_name = (&raw mut name).cast();
            header.msg_namelen = Name::BYTES;
            header.msg_iov = &raw mut piece;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            // The width of the field differs between C libraries.
            header.msg_controllen = Control::BYTES as _;
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: every pointer of the header leads to live memory of its length.
            let got = unsafe { libc::recvmsg(socket, &raw mut header, flags) };
            let Ok(got) = usize::try_from(got) else {
                break;
            };
            let Some(error) = control.error(header.msg_controllen as _) else {
                continue;
            };
            errors.arrived += usize::from(error.from_network);
            if let Some(dst) = name.address().filter(|_| error.nobody_listens) {
                let quote = Quoted::new(&bytes[..got.min(bytes.len())]);
                errors.refused.push(PortEvent::Refused { dst, quote });
            }
        }
        errors
    }
}
