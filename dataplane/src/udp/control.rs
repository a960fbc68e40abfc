//! Control messages (`struct cmsghdr`, cmsg(3)) as bytes: what goes along with a message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const WORD: usize = size_of::<usize>();
/// `cmsg_len`, `cmsg_level`, `cmsg_type`.
const HEADER: usize = WORD + 8;

/// Room for the control messages of one message.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control([u8; Control::BYTES]);

impl Control {
    /// Bytes of the room.
    pub(super) const BYTES: usize = 128;

    pub(super) const fn new() -> Self {
        Self([0; Self::BYTES])
    }

    pub(super) const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Writes one control message behind the first `used` bytes and gives how many are used now.
    pub(super) fn push(&mut self, used: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let length = HEADER + data.len();
        let end = used + length.next_multiple_of(WORD);
        let place = &mut self.0[used..end];
        place[..WORD].copy_from_slice(&length.to_ne_bytes());
        place[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        place[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        place[HEADER..length].copy_from_slice(data);
        place[length..].fill(0);
        end
    }

    /// The control messages in the first `used` bytes: level, type, data.
    pub(super) fn iter(&self, used: usize) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = &self.0[..used.min(Self::BYTES)];
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk::<WORD>()?;
            let (level, after) = after.split_first_chunk::<4>()?;
            let (kind, after) = after.split_first_chunk::<4>()?;
            let length = usize::from_ne_bytes(*length);
            let data = after.get(..length.checked_sub(HEADER)?)?;
            rest = rest.get(length.next_multiple_of(WORD)..).unwrap_or(&[]);
            Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data))
        })
    }
}

/// What an entry of an error queue is (`struct sock_extended_err`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SocketError {
    /// An ICMP message brought it; else this host refused to send.
    pub(super) from_network: bool,
    /// It says that nobody listens at the port.
    pub(super) nobody_listens: bool,
}

impl Control {
    /// The error that the first `used` bytes tell of.
    pub(super) fn error(&self, used: usize) -> Option<SocketError> {
        /// `SO_EE_ORIGIN_ICMP`, `SO_EE_ORIGIN_ICMP6`.
        const ICMP: [u8; 2] = [2, 3];
        /// Destination unreachable, port unreachable: of IPv4, of IPv6.
        const CLOSED: [[u8; 3]; 2] = [[2, 3, 3], [3, 1, 4]];
        let kinds = [
            (libc::IPPROTO_IP, libc::IP_RECVERR),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        ];
        let mut all = self.iter(used);
        let (.., data) = all.find(|(level, kind, _)| kinds.contains(&(*level, *kind)))?;
        // ee_errno, then ee_origin, ee_type, ee_code.
        let what: [u8; 3] = data.get(4..7)?.try_into().ok()?;
        Some(SocketError {
            from_network: ICMP.contains(&what[0]),
            nobody_listens: CLOSED.contains(&what),
        })
    }
}

/// What the control messages of a received message say.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Received {
    /// IPv4 type of service or IPv6 traffic class.
    pub(super) traffic_class: u8,
    /// Bytes of each datagram but the last, when there are several.
    pub(super) segment: Option<usize>,
    /// Address the message was sent to.
    pub(super) local: Option<IpAddr>,
    /// When the kernel took it, in ns of the real-time clock.
    pub(super) taken_ns: Option<u64>,
}

