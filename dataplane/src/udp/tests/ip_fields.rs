//! Flow labels and hop limits, as they arrive.

use super::*;
use crate::udp::control::Control;
use crate::udp::socket::set;
use trunkline_testkit::netns::beside_a_neighbour;

/// Fields of the IP header that a datagram came with.
#[derive(Debug, Default, Eq, PartialEq)]
struct Seen {
    hop_limit: i32,
    flow_label: u32,
    traffic_class: u8,
    length: usize,
}

/// A port that sends to itself, whose socket says what datagrams came with.
fn open(address: IpAddr) -> UdpPort {
    let mut config = config(address, 0);
    config.coalescing = false;
    let port = UdpPort::open(&config).unwrap();
    let options = match address {
        IpAddr::V4(_) => vec![(libc::IPPROTO_IP, libc::IP_RECVTTL)],
        IpAddr::V6(_) => vec![
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO),
        ],
    };
    for option in options {
        set(port.sockets.main(), option, 1).unwrap();
    }
    port
}

/// Takes one datagram from the socket of a port.
fn take(port: &UdpPort) -> Seen {
    let (mut bytes, mut control) = ([0; 9000], Control::new());
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut header = batch::empty_header().msg_hdr;
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = Control::BYTES as _;
    // SAFETY: every pointer of the header leads to live memory of its length.
    let length = unsafe { libc::recvmsg(port.sockets.main().as_raw_fd(), &raw mut header, 0) };
    let mut seen = Seen {
        length: usize::try_from(length).expect("a datagram"),
        ..Seen::default()
    };
    for (level, kind, data) in control.iter(header.msg_controllen) {
        let word = || data.first_chunk().copied().unwrap();
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                seen.hop_limit = i32::from_ne_bytes(word());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                seen.flow_label = u32::from_be_bytes(word()) & IpFields::MAX_FLOW_LABEL;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                seen.traffic_class = data[0];
            }
            _ => {}
        }
    }
    seen
}

/// Sends datagrams of one length with such fields; gives what they came with.
fn through(port: &mut UdpPort, ip: IpFields, traffic_class: u8, count: usize) -> Vec<Seen> {
    let usual = path(port, port);
    let path = Path {
        traffic_class,
        ip,
        ..usual
    };
    for _ in 0..count {
        commit(port, &path, 7, 200).unwrap();
    }
    port.flush().unwrap();
    (0..count).map(|_| take(port)).collect()
}

#[test]
fn hop_limits_go_out_over_ipv4() {
    let mut port = open(A);
    let usual = through(&mut port, IpFields::DEFAULT, 0, 1).remove(0);
    assert!(usual.hop_limit > 1, "{usual:?}");
    for (hops, came) in [(1, 1), (77, 77), (255, 255), (0, usual.hop_limit)] {
        // A flow label means nothing there.
        let ip = IpFields::new(0x1_2345, hops);
        for seen in through(&mut port, ip, 0x28, 3) {
            assert_eq!((seen.hop_limit, seen.traffic_class), (came, 0x28));
        }
    }
    assert_eq!(port.counters().refused, 0);
}

#[test]
fn flow_labels_and_hop_limits_go_out_over_ipv6() {
    let mut port = open(Ipv6Addr::LOCALHOST.into());
    let usual = through(&mut port, IpFields::DEFAULT, 0, 1).remove(0);
    for (label, hops) in [(1, 1), (0xa_5a5a, 0), (IpFields::MAX_FLOW_LABEL, 255)] {
        let came = match hops {
            0 => usual.hop_limit,
            said => said.into(),
        };
        // Alone, and as a super-packet.
        for count in [1, 5] {
            for seen in through(&mut port, IpFields::new(label, hops), 0x28, count) {
                let expected = Seen {
                    hop_limit: came,
                    flow_label: label,
                    traffic_class: 0x28,
                    length: 200,
                };
                assert_eq!(seen, expected);
            }
        }
    }
    // Each datagram has those of its path, whatever went before.
    let again = through(&mut port, IpFields::DEFAULT, 0, 1).remove(0);
    assert_eq!(again.hop_limit, usual.hop_limit);
}

#[test]
fn datagrams_share_a_super_packet_where_flow_label_and_hop_limit_are_the_same() {
    let mut port = open(Ipv6Addr::LOCALHOST.into());
    let usual = path(&port, &port);
    for (label, hops) in [(1, 9), (1, 9), (2, 9), (2, 8), (2, 8)] {
        let ip = IpFields::new(label, hops);
        commit(&mut port, &Path { ip, ..usual }, 7, 200).unwrap();
    }
    let counts: Vec<_> = port
        .queue
        .waiting()
        .iter()
        .map(|unit| unit.packet.count)
        .collect();
    assert_eq!(counts, [2, 1, 2]);
}

/// Takes a flow label for this socket alone (`IPV6_FLOWLABEL_MGR`): the kernel lets none be used in
/// the namespace then that nobody asked for.
fn take_label(socket: &socket2::Socket, label: u32) {
    const IPV6_FLOWLABEL_MGR: i32 = 32;
    let mut request = [0_u8; 32];
    request[..16].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
    request[16..20].copy_from_slice(&label.to_be_bytes());
    // IPV6_FL_A_GET, IPV6_FL_S_EXCL, IPV6_FL_F_CREATE.
    (request[20], request[21]) = (0, 1);
    request[22..24].copy_from_slice(&1_u16.to_ne_bytes());
    let (from, length) = (request.as_ptr().cast(), request.len() as u32);
    let (fd, level) = (socket.as_raw_fd(), libc::IPPROTO_IPV6);
    // SAFETY: the value is an `in6_flowlabel_req`, and its size is given.
    let result = unsafe { libc::setsockopt(fd, level, IPV6_FLOWLABEL_MGR, from, length) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn where_labels_are_refused_datagrams_go_out_without() {
    beside_a_neighbour(|_| {
        let other = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None);
        let other = other.unwrap();
        take_label(&other, 0x777);
        let mut port = open(Ipv6Addr::LOCALHOST.into());
        for _ in 0..2 {
            let seen = through(&mut port, IpFields::new(0x1_2345, 9), 0, 3);
            assert!(seen.iter().all(|seen| seen.flow_label != 0x1_2345));
            assert!(seen.iter().all(|seen| seen.hop_limit == 9));
        }
        assert_eq!(port.counters().refused, 0);
    });
}
