//! Lanes against a plain model, and what tenants get of a connection in the long run.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::slab::NONE;
use proptest::prelude::*;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use trunkline_wire::Qpn;

/// Connections and tenants of a test.
const CONNS: usize = 3;
const TENANTS: usize = 4;
const FLOWS: u32 = 24;
const QUANTUM: i32 = 4096;

/// The owner with what it works on.
struct Bench {
    lanes: Lanes,
    links: Chains<u32>,
    flows: Slab<Flow>,
    turns: [Turns; CONNS],
    tenants: Vec<Tenant>,
}

impl Bench {
    /// Tenants of these weights; flows belong to them in turn.
    fn new(weights: &[u32], flows: u32) -> Self {
        let mut lanes = Lanes::new();
        let tenants = weights
            .iter()
            .map(|weight| lanes.tenants.add(*weight).unwrap());
        let tenants = tenants.collect();
        let mut records = Slab::new();
        for qp in 0..flows {
            records.insert(Flow::new(qp, NONE, Qpn::from_wire(qp), 1));
        }
        Self {
            lanes,
            links: Chains::new(),
            flows: records,
            turns: [const { Turns::EMPTY }; CONNS],
            tenants,
        }
    }

    fn tenant(&self, flow: u32) -> Tenant {
        self.tenants[flow as usize % self.tenants.len()]
    }

    fn push(&mut self, conn: usize, flow: u32) {
        let of = (conn as u32, self.tenant(flow));
        let lists = (&mut self.links, &mut self.flows);
        self.lanes.push(&mut self.turns[conn], of, lists, flow);
    }

    fn take(&mut self, conn: usize, flow: u32) {
        let of = (conn as u32, self.tenant(flow));
        let lists = (&mut self.links, &mut self.flows);
        self.lanes.take(&mut self.turns[conn], of, lists, flow);
    }

    fn begin(&mut self, conn: usize) -> Option<(u32, Option<i32>)> {
        let (bytes, turns) = ((QUANTUM, i32::MAX), &mut self.turns[conn]);
        let of = TurnOf {
            conn: conn as u32,
            peer: 0,
            now: Instant::ZERO,
        };
        self.lanes.begin_turn(turns, &self.links, of, bytes).ok()
    }

    fn end(&mut self, conn: usize, flow: u32, what: (Next, i32)) {
        let lists = (&mut self.links, &mut self.flows);
        let flow = (conn as u32, flow);
        self.lanes
            .end_turn(&mut self.turns[conn], flow, lists, what);
    }

    /// Nothing of any lane is left.
    fn is_clean(&self) -> bool {
        let lanes = &self.lanes;
        let lists = lanes.lanes.len() + lanes.found.len() + lanes.apart.len() + self.links.len();
        lists == 0 && self.turns.iter().all(Turns::is_empty)
    }
}

/// The same, of one connection: lanes that may have turns, and those that were found to have none.
#[derive(Default)]
struct Model {
    lanes: VecDeque<(usize, i32, VecDeque<u32>)>,
    spent: VecDeque<(usize, i32, VecDeque<u32>)>,
    /// That was in an earlier period.
    is_over: bool,
}

/// What tenants may send, in the model.
struct Allowances {
    weights: [u32; TENANTS],
    allowance: i32,
    /// What each has left in this period, once it was asked for.
    left: [i32; TENANTS],
    asked: [bool; TENANTS],
    /// Lanes of each.
    lanes: [usize; TENANTS],
}

impl Allowances {
    fn are_several(&self) -> bool {
        self.lanes.iter().filter(|lanes| **lanes > 0).count() > 1
    }

    fn left(&mut self, tenant: usize) -> i32 {
        if !std::mem::replace(&mut self.asked[tenant], true) {
            let allowed = self.allowance * self.weights[tenant] as i32;
            self.left[tenant] = self.left[tenant].min(0) + allowed;
        }
        self.left[tenant]
    }

    fn begin_period(&mut self, connections: usize) {
        self.allowance = (connections.clamp(1, 64) as i32) << 16;
        self.asked = [false; TENANTS];
    }

    fn count(&mut self, model: &[Model; CONNS]) {
        self.lanes = [0; TENANTS];
        for lane in model
            .iter()
            .flat_map(|model| model.lanes.iter().chain(&model.spent))
        {
            self.lanes[lane.0] += 1;
        }
    }
}

impl Model {
    fn push(&mut self, tenant: usize, flow: u32) {
        let mut all = self.lanes.iter_mut().chain(&mut self.spent);
        match all.find(|lane| lane.0 == tenant) {
            Some(lane) => lane.2.push_back(flow),
            None => self.lanes.push_back((tenant, 0, [flow].into())),
        }
    }

    fn take(&mut self, flow: u32) {
        for lanes in [&mut self.lanes, &mut self.spent] {
            lanes
                .iter_mut()
                .for_each(|lane| lane.2.retain(|at| *at != flow));
            lanes.retain(|lane| !lane.2.is_empty());
        }
        self.settle();
    }

