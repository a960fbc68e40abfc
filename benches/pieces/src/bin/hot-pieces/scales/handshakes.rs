//! Connections that two connection managers open and close.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_cm::{
    Binds, Bounds, Config, ConnectRequest, Event, Identity, Limits, NodeCm, Offer, Purpose, Retry,
    Route,
};
use trunkline_conn::secret::{Purpose as Secrets, Secret, Stream};
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_wire::{IpFields, Path, Qpn, ROCE_PORT, Workers};

/// As many as there may be.
const MOST: u32 = 1 << 20;
/// Addresses from which they come: a node has no more.
const ADDRESSES: u32 = 1 << 8;

fn manager(guid: u64) -> NodeCm<Stream> {
    let mut config = Config::new(Identity { guid, epoch: 1 });
    config.limits = Limits {
        connections: MOST,
        opening: MOST,
        half_open: MOST,
        half_open_per_peer: MOST,
        time_wait: MOST,
        transmit: 2 * MOST,
    };
    NodeCm::new(config, Secret::from_seed(guid).stream(Secrets::Nodes))
}

fn offer(number: u32) -> Offer {
    Offer {
        connection: Qpn::from_wire(number + 1),
        token: number,
        first_packet: 1000,
        packet_size: 4096,
        window: 16,
        workers: Workers::ONE,
        packs: true,
    }
}

/// All that each has to say reaches the other; `take_up` hears the events.
fn exchange(
    managers: &mut [NodeCm<Stream>; 2],
    now: Instant,
    mut take_up: impl FnMut(usize, &mut NodeCm<Stream>, Event),
) {
    loop {
        let mut quiet = true;
        for at in [0, 1] {
            while let Some(out) = managers[at].poll_transmit() {
                let path = Path {
                    src: out.route.local,
                    dst: out.route.remote,
                    src_port: ROCE_PORT,
                    traffic_class: 0,
                    ip: IpFields::DEFAULT,
                };
                managers[1 - at].handle_mad(now, &path, &out.mad);
                quiet = false;
                while let Some(event) = managers[1 - at].poll_event() {
                    take_up(1 - at, &mut managers[1 - at], event);
                }
            }
            while let Some(event) = managers[at].poll_event() {
                take_up(at, &mut managers[at], event);
                quiet = false;
            }
        }
        if quiet {
            return;
        }
    }
}

/// Asks of many addresses, all of them under way at a time, until each stands; then all of them
/// are closed and forgotten.
pub(crate) fn handshakes(entries: u32) {
    let mut managers = [manager(1), manager(2)];
    let mut now = Instant::from_nanos(SECOND);
    for number in 0..entries {
        let route = Route {
            local: IpAddr::from(Ipv4Addr::from_bits(0x0a80_0000 + number % ADDRESSES)),
            remote: [10, 0, 0, 2].into(),
        };
        let ask = ConnectRequest {
            offer: offer(number),
            purpose: Purpose::Private,
            toward: 0,
            traffic_class: 0,
            binds: Binds::default(),
            retry: Retry::UNKNOWN,
        };
        let asked = managers[0].open(now, route, ask);
        black_box(asked.expect("room for another one"));
    }
    let mut stand = [Vec::new(), Vec::new()];
    let mut offered = 0;
    exchange(&mut managers, now, |at, manager, event| match event {
        Event::Incoming { id, .. } => {
            let accepted = manager.accept(now, id, offer(offered), Bounds::default());
            accepted.expect("it waits for a decision");
            offered += 1;
        }
        Event::Established(terms) => stand[at].push(terms.id),
        other => panic!("{other:?}"),
    });
    assert_eq!([stand[0].len(), stand[1].len()], [entries as usize; 2]);
    now = now + MILLISECOND;
    for id in &stand[0] {
        managers[0].close(now, *id).expect("it stands");
    }
    exchange(&mut managers, now, |_, _, event| {
        assert!(matches!(event, Event::Closed { .. }), "{event:?}");
    });
    for manager in &mut managers {
        while let Some(due) = manager.poll_timeout() {
            now = now.max(due);
            manager.handle_timeout(now);
        }
        assert_eq!(manager.load().connections(), 0);
    }
}
