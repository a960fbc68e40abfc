//! Ports of several workers on one address.

use super::*;
use trunkline_wire::Workers;

#[test]
#[ignore = "needs root and network namespaces"]
fn each_number_goes_to_the_worker_that_has_it() {
    beside_a_neighbour(|far_host| {
        far_host.run("ip link set far mtu 4200");
        for addresses in FAMILIES {
            let [near_at, far_at] = addresses.map(|address| address.parse().unwrap());
            let mut far = End {
                kind: Kind::Udp,
                port: far_host.within(|| Kind::Udp.open(far_at)),
                address: far_at,
            };
            for count in [2, 3, 8] {
                check_group(&mut far, near_at, Workers::new(count).unwrap());
            }
        }
    });
}

fn check_group(far: &mut End, near_at: IpAddr, workers: Workers) {
    let at = LinkAddress::take(near_at, ROCE_PORT).unwrap();
    let devices = PacketDevice::open_group(&at, workers).unwrap();
    let mut group: Vec<_> = devices
        .into_iter()
        .map(|device| LinkPort::new(&at, device, &LinkConfig::default()).unwrap())
        .collect();
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
