//! UDP ports in two network namespaces that a veth pair with jumbo frames joins: what really goes
//! over the wire, and how fast. Needs root and `ip`; `cargo xtask test` runs them where it may:
//!
//! ```text
//! cargo test --release -p trunkline-dataplane --test veth -- --ignored --nocapture --test-threads
//! 1
//! ```

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use trunkline_dataplane::port::Egress;
use trunkline_dataplane::{Port, UdpConfig, UdpPort};
use trunkline_wire::{Frame, IpFields, Path, ROCE_PORT, icrc};

const EAST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const WEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}: {status}");
}

/// Two namespaces, `east` and `west`, removed at the end.
struct Namespaces {
    east: String,
    west: String,
}

impl Namespaces {
    fn new(test: &str) -> Self {
        let name = |end| format!("tl{}-{test}-{end}", std::process::id());
        let namespaces = Self {
            east: name("east"),
            west: name("west"),
        };
        let Self { east, west } = &namespaces;
        ip(&format!("netns add {east}"));
        ip(&format!("netns add {west}"));
        ip(&format!(
            "-n {east} link add veth0 type veth peer name veth0 netns {west}"
        ));
        for (namespace, address) in [(east, EAST), (west, WEST)] {
            ip(&format!(
                "-n {namespace} address add {address}/24 dev veth0"
            ));
            ip(&format!("-n {namespace} link set veth0 mtu 9000 up"));
        }
        namespaces
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.east, &self.west] {
            let _ = Command::new("ip")
                .args(["netns", "delete", namespace])
                .status();
        }
    }
}

/// Moves the calling thread into a namespace.
fn enter(namespace: &str) {
    let file = File::open(format!("/var/run/netns/{namespace}")).unwrap();
    // SAFETY: an open namespace file; only the calling thread moves.
    let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn open(address: IpAddr) -> UdpPort {
    let mut config = UdpConfig::new(address);
    config.extra_source_ports = 1;
    UdpPort::open(&config).unwrap()
}

fn path(port: &UdpPort, dst: IpAddr) -> Path {
    let (src, src_port) = (port.local().ip(), port.local().port());
    Path {
        src,
        dst,
        src_port,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

/// A socket that sees every frame of the namespace.
fn sniffer() -> OwnedFd {
    let all = i32::from((libc::ETH_P_ALL as u16).to_be());
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, all) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let timeout = libc::timeval {
        tv_sec: 0,
        tv_usec: 500_000,
    };
    // SAFETY: a `timeval` of its size.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const timeout).cast(),
            size_of::<libc::timeval>() as u32,
        )
    };
    // SAFETY: just opened, owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn frame<'a>(sniffer: &OwnedFd, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let (to, room) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: `room` bytes at `to` are ours.
    let got = unsafe { libc::recv(sniffer.as_raw_fd(), to, room, 0) };
    Some(&buffer[..usize::try_from(got).ok()?])
}

