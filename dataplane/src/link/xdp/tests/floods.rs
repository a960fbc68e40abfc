//! What there is no room for.

use super::world::{
    PATIENCE, ROCE, V4, Writer, count, device, index, readable, receive, socket_there,
};
use crate::link::device::Device;
use crate::link::xdp::{XdpConfig, XdpDevice};
use crate::prng::Prng;
use std::thread;
use std::time::{Duration, Instant};
use trunkline_testkit::netns::{beside_a_neighbour, ip};

#[test]
#[ignore = "needs root and network namespaces"]
fn a_full_ring_gives_no_room_until_it_was_kicked() {
    beside_a_neighbour(|far| {
        far.run("ip link set far mtu 4200");
        let mut config = XdpConfig::new(index("near"), V4.0.parse().unwrap());
        config.send_frames = 20;
        let mut device = XdpDevice::open(&config).unwrap();
        let peer = socket_there(far, V4.1, ROCE);
        let writer = Writer::new(far, V4);
        let mut got = vec![0; 5000];
        for round in 0..50_u8 {
            for number in 0..20_u8 {
                let length = if number % 2 == 0 { 4128 } else { 10 };
                let payload = vec![number ^ round; length];
                // It is the same room until it is pushed.
                let first = device.allocate(100).unwrap().as_ptr();
                let frame = device.allocate(42 + length).unwrap();
                assert_eq!(frame.as_ptr(), first);
                writer.write(frame, ROCE, &payload);
                device.push(None);
            }
            assert!(device.allocate(100).is_none() && device.allocate(100).is_none());
            let kicked = device.kick().unwrap();
            assert_eq!(
                (kicked.sent, kicked.refused, kicked.is_full),
                (20, 0, false)
            );
            for number in 0..20 {
                let length = peer.recv(&mut got).unwrap();
                assert!(length == if number % 2 == 0 { 4128 } else { 10 });
                assert!(got[..length].iter().all(|byte| *byte == number ^ round));
            }
        }
        assert_eq!(device.kick().unwrap(), Default::default());
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn frames_that_the_link_refuses_are_counted_and_the_others_arrive() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let peer = socket_there(far, V4.1, ROCE);
        let writer = Writer::new(far, V4);
        // From now on the other end drops what is longer.
        far.run("ip link set far mtu 1500");
        let mut prng = Prng::new(11);
        let mut got = vec![0; 5000];
        for _ in 0..100 {
            let longs: Vec<_> = (0..40).map(|_| prng.chance(500_000)).collect();
            for is_long in &longs {
                let length = if *is_long { 4128 } else { 50 };
                let frame = device.allocate(42 + length).unwrap();
                writer.write(frame, ROCE, &vec![7; length]);
                device.push(None);
            }
            let kicked = device.kick().unwrap();
            let refused = longs.iter().filter(|is_long| **is_long).count();
            let wanted = (40 - refused, refused, false);
            assert_eq!((kicked.sent, kicked.refused, kicked.is_full), wanted);
            for _ in 0..kicked.sent {
                assert_eq!(peer.recv(&mut got).unwrap(), 50);
            }
        }
        // An end that is down drops all.
        far.run("ip link set far down");
        for _ in 0..10 {
            writer.write(device.allocate(142).unwrap(), ROCE, &[7; 100]);
            device.push(None);
        }
        let kicked = device.kick().unwrap();
        assert_eq!(
            (kicked.sent, kicked.refused, kicked.is_full),
            (0, 10, false)
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_flood_out_is_taken_or_refused_frame_by_frame() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let writer = Writer::new(far, V4);
        const FRAMES: usize = 100_000;
        let before = count(&far.run("ip -s link show far"), "RX:", 1);
        let (mut sent, mut refused, mut written) = (0, 0, 0);
        let mut frame = vec![0; 42 + 1000];
        writer.write(&mut frame, 9, &[3; 1000]);
        let begin = Instant::now();
        while sent + refused < FRAMES {
            while written < FRAMES
                && let Some(room) = device.allocate(frame.len())
            {
                room.copy_from_slice(&frame);
                device.push(None);
                written += 1;
            }
            let kicked = device.kick().unwrap();
            sent += kicked.sent;
            refused += kicked.refused;
            assert!(begin.elapsed() < PATIENCE, "{sent} sent, {refused} refused");
        }
        println!(
            "{FRAMES} frames out, {refused} refused: {:?}",
            begin.elapsed()
        );
        assert_eq!(sent + refused, FRAMES);
        // Of what was sent, the link lost none; something of the kernel's own may come on top.
        let arrived = count(&far.run("ip -s link show far"), "RX:", 1) - before;
        assert!(arrived >= sent as u64, "{arrived} of {sent}");
        assert!(arrived < sent as u64 + 100, "{arrived} of {sent}");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn of_a_flood_in_everything_is_given_or_missed() {
    beside_a_neighbour(|far| {
        let mut device = device(far, V4.0);
        let peer = socket_there(far, V4.1, ROCE);
        peer.send_to(b"first", (V4.0, ROCE)).unwrap();
        receive(&mut device);
        for length in [100_usize, 4000] {
            let before = count(&ip("-s link show near"), "RX:", 1);
            let missed = device.missed();
            let sender = peer.try_clone().unwrap();
            let sender = thread::spawn(move || {
                let mut payload = vec![0; length];
                for number in 0..100_000_u32 {
                    payload[..4].copy_from_slice(&number.to_be_bytes());
                    let _ = sender.send_to(&payload, (V4.0, ROCE));
                }
            });
            let (mut got, mut next) = (0_u64, 0);
            let begin = Instant::now();
            let mut quiet = false;
            // A device that is asleep at first, then looks as often as it can.
            thread::sleep(Duration::from_millis(30));
            while !quiet {
                quiet = sender.is_finished() && !readable(&device, 50);
                device.look().unwrap();
                while let Some(unit) = device.front() {
                    assert_eq!(unit.frame.len(), 42 + length);
                    let number = u32::from_be_bytes(unit.frame[42..46].try_into().unwrap());
                    assert!(number >= next, "{number} after {next}");
                    next = number + 1;
                    got += 1;
                    device.recycle();
                }
            }
            sender.join().unwrap();
            let missed = device.missed() - missed;
            println!(
                "{got} of {length} bytes in, {missed} missed: {:?}",
                begin.elapsed()
            );
            let arrived = count(&ip("-s link show near"), "RX:", 1) - before;
            assert!(
                arrived.abs_diff(got + missed) < 20,
                "{arrived}: {got} + {missed}"
            );
            assert!(got > 1000);
        }
    });
}
