//! Takes messages from the kernel into a small set of recycled buffers, and cuts super-packets up.

use super::batch::{Name, empty_header};
use super::control::{Control, Received};
use crate::port::{Arrival, Identification, PortCounters, PortError};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use trunkline_wire::{IpFields, Path};

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
/// Longest wait in the socket that is believed: beyond it nobody measures anything by such packets.
const MOST_WAIT_NS: u64 = 1_000_000_000;

/// Most of a call's time that counts as a message's own. What a call spends on others is a wait.
const MOST_OWN_NS: u64 = 2_000;

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
    /// The last call brought one message, all that it asked for.
    single: bool,
    /// Messages of the last call.
    filled: usize,
    /// The message being given out, and how much of it was.
    message: usize,
    offset: usize,
    /// When what is given out had arrived here.
    arrived: Reading,
    /// When the call began that brought what is not given out yet.
    began: Option<Instant>,
    /// A message's share of the time that its call took, in ns. It is part of the packet's way:
    /// what the packet waited is what exceeds it.
    own_ns: u64,
    /// Whether the kernel's times can be compared with that.
    comparable: bool,
    /// The last call failed, and there may be an error to read.
    failed: bool,
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
            single: false,
            filled: 0,
            message: 0,
            offset: 0,
            arrived: Reading::now(),
            began: None,
            own_ns: 0,
            comparable: true,
            failed: false,
        }
    }

    /// Whether something of the last call is still to be given out.
    pub(super) const fn has_more(&self) -> bool {
        self.message < self.filled
    }

    /// Whether a call failed since it was asked last.
    pub(super) const fn take_failure(&mut self) -> bool {
        std::mem::replace(&mut self.failed, false)
    }

    /// What is to be given out has arrived: what it waited is counted up to now. Whoever takes it
    /// reads its own clock after this.
    pub(super) fn arrived(&mut self) {
        let now = Reading::now();
        if let Some(began) = self.began.take() {
            let took = now.steady.saturating_duration_since(began).as_nanos() as u64;
            self.own_ns = (took / self.filled.max(1) as u64).min(MOST_OWN_NS);
        }
        self.comparable = !now.was_set_since(&self.arrived);
        self.arrived = now;
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
        self.began = Some(Instant::now());
        let headers = &mut self.headers[..self.want];
        let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // One message comes quicker without an array around it, and without what the C library does
        // for threads that are cancelled.
        let got = match headers {
            [header] => {
                let first = &raw mut header.msg_hdr;
                // SAFETY: `prepare` made every pointer of the header lead to live memory of its
                // length, which nothing else refers to; these are the arguments of `recvmsg`.
                let length = unsafe { libc::syscall(libc::SYS_recvmsg, socket, first, flags) };
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
            self.single = false;
            return match source.raw_os_error() {
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => {
                    Err(PortError::System {
                        call: "recvmsg",
                        source,
                    })
                }
                // Nothing there, interrupted, no memory just now, or an ICMP error of a packet sent
                // long ago: all pass.
                other => {
                    self.failed = !matches!(other, Some(libc::EAGAIN | libc::EINTR));
                    Ok(false)
                }
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
    /// nothing. One alone is no sign of others: a second one right behind it is.
    fn adapt(&mut self) {
        let bytes: usize = self.headers[..self.filled]
            .iter()
            .map(|h| h.msg_len as usize)
            .sum();
        let fitting = match bytes / self.filled.max(1) {
            0 => MOST,
            average => (CACHED / average).clamp(1, MOST),
        };
        let first = self.want == 1 && !self.single;
        self.single = self.filled == 1 && self.want == 1;
        if self.filled == self.want && !first {
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

    /// How long a packet lay in the socket that the kernel took at this time, without its own share
    /// of the call that fetched it. Where the clock was set meanwhile nobody knows: the wait counts
    /// as the network's then.
    fn waited(&self, taken_ns: u64) -> u32 {
        let since = self.arrived.real_ns.saturating_sub(taken_ns);
        let waited = since.saturating_sub(self.own_ns);
        if self.comparable && since < MOST_WAIT_NS {
            waited as u32
        } else {
            0
        }
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
                ip: IpFields::DEFAULT,
            },
            identification: Identification::Predicted(0),
            ce: traffic_class & ECN == ECN,
            waited_ns: taken_ns.map_or(0, |taken| self.waited(taken)),
        };
        match segment {
            Some(0) => None,
            segment => Some((arrival, segment)),
        }
    }
}

/// One moment by both clocks: the kernel stamps packets by the one that may be set.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Since 1970, in ns.
    real_ns: u64,
    steady: Instant,
}

/// How far the real-time clock may run from the steady one before it counts as set: in ns, and as a
/// part of the time that passed (it is slewed by 1/2000 at most).
const SET_NS: u64 = 100_000;
const SLEW: u64 = 1000;

impl Reading {
    fn now() -> Self {
        let real = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            real_ns: real.unwrap_or_default().as_nanos() as u64,
            steady: Instant::now(),
        }
    }

    /// Whether the real-time clock was set between two readings.
    fn was_set_since(&self, before: &Self) -> bool {
        let steady = self.steady.saturating_duration_since(before.steady);
        let steady = steady.as_nanos() as u64;
        let real = self.real_ns.wrapping_sub(before.real_ns).cast_signed();
        let off = real.wrapping_sub(steady.cast_signed()).unsigned_abs();
        off > SET_NS + steady / SLEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_packet_waits_without_its_own_share_of_the_call_that_fetched_it() {
        let mut receiver = Receiver::new(IpAddr::from([127, 0, 0, 1]));
        // The thread may be held up in between, which looks as if a clock had been set.
        let mut own = |messages| {
            receiver.filled = messages;
            receiver.began = Some(Instant::now() - Duration::from_micros(64));
            receiver.arrived();
            let (arrived, own) = (receiver.arrived.real_ns, receiver.own_ns);
            let waited = [own, 1_000_000].map(|ago| u64::from(receiver.waited(arrived - ago)));
            (waited == [0, 1_000_000 - own]).then_some(own)
        };
        let few = (0..100).filter_map(|_| own(640)).min();
        assert!(
            few.is_some_and(|own| (100..1_000).contains(&own)),
            "{few:?}"
        );
        assert_eq!((0..100).find_map(|_| own(1)), Some(MOST_OWN_NS));
    }

    #[test]
    fn what_is_given_out_later_has_the_share_of_the_call_that_fetched_it() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let to = socket.local_addr().expect("it is bound");
        socket.send_to(&[7; 64], to).expect("room in the socket");
        let mut receiver = Receiver::new(to.ip());
        let any = receiver.fetch(&socket, &mut PortCounters::default());
        assert!(any.expect("an open socket"));
        receiver.arrived();
        assert!(receiver.own_ns > 0, "a call takes its time");
        receiver.own_ns = 100;
        std::thread::sleep(Duration::from_millis(1));
        receiver.arrived();
        assert_eq!(receiver.own_ns, 100, "what was done since is a wait");
    }

    #[test]
    fn one_message_alone_is_no_reason_to_ask_for_more() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let to = socket.local_addr().expect("it is bound");
        let mut receiver = Receiver::new(to.ip());
        let counters = &mut PortCounters::default();
        // Messages that come before each call, and how many the next one asks for.
        let calls = [
            (1, 1),
            (0, 1),
            (1, 1),
            (0, 1),
            (2, 1),
            (0, 2),
            (8, 4),
            (0, 8),
        ];
        for (call, (messages, want)) in calls.into_iter().enumerate() {
            for _ in 0..messages {
                socket.send_to(&[7; 64], to).expect("room in the socket");
            }
            receiver.fetch(&socket, counters).expect("an open socket");
            receiver.message = receiver.filled;
            assert_eq!(receiver.want, want, "call {call}");
        }
    }

    #[test]
    fn a_clock_that_was_set_is_told_from_one_that_is_slewed() {
        let before = Reading::now();
        let later = |real_ns: u64| Reading {
            real_ns: before.real_ns.wrapping_add(real_ns),
            steady: before.steady + Duration::from_secs(1),
        };
        assert!(!later(1_000_000_000).was_set_since(&before));
        assert!(!later(1_000_500_000).was_set_since(&before));
        assert!(later(1_005_000_000).was_set_since(&before));
        assert!(later(0_u64.wrapping_sub(5_000_000)).was_set_since(&before));
    }
}