#[test]
#[ignore = "needs root and network namespaces"]
fn segments_on_the_wire_carry_the_identifications_that_were_promised() {
    let namespaces = Namespaces::new("ids");
    // No segmentation offload on the wire: the kernel cuts super-packets up before the link.
    ip(&format!(
        "-n {} link set veth0 gso_max_segs 1",
        namespaces.east
    ));
    thread::scope(|scope| {
        scope.spawn(|| {
            enter(&namespaces.west);
            let sniffer = sniffer();
            let mut receiver = open(WEST);
            let sent = scope.spawn(|| {
                enter(&namespaces.east);
                let mut sender = open(EAST);
                let main = path(&sender, WEST);
                let extra = Path {
                    src_port: sender.source_ports()[1],
                    ..main
                };
                let classed = Path {
                    traffic_class: 0x6a,
                    ..main
                };
                let mut sent = 0;
                for (path, count, length) in [
                    (main, 1, 64),
                    (main, 10, 4156),
                    (extra, 64, 100),
                    (classed, 3, 8972),
                ] {
                    for _ in 0..count {
                        let slot = sender.reserve(&path, length).unwrap();
                        slot.datagram.fill(7);
                        icrc::seal(&path, slot.identification, slot.datagram);
                        sender.commit();
                        sent += 1;
                    }
                }
                sender.flush().unwrap();
                assert_eq!(sender.counters().sent, sent);
                assert_eq!(sender.counters().super_packets_sent, 3);
                sent
            });
            let sent = sent.join().unwrap();
            let (mut buffer, mut seen, mut highest) = (vec![0; 70_000], 0, 0);
            while let Some(frame) = frame(&sniffer, &mut buffer) {
                let Some(roce) = Frame::parse(frame).unwrap().roce() else {
                    continue;
                };
                assert!(roce.icrc_ok(), "{:?} {}", roce.path, roce.identification);
                assert_eq!(roce.flags, 0x4000);
                highest = highest.max(roce.identification);
                seen += 1;
            }
            assert_eq!(seen, sent, "every datagram was a frame of its own");
            assert_eq!(highest, 63);
            let mut right = 0;
            receiver
                .receive(1000, &mut |arrival, datagram| {
                    let id = icrc::solve_identification(&arrival.path, datagram).unwrap();
                    right += u64::from(id < 64);
                })
                .unwrap();
            // One call may not bring all; more would only repeat the point.
            assert!(right > 0);
        });
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn datagrams_that_became_too_long_are_counted_and_shorter_ones_go_on_in_super_packets() {
    let namespaces = Namespaces::new("mtu");
    let east = &namespaces.east;
    thread::scope(|scope| {
        scope.spawn(|| {
            enter(east);
            let mut port = open(EAST);
            assert_eq!(port.capabilities().max_datagram, 9000 - 28);
            let path = path(&port, WEST);
            let mut send = |length, count| {
                for _ in 0..count {
                    port.reserve(&path, length).unwrap().datagram.fill(0);
                    port.commit();
                }
                port.flush().unwrap();
                (port.counters(), port.capabilities().super_packets)
            };
            assert_eq!(send(4156, 10).0.sent, 10);
            ip(&format!("-n {east} link set veth0 mtu 1500"));
            let (counters, super_packets) = send(4156, 10);
            assert_eq!(
                (counters.sent, counters.split, counters.too_long),
                (10, 1, 10)
            );
            assert!(
                super_packets,
                "it was not the super-packet that was refused"
            );
            let (counters, _) = send(1000, 10);
            assert_eq!((counters.sent, counters.super_packets_sent), (20, 2));
        });
    });
}

/// What went through in a while, and what it cost.
#[derive(Debug)]
struct Flow {
    sent_bytes: u64,
    received_bytes: u64,
    /// Datagrams per message from the kernel.
    coalesced: f64,
    wall: Duration,
    sender_cpu: Duration,
    receiver_cpu: Duration,
}

impl Flow {
    fn print(&self, name: &str, length: usize) {
        let bits = self.received_bytes as f64 * 8.0;
        println!(
            "  {name:>14}: {:6.2} Gb/s of {:6.2} sent, {:6.2} Mpps, \
             {:6.2} Gb per CPU second of the receiver, sender \
             busy {:3.0} %, receiver {:3.0} %, {:.1} per message",
            bits / self.wall.as_secs_f64() / 1e9,
            self.sent_bytes as f64 * 8.0 / self.wall.as_secs_f64() / 1e9,
            bits / 8e6 / length as f64 / self.wall.as_secs_f64(),
            bits / 1e9 / self.receiver_cpu.as_secs_f64(),
            self.sender_cpu.as_secs_f64() / self.wall.as_secs_f64() * 100.0,
            self.receiver_cpu.as_secs_f64() / self.wall.as_secs_f64() * 100.0,
            self.coalesced,
        );
    }
}

/// CPU time of the calling thread: what a busy machine cannot stretch.
fn cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sleeps until something comes, at most a millisecond: CPU time is then what receiving costs.
fn wait(port: &UdpPort) {
    let fd = port.fd().unwrap().as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one `pollfd`.
    unsafe { libc::poll(&raw mut poll, 1, 1) };
}

/// Touches every line, as summing an ICRC would.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}

/// Sends datagrams of `length` bytes in bursts for `wall`.
fn udp_flow(namespaces: &Namespaces, length: usize, offloads: bool, wall: Duration) -> Flow {
    let open = |address| {
        let (segmentation, coalescing) = (offloads, offloads);
        UdpPort::open(&UdpConfig {
            segmentation,
            coalescing,
            ..UdpConfig::new(address)
        })
        .unwrap()
    };
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let burst = (256 << 10) / length.max(1024);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            enter(&namespaces.west);
            let mut port = open(WEST);
            ready.store(true, Ordering::Release);
            let (mut sum, start) = (0_u64, cpu());
            while !done.load(Ordering::Acquire) {
                let got = port.receive(1024, &mut |_, bytes| sum = sum.wrapping_add(touch(bytes)));
                if got.unwrap() == 0 {
                    wait(&port);
                }
            }
            std::hint::black_box(sum);
            (port.counters(), cpu() - start)
        });
        let sender = scope.spawn(|| {
            enter(&namespaces.east);
            let mut port = open(EAST);
            let path = path(&port, WEST);
            while !ready.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let (start, end) = (cpu(), Instant::now() + wall);
            while Instant::now() < end {
                for _ in 0..burst {
                    let Some(slot) = port.reserve(&path, length) else {
                        break;
                    };
                    slot.datagram.fill(1);
                    port.commit();
                }
                port.flush().unwrap();
            }
            let busy = (port.counters().sent_bytes, cpu() - start);
            thread::sleep(Duration::from_millis(50));
            done.store(true, Ordering::Release);
            busy
        });
        let (sent_bytes, sender_cpu) = sender.join().unwrap();
        let (counters, receiver_cpu) = receiver.join().unwrap();
        let plain = counters.received as f64;
        let supers = counters.super_packets_received.max(1) as f64;
        let coalesced = if offloads { plain / supers } else { 1.0 };
        let received_bytes = counters.received_bytes;
        Flow {
            sent_bytes,
            received_bytes,
            coalesced,
            wall,
            sender_cpu,
            receiver_cpu,
        }
    })
}

