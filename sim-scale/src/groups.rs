//! Groups of QPs that talk to each other: what they are like, and how they are made.

use crate::area::Area;
use crate::channel::Channel;
use crate::endpoint::{Endpoint, GAP, Landings, Receives, Stage};
use crate::failure::{Failure, Verdict};
use crate::options::{MS, US, between, pick};
use crate::setup::refused;
use crate::world::{Action, Denied, Doom, Group, Phase, Shape, World};
use std::collections::VecDeque;
use trunkline::{Access, Qp, QpOptions, QpType};

/// Spares per endpoint: small regions for peers to invalidate.
const SPARES: usize = 3;

impl World {
    /// Draws what groups there are, and builds them.
    pub(crate) fn draw_groups(&mut self) -> Verdict {
        for group in 0..self.options.groups {
            let app = self.random.below(4) == 0;
            let size = if app {
                between(&mut self.random, 2, 4)
            } else {
                2
            };
            let first = self.random.below(self.options.nodes as u64) as usize;
            let shapes = (0..size as usize)
                .map(|i| {
                    let node = (first + i) % self.options.nodes;
                    self.draw_shape(node, app)
                })
                .collect();
            let kind = if app { QpType::Src } else { QpType::Rc };
            self.groups.push(Group {
                kind,
                shapes,
                members: Vec::new(),
                doom: None,
                phase: Phase::Down,
                built_at: 0,
                silenced: false,
            });
            let delay = self.random.below(2 * MS);
            self.after(delay, Action::Rebuild(group));
        }
        Ok(())
    }

    fn draw_shape(&mut self, node: usize, app: bool) -> Shape {
        let largest = self.options.largest;
        let big = largest > 100_000;
        let process = self.random.below(self.options.processes as u64) as usize;
        let random = &mut self.random;
        let late = self.options.troubles.late_receives && random.below(2) == 0;
        let impatient = self.options.troubles.bad_requests && late && random.below(3) == 0;
        let denies = self.options.troubles.bad_requests && !app && random.below(4) == 0;
        let rights = [Denied::Writes, Denied::Reads, Denied::Atomics];
        Shape {
            node,
            process,
            denied: denies.then(|| pick(random, &rights)),
            shared_receives: random.below(3) == 0,
            max_send: if big {
                4
            } else {
                pick(random, &[1, 4, 16, 64])
            },
            receives: pick(random, &[1, 2, 8, 24]),
            slot: pick(random, &[64, 1000, 5000, 20_000]).min(largest),
            window: largest + largest / 2 + 64,
            landings: if big { 2 } else { pick(random, &[1, 4, 12]) },
            landing: largest.max(8),
            pool: (2 * largest).max(4096),
            max_sge: pick(random, &[1, 3, 4, 16]),
            max_inline: pick(random, &[0, 64, 256]),
            signal_all: random.below(4) == 0,
            late,
            rd_atomic: pick(random, &[1, 4, 16]),
            rnr_timer: between(random, 1, 12) as u8,
            rnr_retry: if impatient {
                pick(random, &[0, 1, 3])
            } else {
                7
            },
        }
    }

