//! What the packets of a QP carry of the address that its program gave: flow label, hop limit, and
//! traffic class.

use crate::common::{End, Pair, ah_to, inline, until};
use crate::{TARGET, verbs_error};
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trunkline::{
    Access, AhAttributes, Allowed, Attributes, Drive, Gid, Node, Port, PortCounters, PortError,
    Psn, QpAddress, QpModify, QpOptions, QpType, Qpn, SendOp,
};
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, Slot};
use trunkline_dataplane::{MemoryConfig, MemoryPort};
use trunkline_wire::{IpFields, Path, ROCE_PORT};

const QKEY: u32 = 0x1111_2222;

/// Paths of the datagrams that left.
type Paths = Arc<Mutex<Vec<Path>>>;

/// A port that notes where each datagram goes.
struct Noting {
    port: MemoryPort,
    reserved: Option<Path>,
    paths: Paths,
}

impl Egress for Noting {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.reserved = Some(*path);
        self.port.reserve(path, length)
    }

    fn commit(&mut self) {
        self.paths.lock().unwrap().extend(self.reserved.take());
        self.port.commit();
    }
}

impl Port for Noting {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        self.port.receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Two inline nodes of IPv6, and the paths of what each sends.
fn pair(sharing: bool) -> (Pair, [Paths; 2]) {
    let (one, other) = MemoryPort::pair(MemoryConfig::default());
    let paths: [Paths; 2] = Default::default();
    let build = |port, last, paths: &Paths| {
        let port = Noting {
            port,
            reserved: None,
            paths: Arc::clone(paths),
        };
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
        let builder = Node::builder().address(address.into()).sharing(sharing);
        End::of(
            builder
                .drive(Drive::Inline)
                .build_on(Box::new(port))
                .unwrap(),
        )
    };
    let (a, b) = (build(one, 1, &paths[0]), build(other, 2, &paths[1]));
    (Pair { a, b }, paths)
}

/// Attributes of addresses that all differ from what a system chooses.
fn chosen() -> Attributes {
    Attributes {
        traffic_class: 0x28,
        flow_label: 0xa_5a5a,
        hop_limit: 3,
        service_level: 5,
        ..Attributes::default()
    }
}

/// Sends from `a` to `b`, and waits for the completion.
fn send(pair: &Pair, kind: QpType) -> Attributes {
    let options = QpOptions {
        kind,
        ..QpOptions::default()
    };
    let (qa, qb) = pair.qps_with(&options, &chosen());
    pair.b.receive(&qb, 1, TARGET, 64);
    pair.a.post(&qa, 2, SendOp::Send, 0, 64);
    pair.next(&pair.b.recv_cq);
    pair.next(&pair.a.send_cq);
    qa.query().unwrap().1
}

#[test]
fn packets_of_a_connection_of_its_own_carry_what_the_address_says_both_ways() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (pair, paths) = pair(false);
        let attributes = send(&pair, kind);
        let given = chosen();
        assert_eq!(
            (attributes.flow_label, attributes.hop_limit),
            (given.flow_label, given.hop_limit)
        );
        let classes = (attributes.traffic_class, attributes.service_level);
        assert_eq!(classes, (given.traffic_class, given.service_level));
        let ip = IpFields::new(given.flow_label, given.hop_limit);
        for (paths, end) in paths.iter().zip([&pair.a, &pair.b]) {
            let paths = paths.lock().unwrap();
            // Only RC has something to answer.
            assert!(!paths.is_empty() || kind == QpType::Uc && end.node.gid() == pair.b.node.gid());
            for path in paths.iter() {
                assert_eq!((path.ip, path.traffic_class & !0b11), (ip, 0x28), "{kind}");
            }
        }
    }
}

#[test]
fn packets_of_shared_connections_leave_flow_label_and_hop_limit_to_the_system() {
    let (pair, paths) = pair(true);
    let attributes = send(&pair, QpType::Rc);
    assert_eq!(attributes.flow_label, chosen().flow_label, "it is kept");
    assert!(pair.a.carrier.connection_count() > 0);
    for path in paths.iter().flat_map(|paths| paths.lock().unwrap().clone()) {
        assert_eq!(path.ip, IpFields::DEFAULT);
    }
}

/// A UD QP that is ready to send.
fn ud(end: &End) -> trunkline::Qp {
    let qp = end.qp(&QpOptions {
        kind: QpType::Ud,
        ..QpOptions::default()
    });
    let attributes = Attributes {
        qkey: QKEY,
        ..Attributes::default()
    };
    let access = Access::LOCAL_READ;
    qp.modify(&QpModify::Init { access }).unwrap();
    qp.modify(&QpModify::Rtr(attributes)).unwrap();
    qp.modify(&QpModify::Rts(attributes)).unwrap();
    qp
}

