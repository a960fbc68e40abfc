//! Target `handshakes`: two connection managers of nodes whose owners do anything, on a network
//! that does anything, a stranger who sends anything, and hellos of any bytes.

use crate::input::Input;
use crate::network::{self, Datagram, Network, address, way};
use std::collections::{BTreeMap, BTreeSet};
use trunkline_cm::{
    Bind, Binds, Bound, Bounds, Config, ConnectRequest, Event, HandshakeId, Hello, HelloReply,
    Identity, NodeCm, Offer, Outgoing, Purpose, Quote, RefusalCode, Retry, Route,
};
use trunkline_conn::secret::{Purpose as Use, Secret, Stream};
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{CmMad, Message, PrivateData};
use trunkline_wire::{Bth, Deth, MAD_LEN, Opcode, Qpn, Workers};

const MAX_OPERATIONS: usize = 512;
/// Places in the pool between the two.
const PLACES: u32 = 2;
/// An address where nobody is: all that comes from there is forged.
const NOBODY: u8 = 9;

struct Host {
    manager: NodeCm<Stream>,
    /// Handshakes that have begun and not ended.
    live: BTreeSet<HandshakeId>,
    /// Those that wait for a decision.
    asked: Vec<HandshakeId>,
    /// Those that nobody asked for: no packet ever proves them.
    forged: BTreeSet<HandshakeId>,
}

struct World {
    hosts: [Host; 2],
    now: Instant,
    network: Network,
    /// Datagrams to each host in the name of nobody, and from it to there.
    forged: [u32; 2],
    answered: [u32; 2],
}

fn host(number: u8) -> Host {
    // One GUID for both: it says nothing.
    let mut config = Config::new(Identity {
        guid: 7,
        epoch: number.into(),
    });
    let limits = &mut config.limits;
    (limits.connections, limits.opening) = (24, 8);
    (limits.half_open, limits.half_open_per_peer) = (12, 6);
    (limits.time_wait, limits.transmit) = (4, 32);
    Host {
        manager: NodeCm::new(config, Secret::from_seed(number.into()).stream(Use::Nodes)),
        live: BTreeSet::new(),
        asked: Vec::new(),
        forged: BTreeSet::new(),
    }
}

fn bind(input: &mut Input<'_>) -> Bind {
    let [src, dest, generation] = input.array();
    Bind {
        src_qp: Qpn::from_wire(src.into()),
        dest_qp: Qpn::from_wire(dest.into()),
        generation: generation.into(),
    }
}

fn bound(input: &mut Input<'_>) -> Bound {
    let [src, dest, generation, own] = input.array();
    Bound {
        src_qp: Qpn::from_wire(src.into()),
        dest_qp: Qpn::from_wire(dest.into()),
        generation: generation.into(),
        own_generation: own.into(),
    }
}

fn offer(input: &mut Input<'_>) -> Offer {
    Offer {
        connection: Qpn::from_wire(u32::from(input.byte()) + 2),
        token: u32::from(input.byte()) + 1,
        first_packet: input.byte().into(),
        packet_size: 1024,
        window: u16::from(input.byte() & 7) + 1,
        workers: Workers::ONE,
        packs: true,
    }
}

/// Asks, answers, forges, loses.
///
/// # Panics
/// When a manager breaks its bounds, sends what does not parse, answers a stranger more than three
/// times, ends what has not begun, or keeps something after everything was given up.
pub fn handshakes(data: &[u8]) {
    hellos(data);
    let mut input = Input::new(data);
    let mut world = World {
        hosts: [host(1), host(2)],
        now: Instant::ZERO,
        network: Network::default(),
        forged: [0; 2],
        answered: [0; 2],
    };
    input.drive(MAX_OPERATIONS, |input| {
        world.step(input);
        world.settle();
    });
    world.finish();
}

