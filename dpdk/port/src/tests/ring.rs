//! Two ends in one process.

use super::ends::{End, FAMILIES, LENGTHS, carry, meet, stream};
use crate::{DpdkDevice, DpdkSpec};
use trunkline::Workers;
use trunkline_dataplane::link::Device;

fn pair(name: &str, words: &str, addresses: [&str; 2]) -> [End; 2] {
    let spec = format!("ring,name={name}{words}");
    addresses.map(|address| End::open(&spec, address))
}

fn devices(name: &str, workers: u8) -> [Vec<DpdkDevice>; 2] {
    let spec: DpdkSpec = format!("ring,name={name}").parse().unwrap();
    let workers = Workers::new(workers).unwrap();
    [0; 2].map(|_| DpdkDevice::open_group(&spec, workers).unwrap())
}

/// Sends one frame, all of whose bytes are `value`.
fn send(device: &mut DpdkDevice, length: usize, value: u8) {
    device.allocate(length).unwrap().fill(value);
    device.push(None);
    assert_eq!(device.kick().unwrap().sent, 1);
}

#[test]
fn both_ends_carry_datagrams_of_all_lengths() {
    for (at, addresses) in FAMILIES.into_iter().enumerate() {
        let [mut one, mut other] = pair(&format!("lengths{at}"), "", addresses);
        meet(&mut one, &mut other);
        carry(&mut one, &mut other, &LENGTHS);
        carry(&mut other, &mut one, &LENGTHS);
        stream(&mut one, &mut other, 5000, 1040);
        stream(&mut other, &mut one, 5000, 4152);
    }
}

#[test]
fn a_larger_mtu_carries_longer_datagrams() {
    let [mut one, mut other] = pair("jumbo", " mtu=9000", FAMILIES[0]);
    meet(&mut one, &mut other);
    carry(&mut one, &mut other, &[8000, 8972]);
    assert_eq!(one.mtu, 9000);
}

#[test]
fn short_frames_are_padded_with_zeros() {
    let [mut one, mut other] = devices("short", 1).map(|mut all| all.pop().unwrap());
    // Zeros must not be what was there by chance.
    for length in [200, 42, 59, 60, 61] {
        for _ in 0..64 {
            send(&mut one, 200, 0xff);
            assert!(other.look().unwrap());
            other.recycle();
        }
        send(&mut one, length, 7);
        assert!(other.look().unwrap());
        let unit = other.front().unwrap();
        assert!(!unit.is_cut && unit.segment.is_none());
        let (said, rest) = unit.frame.split_at(length);
        assert!(said.iter().all(|byte| *byte == 7));
        assert_eq!(rest, &vec![0; 60_usize.saturating_sub(length)]);
        other.recycle();
        assert!(other.front().is_none() && !other.look().unwrap());
    }
}

#[test]
fn a_queue_that_is_full_keeps_what_it_did_not_take() {
    let [mut one, mut other] = devices("full", 1).map(|mut all| all.pop().unwrap());
    let all = one.free_frames();
    let (mut pushed, mut sent) = (0_u32, 0);
    loop {
        while let Some(frame) = one.allocate(100) {
            frame[..4].copy_from_slice(&pushed.to_be_bytes());
            one.push(None);
            pushed += 1;
        }
        let kicked = one.kick().unwrap();
        sent += kicked.sent;
        assert!(!kicked.is_down && kicked.refused == 0);
        if kicked.sent == 0 {
            assert!(kicked.is_full);
            break;
        }
    }
    assert_eq!(sent, 1024);
    assert_eq!(pushed as usize - sent, 256);
    // All arrive, in order, and nothing is lost of the pool.
    let mut got = 0_u32;
    while got < pushed {
        one.kick().unwrap();
        while other.look().unwrap() {
            while let Some(unit) = other.front() {
                assert_eq!(unit.frame[..4], got.to_be_bytes());
                got += 1;
                other.recycle();
            }
        }
    }
    assert_eq!(one.kick().unwrap(), Default::default());
    drop(other);
    // Those that are at hand, of this thread and of the device.
    let kept = all - one.free_frames();
    assert!(kept <= 32, "{kept} frames are gone");
}

#[test]
fn a_pool_without_frames_has_no_room_until_some_come_back() {
    let [mut one, mut other] = devices("empty", 1).map(|mut all| all.pop().unwrap());
    let held = one.drain();
    assert!(held.len() > 1000 && one.free_frames() == 0);
    assert!(one.allocate(60).is_none());
    assert_eq!(one.kick().unwrap(), Default::default());
    // The last ones, which are fewer than are taken at once.
    DpdkDevice::free(&held[..3]);
    for value in 0..3 {
        send(&mut one, 60, value);
    }
    assert!(one.allocate(60).is_none());
    // Those that the other end has read come back.
    assert!(other.look().unwrap());
    for value in 0..3 {
        assert_eq!(other.front().unwrap().frame, [value; 60]);
        assert_eq!(one.allocate(60).is_some(), value > 2);
        other.recycle();
    }
    assert!(one.allocate(60).is_some());
    DpdkDevice::free(&held[3..]);
}

#[test]
fn a_group_has_a_queue_for_each_worker_and_is_opened_again() {
    for round in 0..3 {
        let [mut ours, mut theirs] = devices("group", 3);
        assert_eq!((ours.len(), theirs.len()), (3, 3));
        for (at, (one, other)) in ours.iter_mut().zip(&mut theirs).enumerate() {
            send(one, 100, at as u8);
            assert!(other.look().unwrap(), "{round} {at}");
            assert_eq!(other.front().unwrap().frame, [at as u8; 100]);
            assert_eq!(one.link().map(|link| link.works), Some(true));
            assert_eq!(one.missed(), 0);
        }
    }
}

#[test]
fn an_end_that_was_dropped_is_taken_again() {
    let [one, mut other] = pair("again", "", FAMILIES[0]);
    let first = one.mac;
    for _ in 0..3 {
        drop(std::mem::replace(
            &mut other,
            End::open("ring,name=aside", FAMILIES[0][1]),
        ));
        other = End::open("ring,name=again", FAMILIES[0][1]);
        assert_ne!(other.mac, first);
    }
    let mut one = one;
    meet(&mut one, &mut other);
    carry(&mut one, &mut other, &LENGTHS);
}

#[test]
fn ends_that_are_not_alike_are_refused() {
    let [one, other] = devices("alike", 2);
    drop(other);
    for (text, workers, why) in [
        ("ring,name=alike", 1, "has 2 workers, and this one 1"),
        (
            "ring,name=alike mtu=1500",
            2,
            "has an MTU of 4200, and this one of 1500",
        ),
    ] {
        let spec: DpdkSpec = text.parse().unwrap();
        let refused = DpdkDevice::open_group(&spec, Workers::new(workers).unwrap());
        let said = refused.expect_err(text).to_string();
        assert!(said.contains(why), "{said}");
    }
    drop(one);
}
