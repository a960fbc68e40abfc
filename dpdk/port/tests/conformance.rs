//! Ports of DPDK do what ports of every kind do: on drivers beside the kernel and without it, over
//! shared memory and over rings.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use trunkline::{PortRequest, Workers};

use trunkline_conformance::{AnyPort, Kind, Link, PACKET, Side, Suite, conformance_tests};
use trunkline_dpdk::DpdkSpec;

/// Opens the port that a text says.
fn open(text: &str, address: IpAddr) -> AnyPort {
    let spec: DpdkSpec = text.parse().expect(text);
    let request = PortRequest {
        address,
        udp_port: 4791,
        extra_source_ports: 0,
        workers: Workers::ONE,
    };
    let mut ports = spec.open_ports(&request).expect(text);
    Box::new(ports.pop().expect("one for each worker"))
}

/// Devices of a process have names of their own, also where one is still being closed.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

const AF_PACKET: Kind = Kind {
    name: "dpdk:net_af_packet",
    can_sleep: false,
    parts_super_packets: false,
    gives_up: false,
    open: |side, address| {
        let (number, interface) = (number(), side.interface());
        open(&format!("net_af_packet{number},iface={interface}"), address)
    },
    ..PACKET
};

const AF_XDP: Kind = Kind {
    name: "dpdk:net_af_xdp",
    link: Link::Taken,
    mtu: 3200,
    // The kernel does, before its program of XDP.
    parts_super_packets: true,
    open: |side, address| {
        let (number, interface) = (number(), side.interface());
        open(&format!("net_af_xdp{number},iface={interface}"), address)
    },
    ..AF_PACKET
};

const MEMIF: Kind = Kind {
    name: "dpdk:net_memif",
    link: Link::Own,
    parts_super_packets: true,
    open: |side, address| {
        let role = match side {
            Side::Near => "server",
            Side::Far => "client",
        };
        // The abstract ones are those of a network namespace.
        let file = format!("trunkline-conformance-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(file);
        let socket = format!("socket={},socket-abstract=no", socket.display());
        open(
            &format!("net_memif{},role={role},{socket}", number()),
            address,
        )
    },
    ..AF_PACKET
};

const RING: Kind = Kind {
    name: "dpdk:ring",
    open: |_, address| open("ring", address),
    ..MEMIF
};

conformance_tests!(Suite {
    pairs: &[
        [AF_PACKET, AF_PACKET],
        [AF_PACKET, PACKET],
        [PACKET, AF_PACKET],
        [AF_XDP, AF_XDP],
        [AF_XDP, PACKET],
        [PACKET, AF_XDP],
        [MEMIF, MEMIF],
        [RING, RING],
    ],
    alike: &[AF_PACKET, AF_XDP, MEMIF, RING],
});
