//! Takes messages from the kernel into a small set of recycled buffers, and cuts super-packets up.

use super::batch::{Name, empty_header};
use super::control::{Control, Received};
use crate::port::{Arrival, Identification, PortCounters, PortError};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{SystemTime, UNIX_EPOCH};
use trunkline_wire::Path;

/// Most messages of one call.
const MOST: usize = 32;
/// Bytes of a buffer: no message is longer.
const BUFFER: usize = 1 << 16;
/// Distance of buffers: a few cache lines more, so that their beginnings spread over the cache's
/// sets.
const STRIDE: usize = BUFFER + 5 * 64;
/// What a call should bring at most, so that it stays in the second-level cache.
const CACHED: usize = 512 << 10;
const ECN: u8 = 0b11;

/// Messages received and being given out. Every call begins with the first buffer again.
pub(super) struct Receiver {
    local: IpAddr,
    memory: Box<[u8]>,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<Control>,
    /// Messages to ask for: grows while calls bring so many, shrinks when they do not.
    want: usize,
    /// Messages of the last call.
    filled: usize,
    /// The message being given out, and how much of it was.
    message: usize,
    offset: usize,
    /// When the port was asked, in ns of the real-time clock.
    asked_ns: u64,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            want,
            filled,
            message,
            offset,
            ..
        } = self;
        f.debug_struct("Receiver")
            .field("want", want)
            .field("filled", filled)
            .field("message", message)
            .field("offset", offset)
            .finish_non_exhaustive()
    }
}

// SAFETY: the pointers inside lead to the memory and the vectors beside them, which move only as a
// whole with their heap blocks staying in place.
unsafe impl Send for Receiver {}

