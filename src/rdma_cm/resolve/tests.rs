#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use trunkline_cm::rdma::{Config, Kind, PortSpace, RdmaCm};
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_dataplane::{InterfaceName, NeighbourEntry};

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const TIMEOUT: u64 = 2 * SECOND;

/// Routes that say what they are told to.
#[derive(Debug, Default)]
struct Told {
    /// What the neighbour is from now on.
    neighbour: Option<Neighbour>,
    no_route: bool,
    down: Option<InterfaceName>,
    asked_ways: usize,
    solicited: usize,
}

impl Routes for Told {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        self.asked_ways += 1;
        if self.no_route {
            return Err(RouteError::NotOneHost(peer.ip()));
        }
        Ok(NextHop {
            source: LOCAL,
            interface: 2,
            address: peer.ip(),
            mtu: 1500,
            has_neighbour: true,
        })
    }

    fn entry(&mut self, hop: &NextHop) -> Result<NeighbourEntry, RouteError> {
        let state = self.neighbour.ok_or(RouteError::NotOneHost(hop.address))?;
        Ok(NeighbourEntry {
            state,
            mac: None,
            is_stale: false,
        })
    }

    fn down(&mut self, _way: &NextHop) -> Option<InterfaceName> {
        self.down
    }

    fn solicit(&mut self, _peer: SocketAddr) -> Result<(), RouteError> {
        self.solicited += 1;
        Ok(())
    }
}

fn resolver(neighbour: Neighbour) -> Resolver<Told> {
    let told = Told {
        neighbour: Some(neighbour),
        ..Told::default()
    };
    Resolver::new(LOCAL, Some(told))
}

fn peer(last: u8) -> SocketAddr {
    ([10, 0, 0, last], 1).into()
}

fn ids<const N: usize>() -> [Id; N] {
    let mut manager = RdmaCm::new(Config::new(1), Secret::from_seed(1).stream(Purpose::Hosts));
    [(); N].map(|()| manager.create(PortSpace::Tcp, Kind::Rc).unwrap())
}

/// Turns the clock from timer to timer until there is an outcome; gives when that was.
fn run(resolver: &mut Resolver<Told>, mut now: Instant) -> (Instant, Id, Outcome) {
    for _ in 0..1000 {
        now = resolver.poll_timeout().expect("it waits").max(now);
        if let Some((id, outcome)) = resolver.poll(now) {
            return (now, id, outcome);
        }
    }
    panic!("it waits for ever");
}

/// Nothing is under way any more, and what was found is forgotten.
fn forgets_in_time(resolver: &mut Resolver<Told>) {
    for _ in 0..3 {
        if let Some(at) = resolver.poll_timeout() {
            assert!(resolver.poll(at).is_none());
        }
    }
    assert_eq!(resolver.poll_timeout(), None);
    assert_eq!(resolver.state_bytes(), 0);
}

#[test]
fn a_known_neighbour_is_resolved_at_once_and_remembered_for_a_second() {
    let [id] = ids();
    let mut resolver = resolver(Neighbour::Known);
    let mut now = Instant::ZERO;
    for (asked, step) in [(1, 0), (1, SECOND - 1), (2, 1), (2, SECOND / 2)] {
        now = now + step;
        let outcome = resolver.begin(now, id, peer(2), TIMEOUT);
        assert!(matches!(outcome, Some(Ok(Some(_)))), "{outcome:?}");
        assert_eq!(resolver.routes.as_ref().unwrap().asked_ways, asked);
    }
    forgets_in_time(&mut resolver);
}

#[test]
fn an_unknown_neighbour_is_solicited_once_and_waited_for() {
    for before in [Neighbour::Unknown, Neighbour::Silent] {
        let [id] = ids();
        let mut resolver = resolver(before);
        assert!(
            resolver
                .begin(Instant::ZERO, id, peer(2), TIMEOUT)
                .is_none()
        );
        let routes = resolver.routes.as_mut().unwrap();
        assert_eq!(routes.solicited, 1);
        routes.neighbour = Some(Neighbour::Asked);
        assert!(resolver.poll(Instant::ZERO + SECOND).is_none());
        let routes = resolver.routes.as_mut().unwrap();
        routes.neighbour = Some(Neighbour::Known);
        let (_, which, outcome) = run(&mut resolver, Instant::ZERO);
        assert_eq!(which, id);
        assert!(matches!(outcome, Ok(Some(_))), "{outcome:?}");
        assert_eq!(resolver.routes.as_ref().unwrap().solicited, 1);
    }
}

#[test]
fn a_neighbour_that_others_ask_for_is_waited_for_too() {
    let [id] = ids();
    let mut resolver = resolver(Neighbour::Asked);
    assert!(
        resolver
            .begin(Instant::ZERO, id, peer(2), TIMEOUT)
            .is_none()
    );
    assert_eq!(resolver.routes.as_ref().unwrap().solicited, 0);
    // They gave up: now it is ours to ask.
    resolver.routes.as_mut().unwrap().neighbour = Some(Neighbour::Silent);
    assert!(resolver.poll(Instant::ZERO + SECOND).is_none());
    assert_eq!(resolver.routes.as_ref().unwrap().solicited, 1);
    let (_, _, outcome) = run(&mut resolver, Instant::ZERO + SECOND);
    assert!(matches!(outcome, Err(ResolveError::Silent(hop)) if hop == peer(2).ip()));
}

