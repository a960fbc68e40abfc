#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use std::collections::BTreeMap;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{Config, Delivery};
use trunkline_wire::Workers;

fn links() -> Links {
    let secret = Secret::from_seed(1);
    Links::new(&secret, Worker::ONLY, Keyed::new([1, 2]), Policy::default())
}

fn address(peer: u8) -> Gid {
    std::net::IpAddr::from([10, 0, 0, peer]).into()
}

/// Peer `n`, with two workers.
fn identity(n: u8, epoch: u64) -> PeerIdentity {
    PeerIdentity {
        guid: n.into(),
        epoch,
        address: address(n),
        workers: Workers::new(2).unwrap(),
    }
}

/// Adds a connection to the worker of `peer` that has the number `toward`.
fn open(links: &mut Links, peer: u8, toward: u32, private: bool) -> (u32, Qpn, u32) {
    let (number, token) = links.numbers().draw().unwrap();
    let config = Config {
        local_id: number,
        remote_id: Qpn::from_wire(toward),
        local_token: token,
        remote_token: 9,
        first_tx: 5,
        first_rx: 6,
        packet_size: 4176,
        control: CongestionControl::None,
        window: 64,
        source_ports: 1,
    };
    let peer = links.admit(&identity(peer, 1)).unwrap();
    let terms = Terms {
        first_tx: 5,
        most: 4176,
        traffic_class: 0,
        weight: 0,
        private,
        packs: false,
    };
    let delivery = Delivery::new(&config, Instant::ZERO);
    let conn = links.insert(Conn::new(delivery, peer, &terms));
    (conn, number, token)
}

fn close(links: &mut Links, conn: u32) {
    links.unlink(conn);
    let (unacked, _) = links.remove(conn, Cause::Local);
    assert!(unacked.is_empty());
}

#[test]
fn a_packet_finds_its_connection_by_number_token_and_source() {
    let mut links = links();
    let (conn, number, token) = open(&mut links, 1, 2, false);
    let from = address(1);
    // Twice: the second time from what was found last.
    for _ in 0..2 {
        assert_eq!(links.find(number, token, from), Ok(conn));
        assert_eq!(links.find(number, token ^ 1, from), Err(NotFound::Token));
    }
    links.other_source();
    assert_eq!(links.find(number, token, address(2)), Err(NotFound::Source));
    let (drawn, _) = links.numbers().draw().unwrap();
    assert_eq!(links.find(drawn, token, from), Err(NotFound::Early));
    links.numbers().release(drawn);
    assert_eq!(links.find(drawn, token, from), Err(NotFound::Unknown));
    assert_eq!(links.find(number, token, from), Ok(conn));
    close(&mut links, conn);
    assert_eq!(links.find(number, token, from), Err(NotFound::Unknown));
}

#[test]
fn a_handle_names_its_connection_and_no_later_one_of_its_index() {
    let mut links = links();
    let (first, ..) = open(&mut links, 1, 2, false);
    let id = links.id(first);
    close(&mut links, first);
    assert!(links.live(id).is_none() && links.is_gone(first));
    assert_ne!(open(&mut links, 1, 2, false).0, first, "a tombstone has it");
    assert_eq!(links.clear(first).unwrap().id, id);
    let (again, ..) = open(&mut links, 1, 2, false);
    assert_eq!(again, first);
    assert!(links.live(id).is_none() && links.live(links.id(again)).is_some());
}