/// What is read from private data says the same when it is written again; what an error quotes is
/// as long as it has to be.
fn hellos(data: &[u8]) {
    let quote = Quote::parse(data);
    assert!(quote.is_none() || data.len() >= Quote::LEN);
    let mut bytes = [0; 92];
    let length = data.len().min(bytes.len());
    bytes[..length].copy_from_slice(&data[..length]);
    if let Ok(hello) = Hello::parse(&PrivateData(bytes)) {
        assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    }
    let mut bytes = [0; 196];
    let length = data.len().min(bytes.len());
    bytes[..length].copy_from_slice(&data[..length]);
    if let Ok(reply) = HelloReply::parse(&PrivateData(bytes)) {
        assert_eq!(HelloReply::parse(&reply.emit()), Ok(reply));
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let host = usize::from(operation >> 7);
        match operation & 0x0f {
            // The network: deliver, deliver again later, lose, damage.
            0..=3 => {
                let next = self.network.take();
                self.deliver(next);
            }
            4 => {
                let next = self.network.take_and_repeat();
                self.deliver(next);
            }
            // It is lost; or nobody listens where it arrives, and an ICMP error says so.
            5 => {
                let lost = self.network.take();
                if operation & 0x10 != 0
                    && let Some(lost) = lost
                {
                    self.refuse(&lost, input.byte());
                }
            }
            6 => {
                let next = self.network.take_damaged(input);
                self.deliver(next);
            }
            // The same in the name of somebody who is not there.
            7 => {
                if let Some(Datagram { to, mad, .. }) = self.network.first() {
                    self.forge(to, mad);
                }
            }
            8 => {
                let mad = network::invented(input);
                self.forge(host, mad);
            }
            9 => self.pass(u64::from(input.byte()) << (input.byte() & 31)),
            _ => self.call(host, operation & 0x0f, input),
        }
    }

    /// A REQ of nobody has to name its own addresses to be considered.
    fn forge(&mut self, to: usize, mut mad: [u8; MAD_LEN]) {
        let path = way(address(NOBODY), address(to as u8 + 1));
        if let Ok(CmMad {
            transaction_id,
            message: Message::Req(mut req),
        }) = CmMad::parse(&mad)
        {
            req.primary.local_gid = path.src.into();
            req.primary.remote_gid = path.dst.into();
            let message = Message::Req(req);
            mad = CmMad {
                transaction_id,
                message,
            }
            .to_bytes();
        }
        self.forged[to] += 1;
        self.deliver(Some(Datagram { to, path, mad }));
    }

    /// What an owner does.
    fn call(&mut self, host: usize, operation: u8, input: &mut Input<'_>) {
        let now = self.now;
        let Host {
            manager,
            live,
            asked,
            forged,
        } = &mut self.hosts[host];
        let place = usize::from(input.byte());
        let known = live.iter().copied().nth(place % live.len().max(1));
        match operation {
            10 | 11 => {
                let route = Route {
                    local: address(host as u8 + 1),
                    remote: address(2 - host as u8),
                };
                let binds: Binds = (0..input.byte() & 3).map(|_| bind(input)).collect();
                let purpose = match operation {
                    10 => Purpose::Pool(input.byte() % PLACES as u8),
                    _ => Purpose::Private,
                };
                let ask = ConnectRequest {
                    offer: offer(input),
                    purpose,
                    toward: input.byte(),
                    traffic_class: 0,
                    binds,
                    retry: Retry::UNKNOWN,
                };
                if let Ok(id) = manager.open(now, route, ask) {
                    live.insert(id);
                    asked.retain(|other| *other != id);
                }
            }
            12 | 13 => {
                if asked.is_empty() {
                    return;
                }
                let id = asked.swap_remove(place % asked.len());
                if operation == 13 {
                    let _ = manager.reject(id, RefusalCode::Busy);
                    return;
                }
                let bounds: Bounds = (0..input.byte() & 3).map(|_| bound(input)).collect();
                let _ = manager.accept(now, id, offer(input), bounds);
            }
            14 => {
                if let Some(id) = known {
                    match input.byte() & 3 {
                        0 if !forged.contains(&id) => drop(manager.confirm(now, id)),
                        0 | 1 => drop(manager.release(now, id)),
                        _ => manager.withdraw(id, Qpn::from_wire(input.byte().into())),
                    }
                }
            }
            _ => {
                if let Some(id) = known {
                    let _ = manager.close(now, id);
                }
            }
        }
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now + ns;
        let now = self.now;
        self.hosts
            .iter_mut()
            .for_each(|host| host.manager.handle_timeout(now));
    }

    fn deliver(&mut self, datagram: Option<Datagram>) {
        if let Some(Datagram { to, path, mad }) = datagram {
            self.hosts[to].manager.handle_mad(self.now, &path, &mad);
        }
    }

    /// The sender of a datagram hears what an error quotes of it: `cut` bytes at most.
    fn refuse(&mut self, lost: &Datagram, cut: u8) {
        let mut datagram = [0; Bth::LEN + Deth::LEN + MAD_LEN];
        (datagram[0], datagram[7]) = (Opcode::UD_SEND_ONLY.0, Qpn::GSI.get() as u8);
        datagram[Bth::LEN + Deth::LEN..].copy_from_slice(&lost.mad);
        if let Some(quote) = Quote::parse(&datagram[..usize::from(cut)]) {
            let sender = &mut self.hosts[1 - lost.to].manager;
            sender.handle_refused(self.now, lost.path.dst, &quote);
        }
    }

    /// Takes what the managers have to send and to say, and looks at what they hold.
    fn settle(&mut self) {
        for at in 0..2 {
            while let Some(Outgoing { route, mad }) = self.hosts[at].manager.poll_transmit() {
                assert!(CmMad::parse(&mad).is_ok(), "a manager sends what parses");
                let path = way(route.local, route.remote);
                match (0..2).find(|to| address(*to as u8 + 1) == route.remote) {
                    Some(to) => self.network.send(Datagram { to, path, mad }),
                    None => self.answered[at] += 1,
                }
            }
            assert!(
                self.answered[at] <= 3 * self.forged[at],
                "{} in the name of nobody, {} to nobody",
                self.forged[at],
                self.answered[at]
            );
            let Host {
                manager,
                live,
                asked,
                forged,
            } = &mut self.hosts[at];
            while let Some(event) = manager.poll_event() {
                if let Event::Incoming { id, route, .. } = event {
                    if route.remote == address(NOBODY) {
                        forged.insert(id);
                    }
                    assert!(live.insert(id), "a handshake begins once");
                    asked.push(id);
                }
                if let Some(id) = event.ends() {
                    assert!(live.remove(&id), "what ends has begun, and ends once");
                    asked.retain(|other| *other != id);
                    forged.remove(&id);
                }
            }
            let (load, limits) = (manager.load(), manager.config().limits);
            assert!(load.connections() <= limits.connections);
            // Our own asks that a peer's absorbed are half-open, and ours when they begin anew.
            assert!(load.opening <= limits.opening + PLACES);
            assert!(load.half_open <= limits.half_open + PLACES);
            assert!(load.time_wait <= limits.time_wait);
        }
    }

    /// Everything is given up: nothing is left.
    fn finish(mut self) {
        for at in 0..2 {
            for id in self.hosts[at].live.clone() {
                let _ = self.hosts[at].manager.close(self.now, id);
            }
        }
        self.network.lose_all();
        for _ in 0..200 {
            self.settle();
            self.network.lose_all();
            self.pass(100_000_000);
        }
        self.settle();
        let counts: BTreeMap<usize, u32> = (0..2)
            .map(|at| (at, self.hosts[at].manager.load().connections()))
            .collect();
        assert_eq!(counts, BTreeMap::from([(0, 0), (1, 0)]));
        assert!(self.hosts.iter().all(|host| host.live.is_empty()));
    }
}
