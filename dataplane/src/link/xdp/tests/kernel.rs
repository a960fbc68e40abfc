//! Devices beside a kernel.

use super::world::{
    PATIENCE, ROCE, V4, V6, Writer, device, index, readable, receive, socket_there, there,
};
use crate::link::device::Device;
use crate::link::device::Kicked;
use crate::link::xdp::socket::set_at;
use crate::link::xdp::{XdpConfig, XdpDevice, XdpMode, XdpWatch};
use crate::prng::Prng;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Read;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Instant;
use trunkline_testkit::netns::{Far, beside_a_neighbour, ip};

fn bytes(prng: &mut Prng, length: usize) -> Vec<u8> {
    (0..length).map(|_| prng.next_u64() as u8).collect()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn frames_of_all_lengths_go_both_ways() {
    beside_a_neighbour(|far| {
        for ends in [V4, V6] {
            let mut device = device(far, ends.0);
            assert_eq!(device.mode(), XdpMode::Native);
            assert!(device.is_multi_buffer() && device.max_frame() >= 4170);
            let peer = socket_there(far, ends.1, ROCE);
            let near: IpAddr = ends.0.parse().unwrap();
            let writer = Writer::new(far, ends);
            let mut prng = Prng::new(7);
            let most = 4214 - writer.headers();
            let around = |length: usize| length - writer.headers()..length - writer.headers() + 4;
            let mut lengths = vec![1, 18, 19, 1000, most - 1, most];
            lengths.extend(around(3838).chain(around(4094)).chain(around(4168)));
            for length in lengths {
                let sent = bytes(&mut prng, length);
                writer.send(&mut device, ROCE, &sent);
                let mut got = vec![0; 5000];
                let (arrived, from) = peer.recv_from(&mut got).unwrap();
                assert_eq!((from.ip(), from.port()), (near, ROCE));
                assert!(got[..arrived] == sent, "{length} bytes out");
                peer.send_to(&sent, (near, ROCE)).unwrap();
                let got = writer.receive(&mut device);
                assert!(got == (ROCE, sent), "{length} bytes in");
            }
            assert!(!device.look().unwrap());
            assert_eq!(device.missed(), 0);
        }
    });
}

/// Whether our kernel answers an echo request of the neighbour (RFC 792).
fn echoes(far: &Far) -> bool {
    let open = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    let mut raw = there(far, open);
    raw.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = SocketAddr::new(V4.0.parse().unwrap(), 0);
    raw.send_to(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0], &to.into())
        .unwrap();
    let mut got = [0; 100];
    // Behind an IPv4 header: an echo reply.
    raw.read(&mut got).unwrap() == 28 && got[20] == 0
}