impl Received {
    pub(super) fn parse(control: &Control, used: usize) -> Self {
        let mut received = Self::default();
        for (level, kind, data) in control.iter(used) {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    received.traffic_class = data.first().copied().unwrap_or(0);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    received.traffic_class = number(data).unwrap_or(0) as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    received.segment = number(data).and_then(|size| usize::try_from(size).ok());
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let (seconds, rest) = data.split_first_chunk().unwrap_or((&[0; 8], &[]));
                    let nanos = rest.first_chunk().copied().unwrap_or_default();
                    let seconds = u64::from_ne_bytes(*seconds);
                    received.taken_ns = Some(
                        seconds
                            .wrapping_mul(1_000_000_000)
                            .wrapping_add(u64::from_ne_bytes(nanos)),
                    );
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // ipi_ifindex, ipi_spec_dst, ipi_addr.
                    let address = data.get(8..12).and_then(|bytes| bytes.first_chunk::<4>());
                    received.local = address.map(|octets| Ipv4Addr::from(*octets).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let address = data.first_chunk::<16>();
                    received.local = address.map(|octets| Ipv6Addr::from(*octets).into());
                }
                _ => {}
            }
        }
        received
    }
}

fn number(data: &[u8]) -> Option<i32> {
    data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn what_was_pushed_is_parsed() {
        let mut control = Control::new();
        let address = Ipv4Addr::new(10, 1, 2, 3);
        let mut info = [0; 12];
        info[8..].copy_from_slice(&address.octets());
        let used = control.push(0, libc::IPPROTO_IP, libc::IP_TOS, &[0xbb]);
        let used = control.push(used, libc::SOL_UDP, libc::UDP_GRO, &4096_i32.to_ne_bytes());
        let used = control.push(used, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        let expected = Received {
            traffic_class: 0xbb,
            segment: Some(4096),
            local: Some(address.into()),
            taken_ns: None,
        };
        assert_eq!(Received::parse(&control, used), expected);
        let short = Received {
            local: None,
            ..expected
        };
        assert_eq!(
            Received::parse(&control, used - WORD),
            short,
            "the last one is cut off"
        );
        assert_eq!(Received::parse(&control, 0), Received::default());
    }

    #[test]
    fn the_time_of_arrival_is_seconds_and_nanoseconds() {
        let mut control = Control::new();
        let mut time = [0; 16];
        time[..8].copy_from_slice(&3_u64.to_ne_bytes());
        time[8..].copy_from_slice(&7_u64.to_ne_bytes());
        let used = control.push(0, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time);
        assert_eq!(
            Received::parse(&control, used).taken_ns,
            Some(3_000_000_007)
        );
    }

    #[test]
    fn ipv6_has_its_own_messages() {
        let mut control = Control::new();
        let mut info = [0; 20];
        info[15] = 1;
        let used = control.push(
            0,
            libc::IPPROTO_IPV6,
            libc::IPV6_TCLASS,
            &3_i32.to_ne_bytes(),
        );
        let used = control.push(used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        let received = Received::parse(&control, used);
        assert_eq!(received.traffic_class, 3);
        assert_eq!(received.local, Some(Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn errors_of_the_network_are_told_from_those_of_this_host() {
        let error = |level, kind, what: [u8; 3]| {
            let mut control = Control::new();
            let mut data = [0; 16];
            data[4..7].copy_from_slice(&what);
            let used = control.push(0, level, kind, &data);
            assert_eq!(control.error(used - 16), None, "cut off");
            let error = control.error(used).unwrap();
            (error.from_network, error.nobody_listens)
        };
        let v4 = (libc::IPPROTO_IP, libc::IP_RECVERR);
        let v6 = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        assert_eq!(error(v4.0, v4.1, [2, 3, 3]), (true, true));
        assert_eq!(error(v4.0, v4.1, [2, 3, 4]), (true, false), "too long");
        assert_eq!(error(v4.0, v4.1, [1, 0, 0]), (false, false), "local");
        assert_eq!(error(v6.0, v6.1, [3, 1, 4]), (true, true));
        assert_eq!(error(v6.0, v6.1, [3, 3, 3]), (true, false));
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for length in [0, HEADER - 1, 1000, usize::MAX] {
            let mut control = Control::new();
            let used = control.push(0, libc::IPPROTO_IP, libc::IP_TOS, &[0xbb]);
            control.0[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(
                Received::parse(&control, used),
                Received::default(),
                "length {length}"
            );
        }
    }
}
