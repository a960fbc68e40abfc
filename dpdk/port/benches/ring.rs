//! SENDs of 64 bytes per second between two nodes of one process whose ports a ring of DPDK joins,
//! each driven by a thread of its own; and what the bare ports do with datagrams as long.
//!
//! ```sh
//! cargo bench --manifest-path dpdk/Cargo.toml -p trunkline-dpdk --bench ring
//! ```

#[path = "../../../benches/src/send64/end.rs"]
mod end;

use end::{End, SIZE};
use std::error::Error;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use trunkline::{Builder, Node, Port, PortKind};
use trunkline_wire::{IcrcSeed, IpFields, Path, ROCE_PORT};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a datagram with one message: BTH, extension, payload, ICRC.
const DATAGRAM: usize = 12 + 40 + SIZE + 4;
/// Datagrams taken at once.
const BATCH: usize = 64;
/// Datagrams under way between bare ports: half of a ring.
const WINDOW: u64 = 512;
const ROUNDS: usize = 5;
const DURATION: Duration = Duration::from_secs(2);
const ADDRESSES: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

fn main() -> Result<()> {
    PortKind::add_family(&trunkline_dpdk::Family);
    let (mut nodes, mut ports) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        nodes.push(between_nodes(
            &format!("dpdk:ring,name=nodes{round}").parse()?,
        )?);
        ports.push(between_ports(
            &format!("dpdk:ring,name=ports{round}").parse()?,
        )?);
    }
    let (nodes, ports) = (median(nodes), median(ports));
    println!(
        "{{\"sends_per_s\":{nodes:.0},\"datagrams_per_s_of_bare_ports\":{ports:.0},\
         \"rounds\":{ROUNDS},\"seconds\":{}}}",
        DURATION.as_secs_f64()
    );
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn between_nodes(port: &PortKind) -> Result<f64> {
    let over = AtomicBool::new(false);
    let (to_server, from_client) = channel();
    let (to_client, from_server) = channel();
    thread::scope(|scope| {
        let stop = &over;
        let server = scope.spawn(move || {
            let mut end = End::open(at(port, ADDRESSES[1]))?;
            end.connect(from_client.recv()?)?;
            end.prepare()?;
            to_client.send(end.addresses())?;
            while !stop.load(Ordering::Relaxed) {
                end.turn()?;
                while let Some((qp, count)) = end.next_due() {
                    end.receive(qp, count)?;
                }
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
        let client = || {
            let mut end = End::open(at(port, ADDRESSES[0]))?;
            to_server.send(end.addresses())?;
            end.connect(from_server.recv()?)?;
            ask(&mut end)
        };
        let rate = client();
        over.store(true, Ordering::Relaxed);
        server.join().map_err(|_| "the server panicked")??;
        rate
    })
}

/// A node on such a port at an address.
fn at(port: &PortKind, address: [u8; 4]) -> Builder {
    Node::builder()
        .address(IpAddr::from(address))
        .port(port.clone())
}

/// Sends; gives how many messages per second.
fn ask(end: &mut End) -> Result<f64> {
    end.fill();
    let (mut done, mut start) = (0, None);
    loop {
        while let Some((qp, count)) = end.next_due() {
            end.send(qp, count)?;
        }
        done += end.turn()?;
        let now = Instant::now();
        match start {
            // The first messages open the connection.
            None if done > 100_000 => start = Some((now, done)),
            Some((since, before)) if now - since >= DURATION => {
                return Ok((done - before) as f64 / (now - since).as_secs_f64());
            }
            _ => {}
        }
    }
}

/// Datagrams with ICRCs from one bare port to the other, as many under way as the ring has room
/// for.
fn between_ports(kind: &PortKind) -> Result<f64> {
    let over = AtomicBool::new(false);
    let arrived = AtomicU64::new(0);
    let mut from = kind.open_alone(ADDRESSES[0].into())?;
    let mut to = kind.open_alone(ADDRESSES[1].into())?;
    thread::scope(|scope| {
        let (over, arrived) = (&over, &arrived);
        let receiver = scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let mut good = 0;
                to.receive(BATCH, &mut |arrival, datagram| {
                    let seed = IcrcSeed::new(&arrival.path);
                    good += u64::from(seed.verify(arrival.identification.guess(), datagram));
                })?;
                arrived.fetch_add(good, Ordering::Relaxed);
                // Answers of neighbours leave with what is sent.
                to.flush()?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
        let rate = send(&mut *from, arrived);
        over.store(true, Ordering::Relaxed);
        receiver.join().map_err(|_| "the receiver panicked")??;
        rate
    })
}

fn send(port: &mut (dyn Port + Send), arrived: &AtomicU64) -> Result<f64> {
    let path = Path {
        src: ADDRESSES[0].into(),
        dst: ADDRESSES[1].into(),
        src_port: ROCE_PORT,
        traffic_class: 2,
        ip: IpFields::DEFAULT,
    };
    // Until the neighbour is known, datagrams are dropped.
    let begun = Instant::now();
    while arrived.load(Ordering::Relaxed) == 0 {
        put(port, &path);
        port.flush()?;
        port.receive(1, &mut |_, _| {})?;
        if begun.elapsed() > Duration::from_secs(5) {
            return Err("the other end hears nothing".into());
        }
    }
    thread::sleep(Duration::from_millis(10));
    let first = arrived.load(Ordering::Relaxed);
    let (mut sent, start) = (first, Instant::now());
    while start.elapsed() < DURATION {
        let under_way = sent.saturating_sub(arrived.load(Ordering::Relaxed));
        let room = WINDOW - under_way.min(WINDOW);
        for _ in 0..room.min(BATCH as u64) {
            sent += u64::from(put(port, &path));
        }
        port.flush()?;
    }
    let all = arrived.load(Ordering::Relaxed) - first;
    Ok(all as f64 / start.elapsed().as_secs_f64())
}

/// Whether there was room.
fn put(port: &mut (dyn Port + Send), path: &Path) -> bool {
    let Some(slot) = port.reserve(path, DATAGRAM) else {
        return false;
    };
    slot.datagram.fill(7);
    IcrcSeed::new(path).seal(slot.identification, slot.datagram);
    port.commit();
    true
}
