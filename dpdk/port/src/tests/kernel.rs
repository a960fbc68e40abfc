//! Drivers on interfaces of the kernel, between two network namespaces. That takes privileges:
//! these tests are ignored unless asked for.

use super::ends::{End, FAMILIES, carry, meet, refused, stream, until};
use crate::port::unique;
use std::time::{Duration, Instant};
use trunkline_testkit::netns::{self, Far, ip};

/// Runs `test` in a namespace with `near`, whose other end is `far` in the namespace that it gets.
fn beside_a_neighbour(mtu: u32, test: impl FnOnce(&Far) + Send + 'static) {
    netns::beside_a_neighbour(move |far| {
        far.run(&format!("ip link set far mtu {mtu}"));
        ip(&format!("link set near mtu {mtu}"));
        test(far);
    });
}

/// Both ends on one driver, at an address of each family.
fn both(driver: &str, mtu: u32, lengths: &'static [usize]) {
    let driver = driver.to_owned();
    beside_a_neighbour(mtu, move |far| {
        for [here, there] in FAMILIES {
            let spec = |interface| format!("{driver}{},iface={interface}", unique());
            let mut one = End::open(&spec("near"), here);
            let mut other = far.within(|| End::open(&spec("far"), there));
            assert_eq!(one.mtu, mtu);
            meet(&mut one, &mut other);
            carry(&mut one, &mut other, lengths);
            carry(&mut other, &mut one, lengths);
            stream(&mut one, &mut other, 2000, 1040);
        }
    });
}

/// One end on a driver, the other on a socket.
fn beside_a_socket(driver: &str, mtu: u32, lengths: &'static [usize]) {
    let driver = driver.to_owned();
    beside_a_neighbour(mtu, move |far| {
        for [here, there] in FAMILIES {
            let mut one = End::open(&format!("{driver}{},iface=near", unique()), here);
            let mut other = far.within(|| End::packet(there));
            meet(&mut one, &mut other);
            carry(&mut one, &mut other, lengths);
            carry(&mut other, &mut one, lengths);
        }
    });
}

#[test]
#[ignore = "takes CAP_NET_ADMIN and CAP_NET_RAW"]
fn af_packet_carries_datagrams_of_all_lengths() {
    both("net_af_packet", 4200, &super::ends::LENGTHS);
    beside_a_socket("net_af_packet", 4200, &super::ends::LENGTHS);
}

