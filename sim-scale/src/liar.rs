//! A node that lies to all others (`net/lies.rs` says how), and the QPs that talk to it. Nothing of
//! those is held against the model: what they bring about is the liar's word. What is held is that
//! nobody else notices, be it that a QP of an honest pair fails or that a byte of theirs changes;
//! that no node panics or is kept busy; and that nothing is left of the liar once it is gone.

use crate::failure::{Failure, Verdict};
use crate::options::{MS, US, between, pick};
use crate::setup::refused;
use crate::world::{Action, World};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use trunkline::{
    Access, AtomicOp, Attributes, Cq, Mr, Pd, Qp, QpModify, QpOptions, QpType, RecvWr, SendFlags,
    SendOp, SendWr, Srq,
};
use trunkline_dataplane::prng::Prng;

/// Bytes of each side's region, and most of a message.
const REGION: usize = 64 << 10;
const LARGEST: u64 = 10_000;
/// Pairs of QPs between an honest node and the liar, and requests outstanding of each.
const PAIRS: usize = 6;
const DEPTH: u32 = 16;
/// Most things that the liar does in a run.
const MOST: u32 = 3000;

/// What a node has to talk to the liar with, or the liar to it.
#[derive(Debug)]
struct Side {
    pd: Pd,
    cq: Cq,
    mr: Mr,
    srq: Srq,
}

/// A QP of an honest node and one of the liar.
#[derive(Debug)]
struct Bait {
    node: usize,
    honest: Qp,
    liar: Qp,
}

/// The node that lies.
#[derive(Debug)]
pub(crate) struct Liar {
    /// Its place in the cluster: behind those of the honest ones.
    pub(crate) place: usize,
    random: Prng,
    baits: Vec<Bait>,
    /// QPs of honest nodes, once it is gone.
    jilted: Vec<Qp>,
    sides: BTreeMap<usize, Side>,
    acts: u32,
}

impl Liar {
    pub(crate) fn new(place: usize, seed: u64) -> Self {
        Self {
            place,
            random: Prng::new(seed),
            baits: Vec::new(),
            jilted: Vec::new(),
            sides: BTreeMap::new(),
            acts: 0,
        }
    }

    /// A node stops: its QPs go with it.
    pub(crate) fn forget(&mut self, node: usize) {
        self.baits.retain(|bait| bait.node != node);
        self.sides.remove(&node);
    }

    /// The run is over.
    pub(crate) fn clear(&mut self) {
        self.jilted.clear();
        self.sides.clear();
    }

    fn act(&mut self, world: &World) -> Verdict {
        let node = self.random.below(world.options.nodes as u64) as usize;
        if [node, self.place]
            .iter()
            .any(|at| world.node(*at).is_none())
        {
            return Ok(());
        }
        for at in [node, self.place] {
            if let Entry::Vacant(place) = self.sides.entry(at) {
                place.insert(Side::new(world, at).map_err(refused("set-up of bait"))?);
            }
        }
        for side in self.sides.values() {
            while let Ok(Some(_)) = side.cq.poll_one() {}
        }
        let of_node = self.baits.iter().filter(|bait| bait.node == node).count();
        match self.random.below(16) {
            0..3 if of_node < PAIRS => self.make(node).map_err(refused("making bait"))?,
            0..13 => self.post(),
            13 | 14 => self.end(),
            _ => self.close(world, node),
        }
        Ok(())
    }

    /// An honest QP of any kind, and one of the liar that talks to it.
    fn make(&mut self, node: usize) -> Result<(), trunkline::Error> {
        let kind = pick(&mut self.random, &[QpType::Rc, QpType::Rc, QpType::Src]);
        let shared = self.random.below(3) == 0;
        let honest = self.sides[&node].qp(kind, shared)?;
        let liar = self.sides[&self.place].qp(QpType::Rc, false)?;
        let attributes = Attributes::default();
        match kind {
            QpType::Src => {
                let access = Access::ALL;
                honest.modify(&QpModify::Init { access })?;
                honest.modify(&QpModify::Rtr(attributes))?;
                honest.modify(&QpModify::Rts(attributes))?;
            }
            _ => honest.connect_with(liar.address(), Access::ALL, &attributes)?,
        }
        liar.connect_with(honest.address(), Access::ALL, &attributes)?;
        self.baits.push(Bait { node, honest, liar });
        Ok(())
    }

