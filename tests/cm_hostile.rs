//! Connection management under attack: what a stranger sends is answered or counted, memory stays
//! bounded, and neither what stands nor who comes honestly notices.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::address;
use common::host::{Host, PORT};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::{Params, RejReason};
use trunkline::{CmCounters, Node, Qpn};
use trunkline_cm::{TRUNKLINE_SERVICE, gsi};
use trunkline_conn::egress::Egress;
use trunkline_dataplane::prng::Prng;
use trunkline_dataplane::{Port, UdpConfig, UdpPort};
use trunkline_wire::cm::{
    Answered, CmMad, CommId, Dreq, Message, PathRecord, PrivateData, Rej, Rep, Req, Rtu,
    TransportService,
};
use trunkline_wire::{
    Addresses, Gid, IpFields, MAD_LEN, Path, Psn, ROCE_PORT, RdmaCmHeader, ServiceId,
};

const LIMIT: Duration = Duration::from_secs(30);
const TCP: u8 = 0x06;
/// Rounds of one burst of the attacker.
const BURST: u32 = 8;
/// Datagrams that may be on their way to the victim. More would only push others out of its
/// socket: volume is another matter.
const AHEAD: u64 = 256;

/// What the only worker of a node has counted.
fn counted(node: &Node) -> CmCounters {
    node.cm_counters()[0]
}

/// A host that sends what it likes.
struct Attacker {
    port: UdpPort,
    path: Path,
    random: Prng,
    serial: u32,
    sent: u64,
}

/// Says that it is over, however the test ends: its threads have to.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Attacker {
    fn new(victim: IpAddr) -> Self {
        let address = address();
        Self {
            port: UdpPort::open(&UdpConfig::new(address)).unwrap(),
            path: Path {
                src: address,
                dst: victim,
                src_port: ROCE_PORT,
                traffic_class: 0,
                ip: IpFields::DEFAULT,
            },
            random: Prng::new(7),
            serial: 1,
            sent: 0,
        }
    }

    /// Sends `length` bytes of a management datagram, the byte at `damaged` changed.
    fn send(&mut self, mad: &[u8; MAD_LEN], length: usize, damaged: Option<usize>) {
        let slot = loop {
            // The borrow checker wants the slot of the last round only.
            if self.port.reserve(&self.path, length).is_some() {
                break self.port.reserve(&self.path, length).unwrap();
            }
            self.port.flush().unwrap();
        };
        let mut whole = [0; gsi::LEN];
        let psn = Psn::from_wire(self.serial);
        gsi::build(&self.path, slot.identification, psn, mad, &mut whole);
        if let Some(at) = damaged {
            whole[at] ^= 0x10;
        }
        slot.datagram.copy_from_slice(&whole[..length]);
        self.port.commit();
        self.sent += 1;
    }

    fn say(&mut self, transaction_id: u64, message: impl Into<Message>) {
        let mad = CmMad {
            transaction_id,
            message: message.into(),
        };
        self.send(&mad.to_bytes(), gsi::LEN, None);
    }

    /// A request that every host would take, under a number and from a QP that nobody has used yet.
    fn request(&mut self, service_id: ServiceId) -> Req {
        self.serial += 1;
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.path.src, self.path.dst) else {
            unreachable!("loopback addresses of IPv4")
        };
        let header = RdmaCmHeader {
            src_port: 1000,
            addresses: Addresses::V4(src, dst),
        };
        let mut private_data = PrivateData::default();
        private_data.0[..RdmaCmHeader::LEN].copy_from_slice(&header.to_bytes());
        Req {
            local: CommId(self.serial),
            service_id,
            ca_guid: 0x6666,
            qpn: Qpn::from_wire(0x100 + self.serial),
            service: TransportService::Rc,
            path_mtu: 3,
            remote_response_timeout: 20,
            primary: PathRecord {
                local_gid: Gid::from(self.path.src),
                remote_gid: Gid::from(self.path.dst),
                ..PathRecord::default()
            },
            private_data,
            ..Req::default()
        }
    }

    /// As much as the victim takes.
    fn burst(&mut self, victim: &Node) {
        (0..BURST).for_each(|_| self.round());
        self.port.flush().unwrap();
        // Answers have to go somewhere.
        self.port.receive(4096, &mut |_, _| {}).unwrap();
        let taken = || {
            let found = counted(victim);
            found.unreadable + found.nodes.received + found.hosts.received
        };
        let give_up = Instant::now() + Duration::from_millis(20);
        while taken() + AHEAD < self.sent && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One datagram of each kind.
    fn round(&mut self) {
        let listened = ServiceId::ip(TCP, PORT);
        let good = self.request(listened);
        // ReqReceived twice with one number: a replay.
        let transaction = self.random.next_u64();
        self.say(transaction, good);
        self.say(transaction, good);
        let unknown = self.request(ServiceId::ip(TCP, PORT + 1));
        self.say(1, unknown);
        let hello = self.request(TRUNKLINE_SERVICE);
        self.say(2, hello);
        let mut forged = self.request(listened);
        forged.primary.local_gid = Gid::from(IpAddr::from([10, 9, 8, 7]));
        self.say(3, forged);
        let mut headless = self.request(listened);
        headless.private_data = PrivateData([0xff; 92]);
        self.say(4, headless);
        // Whose numbers are guessed: even ones are ordinary hosts', odd ones nodes'.
        let remote = CommId(self.random.next_u64() as u32);
        let local = good.local;
        self.say(
            5,
            Rep {
                local,
                remote,
                ..Rep::default()
            },
        );
        self.say(
            6,
            Rtu {
                local,
                remote,
                ..Rtu::default()
            },
        );
        self.say(
            7,
            Dreq {
                local,
                remote,
                ..Dreq::default()
            },
        );
        let reason = RejReason::ConsumerDefined;
        self.say(8, Rej::new(local, remote, Answered::Req, reason));
        let mut bytes = [0; MAD_LEN];
        bytes.fill_with(|| self.random.next_u64() as u8);
        self.send(&bytes, gsi::LEN, None);
        let whole = CmMad {
            transaction_id: 9,
            message: good.into(),
        }
        .to_bytes();
        let at = self.random.next_u64() as usize;
        self.send(&whole, gsi::LEN, Some(40 + at % 200));
        self.send(&whole, 40 + at % 200, None);
    }
}