/// A veth carries super-packets whole, and nothing tells a driver of DPDK where they part.
#[test]
#[ignore = "takes CAP_NET_ADMIN and CAP_NET_RAW"]
fn a_super_packet_that_cannot_be_taken_apart_is_counted_and_not_delivered() {
    beside_a_neighbour(1500, |far| {
        let [here, there] = FAMILIES[0];
        let mut one = End::open("net_af_packet50,iface=near", here);
        let mut other = far.within(|| End::packet(there));
        meet(&mut one, &mut other);
        let joined = |other: &mut End, to| {
            let datagram = other.datagram(to, 1040);
            for _ in 0..4 {
                assert!(other.put(to, &datagram));
            }
            other.port.flush().unwrap();
        };
        joined(&mut other, one.address);
        assert_eq!(other.port.counters().super_packets_sent, 1);
        until("it is counted", || {
            assert_eq!(one.receive(), []);
            one.port.counters().malformed == 1
        });
        far.run("ethtool -K far tx-udp-segmentation off");
        joined(&mut other, one.address);
        let mut got = 0;
        until("the kernel takes it apart", || {
            got += one.receive().len();
            got == 4
        });
    });
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn af_xdp_carries_datagrams_of_all_lengths() {
    both("net_af_xdp", 1500, &[16, 255, 1040, 1440]);
    both("net_af_xdp", 3200, &[16, 255, 1040, 3000, 3152]);
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn af_xdp_meets_a_host_whose_kernel_answers() {
    beside_a_socket("net_af_xdp", 1500, &[16, 255, 1040, 1440]);
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn what_an_interface_cannot_is_said() {
    beside_a_neighbour(4200, |_| {
        for (text, address, why) in [
            (
                "net_af_xdp90,iface=near",
                "10.9.0.1",
                "packets of up to 3200 bytes, not of 4200",
            ),
            (
                "net_af_packet91,iface=lo",
                "10.9.0.1",
                "is an address of near",
            ),
            ("net_af_packet92,iface=near", "10.9.0.9", "10.9.0.9"),
        ] {
            refused(text, address, why);
        }
    });
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn an_interface_that_af_xdp_has_is_not_taken_from_it() {
    beside_a_neighbour(1500, |far| {
        let [here, there] = FAMILIES[0];
        let mut one = End::open("net_af_xdp70,iface=near", here);
        let mut other = far.within(|| End::packet(there));
        meet(&mut one, &mut other);
        refused(
            "net_af_xdp71,iface=near",
            FAMILIES[1][0],
            "all frames of near",
        );
        // As of all kinds, the address is one node's.
        for device in ["net_af_xdp71,iface=near", "net_af_packet71,iface=near"] {
            refused(device, here, "10.9.0.1:4791 is taken by this process");
        }
        carry(&mut one, &mut other, &[1040]);
        drop(one);
        let mut again = End::open("net_af_xdp71,iface=near", here);
        meet(&mut again, &mut other);
    });
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn af_xdp_does_not_silence_a_node_that_has_its_address() {
    beside_a_neighbour(1500, |far| {
        let [here, there] = FAMILIES[0];
        let mut one = End::packet(here);
        let mut other = far.within(|| End::packet(there));
        meet(&mut one, &mut other);
        let taken = "10.9.0.1:4791 is taken by this process";
        refused("net_af_xdp72,iface=near", here, taken);
        carry(&mut one, &mut other, &[1040]);
    });
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn an_interface_that_is_gone_is_told_of_whatever_it_was_called() {
    for driver in ["net_af_packet60", "net_af_xdp60"] {
        beside_a_neighbour(1500, move |far| {
            let [here, there] = FAMILIES[0];
            let mut one = End::open(&format!("{driver},iface=near"), here);
            let mut other = far.within(|| End::packet(there));
            meet(&mut one, &mut other);
            ip("link set near name renamed");
            carry(&mut one, &mut other, &[1040]);
            ip("link del renamed");
            until("it is told of", || {
                let told = one.port.receive(1, &mut |_, _| {});
                told.is_err_and(|error| !error.is_passing())
            });
        });
    }
}

#[test]
#[ignore = "takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"]
fn a_program_that_somebody_removes_is_told_of() {
    beside_a_neighbour(1500, move |far| {
        let [here, there] = FAMILIES[0];
        let mut one = End::open("net_af_xdp50,iface=near", here);
        let mut other = far.within(|| End::packet(there));
        meet(&mut one, &mut other);
        let mut receive = || one.port.receive(1, &mut |_, _| {});
        let since = Instant::now();
        // Longer than it takes to look.
        while since.elapsed() < Duration::from_secs(2) {
            receive().unwrap();
        }
        ip("link set near xdp off");
        until("it is told of", || {
            receive().is_err_and(|error| {
                assert!(!error.is_passing());
                error.to_string().contains("somebody removed it")
            })
        });
    });
}

#[test]
#[ignore = "takes CAP_NET_ADMIN and CAP_NET_RAW"]
fn a_link_that_goes_down_comes_back() {
    beside_a_neighbour(1500, |far| {
        let [here, there] = FAMILIES[0];
        let mut one = End::open("net_af_packet80,iface=near", here);
        let mut other = far.within(|| End::packet(there));
        meet(&mut one, &mut other);
        ip("link set near down");
        let works = |end: &End| end.port.link_state(end.address).unwrap().works;
        until("it is down", || !works(&one));
        ip("link set near up");
        until("it is up", || works(&one));
        meet(&mut one, &mut other);
    });
}