    fn settle(&mut self) {
        if self.lanes.is_empty() {
            std::mem::swap(&mut self.lanes, &mut self.spent);
        }
    }

    fn begin(&mut self, all: &mut Allowances) -> Option<(u32, Option<i32>)> {
        let alone = |flows: &VecDeque<u32>, most| (flows[0], (flows.len() == 1).then_some(most));
        if !all.are_several() {
            return Some(alone(&self.lanes.front()?.2, i32::MAX));
        }
        if std::mem::take(&mut self.is_over) {
            self.lanes.append(&mut self.spent);
        }
        loop {
            let single = self.lanes.len() == 1;
            let (tenant, deficit, flows) = self.lanes.front_mut()?;
            let left = all.left(*tenant);
            if left <= 0 && single {
                return None;
            } else if left <= 0 {
                let lane = self.lanes.pop_front();
                self.spent.extend(lane);
                continue;
            } else if single {
                return Some(alone(flows, left));
            }
            if *deficit <= 0 {
                *deficit += QUANTUM * all.weights[*tenant] as i32;
            }
            if *deficit > 0 {
                return Some(alone(flows, (*deficit).min(left)));
            }
            self.lanes.rotate_left(1);
        }
    }

    fn end(&mut self, all: &mut Allowances, flow: u32, (next, bytes): (Next, i32)) {
        if self.lanes.front().is_none_or(|lane| lane.2[0] != flow) {
            return;
        }
        let single = self.lanes.len() == 1;
        let (tenant, deficit, flows) = &mut self.lanes[0];
        if all.are_several() {
            all.left[*tenant] -= bytes;
        }
        match next {
            Next::Stay => {}
            Next::Behind => flows.rotate_left(1),
            Next::Leave => drop(flows.pop_front()),
        }
        if flows.is_empty() {
            self.lanes.pop_front();
            self.settle();
        } else if !single {
            *deficit -= bytes;
            if *deficit <= 0 {
                self.lanes.rotate_left(1);
            }
        }
    }
}

#[test]
fn lanes_of_which_one_is_held_back_are_held_back() {
    let mut bench = Bench::new(&[1, 1, 1], 3);
    (0..2).for_each(|flow| bench.push(0, flow));
    bench.push(1, 2);
    let tenants = bench.tenants.clone();
    let at = (0, Instant::ZERO);
    bench
        .lanes
        .tenants
        .wait(tenants[2], (1, 0, Instant::ZERO), 1000);
    bench.lanes.tenants.begin_period(1);
    let left = bench.lanes.tenants.left(tenants[1], (9, at.1)).unwrap();
    bench.lanes.tenants.spend(tenants[1], left);
    let of = TurnOf {
        conn: 0,
        peer: 0,
        now: at.1,
    };
    let (links, turns) = (&bench.links, &mut bench.turns[0]);
    let begun = bench
        .lanes
        .begin_turn(turns, links, of, (QUANTUM, i32::MAX));
    assert_eq!(begun, Err(Some(Pause::Held)));
}