#[test]
fn a_flood_of_every_sort_touches_neither_what_stands_nor_who_comes() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let mut attacker = Attacker::new(server.address);
    let enemy = attacker.path.src;
    let over = AtomicBool::new(false);
    let (accepted, standing) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let until = Until(&over);
        // The program at the server: it knows whom it wants.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let Ok(request) = listener.get_request(&server.node, Duration::from_millis(50))
                else {
                    continue;
                };
                if request.peer.ip() == enemy {
                    // Whoever has given up meanwhile needs no answer.
                    let _ = request.reject(b"");
                    continue;
                }
                let params = Params::default();
                let end = request.accept(&server.resources(), &params, LIMIT);
                accepted.send(end.unwrap()).unwrap();
            }
        });
        let near = client.connect(to, b"").unwrap();
        let far = standing.recv_timeout(LIMIT).unwrap();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                attacker.burst(&server.node);
            }
        });
        for turn in 0..200 {
            server.receive(far.qp());
            client.send(near.qp(), &[7; 64]);
            server.done();
            if turn % 50 == 0 {
                let honest = client.connect(to, b"").unwrap();
                let there = standing.recv_timeout(LIMIT).unwrap();
                drop((honest, there));
            }
        }
        drop(until);
    });
    let found = counted(&server.node);
    let reasons = [
        ("cut short or damaged", found.unreadable),
        ("no message", found.nodes.malformed),
        ("no hello", found.nodes.bad_hello),
        ("replayed", found.hosts.duplicate),
        ("service that nobody offers", found.hosts.no_service),
        ("forged addresses", found.hosts.address_mismatch),
        ("guessed numbers of hosts", found.hosts.unknown),
        ("guessed numbers of nodes", found.nodes.unknown),
        ("no header of RDMA-CM", found.rdma.bad_header),
    ];
    for (what, count) in reasons {
        assert!(count > 0, "{what}: {found:?}");
    }
    let stats = server.node.cm_stats();
    let held: u64 = stats.connections.values().sum();
    // Half of the room for requests, and what is remembered of those that were refused.
    assert!(held <= 4096 + 16_384, "{stats:?}");
}

#[test]
fn a_flood_that_no_program_looks_at_is_bounded_and_refused() {
    let server = Host::new();
    let listener = server.listen(16);
    let mut attacker = Attacker::new(server.address);
    let enemy = attacker.path.src;
    let give_up = Instant::now() + LIMIT;
    while counted(&server.node).rdma.unfair < 1000 {
        assert!(Instant::now() < give_up, "{:?}", counted(&server.node));
        attacker.burst(&server.node);
    }
    let stats = server.node.cm_stats();
    let waiting = stats.ids.iter().filter(|(phase, _)| *phase != "listening");
    assert!(
        waiting.map(|(_, count)| count).sum::<u64>() <= 16,
        "{stats:?}"
    );
    assert!(stats.overload["backlog_share"] >= 1000, "{stats:?}");
    // Whoever comes honestly finds room while the flood goes on.
    let (client, to) = (Host::new(), listener.local_addr().unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let until = Until(&over);
        let (over, server) = (&over, &server);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                attacker.burst(&server.node);
            }
        });
        let near = scope.spawn(|| client.connect(to, b""));
        let requested = || server.node.cm_stats().ids["requested"];
        while requested() < 17 {
            assert!(Instant::now() < give_up, "{:?}", server.node.cm_stats());
            std::thread::yield_now();
        }
        // Whoever looks at last finds as many as were kept, in order.
        let request = || listener.get_request(&server.node, LIMIT).unwrap();
        let kept: Vec<_> = (0..16).map(|_| request()).collect();
        assert!(kept.iter().all(|kept| kept.peer.ip() == enemy));
        let honest = request();
        assert_eq!(honest.peer.ip(), client.address);
        let params = Params::default();
        let far = honest.accept(&server.resources(), &params, LIMIT);
        let near = near.join().unwrap();
        drop((near.unwrap(), far.unwrap(), kept, until));
    });
}