#[test]
#[ignore = "needs root and network namespaces"]
fn all_other_traffic_stays_with_the_kernel() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let patient = |port: u16| {
            let socket = UdpSocket::bind((V4.0, port)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let (other, same) = (patient(4790), patient(ROCE));
        assert!(echoes(far), "the kernel answers");
        let peer = socket_there(far, V4.1, 0);
        let mut got = [0; 100];
        peer.send_to(b"other port", (V4.0, 4790)).unwrap();
        assert_eq!(other.recv(&mut got).unwrap(), 10);
        other
            .send_to(b"and back", peer.local_addr().unwrap())
            .unwrap();
        assert_eq!(peer.recv(&mut got).unwrap(), 8);
        // IPv6, for which there is no device, reaches the kernel on the same port.
        let six = UdpSocket::bind((V6.0, ROCE)).unwrap();
        six.set_read_timeout(Some(PATIENCE)).unwrap();
        let peer_six = socket_there(far, V6.1, 0);
        peer_six.send_to(b"six", (V6.0, ROCE)).unwrap();
        assert_eq!(six.recv(&mut got).unwrap(), 3);
        assert!(!device.look().unwrap(), "none of these is for the device");
        assert!(!readable(&device, 0));
        peer.send_to(b"for the device", (V4.0, ROCE)).unwrap();
        assert_eq!(receive(&mut device).len(), 42 + 14);
        same.set_nonblocking(true).unwrap();
        assert!(same.recv(&mut got).is_err(), "it went to the device only");
        // Once there is no device the kernel has this too.
        drop(device);
        same.set_nonblocking(false).unwrap();
        peer.send_to(b"for the kernel", (V4.0, ROCE)).unwrap();
        assert_eq!(same.recv(&mut got).unwrap(), 14);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn what_was_closed_is_gone_and_can_be_opened_again_at_once() {
    beside_a_neighbour(|far| {
        for _ in 0..5 {
            let mut device = device(far, V4.0);
            assert!(ip("link show near").contains("xdp"));
            let peer = socket_there(far, V4.1, ROCE);
            peer.send_to(b"once more", (V4.0, ROCE)).unwrap();
            assert_eq!(receive(&mut device).len(), 42 + 9);
            drop(device);
            assert!(!ip("link show near").contains("xdp"));
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_program_is_seen_whoever_has_it_and_that_of_a_device_stays_as_long_as_that() {
    beside_a_neighbour(|far| {
        let mut watch = XdpWatch::new(index("near")).unwrap();
        assert!(!watch.has_program().unwrap());
        let device = device(far, V4.0);
        let off = Command::new("ip")
            .args(["link", "set", "near", "xdp", "off"])
            .output();
        assert!(!off.unwrap().status.success());
        assert!(watch.has_program().unwrap());
        drop(device);
        assert!(!watch.has_program().unwrap());
        ip("link del near");
        let error = watch.has_program().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn frames_wait_for_an_interface_that_is_down_but_not_for_one_that_is_gone() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let peer = socket_there(far, V4.1, ROCE);
        let writer = Writer::new(far, V4);
        let push = |device: &mut XdpDevice, payload: &[u8]| {
            let frame = device.allocate(42 + payload.len()).unwrap();
            writer.write(frame, ROCE, payload);
            device.push(None);
        };
        ip("link set near down");
        push(&mut device, b"waits");
        let down = Kicked {
            is_down: true,
            ..Kicked::default()
        };
        assert_eq!(device.kick().unwrap(), down);
        assert!(!device.look().unwrap());
        ip("link set near up");
        assert_eq!(device.kick().unwrap().sent, 1);
        let mut got = [0; 100];
        assert_eq!(peer.recv(&mut got).unwrap(), 5);
        ip("link del near");
        push(&mut device, b"nowhere to go");
        assert!(!device.kick().unwrap_err().is_passing());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn every_byte_of_random_frames_comes_back() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let writer = Writer::new(far, V4);
        let echo = socket_there(far, V4.1, ROCE);
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        println!("seed {seed}");
        let mut prng = Prng::new(seed);
        let mut expected = std::collections::VecDeque::new();
        let mut got = vec![0; 5000];
        for _ in 0..300 {
            let burst = 1 + prng.below(40);
            for _ in 0..burst {
                let length = 1 + prng.below(4172) as usize;
                let payload = bytes(&mut prng, length);
                writer.write(device.allocate(42 + length).unwrap(), ROCE, &payload);
                device.push(None);
                expected.push_back(payload);
            }
            let kicked = device.kick().unwrap();
            assert_eq!((kicked.sent as u64, kicked.refused), (burst, 0));
            for _ in 0..burst {
                let (length, from) = echo.recv_from(&mut got).unwrap();
                echo.send_to(&got[..length], from).unwrap();
            }
            // Some are left for the next round.
            for _ in 0..prng.below(expected.len() as u64 + 1) {
                assert!(writer.receive(&mut device).1 == expected.pop_front().unwrap());
            }
        }
        while let Some(payload) = expected.pop_front() {
            assert!(writer.receive(&mut device).1 == payload);
        }
        assert!(!device.look().unwrap());
        assert_eq!(device.missed(), 0);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn datagrams_that_a_sender_joined_arrive_one_by_one() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let peer = socket_there(far, V4.1, ROCE);
        let option = (libc::SOL_UDP, libc::UDP_SEGMENT);
        set_at(peer.as_raw_fd(), option.0, option.1, &4100_i32).unwrap();
        let payload: Vec<_> = (0..4100 * 10 + 7).map(|at| (at / 4100) as u8).collect();
        peer.send_to(&payload, (V4.0, ROCE)).unwrap();
        for number in 0..=10 {
            let frame = receive(&mut device);
            assert_eq!(frame.len(), if number < 10 { 4142 } else { 49 });
            assert!(frame[42..].iter().all(|byte| *byte == number));
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn where_the_driver_knows_nothing_of_it_the_stack_runs_the_program() {
    beside_a_neighbour(|_| {
        let config = XdpConfig::new(index("lo"), IpAddr::from([127, 0, 0, 1]));
        let mut device = XdpDevice::open(&config).unwrap();
        assert_eq!(device.mode(), XdpMode::Generic);
        let peer = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        for length in [10, 3000, 5000] {
            peer.send_to(&vec![length as u8; length], ("127.0.0.1", ROCE))
                .unwrap();
            let frame = receive(&mut device);
            assert_eq!(frame.len(), 42 + length);
            assert!(frame[42..].iter().all(|byte| *byte == length as u8));
        }
        // What is longer than a device takes is cut.
        peer.send_to(&[1; 20_000], ("127.0.0.1", ROCE)).unwrap();
        let give_up = Instant::now() + PATIENCE;
        while !device.look().unwrap() {
            assert!(Instant::now() < give_up);
        }
        let unit = device.front().unwrap();
        assert!(unit.is_cut && unit.frame.len() == device.max_frame());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn devices_of_several_queues_share_a_program() {
    beside_a_neighbour(|_| {
        let two = "numtxqueues 2 numrxqueues 2";
        ip(&format!("link add one {two} type veth peer name two {two}"));
        ip("link set one up");
        ip("link set two up");
        let group = |name: &str, address: [u8; 4]| {
            let configs = [0, 1].map(|queue| XdpConfig {
                queue,
                ..XdpConfig::new(index(name), IpAddr::from(address))
            });
            XdpDevice::open_group(&configs).unwrap()
        };
        let mut from = group("one", [10, 10, 0, 1]);
        let mut to = group("two", [10, 10, 0, 2]);
        let writer = Writer::between("one", "two", ("10.10.0.1", "10.10.0.2"));
        for number in 0..200_u8 {
            // What leaves from a queue arrives in the one of the same number.
            let queue = usize::from(number % 2);
            writer.send(&mut from[queue], ROCE, &[number; 100]);
            assert_eq!(writer.receive(&mut to[queue]), (ROCE, vec![number; 100]));
            assert!(!to[1 - queue].look().unwrap());
        }
        // The program stays until the last is gone.
        drop(to.pop());
        assert!(ip("link show two").contains("xdp"));
        writer.send(&mut from[0], ROCE, &[1; 100]);
        assert_eq!(writer.receive(&mut to[0]), (ROCE, vec![1; 100]));
        drop(to);
        assert!(!ip("link show two").contains("xdp"));
    });
}
