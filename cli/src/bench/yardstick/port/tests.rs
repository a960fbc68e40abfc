//! Both ends on ports in memory.

use super::*;
use crate::bench::channel::Channel;
use crate::bench::failure::Ends;
use crate::bench::params::{Controller, Op, Side};
use crate::interrupt::Interrupt;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use trunkline::PortKind;
use trunkline_dataplane::fault::{Direction, Faults};
use trunkline_dataplane::{Fault, MemoryConfig, MemoryPort};

const TIMEOUT: Duration = Duration::from_secs(20);
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const PAYLOAD: u64 = 256;

const PARAMS: Params = Params {
    mode: Mode::Bw,
    op: Op::Send,
    // Three datagrams, and a byte more.
    size: 3 * PAYLOAD + 1,
    qps: 1,
    connections: 1,
    depth: 1,
    control: Controller::Delay,
    verify: false,
    workers: 1,
    timeout: TIMEOUT,
};

/// What watches both ends.
fn watches(interrupt: &Interrupt) -> [Watch<'_>; 2] {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound");
    let stream = TcpStream::connect(address).expect("someone listens");
    let (other, _) = listener.accept().expect("someone connects");
    let watch = |stream, other, (here, there)| {
        let ends = Ends {
            here,
            there,
            port: PortKind::default(),
        };
        let channel = Channel::new(stream, other, TIMEOUT).expect("it is connected");
        Watch::new(channel, interrupt, ends, TIMEOUT)
    };
    [
        watch(stream, Side::Server, (CLIENT, SERVER)),
        watch(other, Side::Client, (SERVER, CLIENT)),
    ]
}

/// Runs `act` at the client, while the server serves, where the client's datagrams meet `faults`.
/// Gives what both counted.
fn measure(
    params: &Params,
    faults: Faults,
    act: impl FnOnce(&mut PortCarrier, &mut Watch<'_>) -> Result<()>,
) -> [BTreeMap<String, u64>; 2] {
    let (near, far) = MemoryPort::pair(MemoryConfig::default());
    let mut near = Fault::new(near, 7);
    near.set(Direction::Outbound, faults);
    let open = |port, here, there| {
        let datagrams = Datagrams::new(port, here, there).expect("they are of one family");
        PortCarrier::new(datagrams, params, PAYLOAD).expect("it fits the window")
    };
    let mut client = open(Box::new(near), CLIENT, SERVER);
    let mut server = open(Box::new(far), SERVER, CLIENT);
    let interrupt = Interrupt::default();
    let [mut ours, mut theirs] = watches(&interrupt);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                server.serve(params.mode, &mut theirs).expect("it serves");
            }
        });
        let done = client.settle(&mut ours);
        let done = done.and_then(|()| act(&mut client, &mut ours));
        let done = done.and_then(|()| client.finish(&mut ours));
        over.store(true, Ordering::Relaxed);
        serving.join().expect("it does not panic");
        done.expect("it goes on to the end");
    });
    [client.counters(), server.counters()]
}

fn send_until(messages: u64) -> impl FnOnce(&mut PortCarrier, &mut Watch<'_>) -> Result<()> {
    move |client, watch| {
        while client.send(watch)? < messages {
            assert!(client.sent.count - client.sent.seen <= client.window);
        }
        Ok(())
    }
}

#[test]
fn messages_arrive_and_are_counted_once() {
    let [ours, theirs] = measure(&PARAMS, Faults::default(), send_until(1000));
    assert!(ours["datagrams_sent"] >= 4 * 1000, "{ours:?}");
    assert_eq!(ours["lost_datagrams"], 0, "{ours:?}");
    assert_eq!(theirs["damaged_datagrams"], 0, "{theirs:?}");
}

#[test]
fn what_is_lost_or_damaged_is_counted_and_holds_nothing_up() {
    let faults = Faults {
        loss_ppm: 50_000,
        corrupt_ppm: 10_000,
        ..Faults::default()
    };
    let [ours, theirs] = measure(&PARAMS, faults, send_until(1000));
    let (sent, lost) = (ours["datagrams_sent"], ours["lost_datagrams"]);
    assert!(sent >= 4 * 1000 + lost, "{ours:?}");
    assert!((sent / 50..sent / 10).contains(&lost), "{ours:?}");
    assert_eq!(theirs["lost_datagrams"], lost);
    assert!(theirs["damaged_datagrams"] > 10, "{theirs:?}");
}

#[test]
fn answers_are_waited_for_and_messages_without_one_are_counted() {
    let params = Params {
        mode: Mode::Lat,
        ..PARAMS
    };
    let faults = Faults {
        loss_ppm: 10_000,
        ..Faults::default()
    };
    let [ours, theirs] = measure(&params, faults, |client, watch| {
        for _ in 0..200 {
            let took = client.round_trip(watch)?;
            assert!(took < PATIENCE);
        }
        Ok(())
    });
    let unanswered = ours["unanswered"];
    assert!(unanswered > 0, "{ours:?}");
    assert_eq!(ours["datagrams_sent"], 4 * (200 + unanswered));
    assert!(theirs["datagrams_received"] >= 4 * 200, "{theirs:?}");
}

#[test]
fn a_message_that_is_waited_for_fits_the_window() {
    let params = Params {
        mode: Mode::Lat,
        size: WINDOW_BYTES + 1,
        ..PARAMS
    };
    let (port, _) = MemoryPort::pair(MemoryConfig::default());
    let datagrams = Datagrams::new(Box::new(port), CLIENT, SERVER).expect("one family");
    let carrier = PortCarrier::new(datagrams, &params, PAYLOAD);
    let why = carrier.err().expect("it does not fit").to_string();
    assert!(why.ends_with("is at most 49152 on this path"), "{why}");
}
