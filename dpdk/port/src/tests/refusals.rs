//! Devices that cannot be had.

use crate::{DpdkDevice, DpdkSpec};
use trunkline::{PortRequest, Workers};

fn open(text: &str) -> Result<Vec<DpdkDevice>, String> {
    let spec: DpdkSpec = text.parse().unwrap();
    DpdkDevice::open_group(&spec, Workers::ONE).map_err(|error| error.to_string())
}

#[test]
fn devices_that_cannot_be_had_are_an_error() {
    for (text, why) in [
        ("net_nothing0", "its driver is missing"),
        ("0000:ff:1f.7 prefix=24", "PCI bus first"),
        ("net_null0,size=64", "prefix=N"),
        (
            "net_memif90,role=server,socket=/no/such/m.sock,socket-abstract=no",
            "cannot use the socket /no/such/m.sock: it takes a path from / on, in a folder",
        ),
        (
            "net_memif90,role=client,socket=m.sock,socket-abstract=no",
            "cannot use the socket m.sock: it takes a path from / on",
        ),
        (
            "net_memif90,role=server,socket=/proc/m.sock,socket-abstract=no",
            "cannot use the socket /proc/m.sock: No such file or directory",
        ),
        (
            "net_memif91,role=server,socket=/dev/null,socket-abstract=no",
            "cannot use the socket /dev/null: what is there is no socket: remove it",
        ),
        (
            "net_af_xdp90,iface=a-name-that-is-too-long",
            "interface a-name-that-is-too-long: No such device",
        ),
        (
            "net_af_packet0,iface=no-such-interface",
            "no-such-interface",
        ),
    ] {
        let spec: DpdkSpec = text.parse().unwrap();
        let request = PortRequest {
            address: [10, 9, 0, 1].into(),
            udp_port: 4791,
            extra_source_ports: 0,
            workers: Workers::ONE,
        };
        let error = spec.open_ports(&request).map(drop);
        let said = error.expect_err(text).to_string();
        assert!(said.contains(why), "{text}: {said}");
    }
}

#[test]
fn a_device_has_one_user_at_a_time() {
    let first = open("net_null7 prefix=24").unwrap();
    let said = open("net_null7 prefix=24").expect_err("it is taken");
    assert!(said.contains("is open in this process already"), "{said}");
    drop(first);
    open("net_null7 prefix=24").unwrap();
}
