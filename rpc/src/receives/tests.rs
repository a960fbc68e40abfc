#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use trunkline::{Drive, Node};

/// Connections with `each` receives, at a node of their own.
fn pools(each: u16, address: u8) -> (Pools, Mutex<Buffers>) {
    let node = Node::builder().address([127, 9, 77, address].into());
    let pd = node.drive(Drive::Inline).build().unwrap().alloc_pd();
    let buffers = Mutex::new(Buffers::new(pd.clone(), 512));
    let options = Options {
        receives: each,
        connections: 33,
        ..Options::default()
    };
    (Pools::new(pd, &options, QpOptions::default()), buffers)
}

fn buffer_of(number: u32) -> Receive {
    Receive {
        pool: 0,
        buffer: Buffer::numbered(number),
    }
}

#[test]
fn as_many_receives_are_posted_as_connections_have_granted() {
    let (pools, buffers) = pools(4, 1);
    let seats = [(); 3].map(|()| pools.seat(&buffers).unwrap().unwrap());
    assert_eq!(pools.counts(), [(12, 12)]);
    let [first, _second, _third] = seats;
    drop(first);
    assert_eq!(pools.counts(), [(12, 8)], "nothing takes them back");
    // Messages come: their buffers are not needed any more, until there are as many as are granted.
    for number in 0..6 {
        pools.recycle(&buffers, buffer_of(number)).unwrap();
    }
    assert_eq!(pools.counts(), [(8, 8)]);
    let _fourth = pools.seat(&buffers).unwrap().unwrap();
    assert_eq!(pools.counts(), [(12, 12)]);
}

#[test]
fn connections_beyond_the_room_of_an_srq_get_another_one() {
    let (pools, buffers) = pools(1000, 2);
    let mut seats: Vec<_> = (0..33)
        .map(|_| pools.seat(&buffers).unwrap().unwrap())
        .collect();
    assert_eq!(pools.counts(), [(32_000, 32_000), (1000, 1000)]);
    assert!(pools.seat(&buffers).unwrap().is_none(), "there are 33");
    // One that ends makes room for the next.
    seats.swap_remove(0);
    seats.push(pools.seat(&buffers).unwrap().unwrap());
    assert_eq!(pools.counts(), [(32_000, 32_000), (1000, 1000)]);
}

#[test]
fn an_srq_is_used_to_its_last_receive_before_there_is_another_one() {
    let (pools, buffers) = pools(MOST as u16 / 4, 3);
    let seat = || pools.seat(&buffers).unwrap().unwrap();
    let _seats = [(); 4].map(|()| seat());
    assert_eq!(pools.counts(), [(MOST, MOST)]);
    let _fifth = seat();
    assert_eq!(pools.counts(), [(MOST, MOST), (MOST / 4, MOST / 4)]);
}

#[test]
fn cookies_of_receives_name_them_and_no_others_do() {
    for receive in [(0, 0), (0, 7), (3, u32::MAX), (u32::MAX >> 1, 1)] {
        let receive = Receive {
            pool: receive.0,
            buffer: Buffer::numbered(receive.1),
        };
        assert_eq!(Receive::of(receive.cookie()), Some(receive));
    }
    for cookie in [0, 1, 4 << 32, u64::MAX >> 1] {
        assert_eq!(Receive::of(cookie), None);
    }
}