#[test]
fn each_datagram_carries_what_its_own_handle_says() {
    let (pair, paths) = pair(false);
    let (qa, qb) = (ud(&pair.a), ud(&pair.b));
    let remote = pair.b.node.gid();
    let most = IpFields::MAX_FLOW_LABEL;
    let fields = [(0, 0), (1, 0), (0, 1), (most, u8::MAX), (0x1_2345, 64)];
    for (flow_label, hop_limit) in fields {
        let ah = pair.a.pd.create_ah(&AhAttributes {
            flow_label,
            hop_limit,
            ..ah_to(remote)
        });
        pair.b.receive(&qb, 1, TARGET, 1100);
        pair.a.post(&qa, 2, ah.unwrap().send(qb.qpn(), QKEY), 0, 64);
        pair.next(&pair.b.recv_cq);
        pair.next(&pair.a.send_cq);
        // The header before the data says what the port saw.
        let header = pair.b.bytes(TARGET, 8);
        let word = u32::from_be_bytes(header[..4].try_into().unwrap());
        assert_eq!(word & most, flow_label);
        assert_eq!(header[7], if hop_limit == 0 { 64 } else { hop_limit });
    }
    let paths = paths[0].lock().unwrap();
    let sent: Vec<_> = paths.iter().map(|path| path.ip).collect();
    assert_eq!(sent, fields.map(|(label, hops)| IpFields::new(label, hops)));
}

/// A host that is no node, whose socket tells the TTL of each datagram.
fn host() -> UdpSocket {
    let socket = UdpSocket::bind((crate::common::address(), ROCE_PORT)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let (on, length) = (1_i32, size_of::<i32>() as libc::socklen_t);
    let (fd, from) = (socket.as_raw_fd(), (&raw const on).cast());
    // SAFETY: the value is an `int`, and its size is given.
    let set = unsafe { libc::setsockopt(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, from, length) };
    assert_eq!(set, 0);
    socket
}

/// The TTL of the next datagram.
fn ttl(socket: &UdpSocket) -> i32 {
    let (mut bytes, mut control) = ([0_u8; 4096], [0_u64; 16]);
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zeros are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: every pointer of the header leads to live memory of its length.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    assert!(length > 0, "{}", std::io::Error::last_os_error());
    // One control message: its length, level and type, then the TTL.
    let kind = (i64::from(libc::IP_TTL) << 32 | i64::from(libc::IPPROTO_IP)).cast_unsigned();
    assert_eq!(control[1], kind);
    control[2] as i32
}

#[test]
fn an_ordinary_host_sees_the_hop_limit_in_the_ttl() {
    let (end, socket) = (End::new(inline().sharing(false)), host());
    let remote: Gid = socket.local_addr().unwrap().ip().into();
    let (datagrams, peer) = (ud(&end), Qpn::new(77).unwrap());
    for hop_limit in [7, 200] {
        let given = AhAttributes {
            hop_limit,
            ..ah_to(remote)
        };
        let ah = end.pd.create_ah(&given).unwrap();
        end.post(&datagrams, 1, ah.send(peer, QKEY), 0, 64);
        until(&[&end.node], "the datagram", || {
            end.send_cq.poll_one().unwrap().is_some()
        });
        assert_eq!(ttl(&socket), i32::from(hop_limit));
        let qp = end.qp(&QpOptions::default());
        let attributes = Attributes {
            hop_limit,
            ..Attributes::default()
        };
        let at = QpAddress {
            gid: remote,
            qpn: peer,
            psn: Psn::from_wire(1),
        };
        qp.connect_with(at, Access::ALL, &attributes).unwrap();
        end.post(&qp, 2, SendOp::Send, 0, 64);
        while end.node.poll().unwrap() {}
        assert_eq!(ttl(&socket), i32::from(hop_limit));
    }
}

#[test]
fn an_address_out_of_range_is_refused_by_name_and_changes_nothing() {
    let (pair, _) = pair(false);
    let (labels, levels) = (Allowed::Range(0, (1 << 20) - 1), Allowed::Range(0, 7));
    for kind in [QpType::Rc, QpType::Uc] {
        let qp = pair.a.qp(&QpOptions {
            kind,
            ..QpOptions::default()
        });
        let access = Access::ALL;
        qp.modify(&QpModify::Init { access }).unwrap();
        let fine = Attributes {
            remote: pair.b.node.gid(),
            dest_qpn: Qpn::new(77).unwrap(),
            ..Attributes::default()
        };
        let label = Attributes {
            flow_label: 1 << 20,
            ..fine
        };
        let level = Attributes {
            service_level: 8,
            ..fine
        };
        for (attributes, error) in [
            (label, labels.refuse("flow_label", 1 << 20)),
            (level, levels.refuse("sl", 8)),
        ] {
            let refused = qp.modify(&QpModify::Rtr(attributes)).unwrap_err();
            assert_eq!(verbs_error(refused), error, "{kind}");
        }
        qp.modify(&QpModify::Rtr(fine)).unwrap();
    }
}
