//! Ports of several workers on one address, and what they are opened from.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::IpAddr;
use std::time::Instant;
use trunkline_conformance::{End, FAMILIES, PACKET, PATIENCE, Side, UDP, pattern};
use trunkline_dataplane::link::LinkInterface;
use trunkline_dataplane::port::Egress;
use trunkline_dataplane::{LinkAddress, LinkConfig, LinkPort, PacketDevice, Port};
use trunkline_testkit::netns::beside_a_neighbour;
use trunkline_wire::{Mac, ROCE_PORT, Workers};

#[test]
#[ignore = "needs root and network namespaces"]
fn each_number_goes_to_the_worker_that_has_it() {
    beside_a_neighbour(|far_host| {
        far_host.run("ip link set far mtu 4200");
        for addresses in FAMILIES {
            let [near_at, far_at] = addresses.map(|address| address.parse().unwrap());
            let port = UDP.open_at(Side::Far, far_at, far_host);
            let mut far = End::new(&UDP, port, far_at);
            for count in [2, 3, 8] {
                check_group(&mut far, near_at, Workers::new(count).unwrap());
            }
        }
    });
}

fn open_group(address: IpAddr, workers: Workers) -> Vec<LinkPort<PacketDevice>> {
    let at = LinkAddress::take(address, ROCE_PORT).unwrap();
    let devices = PacketDevice::open_group(&at, workers).unwrap();
    devices
        .into_iter()
        .map(|device| LinkPort::new(&at, device, &LinkConfig::default()).unwrap())
        .collect()
}

/// Where datagrams leave together, those for two workers do not.
#[test]
#[ignore = "needs root and network namespaces"]
fn what_is_for_two_workers_does_not_come_out_at_one() {
    beside_a_neighbour(|far_host| {
        let [near_at, far_at] = FAMILIES[0].map(|address| address.parse().unwrap());
        let port = PACKET.open_at(Side::Far, far_at, far_host);
        let mut far = End::new(&PACKET, port, far_at);
        let mut group = open_group(near_at, Workers::new(2).unwrap());
        let path = far.path_to(near_at);
        let mut got = [0; 2];
        // The first one is held until the neighbour is known.
        for numbers in [&[2_u32][..], &[2, 2, 3, 3]] {
            let before = got;
            for (index, number) in numbers.iter().enumerate() {
                if index == 2 {
                    far.port.part();
                }
                let mut datagram = pattern(index, 300);
                datagram[4..8].copy_from_slice(&number.to_be_bytes());
                far.send(&path, &datagram);
            }
            let start = Instant::now();
            while got.iter().sum::<usize>() < before.iter().sum::<usize>() + numbers.len() {
                assert!(start.elapsed() < PATIENCE, "{got:?}");
                far.port.flush().unwrap();
                for (port, got) in group.iter_mut().zip(&mut got) {
                    *got += port.receive(9, &mut |_, _| {}).unwrap();
                }
            }
        }
        assert_eq!(got, [3, 2]);
        assert_eq!(far.port.counters().super_packets_sent, 2);
    });
}

fn check_group(far: &mut End, near_at: IpAddr, workers: Workers) {
    let mut group = open_group(near_at, workers);
    let path = far.path_to(near_at);
    let mut got = [0; 8];
    let mut expected = [0; 8];
    for number in (2..60_u32).chain([0xff_fffe, 0xab_cdef]) {
        let mut datagram = pattern(number as usize, 300);
        datagram[4..8].copy_from_slice(&number.to_be_bytes());
        far.send(&path, &datagram);
        far.port.flush().unwrap();
        expected[usize::from(workers.owner(number))] += 1;
        let start = Instant::now();
        let mut arrived = false;
        while !arrived && start.elapsed() < PATIENCE {
            for (index, port) in group.iter_mut().enumerate() {
                let count = port.receive(9, &mut |_, _| {}).unwrap();
                got[index] += count;
                arrived |= count > 0;
            }
        }
        assert_eq!(got, expected, "{number:#x} of {workers:?}");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_port_knows_its_interface() {
    beside_a_neighbour(|_| {
        let at = LinkAddress::take("10.9.0.1".parse().unwrap(), ROCE_PORT).unwrap();
        let LinkInterface {
            name,
            mac,
            mtu,
            queues,
            ..
        } = *at.interface();
        assert_eq!((name.to_string().as_str(), mtu, queues), ("near", 4200, 1));
        assert_ne!(mac, Mac::default());
        let error = LinkAddress::take("10.9.0.200".parse().unwrap(), ROCE_PORT).unwrap_err();
        assert!(error.to_string().contains("10.9.0.200"), "{error}");
    });
}
