//! Ports that share an address: which of them gets a packet.

use super::*;
use trunkline_wire::Workers;

fn group(address: IpAddr, count: u8) -> Vec<UdpPort> {
    let workers = Workers::new(count).unwrap();
    UdpPort::open_group(&config(address, 0), workers).unwrap()
}

/// Sends a datagram whose bytes are zero but for those named, and says which ports got it.
fn receivers(group: &mut [UdpPort], changes: &[(usize, &[u8])]) -> Vec<usize> {
    let path = path(&group[0], &group[0]);
    let slot = group[0].reserve(&path, 300).unwrap();
    slot.datagram.fill(0);
    for (at, bytes) in changes {
        slot.datagram[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    group[0].commit();
    group[0].flush().unwrap();
    let mut got = Vec::new();
    for (index, port) in group.iter_mut().enumerate() {
        port.receive(10, &mut |_, _| got.push(index)).unwrap();
    }
    got
}

fn each_number_goes_to_its_worker(address: IpAddr) {
    for count in [2, 3, 8] {
        let mut group = group(address, count);
        let workers = Workers::new(count).unwrap();
        for number in (2..200_u32).chain([0xff_fffe, 0xabcdef, 0x123456]) {
            let owner = usize::from(workers.owner(number));
            let dest_qp = number.to_be_bytes();
            // The byte before has flags of its own.
            let change = [0x40, dest_qp[1], dest_qp[2], dest_qp[3]];
            let got = receivers(&mut group, &[(4, &change)]);
            assert_eq!(got, [owner], "{number:#x} of {count}");
        }
    }
}

#[test]
fn each_number_goes_to_its_worker_over_ipv4() {
    each_number_goes_to_its_worker(A);
}

#[test]
fn each_number_goes_to_its_worker_over_ipv6() {
    each_number_goes_to_its_worker(IpAddr::V6(Ipv6Addr::LOCALHOST));
}

#[test]
fn management_datagrams_go_to_the_worker_that_they_name() {
    let mut group = group(A, 3);
    let gsi: (usize, &[u8]) = (4, &[0, 0, 0, 1]);
    let message = |attribute: u8| [0, attribute];
    // REP, RTU and all others that name an ID of ours behind the sender's.
    for attribute in [0x13, 0x14, 0x12, 0x11, 0x15, 0x16] {
        for id in 0..16_u32 {
            let change = [gsi, (36, &message(attribute)), (48, &id.to_be_bytes())];
            let owner = usize::from(Workers::new(3).unwrap().owner(id >> 1));
            assert_eq!(receivers(&mut group, &change), [owner], "{attribute:#x}");
        }
    }
    // SIDR_REP names the number of our question first.
    let change = [gsi, (36, &message(0x18)), (44, &4_u32.to_be_bytes())];
    assert_eq!(receivers(&mut group, &change), [2]);
    // A node that asks says whom.
    let hello: [(usize, &[u8]); 2] = [(52, b"trnkline"), (44 + 140 + 87, &[0xf5])];
    let change = [gsi, (36, &message(0x10)), hello[0], hello[1]];
    assert_eq!(receivers(&mut group, &change), [1]);
}

#[test]
fn what_ordinary_hosts_begin_is_spread_over_all_workers() {
    let mut group = group(A, 3);
    let workers = Workers::new(3).unwrap();
    let gsi: (usize, &[u8]) = (4, &[0, 0, 0, 1]);
    let mut asked = [0; 3];
    for number in [2, 17, 18, 19, 20, 0x1234, 0xab_cdef, 0xff_ffff_u32] {
        let owner = usize::from(workers.spread(number));
        asked[owner] += 1;
        // REQ: the QP in the upper bits of its word. The ID beside it does not count.
        let qp = (number << 8 | 0xff).to_be_bytes();
        let req = [gsi, (36, &[0, 0x10]), (44, &[7; 4]), (76, &qp)];
        assert_eq!(receivers(&mut group, &req), [owner], "{number:#x}");
        let question = number.to_be_bytes();
        let req = [gsi, (36, &[0, 0x17]), (44, &question), (48, &[0xff; 4])];
        assert_eq!(receivers(&mut group, &req), [owner], "{number:#x}");
    }
    assert!(asked.iter().all(|asked| *asked > 0), "{asked:?}");
}

#[test]
fn a_datagram_too_short_for_a_number_goes_to_the_first() {
    let mut group = group(A, 2);
    let path = path(&group[0], &group[0]);
    group[1].reserve(&path, 7).unwrap().datagram.fill(1);
    group[1].commit();
    group[1].flush().unwrap();
    let mut got = 0;
    group[0].receive(10, &mut |_, _| got += 1).unwrap();
    assert_eq!(got, 1);
}

#[test]
fn units_for_two_workers_are_not_joined() {
    let mut group = group(A, 2);
    let path = path(&group[0], &group[0]);
    for (i, number) in [2_u8, 2, 3, 3].into_iter().enumerate() {
        if i == 2 {
            group[0].part();
        }
        let slot = group[0].reserve(&path, 500).unwrap();
        slot.datagram.fill(0);
        slot.datagram[7] = number;
        group[0].commit();
    }
    group[0].flush().unwrap();
    let mut numbers = [Vec::new(), Vec::new()];
    for (port, numbers) in group.iter_mut().zip(&mut numbers) {
        port.receive(10, &mut |_, bytes| numbers.push(bytes[7]))
            .unwrap();
    }
    assert_eq!(numbers, [[2, 2], [3, 3]]);
}

#[test]
fn a_shared_address_is_as_taken_as_any() {
    let group = group(A, 2);
    let port = group[0].local().port();
    let again = UdpPort::open(&config(A, port)).unwrap_err();
    assert!(matches!(again, UdpOpenError::InUse { .. }), "{again}");
    let again = UdpPort::open_group(&config(A, port), Workers::new(2).unwrap()).unwrap_err();
    assert!(matches!(again, UdpOpenError::InUse { .. }), "{again}");
    // And one that is taken by a single port is for a group.
    let single = UdpPort::open(&config(B, 0)).unwrap();
    let taken = config(B, single.local().port());
    let refused = UdpPort::open_group(&taken, Workers::new(2).unwrap()).unwrap_err();
    assert!(matches!(refused, UdpOpenError::InUse { .. }), "{refused}");
}