#[test]
fn time_is_up_when_the_caller_said_so() {
    for timeout in [0, MILLISECOND / 2, 30 * MILLISECOND, TIMEOUT] {
        let [id] = ids();
        let mut resolver = resolver(Neighbour::Asked);
        let outcome = match resolver.begin(Instant::ZERO, id, peer(2), timeout) {
            Some(outcome) => outcome,
            None => {
                let (at, _, outcome) = run(&mut resolver, Instant::ZERO);
                assert_eq!(at, Instant::ZERO + timeout);
                outcome
            }
        };
        assert!(
            matches!(outcome, Err(ResolveError::Timeout(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn of_a_link_that_is_down_no_neighbour_is_blamed() {
    for (neighbour, timeout) in [(Neighbour::Silent, TIMEOUT), (Neighbour::Asked, 0)] {
        let [id] = ids();
        let mut resolver = resolver(neighbour);
        let name = InterfaceName::new(b"eth7");
        resolver.routes.as_mut().unwrap().down = Some(name);
        let outcome = match resolver.begin(Instant::ZERO, id, peer(2), timeout) {
            Some(outcome) => outcome,
            // It waits for the link as for any neighbour.
            None => run(&mut resolver, Instant::ZERO).2,
        };
        let why = outcome.unwrap_err().to_string();
        assert_eq!(why, "interface eth7, which leads to 10.0.0.2, is down");
        let silent = resolver.why_silent(Instant::ZERO, peer(2).ip());
        assert_eq!(silent, NoConnection::LinkDown(name));
    }
}

#[test]
fn a_peer_that_is_silent_is_told_from_a_host_that_is_not_there() {
    for (neighbour, why) in [
        (Neighbour::Known, NoConnection::Silent),
        (Neighbour::Asked, NoConnection::NoHost),
        (Neighbour::Unknown, NoConnection::NoHost),
        (Neighbour::Silent, NoConnection::NoHost),
    ] {
        let mut resolver = resolver(neighbour);
        let silent = resolver.why_silent(Instant::ZERO, peer(2).ip());
        assert_eq!(silent, why, "{neighbour:?}");
    }
    let mut nowhere = resolver(Neighbour::Known);
    nowhere.routes.as_mut().unwrap().no_route = true;
    let silent = nowhere.why_silent(Instant::ZERO, peer(2).ip());
    assert_eq!(silent, NoConnection::NoRoute);
    let mut nobody_knows = Resolver::<Told>::new(LOCAL, None);
    let silent = nobody_knows.why_silent(Instant::ZERO, peer(2).ip());
    assert_eq!(silent, NoConnection::Silent);
}

#[test]
fn what_the_routes_cannot_say_is_an_error() {
    let [id] = ids();
    let mut resolver = resolver(Neighbour::Known);
    resolver.routes.as_mut().unwrap().neighbour = None;
    let outcome = resolver.begin(Instant::ZERO, id, peer(2), TIMEOUT);
    assert!(matches!(outcome, Some(Err(ResolveError::Route(_)))));
    resolver.routes.as_mut().unwrap().no_route = true;
    let outcome = resolver.begin(Instant::ZERO, id, peer(2), TIMEOUT);
    assert!(matches!(outcome, Some(Err(ResolveError::Route(_)))));
    let other = "[fd00::1]:1".parse().unwrap();
    let outcome = resolver.begin(Instant::ZERO, id, other, TIMEOUT);
    let family = |outcome| {
        matches!(
            outcome,
            Some(Err(ResolveError::Route(RouteError::Family { .. })))
        )
    };
    assert!(family(outcome));
    let mut none = Resolver::<Told>::new(LOCAL, None);
    assert!(family(none.begin(Instant::ZERO, id, other, TIMEOUT)));
    assert!(matches!(
        none.begin(Instant::ZERO, id, peer(2), 0),
        Some(Ok(None))
    ));
}

#[test]
fn addresses_wait_side_by_side_and_may_be_forgotten() {
    let [a, b, c] = ids();
    let mut resolver = resolver(Neighbour::Asked);
    for (id, last) in [(a, 2), (b, 3), (c, 4)] {
        assert!(
            resolver
                .begin(Instant::ZERO, id, peer(last), TIMEOUT)
                .is_none()
        );
    }
    resolver.forget(b);
    resolver.routes.as_mut().unwrap().neighbour = Some(Neighbour::Known);
    let first = run(&mut resolver, Instant::ZERO).1;
    let second = run(&mut resolver, Instant::ZERO).1;
    assert_eq!((first, second), (a, c));
    forgets_in_time(&mut resolver);
}

#[test]
fn ways_are_remembered_up_to_a_limit() {
    let [id] = ids();
    let mut resolver = resolver(Neighbour::Known);
    let many = 2 * MAX_WAYS;
    let at = |n: usize| SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], 1));
    for n in 0..many {
        assert!(resolver.begin(Instant::ZERO, id, at(n), TIMEOUT).is_some());
        assert!(resolver.hops.len() <= MAX_WAYS);
    }
    // Room comes back when the first are old.
    let later = Instant::ZERO + FRESH_FOR;
    assert!(resolver.begin(later, id, at(many), TIMEOUT).is_some());
    assert_eq!(resolver.hops.len(), 1);
}