    fn draw(&mut self) -> Option<usize> {
        let count = self.baits.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    /// Somebody posts something. Where a QP has failed or its queue is full, it is refused.
    fn post(&mut self) {
        let Some(at) = self.draw() else { return };
        let Bait { node, honest, liar } = &self.baits[at];
        let sides = [&self.sides[node], &self.sides[&self.place]];
        let random = &mut self.random;
        for (side, qp) in sides.into_iter().zip([honest, liar]) {
            let sges = [side.mr.sge(REGION / 2, LARGEST as usize)];
            let receive = [RecvWr {
                wr_id: 0,
                sges: &sges,
            }];
            let _ = qp.post_recv(&receive);
            let _ = side.srq.post_recv(&receive);
        }
        let from = random.below(2) as usize;
        let (qp, own, other) = ([honest, liar][from], sides[from], sides[1 - from]);
        for _ in 0..=random.below(4) {
            let remote = other.mr.remote(8 * random.below(1000) as usize);
            let (op, length) = match random.below(8) {
                0 | 1 => (SendOp::Send, between(random, 0, LARGEST)),
                2 => (SendOp::SendImm(7), between(random, 0, 64)),
                3 | 4 => (SendOp::Write(remote), between(random, 0, LARGEST)),
                5 => (SendOp::WriteImm(remote, 7), between(random, 0, LARGEST)),
                6 => (SendOp::Read(remote), between(random, 0, LARGEST)),
                _ => (SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 1 }), 8),
            };
            let request = SendWr {
                wr_id: 0,
                op,
                flags: SendFlags::SIGNALED,
                sges: &[own.mr.sge(0, length as usize)],
                inline: None,
                route: 0,
            };
            let _ = qp.post_send(&[request]);
        }
    }

    /// A pair ends, either end first, with whatever is under way: in error, or destroyed, be it in
    /// the middle of a message from its SRQ.
    fn end(&mut self) {
        let Some(at) = self.draw() else { return };
        let Bait { honest, liar, .. } = &self.baits[at];
        match self.random.below(4) {
            0 => drop(honest.modify(&QpModify::Error)),
            1 => drop(liar.modify(&QpModify::Error)),
            _ => drop(self.baits.swap_remove(at)),
        }
    }

    fn close(&mut self, world: &World, node: usize) {
        let liar = world.node(self.place).expect("it was looked for");
        let mut open = liar.connections(world.addresses[node]);
        if !open.is_empty() {
            let at = self.random.below(open.len() as u64) as usize;
            open.swap_remove(at).close();
        }
    }
}

impl Side {
    fn new(world: &World, at: usize) -> Result<Self, trunkline::Error> {
        let node = world.node(at).expect("it was looked for");
        let pd = node.alloc_pd();
        Ok(Self {
            cq: node.create_cq(16_384)?,
            mr: pd.register(REGION, Access::ALL)?,
            srq: pd.create_srq(DEPTH, 1)?,
            pd,
        })
    }

    fn qp(&self, kind: QpType, shared: bool) -> Result<Qp, trunkline::Error> {
        let options = QpOptions {
            kind,
            srq: shared.then(|| self.srq.clone()),
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
            complete_last_wqe: false,
            worker: None,
        };
        self.pd.create_qp(&self.cq, &self.cq, &options)
    }
}

impl World {
    /// The liar, or who talks to it, does something.
    pub(crate) fn lie(&mut self) -> Verdict {
        let Some(mut liar) = self.liar.take().filter(|_| !self.calm) else {
            return Ok(());
        };
        liar.acts += 1;
        let verdict = liar.act(self);
        let longest = pick(&mut liar.random, &[20 * US, 200 * US, 2 * MS]);
        let pause = between(&mut liar.random, 0, longest);
        let again = liar.acts < MOST && self.left > 0;
        self.liar = Some(liar);
        self.places
            .iter_mut()
            .for_each(|place| place.stirred = true);
        if again {
            self.after(pause, Action::Lie);
        }
        verdict
    }

    /// The liar goes, with a word or without. Those that talked to it stay, and learn of it.
    pub(crate) fn dismiss_liar(&mut self) {
        let Some(liar) = &mut self.liar else { return };
        let place = liar.place;
        if liar.random.below(2) == 0 {
            self.network.net().unplug(place);
        }
        let baits = liar.baits.drain(..);
        liar.jilted = baits.map(|bait| bait.honest).collect();
        liar.sides.remove(&place);
        self.places[place].node = None;
        self.places[place].stopped.clear();
        self.act("the liar goes", place, 0);
    }

    /// Nothing is left of a liar that is gone.
    pub(crate) fn check_liar_is_forgotten(&self) -> Verdict {
        let Some(liar) = &self.liar else {
            return Ok(());
        };
        for index in 0..self.options.nodes {
            let open = self
                .node(index)
                .map(|node| node.connections(self.addresses[liar.place]));
            let left = open.map_or(0, |open| open.len());
            if left > 0 {
                return Err(Failure::wrong(format!(
                    "node {index} still has {left} connections to a peer that is gone"
                )));
            }
        }
        Ok(())
    }
}
