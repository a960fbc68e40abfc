//! Tenants of an engine share what it sends by weight, whatever number of QPs they have, on
//! whatever connections.

mod scene;
mod sick_paths;

use crate::common::Pair;
use scene::{Line, POSTED, Scene, Sent};
use std::collections::BTreeMap;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{MICROSECOND, MILLISECOND};
use trunkline_conn::work::Status;
use trunkline_qpmap::VerbsError;
use trunkline_wire::Bth;

#[test]
fn tenants_share_what_a_node_sends_however_their_qps_are_spread() {
    for connections in 1..=8 {
        for room in [None, Some(3), Some(50)] {
            let mut scene = Scene::over(connections, &[(1, 1), (1, 200)]);
            let order = scene.order();
            order.iter().for_each(|tenant| scene.load(*tenant));
            scene.pair.room = room;
            let sent = scene.run(&order, 5 << 20);
            sent.check(&[1, 1], &format!("over {connections}, {room:?}"));
        }
    }
}

#[test]
fn tenants_of_other_weights_share_so_too() {
    let weights = [2, 1, 1];
    let mut scene = Scene::over(4, &[(2, 1), (1, 3), (1, 200)]);
    let order = scene.order();
    order.iter().for_each(|tenant| scene.load(*tenant));
    let sent = scene.run(&order, 7 << 20);
    sent.check(&weights, "over 4");
}

#[test]
fn a_tenant_that_cannot_send_holds_nobody_back_and_has_no_claim_later() {
    let mut scene = Scene::over(4, &[(1, 1), (1, 1), (1, 200)]);
    let order = scene.order();
    // All that leaves on the connection of the first one is lost for now.
    let (stuck, others) = scene.qps[0].clone();
    assert_eq!(stuck, order[0]);
    scene.post(&others, 0, 64);
    let first = scene.pair.sent_by(1);
    let [(_, datagram)] = &first[..] else {
        panic!("one packet, and not {}", first.len());
    };
    let number = Bth::read(datagram).expect("a BTH").0.dest_qp;
    scene.pair.fate = Box::new(move |_, datagram| {
        let lost = Bth::read(datagram).is_ok_and(|(bth, _)| bth.dest_qp == number);
        usize::from(!lost)
    });
    const ROOM: usize = 40;
    scene.pair.room = Some(ROOM);
    order.iter().for_each(|tenant| scene.load(*tenant));
    // Until the window of the dead connection is full.
    drop(scene.run(&order, 3 << 20));
    let (mut rounds, mut packets, mut sent) = (0, 0, Sent::default());
    while rounds < 60 {
        rounds += 1;
        for (tenant, bytes) in scene.round() {
            packets += 1;
            let at = order.iter().position(|of| *of == tenant).expect("a tenant");
            if at > 0 {
                *sent.bytes.entry(at as u16 - 1).or_default() += bytes;
            }
        }
    }
    sent.check(&[1, 1], "beside a dead connection");
    assert!(packets * 10 >= rounds * ROOM * 9, "{packets} in {rounds}");
    // All is well again.
    scene.pair.fate = Box::new(|_, _| 1);
    let total = 3 << 19;
    let sent = scene.run(&order, total);
    let [first, second] = [0, 1].map(|at| sent.bytes.get(&at).copied().unwrap_or(0));
    assert!(
        second >= total / 4,
        "{second} of {total}, {first} of the first one"
    );
}

#[test]
fn tenants_share_a_path_that_connections_share_by_their_windows() {
    for connections in [1, 2, 4, 8] {
        let control = CongestionControl::Delay;
        let mut scene = Scene::controlled(control, connections, &[(1, 1), (1, 200)]);
        let order = scene.order();
        scene.line = Some(Line::default());
        order.iter().for_each(|tenant| scene.load(*tenant));
        drop(scene.run(&order, 2 << 20));
        let begun = scene.pair.now;
        let sent = scene.run(&order, 4 << 20);
        let took = scene.pair.now.since(begun);
        sent.check(&[1, 1], &format!("over {connections}"));
        // A packet each microsecond, of a bit more than 1 KiB.
        let least = (4 << 20) / 1100 * MICROSECOND;
        assert!(
            took <= least * 10 / 8,
            "{took} of {least}, over {connections}"
        );
    }
}