/// One TCP stream, for comparison.
fn tcp_flow(namespaces: &Namespaces, wall: Duration) -> Flow {
    let ready = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            enter(&namespaces.west);
            let listener = TcpListener::bind((WEST, 5001)).unwrap();
            ready.store(true, Ordering::Release);
            let mut stream = listener.accept().unwrap().0;
            let (mut buffer, mut bytes, start) = (vec![0; 256 << 10], 0_u64, cpu());
            let mut sum = 0_u64;
            loop {
                let got = stream.read(&mut buffer).unwrap();
                if got == 0 {
                    break;
                }
                sum = sum.wrapping_add(touch(&buffer[..got]));
                bytes += got as u64;
            }
            std::hint::black_box(sum);
            (bytes, cpu() - start)
        });
        let sender = scope.spawn(|| {
            enter(&namespaces.east);
            while !ready.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let mut stream = TcpStream::connect((WEST, 5001)).unwrap();
            let (buffer, start, end) = (vec![1; 128 << 10], cpu(), Instant::now() + wall);
            while Instant::now() < end {
                stream.write_all(&buffer).unwrap();
            }
            cpu() - start
        });
        let sender_cpu = sender.join().unwrap();
        let (received_bytes, receiver_cpu) = receiver.join().unwrap();
        Flow {
            sent_bytes: received_bytes,
            received_bytes,
            coalesced: 1.0,
            wall,
            sender_cpu,
            receiver_cpu,
        }
    })
}

#[test]
#[ignore = "needs root and network namespaces"]
fn throughput_over_a_jumbo_veth() {
    let namespaces = Namespaces::new("speed");
    let wall = Duration::from_secs(1);
    for (length, least) in [(64, 30.0), (4156, 10.0), (8192, 5.0)] {
        println!("{length} B");
        let together = udp_flow(&namespaces, length, true, wall);
        together.print("super-packets", length);
        udp_flow(&namespaces, length, false, wall).print("one by one", length);
        tcp_flow(&namespaces, wall).print("TCP", length);
        assert!(together.received_bytes > 0);
        assert!(
            together.coalesced > least,
            "{} datagrams per message",
            together.coalesced
        );
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn round_trips_over_a_veth() {
    const ROUNDS: u64 = 20_000;
    let namespaces = Namespaces::new("rtt");
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let one = |port: &mut UdpPort, path: &Path| {
        port.reserve(path, 64).unwrap().datagram.fill(0);
        port.commit();
        port.flush().unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            enter(&namespaces.west);
            let mut port = open(WEST);
            let path = path(&port, EAST);
            ready.store(true, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                if port.receive(16, &mut |_, _| {}).unwrap() > 0 {
                    one(&mut port, &path);
                }
            }
        });
        scope.spawn(|| {
            enter(&namespaces.east);
            let mut port = open(EAST);
            let path = path(&port, WEST);
            while !ready.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let start = Instant::now();
            for _ in 0..ROUNDS {
                one(&mut port, &path);
                let sent = Instant::now();
                while port.receive(16, &mut |_, _| {}).unwrap() == 0 {
                    assert!(sent.elapsed() < Duration::from_secs(5), "no answer");
                }
            }
            let round = start.elapsed() / ROUNDS as u32;
            done.store(true, Ordering::Release);
            println!("64 B round trip: {round:?}; {:?}", port.counters());
            assert_eq!(port.counters().send_calls, ROUNDS);
            assert_eq!(port.counters().receive_calls, ROUNDS);
        });
    });
    assert_eq!(
        open_fails_without_the_address(),
        "10.77.0.1 is not an address of this machine"
    );
}

fn open_fails_without_the_address() -> String {
    UdpPort::open(&UdpConfig {
        port: ROCE_PORT,
        ..UdpConfig::new(EAST)
    })
    .unwrap_err()
    .to_string()
}
