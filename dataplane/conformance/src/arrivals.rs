//! What others send that is not for a node.

use crate::{End, Link, PATIENCE, Suite, pattern};
use socket2::{Domain, Socket, Type};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;
use trunkline_testkit::netns::ip;
use trunkline_wire::{Frame, IcrcSeed, Mac};

/// A socket that sends whole frames from the far end.
struct Raw(Socket);

impl Raw {
    fn open() -> Self {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
        // SAFETY: all zeros are a valid address of this family.
        let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        name.sll_family = libc::AF_PACKET as u16;
        // SAFETY: a C string.
        name.sll_ifindex = unsafe { libc::if_nametoindex(c"far".as_ptr()) }.cast_signed();
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), length) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Self(socket)
    }

    fn send(&self, frame: &[u8]) {
        (&self.0).write_all(frame).unwrap();
    }
}

/// A right frame from the far end to the near one, and what is in it.
fn frame(from: &End, to: &End, mac: Mac) -> (Vec<u8>, Vec<u8>) {
    let path = from.path_to(to.address);
    let mut datagram = pattern(9, 200);
    IcrcSeed::new(&path).seal(0, &mut datagram);
    let frame = Frame::for_datagram(mac, Mac([2; 6]), &path, 0, &datagram);
    let mut bytes = vec![0; frame.length()];
    frame.emit(&mut bytes);
    (bytes, datagram)
}

fn near_mac() -> Mac {
    let text = std::fs::read_to_string("/sys/class/net/near/address");
    // /sys shows the namespace that it was mounted in: the kernel tells by ip(8), too.
    let text = text.unwrap_or_else(|_| {
        let shown = ip("-o link show near");
        let mut words = shown.split_whitespace();
        words.find(|word| *word == "link/ether");
        words.next().unwrap().to_owned()
    });
    let bytes: Vec<u8> = text
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    Mac(bytes.try_into().unwrap())
}

/// Frames for others and frames that are not whole move nothing.
pub fn frames_for_others_and_frames_that_are_not_whole_move_nothing(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels, Link::Taken], |far_host, [near, far]| {
        let raw = far_host.within(Raw::open);
        let mac = near_mac();
        let (good, _) = frame(far, near, mac);
        let v4 = near.address.is_ipv4();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            bytes
        };
        let udp = if v4 { 34 } else { 54 };
        let bad = [
            ("for another address of the link", with(&|it| it[5] ^= 1)),
            ("for another port", with(&|it| it[udp + 3] ^= 1)),
            ("cut", with(&|it| it.truncate(it.len() - 10))),
            ("cut in the headers", with(&|it| it.truncate(udp + 4))),
            (
                "of another protocol",
                with(&|it| it[if v4 { 23 } else { 20 }] = 6),
            ),
            (
                "for another host",
                with(&|it| it[if v4 { 33 } else { 53 }] ^= 0x40),
            ),
            (
                "of a UDP length that is another",
                with(&|it| it[udp + 5] ^= 8),
            ),
            (
                "of a VLAN",
                with(&|it| {
                    it.splice(12..12, [0x81, 0, 0, 7]);
                }),
            ),
            ("of another type", with(&|it| it[12] = 0x77)),
            ("of a version that is another", with(&|it| it[14] ^= 0x20)),
        ];
        for (what, bytes) in &bad {
            raw.send(bytes);
            let got = near.receive(1, Duration::from_millis(10));
            assert!(got.is_empty(), "{what}: {got:?}");
        }
        if v4 {
            for (what, offset) in [("a first fragment", 0x2000_u16), ("a fragment", 0x0010)] {
                let path = far.path_to(near.address);
                let mut bytes = good.clone();
                bytes[20..22].copy_from_slice(&offset.to_be_bytes());
                bytes[24..26].fill(0);
                let sum: u32 = bytes[14..34]
                    .chunks(2)
                    .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
                    .sum();
                let folded = (sum & 0xffff) + (sum >> 16);
                let sum = !(folded as u16);
                bytes[24..26].copy_from_slice(&sum.to_be_bytes());
                raw.send(&bytes);
                let got = near.receive(1, Duration::from_millis(10));
                assert!(got.is_empty(), "{what} {path:?}");
            }
        }
        raw.send(&good);
        let got = near.receive(1, PATIENCE);
        assert!(got[0].datagram.starts_with(&pattern(9, 196)));
        assert_eq!(got[0].arrival.path, far.path_to(near.address));
    });
}

/// Other programs of the host go on beside it.
pub fn other_programs_of_the_host_go_on_beside_it(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels], |far_host, [near, _]| {
        let socket = std::net::UdpSocket::bind((near.address, 4000)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = (near.address, 4000);
        far_host.within(|| {
            let any = if to.0.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let other = std::net::UdpSocket::bind(any).unwrap();
            other.send_to(b"hello", to).unwrap();
        });
        let mut bytes = [0; 16];
        let (length, _) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"hello");
        assert!(near.receive(1, Duration::from_millis(10)).is_empty());
    });
}
