#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::routes::Routes;
use std::thread;
use std::time::{Duration, Instant};
use trunkline_testkit::netns::{beside_a_neighbour, ip};

const PATIENCE: Duration = Duration::from_secs(20);

fn at(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 7471)
}

/// The neighbour, once it is not being asked any more.
fn settled(routes: &mut KernelRoutes, hop: &NextHop) -> Neighbour {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match routes.neighbour(hop).unwrap() {
            Neighbour::Asked if Instant::now() < give_up => thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
}

#[test]
fn a_way_on_loopback_has_no_neighbour() {
    let mut routes = KernelRoutes::open(IpAddr::from([127, 0, 0, 1])).unwrap();
    let hop = routes.next_hop(at("127.0.0.2")).unwrap();
    assert_eq!(hop.source, IpAddr::from([127, 0, 0, 1]));
    assert!(!hop.has_neighbour && hop.mtu >= 1500, "{hop:?}");
    assert_eq!(routes.down(&hop), None);
    assert_eq!(routes.neighbour(&hop).unwrap(), Neighbour::Known);
}

#[test]
fn addresses_of_no_host_or_of_another_family_have_no_way() {
    let mut routes = KernelRoutes::open(IpAddr::from([127, 0, 0, 1])).unwrap();
    let mut next_hop = |to: &str| routes.next_hop(at(to)).unwrap_err();
    assert!(matches!(next_hop("::1"), RouteError::Family { .. }));
    assert!(matches!(next_hop("0.0.0.0"), RouteError::NotOneHost(_)));
    assert!(matches!(next_hop("224.0.0.1"), RouteError::NotOneHost(_)));
    // Of the network of the loopback.
    assert!(matches!(
        next_hop("127.255.255.255"),
        RouteError::NotOneHost(_)
    ));
    // From loopback nothing leads out.
    assert!(matches!(next_hop("192.0.2.1"), RouteError::NoRoute { .. }));
    let unknown = KernelRoutes::open(IpAddr::from([192, 0, 2, 1])).unwrap_err();
    assert!(matches!(unknown, RouteError::System { .. }), "{unknown}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_neighbour_is_known_once_it_was_asked_for() {
    beside_a_neighbour(|_| {
        for (local, peer) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            let mut routes = KernelRoutes::open(local.parse().unwrap()).unwrap();
            let hop = routes.next_hop(at(peer)).unwrap();
            assert_eq!((hop.source, hop.address), (at(local).ip(), at(peer).ip()));
            assert_eq!((hop.mtu, hop.has_neighbour), (4200, true));
            assert_eq!(routes.neighbour(&hop).unwrap(), Neighbour::Unknown);
            routes.solicit(at(peer)).unwrap();
            assert_eq!(settled(&mut routes, &hop), Neighbour::Known, "{peer}");
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_neighbour_that_does_not_answer_is_silent() {
    beside_a_neighbour(|_| {
        std::fs::write("/proc/sys/net/ipv4/neigh/near/retrans_time_ms", "20").unwrap();
        let mut routes = KernelRoutes::open(IpAddr::from([10, 9, 0, 1])).unwrap();
        let nobody = at("10.9.0.77");
        let hop = routes.next_hop(nobody).unwrap();
        routes.solicit(nobody).unwrap();
        assert_eq!(settled(&mut routes, &hop), Neighbour::Silent);
        // Whoever asks again begins anew.
        routes.solicit(nobody).unwrap();
        assert_eq!(routes.neighbour(&hop).unwrap(), Neighbour::Asked);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_link_that_is_down_is_told_by_its_name() {
    beside_a_neighbour(|far| {
        ip("link add other type veth peer name end");
        ip("addr add 10.8.0.1/24 dev other");
        let mut routes = KernelRoutes::open(IpAddr::from([10, 9, 0, 1])).unwrap();
        let hop = routes.next_hop(at("10.9.0.2")).unwrap();
        assert_eq!(routes.down(&hop), None);
        far.run("ip link set far down");
        let told = routes.next_hop(at("10.9.0.2")).unwrap();
        let down = routes.down(&told).map(|name| name.to_string());
        assert_eq!(down.as_deref(), Some("near"));
        ip("link set near down");
        // To a network of a link; and, where no link is on it, by the one that has our address.
        for (peer, name) in [
            ("10.9.0.2", "near"),
            ("10.8.0.2", "other"),
            ("10.7.0.2", "near"),
        ] {
            let refused = routes.next_hop(at(peer)).unwrap_err();
            let says = format!("interface {name}, which leads to {peer}, is down");
            assert_eq!(refused.to_string(), says);
        }
        ip("link set near up");
        far.run("ip link set far up");
        let hop = routes.next_hop(at("10.9.0.2")).unwrap();
        assert_eq!(routes.down(&hop), None);
        let nowhere = routes.next_hop(at("10.7.0.2")).unwrap_err();
        assert!(matches!(nowhere, RouteError::NoRoute { .. }), "{nowhere}");
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn routes_say_gateways_limits_and_what_is_forbidden() {
    beside_a_neighbour(|_| {
        ip("route add 10.20.0.0/16 via 10.9.0.2 mtu lock 1400");
        ip("route add prohibit 10.30.0.0/16");
        ip("route add unreachable 10.40.0.0/16");
        let mut routes = KernelRoutes::open(IpAddr::from([10, 9, 0, 1])).unwrap();
        let hop = routes.next_hop(at("10.20.1.1")).unwrap();
        assert_eq!((hop.address, hop.mtu), (at("10.9.0.2").ip(), 1400));
        let mut refused = |to: &str| match routes.next_hop(at(to)).unwrap_err() {
            RouteError::NoRoute { source, .. } => source.raw_os_error().unwrap(),
            other => panic!("{other}"),
        };
        assert_eq!(refused("10.30.0.1"), libc::EACCES);
        assert_eq!(refused("10.40.0.1"), libc::EHOSTUNREACH);
        assert_eq!(refused("10.50.0.1"), libc::ENETUNREACH);
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn link_local_peers_are_on_our_own_link() {
    beside_a_neighbour(|_| {
        ip("addr add fe80::9/64 dev near nodad");
        let mut routes = KernelRoutes::open("fe80::9".parse().unwrap()).unwrap();
        let peer = |scope| SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, scope).into();
        let hop = routes.next_hop(peer(0)).unwrap();
        assert_eq!(routes.next_hop(peer(hop.interface)).unwrap(), hop);
        let elsewhere = routes.next_hop(peer(hop.interface + 1)).unwrap_err();
        assert!(
            matches!(elsewhere, RouteError::Interface { .. }),
            "{elsewhere}"
        );
    });
}
