//! The kernel at the other end of a link: it answers our questions, and we answer its.

use super::*;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant as Clock};
use trunkline_testkit::netns::{Far, beside_a_neighbour, ip};

const PATIENCE: Duration = Duration::from_secs(20);

/// All frames of the interface `near`, past the kernel's own protocols.
fn open() -> Socket {
    let every = (libc::ETH_P_ALL as u16).to_be();
    let socket = Socket::new(
        Domain::from(libc::AF_PACKET),
        Type::RAW,
        Some(Protocol::from(i32::from(every))),
    )
    .unwrap();
    // SAFETY: a name that ends in 0.
    let index = unsafe { libc::if_nametoindex(c"near".as_ptr()) };
    // SAFETY: all zeros are a valid `sockaddr_ll`.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = every;
    name.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as u32;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: `name` is a live address of `length` bytes.
    let bound = unsafe { libc::bind(fd, (&raw const name).cast(), length) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    socket
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    socket
}

fn mac_of_near() -> Mac {
    let words = ip("-o link show near");
    let (_, found) = words.split_once("link/ether ").unwrap();
    let bytes = found[..17].split(':');
    let bytes: Vec<u8> = bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    Mac(bytes.try_into().unwrap())
}

/// Runs `neighbours` on the link until `done`.
fn run(
    neighbours: &mut Neighbours,
    socket: &mut Socket,
    mut done: impl FnMut(&mut Neighbours) -> bool,
) {
    let started = Clock::now();
    let mut buffer = [0; 2048];
    while !done(neighbours) {
        assert!(started.elapsed() < PATIENCE, "{neighbours:?}");
        let now = NOW + started.elapsed().as_nanos() as u64;
        neighbours.handle_timeout(now);
        while let Some(frame) = neighbours.poll_transmit() {
            socket.write_all(&frame).unwrap();
        }
        match socket.read(&mut buffer) {
            Ok(length) => {
                neighbours.receive(now, &buffer[..length]);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What the kernel knows of our address.
fn known_to(far: &Far, own: &str) -> String {
    far.run(&format!("ip neigh show {own} dev far"))
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_kernel_and_we_find_each_other() {
    beside_a_neighbour(|far| {
        let mac = mac_of_near();
        // The kernel has seen us ask, but has to confirm it: after five seconds if not told
        // otherwise.
        for table in ["arp_cache", "ndisc_cache"] {
            far.run(&format!(
                "ip ntable change name {table} dev far delay_probe 0"
            ));
        }
        // The kernel at this end has other addresses than these.
        for (own, peer) in [("10.9.0.9", "10.9.0.2"), ("fd09::9", "fd09::2")] {
            let mut neighbours = Neighbours::new(interface(mac, own));
            let (mut socket, peer) = (open(), address(peer));
            neighbours.solicit(peer);
            run(&mut neighbours, &mut socket, |ours| {
                ours.neighbour(peer) == Neighbour::Known
            });
            let found = neighbours.mac(peer).unwrap().to_string();
            assert!(far.run("ip link show far").contains(&found), "{found}");

            // A datagram to us makes the kernel ask who we are.
            far.run(&format!("bash -c echo>/dev/udp/{own}/9"));
            run(&mut neighbours, &mut socket, |ours| {
                ours.counters().answered > 0 && known_to(far, own).contains(&mac.to_string())
            });
        }
    });
}