#[test]
fn a_thousand_qps_of_one_tenant_get_what_one_of_another_gets() {
    for weights in [[1, 1], [3, 1], [2, 7]] {
        let mut scene = Scene::new(&[(weights[0], 1000), (weights[1], 1)]);
        let [many, one] = [0, 1000].map(|at| scene.qps[at].0);
        // The one first: its WRITEs last longer than the run.
        [one, many].iter().for_each(|tenant| scene.load(*tenant));
        let mut sent = BTreeMap::<u32, usize>::new();
        let mut total = 0;
        while total < 3 << 20 {
            for (tenant, bytes) in scene.round() {
                *sent.entry(u32::from(tenant == one)).or_default() += bytes;
                total += bytes;
            }
        }
        let all = (weights[0] + weights[1]) as usize;
        for (tenant, bytes) in sent {
            let due = total * weights[tenant as usize] as usize / all;
            assert!(
                bytes.abs_diff(due) <= 40 << 10,
                "{bytes} of {due}, {weights:?}"
            );
        }
    }
}

#[test]
fn a_small_message_waits_for_a_few_packets_of_each_other_tenant() {
    let mut scene = Scene::new(&[(1, 500), (1, 500), (1, 1)]);
    let [first, second, small] = [0, 500, 1000].map(|at| scene.qps[at].clone());
    [first.0, second.0]
        .iter()
        .for_each(|tenant| scene.load(*tenant));
    scene.pair.room = Some(4);
    (0..50).for_each(|_| drop(scene.round()));
    for id in 0..50 {
        scene.post(&small.1, id, 64);
        let mut before = BTreeMap::<bool, usize>::new();
        'waiting: loop {
            for (tenant, _) in scene.round() {
                if tenant == small.0 {
                    break 'waiting;
                }
                *before.entry(tenant == first.0).or_default() += 1;
            }
        }
        // A turn of 4,096 bytes, of which the one before may have left a flow's turn.
        let most = before.values().max().copied().unwrap_or(0);
        assert!(most <= 10, "{most} packets of one tenant went before it");
        (0..20).for_each(|_| drop(scene.round()));
    }
}

#[test]
fn a_tenant_whose_qps_are_destroyed_while_they_send_leaves_nothing_behind() {
    let mut scene = Scene::new(&[(1, 40), (5, 1)]);
    let [gone, stays] = [0, 40].map(|at| scene.qps[at].0);
    [gone, stays].iter().for_each(|tenant| scene.load(*tenant));
    (0..20).for_each(|_| drop(scene.round()));
    let users = 40;
    let engine = &mut scene.pair.nodes[1].engine;
    let busy = engine.remove_tenant(gone);
    assert_eq!(
        busy,
        Err(VerbsError::Busy {
            what: "tenant",
            users
        })
    );
    for (_, qp) in scene.qps.iter().filter(|(of, _)| *of == gone) {
        engine.destroy_qp(qp.qpn).expect("it is there");
    }
    engine.remove_tenant(gone).expect("it has no QP any more");
    engine.set_tenant_weight(stays, 1).expect("it is there");
    let mut others = 0;
    for _ in 0..2000 {
        let sent = scene.round();
        others += sent.iter().filter(|(tenant, _)| *tenant == gone).count();
    }
    assert_eq!(others, 0, "packets of QPs that are gone");
    scene.pair.run(100 * MILLISECOND);
    let done = scene.pair.completions(1);
    assert_eq!(done.len() as u64, POSTED);
    assert!(done.iter().all(|done| done.status == Status::Success));
    let live = scene.pair.nodes[1].engine.live_objects();
    assert_eq!((live.flows, live.requests), (1, 0));
}

#[test]
fn a_qp_belongs_to_a_tenant_that_is_there() {
    let mut pair = Pair::new(1);
    let engine = &mut pair.nodes[1].engine;
    let tenant = engine.add_tenant(64).expect("the largest weight");
    pair.tenants[1] = tenant;
    let [_, qp] = pair.connected();
    let engine = &mut pair.nodes[1].engine;
    let init = engine.query_qp_init(qp.qpn).expect("it is there");
    assert_eq!(init.tenant, tenant);
    engine.destroy_qp(qp.qpn).expect("it is there");
    engine.remove_tenant(tenant).expect("nobody uses it");
    let refused = engine.create_qp(&init).map(|qp| qp.qpn);
    assert_eq!(refused, Err(VerbsError::InvalidArgument { what: "tenant" }));
}