#[test]
fn nothing_is_left_of_a_lane_that_ends_while_it_is_apart() {
    let mut bench = Bench::new(&[1, 1], 2);
    (0..2).for_each(|flow| bench.push(0, flow));
    let tenant = bench.tenants[0];
    let left = bench
        .lanes
        .tenants
        .left(tenant, (0, Instant::ZERO))
        .unwrap();
    bench.lanes.tenants.spend(tenant, left);
    assert_eq!(bench.begin(0).map(|(flow, _)| flow), Some(1));
    assert_eq!(bench.lanes.apart.len(), 1);
    bench.take(0, 0);
    assert_eq!(bench.lanes.apart.len(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, u32),
    Take(u32),
    /// A flow has its turn, and moves in it to another connection if it is this one.
    Turn(usize, Next, i32, u32),
    Weight(usize, u32),
    /// Another period begins.
    Period(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let next = prop_oneof![Just(Next::Stay), Just(Next::Behind), Just(Next::Leave)];
    prop_oneof![
        4 => (0..CONNS, 0..FLOWS).prop_map(|(conn, flow)| Step::Push(conn, flow)),
        1 => (0..FLOWS).prop_map(Step::Take),
        6 => (0..CONNS, next, 0..40_000, 0..FLOWS)
            .prop_map(|(conn, next, bytes, moved)| Step::Turn(conn, next, bytes, moved)),
        1 => (0..TENANTS, 1..=64u32).prop_map(|(tenant, weight)| Step::Weight(tenant, weight)),
        1 => (0..70usize).prop_map(Step::Period),
    ]
}

proptest! {
    #[test]
    fn no_flow_is_lost_or_doubled_and_nothing_is_left_of_who_has_none(
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let weights = [1, 1, 2, 64];
        let mut bench = Bench::new(&weights, FLOWS);
        let mut model: [Model; CONNS] = Default::default();
        let mut all = Allowances {
            weights,
            allowance: 64 << 10,
            left: [0; TENANTS],
            asked: [false; TENANTS],
            lanes: [0; TENANTS],
        };
        let mut homes: BTreeMap<u32, usize> = BTreeMap::new();
        for step in steps {
            all.count(&model);
            match step {
                Step::Push(conn, flow) => if let Entry::Vacant(home) = homes.entry(flow) {
                    home.insert(conn);
                    bench.push(conn, flow);
                    model[conn].push(flow as usize % TENANTS, flow);
                }
                Step::Take(flow) => if let Some(conn) = homes.remove(&flow) {
                    bench.take(conn, flow);
                    model[conn].take(flow);
                }
                Step::Turn(conn, next, bytes, moved) => {
                    let first = bench.begin(conn);
                    prop_assert_eq!(first, model[conn].begin(&mut all));
                    let Some((flow, _)) = first else { continue };
                    if flow == moved {
                        let to = (conn + 1) % CONNS;
                        bench.take(conn, flow);
                        bench.push(to, flow);
                        model[conn].take(flow);
                        model[to].push(flow as usize % TENANTS, flow);
                        homes.insert(flow, to);
                        all.count(&model);
                    } else if next == Next::Leave {
                        homes.remove(&flow);
                    }
                    bench.end(conn, flow, (next, bytes));
                    model[conn].end(&mut all, flow, (next, bytes));
                }
                Step::Weight(tenant, weight) => {
                    all.weights[tenant] = weight;
                    let tenant = bench.tenants[tenant];
                    bench.lanes.tenants.set_weight(tenant, weight).unwrap();
                }
                Step::Period(connections) => {
                    all.begin_period(connections);
                    model.iter_mut().for_each(|model| model.is_over = true);
                    bench.lanes.tenants.begin_period(connections);
                }
            }
            all.count(&model);
            let lanes: usize = all.lanes.iter().sum();
            prop_assert_eq!(bench.lanes.lanes.len(), lanes);
            prop_assert!(bench.lanes.found.len() <= lanes);
            prop_assert_eq!(bench.links.len(), homes.len());
        }
        for (flow, conn) in homes {
            bench.take(conn, flow);
        }
        prop_assert!(bench.is_clean());
        for tenant in bench.tenants {
            prop_assert!(bench.lanes.tenants.remove(tenant).is_ok());
        }
    }

    /// Each flow has messages of its own size, in packets of up to 1,100 bytes, and sends a quantum
    /// in its turn or what its lane has left; each turn of the connection is as long as it likes.
    #[test]
    fn tenants_get_what_their_weights_say_whatever_their_flows_do(
        tenants in prop::collection::vec((1..=64u32, 1..40u32), 2..6),
        sizes in prop::collection::vec(64..20_000i32, 1..30),
    ) {
        const PACKET: i32 = 1100;
        let weights: Vec<u32> = tenants.iter().map(|(weight, _)| *weight).collect();
        let most = tenants.iter().map(|(_, flows)| *flows).max().unwrap();
        let mut bench = Bench::new(&weights, most * weights.len() as u32);
        for flow in 0..most * weights.len() as u32 {
            let (at, tenant) = (flow / weights.len() as u32, flow as usize % weights.len());
            if at < tenants[tenant].1 {
                bench.push(0, flow);
            }
        }
        let mut sent = vec![0_i64; weights.len()];
        let mut deficits = BTreeMap::<u32, i32>::new();
        let total: u32 = weights.iter().sum();
        let rounds = 200;
        while sent.iter().sum::<i64>() < i64::from(rounds * total) * i64::from(QUANTUM) {
            let Some((flow, alone)) = bench.begin(0) else {
                bench.lanes.tenants.begin_period(1);
                continue;
            };
            let left = deficits.entry(flow).or_default();
            *left = alone.unwrap_or(if *left <= 0 { *left + QUANTUM } else { *left });
            let mut bytes = 0;
            while *left > 0 {
                let size = sizes[(flow as usize + bytes as usize) % sizes.len()];
                let packet = size.min(PACKET);
                (bytes, *left) = (bytes + packet, *left - packet);
            }
            sent[flow as usize % weights.len()] += i64::from(bytes);
            bench.end(0, flow, (Next::Behind, bytes));
        }
        let all: i64 = sent.iter().sum();
        for (sent, weight) in sent.iter().zip(&weights) {
            let due = all * i64::from(*weight) / i64::from(total);
            // Where the run ends, a lane may be a turn ahead of others or behind them, and a
            // flow's turn with it.
            let turn = i64::from(QUANTUM) * i64::from(*weights.iter().max().unwrap()) + 8192;
            let turn = turn.max(i64::from(*weight) << 17);
            prop_assert!((sent - due).abs() <= turn, "{} of {}", sent, due);
        }
    }
}