    /// Builds a group, for the first time or again.
    pub(crate) fn build(&mut self, group: usize) -> Verdict {
        if self.groups[group].phase != Phase::Down {
            return Ok(());
        }
        let nodes: Vec<usize> = self.groups[group]
            .shapes
            .iter()
            .map(|shape| shape.node)
            .collect();
        if nodes.iter().any(|node| self.node(*node).is_none()) {
            self.after(5 * MS, Action::Rebuild(group));
            return Ok(());
        }
        self.act("build group", group, self.groups[group].members.len());
        self.tally.built += 1;
        let old = std::mem::take(&mut self.groups[group].members);
        let count = nodes.len();
        let first = self.endpoints.len();
        let first_channel = self.channels.len();
        for member in 0..count {
            let before = old.get(member).copied();
            self.make_endpoint(group, member, before)?;
        }
        // Every member talks to every other: channel i -> j has window number i (or i - 1) of j.
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let place = if from > to { from - 1 } else { from };
                let size = self.groups[group].shapes[to].window;
                let start = GAP + place * (size + GAP);
                let window = start..start + size;
                let wild = self.options.link.corrupt_ppm > 0;
                self.channels
                    .push(Channel::new(first + from, first + to, window, wild));
            }
        }
        for channel in first_channel..self.channels.len() {
            let flow = self.flow(channel);
            self.network.net().turns.begins(flow);
            let (from, to) = (self.channels[channel].from, self.channels[channel].to);
            self.endpoints[from].outgoing.push(channel);
            self.endpoints[to].incoming.push(channel);
        }
        let cut = self
            .long_cuts
            .iter()
            .any(|(a, b)| nodes.contains(a) && nodes.contains(b));
        let state = &mut self.groups[group];
        state.members = (first..first + count).collect();
        state.phase = Phase::Up;
        (state.built_at, state.silenced) = (self.now, false);
        state.doom = cut.then_some(Doom::Any("its nodes were cut off when it was built"));
        for endpoint in first..first + count {
            let delay = self.random.below(500 * US);
            self.after(delay, Action::Connect(endpoint));
        }
        Ok(())
    }

    fn make_endpoint(&mut self, group: usize, member: usize, before: Option<usize>) -> Verdict {
        let shape = self.groups[group].shapes[member];
        // As programs have to, before the number of a QP that was reset or destroyed means another:
        // what an SRQ's receives say of that one still waits to be read.
        self.read_completions(shape.node, shape.process)?;
        let peers = self.groups[group].shapes.len() - 1;
        let kind = self.groups[group].kind;
        let windows = GAP + peers * (shape.window + GAP);
        let slots = if shape.shared_receives {
            0
        } else {
            shape.receives
        };
        let receive_bytes = Receives::bytes(slots, shape.slot);
        let bytes = windows + receive_bytes + Landings::bytes(shape.landings, shape.landing);
        let index = self.endpoints.len();
        let kept = before.map(|before| {
            let old = &mut self.endpoints[before];
            (old.area.take(), old.pool.take(), old.qp.take())
        });
        let (area, pool, qp) = kept.unwrap_or_default();
        let usable = |area: Option<Area>| area.filter(|area| area.mr().is_some());
        let (area, pool) = (usable(area), usable(pool));
        let area = match area {
            Some(area) => area,
            None => self.make_area(&shape, bytes, Access::ALL, format!("e{index}'s memory"))?,
        };
        let pool = match pool {
            Some(pool) => pool,
            None => {
                let access = Access::REMOTE_READ;
                self.make_area(&shape, shape.pool, access, format!("e{index}'s pool"))?
            }
        };
        let qp = match qp {
            Some(qp) => qp,
            None => self.make_qp(&shape, kind)?,
        };
        let ordered = peers == 1;
        let random = &mut self.random;
        let receives = (!shape.shared_receives).then(|| {
            let cut = || random.below(shape.slot as u64 + 1) as usize;
            Receives::new(windows, slots, shape.slot, ordered, cut)
        });
        let landings = Landings::new(windows + receive_bytes, shape.landings, shape.landing);
        self.endpoints.push(Endpoint {
            node: shape.node,
            process: shape.process,
            group,
            qpn: qp.qpn(),
            qp: Some(qp),
            area: Some(area),
            pool: Some(pool),
            receives,
            landings,
            spares: (0..SPARES).map(|_| (None, false)).collect(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            stage: Stage::Made,
            posted: VecDeque::new(),
            next_seq: 0,
            silent: 0,
            max_send: shape.max_send,
            max_sge: shape.max_sge,
            max_inline: shape.max_inline,
            signal_all: shape.signal_all,
            late: shape.late,
            denied: shape.denied,
            top_up_due: false,
            poisoned: false,
        });
        Ok(())
    }

    fn make_area(
        &mut self,
        shape: &Shape,
        bytes: usize,
        access: Access,
        name: String,
    ) -> Result<Area, Failure> {
        let content = self.noise(bytes);
        let pd = self.places[shape.node].processes[shape.process].pd.clone();
        Area::new(&pd, content, access, name).map_err(refused("registration"))
    }

    fn make_qp(&mut self, shape: &Shape, kind: QpType) -> Result<Qp, Failure> {
        let process = &self.places[shape.node].processes[shape.process];
        let last = process.cqs.len() - 1;
        let options = QpOptions {
            kind,
            srq: process
                .srq
                .as_ref()
                .filter(|_| shape.shared_receives)
                .map(|(srq, ..)| srq.clone()),
            max_send_wr: shape.max_send as u32,
            max_recv_wr: shape.receives as u32,
            max_send_sge: shape.max_sge as u32,
            max_recv_sge: 2,
            max_inline: shape.max_inline as u32,
            signal_all: shape.signal_all,
            complete_last_wqe: false,
            worker: None,
        };
        let made = process
            .pd
            .create_qp(&process.cqs[0], &process.cqs[last], &options);
        made.map_err(refused("create_qp"))
    }
}