impl Receiver {
    /// `local` is where messages are sent to that do not say it themselves.
    pub(super) fn new(local: IpAddr) -> Self {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            local,
            memory: vec![0; MOST * STRIDE].into_boxed_slice(),
            headers: vec![empty_header(); MOST],
            pieces: vec![none; MOST],
            names: vec![Name::new(); MOST],
            controls: vec![Control::new(); MOST],
            want: 1,
            filled: 0,
            message: 0,
            offset: 0,
            asked_ns: 0,
        }
    }

    /// The port is asked for datagrams: what they waited for is counted up to now, which is when
    /// whoever asks has read its clock.
    pub(super) fn asked(&mut self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.asked_ns = now.as_nanos() as u64;
    }

    /// Takes what is there, after all of the last call was given out. Gives whether anything came.
    ///
    /// # Errors
    /// When the socket itself fails.
    pub(super) fn fetch(
        &mut self,
        socket: &impl AsRawFd,
        counters: &mut PortCounters,
    ) -> Result<bool, PortError> {
        debug_assert_eq!(self.message, self.filled, "all was given out");
        (self.filled, self.message, self.offset) = (0, 0, 0);
        for i in 0..self.want {
            self.prepare(i);
        }
        let headers = &mut self.headers[..self.want];
        let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // One message comes quicker without an array around it.
        let got = match headers {
            [header] => {
                // SAFETY: `prepare` made every pointer of the header lead to live memory of its
                // length, which nothing else refers to.
                let length = unsafe { libc::recvmsg(socket, &raw mut header.msg_hdr, flags) };
                header.msg_len = length.max(0) as u32;
                if length < 0 { -1 } else { 1 }
            }
            headers => {
                let (first, count) = (headers.as_mut_ptr(), headers.len() as u32);
                let no_timeout = std::ptr::null_mut();
                // SAFETY: as above; there are `count` headers.
                let got = unsafe { libc::recvmmsg(socket, first, count, flags, no_timeout) };
                got as isize
            }
        };
        let Ok(got) = usize::try_from(got) else {
            let source = io::Error::last_os_error();
            self.want = (self.want / 2).max(1);
            return match source.raw_os_error() {
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => {
                    Err(PortError::System {
                        call: "recvmsg",
                        source,
                    })
                }
                // Nothing there, interrupted, no memory just now, or an ICMP error of a packet sent
                // long ago: all pass.
                _ => Ok(false),
            };
        };
        self.filled = got;
        counters.receive_calls += u64::from(got > 0);
        self.adapt();
        Ok(got > 0)
    }

    fn prepare(&mut self, i: usize) {
        let piece = &mut self.pieces[i];
        piece.iov_base = self.memory[i * STRIDE..][..BUFFER].as_mut_ptr().cast();
        piece.iov_len = BUFFER;
        let header = &mut self.headers[i].msg_hdr;
        header.msg_name = (&raw mut self.names[i]).cast();
        header.msg_namelen = Name::BYTES;
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_control = self.controls[i].as_mut_ptr().cast();
        // The width of the field differs between C libraries.
        header.msg_controllen = Control::BYTES as _;
        header.msg_flags = 0;
    }

    /// Asks for more next time when all that was asked for came, and for less when half did not, or
    /// nothing.
    fn adapt(&mut self) {
        let bytes: usize = self.headers[..self.filled]
            .iter()
            .map(|h| h.msg_len as usize)
            .sum();
        let fitting = match bytes / self.filled.max(1) {
            0 => MOST,
            average => (CACHED / average).clamp(1, MOST),
        };
        if self.filled == self.want {
            self.want = (self.want * 2).min(fitting);
        } else if self.filled <= self.want / 2 {
            self.want = (self.want / 2).max(1);
        }
    }

    /// Gives up to `limit` of the datagrams fetched to `sink`; says how many.
    pub(super) fn deliver(
        &mut self,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> usize {
        let mut given = 0;
        while self.message < self.filled && given < limit {
            given += self.deliver_message(limit - given, counters, sink);
        }
        given
    }

    /// Gives datagrams of the current message; goes to the next one at its end.
    fn deliver_message(
        &mut self,
        limit: usize,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> usize {
        let i = self.message;
        let length = (self.headers[i].msg_len as usize).min(BUFFER);
        let Some((mut arrival, segment)) = self.arrival(i).filter(|_| length > 0) else {
            counters.malformed += 1;
            self.message += 1;
            return 0;
        };
        let segment = segment.unwrap_or(length).min(length);
        if self.offset == 0 && segment < length {
            counters.super_packets_received += 1;
        }
        let message = &self.memory[i * STRIDE..][..length];
        let first = self.offset / segment;
        let mut given = 0;
        for datagram in message[self.offset..].chunks(segment).take(limit) {
            arrival.identification = Identification::Predicted((first + given) as u16);
            sink(&arrival, datagram);
            self.offset += datagram.len();
            counters.received_bytes += datagram.len() as u64;
            given += 1;
        }
        counters.received += given as u64;
        if self.offset == length {
            self.message += 1;
            self.offset = 0;
        }
        given
    }

    /// What the kernel says of message `i`, and how long its datagrams are if it has several.
    fn arrival(&self, i: usize) -> Option<(Arrival, Option<usize>)> {
        let header = &self.headers[i].msg_hdr;
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        let (src, src_port) = self.names[i].read(header.msg_namelen)?;
        let used = header.msg_controllen;
        let Received {
            traffic_class,
            segment,
            local,
            taken_ns,
        } = Received::parse(&self.controls[i], used);
        let dst = local.unwrap_or(self.local);
        let arrival = Arrival {
            path: Path {
                src,
                dst,
                src_port,
                traffic_class,
            },
            identification: Identification::Predicted(0),
            ce: traffic_class & ECN == ECN,
            waited_ns: taken_ns.map_or(0, |taken| waited(taken, self.asked_ns)),
        };
        match segment {
            Some(0) => None,
            segment => Some((arrival, segment)),
        }
    }
}

/// Time between two readings of the real-time clock. A clock that was set meanwhile gives nonsense,
/// which is bounded: what is over a second did not happen.
const fn waited(taken_ns: u64, asked_ns: u64) -> u32 {
    let waited = asked_ns.saturating_sub(taken_ns);
    if waited > 1_000_000_000 {
        0
    } else {
        waited as u32
    }
}
