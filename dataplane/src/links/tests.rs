#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trunkline_testkit::netns::{beside_a_neighbour, ip};

/// Whether the link changes until it works, or does not, and says so by its descriptor first.
fn becomes(link: &mut KernelLink, works: bool) {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fd = libc::pollfd {
            fd: link.fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        let ready = unsafe { libc::poll(&raw mut fd, 1, left.as_millis() as i32) };
        assert_eq!(ready, 1, "nothing says that the link works: {works}");
        if last(link) == Some(works) {
            return;
        }
    }
}

/// The last of the changes that are known.
fn last(link: &mut KernelLink) -> Option<bool> {
    std::iter::from_fn(|| link.next_change()).last()
}

#[test]
fn an_address_that_no_interface_has_says_nothing() {
    let mut link = KernelLink::open(Ipv4Addr::new(192, 0, 2, 1).into()).unwrap();
    assert_eq!(last(&mut link), None);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_link_goes_down_and_comes_up_at_either_end() {
    beside_a_neighbour(|far| {
        for local in ["10.9.0.1", "fd09::1"] {
            let mut link = KernelLink::open(local.parse().unwrap()).unwrap();
            becomes(&mut link, true);
            assert_eq!(link.next_change(), None);
            far.run("ip link set far down");
            becomes(&mut link, false);
            far.run("ip link set far up");
            becomes(&mut link, true);
        }
        let mut link = KernelLink::open([10, 9, 0, 1].into()).unwrap();
        becomes(&mut link, true);
        // Those of others do not matter.
        ip("link add other type veth peer name end");
        ip("link set other up");
        ip("link del other");
        assert_eq!(last(&mut link), None);
        ip("link set near down");
        becomes(&mut link, false);
        ip("link set near up");
        becomes(&mut link, true);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_interface_that_is_removed_is_down_until_another_one_has_its_address() {
    beside_a_neighbour(|_| {
        let mut link = KernelLink::open([10, 9, 0, 1].into()).unwrap();
        becomes(&mut link, true);
        ip("link del near");
        becomes(&mut link, false);
        ip("link add other type veth peer name end");
        ip("link set other up");
        ip("link set end up");
        assert_eq!(last(&mut link), None);
        ip("addr add 10.9.0.1/24 dev other");
        becomes(&mut link, true);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn who_reads_so_late_that_changes_were_lost_hears_the_last_state() {
    beside_a_neighbour(|_| {
        let mut link = KernelLink::open([10, 9, 0, 1].into()).unwrap();
        becomes(&mut link, true);
        link.netlink.set_recv_buffer_size(1).unwrap();
        // What comes first finds room, and says that it is up.
        for mtu in 1400..1420 {
            ip(&format!("link set near mtu {mtu}"));
        }
        ip("link set near down");
        becomes(&mut link, false);
        assert_eq!(link.next_change(), None);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_interface_that_also_gets_the_address_and_goes_away_again_changes_nothing() {
    beside_a_neighbour(|_| {
        let mut link = KernelLink::open([10, 9, 0, 1].into()).unwrap();
        becomes(&mut link, true);
        ip("link add other type veth peer name end");
        ip("addr add 10.9.0.1/32 dev other");
        ip("link del other");
        assert_ne!(last(&mut link), Some(false));
        ip("link set near down");
        becomes(&mut link, false);
    });
}