#[test]
fn a_qp_gets_the_connection_of_the_pool_to_its_worker_that_has_the_fewest_flows() {
    let mut links = links();
    let even = Qpn::from_wire(100);
    let odd = Qpn::from_wire(101);
    let (private, ..) = open(&mut links, 1, 4, true);
    let peer = links.peer_at(address(1)).unwrap();
    assert_eq!(links.pick(peer, even), None, "it is a program's own");
    assert_eq!(links.fallback(peer, even), private);
    assert_eq!(links.fallback(peer, odd), NONE);
    let (full, ..) = open(&mut links, 1, 2, false);
    let (other, ..) = open(&mut links, 1, 6, false);
    let (elsewhere, ..) = open(&mut links, 1, 3, false);
    links[full].flows = 7;
    links[other].flows = 3;
    assert_eq!(links.pick(peer, even), Some(other));
    assert_eq!(links.pick(peer, odd), Some(elsewhere));
    assert_eq!(links.load_beside(other), (10, 2));
    assert_eq!(links.fullest_beside(other), Some(full));
    assert_eq!(links.fullest_beside(elsewhere), None);
    let all: Vec<u32> = links.conns_of(peer).collect();
    assert_eq!(all, [elsewhere, other, full, private]);
}

#[test]
fn a_peer_is_one_incarnation_at_a_time() {
    let mut links = links();
    let peer = links.admit(&identity(1, 1)).unwrap();
    assert_eq!(links.admit(&identity(1, 1)), Some(peer));
    assert_eq!(links.admit(&identity(1, 2)), None);
    links.forget_incarnation(peer);
    assert!(links.peer(peer).is_unknown());
    assert_eq!(links.admit(&identity(1, 2)), Some(peer));
    assert!(links.is_incarnation(peer, &identity(1, 2)));
    assert_eq!(links.peer_address(peer), address(1));
    assert!(!links.forget_peer(peer), "its path was not narrow");
    assert_eq!(links.peer_at(address(1)), None);
}

/// What a pool should be: connections of each peer, newest first.
#[test]
fn pools_are_what_was_opened_and_not_closed_in_any_order() {
    let mut links = links();
    let mut model: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
    let mut random = 7u32;
    for step in 0..2000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let peer = (random >> 24) as u8 % 3;
        let pool = model.entry(peer).or_default();
        if random >> 16 & 1 == 0 && pool.len() < 20 {
            let (conn, ..) = open(&mut links, peer, random & 0xffff, false);
            pool.insert(0, conn);
        } else if !pool.is_empty() {
            let conn = pool.remove((random >> 8) as usize % pool.len());
            close(&mut links, conn);
            if step % 3 > 0 {
                assert!(links.clear(conn).is_ok());
            }
        }
        for (peer, pool) in &model {
            if let Some(index) = links.peer_at(address(*peer)) {
                assert_eq!(&links.pool_of(index).collect::<Vec<_>>(), pool);
                assert_eq!(links.reaches(index), !pool.is_empty());
                let spare = pool.iter().filter(|conn| links.is_spare(**conn));
                assert_eq!(spare.count() > 0, pool.len() > 1);
            }
        }
    }
    assert_eq!(links.len(), model.values().map(Vec::len).sum::<usize>());
}

#[test]
fn an_incarnation_is_a_guid_and_an_epoch_and_its_workers_go_with_it() {
    let mut links = links();
    let first = identity(1, 1);
    let peer = links.admit(&first).unwrap();
    let twin = PeerIdentity { guid: 77, ..first };
    assert!(links.admit(&twin).is_none() && !links.is_incarnation(peer, &twin));
    links.forget_incarnation(peer);
    assert_eq!(links.peer(peer).workers(), Workers::ONE, "nobody knows");
    let next = PeerIdentity {
        epoch: 2,
        workers: Workers::new(4).unwrap(),
        ..first
    };
    assert_eq!(links.admit(&next), Some(peer));
    assert_eq!(links.peer(peer).workers(), next.workers);
}

#[test]
fn addresses_of_peers_that_are_gone_leave_nothing() {
    let mut links = links();
    let mut bytes = None;
    for host in 0..1000 {
        let address = std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host]).into();
        let identity = PeerIdentity {
            address,
            ..identity(1, 1)
        };
        let peer = links.admit(&identity).unwrap();
        assert_eq!(links.peer_address(peer), address);
        links.forget_peer(peer);
        assert_eq!(
            *bytes.get_or_insert(links.state_bytes()),
            links.state_bytes()
        );
    }
}
