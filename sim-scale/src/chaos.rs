//! Trouble: what goes wrong, to whom, and who may suffer from it.

use crate::endpoint::Stage;
use crate::failure::Verdict;
use crate::options::{MS, US, between, pick};
use crate::setup::refused;
use crate::world::{Action, Doom, Phase, World};
use trunkline::{Connection, QpModify, QpType};
use trunkline_conn::delivery::EVERY_PATH;

/// Longest a pair of nodes may be cut off from each other without any request failing: a bit less
/// than what the connection manager takes to give up.
const HARMLESS_CUT: u64 = 60 * MS;

/// Most troubles of one run.
const MOST: u64 = 1000;

impl World {
    /// Makes trouble of a kind that this run has, and plans the next.
    pub(crate) fn trouble(&mut self) -> Verdict {
        if self.calm || self.left == 0 || self.tally.troubles >= MOST {
            return Ok(());
        }
        if self.now < self.idle_until {
            let delay = self.idle_until - self.now;
            self.after(delay, Action::Trouble);
            return Ok(());
        }
        let t = self.options.troubles;
        let kinds = [
            (t.bad_requests, 0),
            (t.deregistration, 1),
            (t.destruction, 2),
            (t.rebinding, 3),
            (t.rebinding, 3),
            (t.closing, 4),
            (t.partitions, 5),
            (t.restarts, 6),
            (t.stopped_readers, 7),
            (t.idling, 8),
            (t.slow_workers, 9),
            (t.narrowing, 10),
        ];
        let present: Vec<u8> = kinds
            .iter()
            .filter(|(present, _)| *present)
            .map(|(_, kind)| *kind)
            .collect();
        self.tally.troubles += 1;
        match pick(&mut self.random, &present) {
            0 => self.with_endpoint(Self::post_poison)?,
            1 => self.with_endpoint(Self::deregister)?,
            2 => self.with_endpoint(Self::destroy)?,
            3 => self.with_endpoint(Self::rebind)?,
            4 => self.close_connection(),
            5 => self.cut_pair(),
            6 => self.restart()?,
            7 => self.stop_reader(),
            8 => self.idle(),
            10 => self.narrow_pair(),
            _ => self.stop_worker(),
        }
        let delay = self.random.below(2 * self.options.trouble_every_ns);
        self.after(delay, Action::Trouble);
        Ok(())
    }

    fn with_endpoint(&mut self, act: impl FnOnce(&mut Self, usize) -> Verdict) -> Verdict {
        let live: Vec<usize> = (0..self.endpoints.len())
            .filter(|endpoint| self.endpoints[*endpoint].stage == Stage::Live)
            .collect();
        if live.is_empty() {
            return Ok(());
        }
        let endpoint = pick(&mut self.random, &live);
        act(self, endpoint)
    }

    /// Takes a region away under traffic.
    fn deregister(&mut self, endpoint: usize) -> Verdict {
        let group = self.endpoints[endpoint].group;
        self.doom(group, Doom::Any("a region was deregistered"));
        let pool = self.random.below(2) == 0;
        self.act("deregister", endpoint, usize::from(pool));
        let state = &mut self.endpoints[endpoint];
        let area = if pool {
            &mut state.pool
        } else {
            &mut state.area
        };
        if let Some(area) = area {
            area.take_away();
        }
        Ok(())
    }

    /// Closes a group under traffic, or sends one of its QPs to error.
    fn destroy(&mut self, endpoint: usize) -> Verdict {
        let group = self.endpoints[endpoint].group;
        if self.groups[group].phase != Phase::Up {
            return Ok(());
        }
        if self.random.below(2) == 0 {
            self.close_group(group);
            return Ok(());
        }
        self.act("to error", endpoint, group);
        self.doom(group, Doom::Any("a QP was sent to error"));
        if let Some(qp) = &self.endpoints[endpoint].qp {
            qp.modify(&QpModify::Error).map_err(refused("modify_qp"))?;
        }
        self.places[self.endpoints[endpoint].node].stirred = true;
        Ok(())
    }

    /// Moves a live QP, or a route of it, to another connection.
    fn rebind(&mut self, endpoint: usize) -> Verdict {
        let state = &self.endpoints[endpoint];
        let (node, group) = (state.node, state.group);
        if state.outgoing.is_empty() {
            return Ok(());
        }
        let channel = pick(&mut self.random, &state.outgoing);
        let peer = self.endpoints[self.channels[channel].to].node;
        let Some(handle) = self.node(node).cloned() else {
            return Ok(());
        };
        let mut choice = handle.connections(self.addresses[peer]);
        if choice.is_empty() {
            return Ok(());
        }
        let connection = choice.swap_remove(self.random.below(choice.len() as u64) as usize);
        let flow = self.flow(channel);
        self.network.net().turns.moves(flow);
        let Some(qp) = &self.endpoints[endpoint].qp else {
            return Ok(());
        };
        // It may be refused, while the QP has no connection at all: the program sees no more of it.
        let moved = match self.groups[group].kind {
            QpType::Src => qp.bind_route(self.channels[channel].route, &connection),
            _ => qp.bind(&connection),
        };
        self.act(
            if moved.is_ok() {
                "rebind"
            } else {
                "rebind refused"
            },
            endpoint,
            peer,
        );
        self.places[node].stirred = true;
        Ok(())
    }

    /// Closes a connection under its QPs: they must not notice.
    fn close_connection(&mut self) {
        let (node, peer) = self.draw_pair();
        let Some(handle) = self.node(node).cloned() else {
            return;
        };
        let mut choice: Vec<Connection> = handle.connections(self.addresses[peer]);
        if choice.is_empty() {
            return;
        }
        let connection = choice.swap_remove(self.random.below(choice.len() as u64) as usize);
        self.act("close connection", node, peer);
        connection.close();
        self.places[node].stirred = true;
    }

    fn draw_pair(&mut self) -> (usize, usize) {
        let count = self.options.nodes as u64;
        let a = self.random.below(count) as usize;
        let b = (a + 1 + self.random.below(count - 1) as usize) % self.options.nodes;
        (a, b)
    }

    /// Cuts two nodes off from each other for a while: their QPs live through a short while.
    fn cut_pair(&mut self) {
        let (a, b) = self.draw_pair();
        let short = self.random.below(3) > 0;
        let dead = self.options.peer_timeout_ns;
        let harmless = HARMLESS_CUT.min(dead / 2);
        let duration = if short {
            between(&mut self.random, MS / 10, harmless)
        } else {
            between(&mut self.random, harmless, 3 * dead)
        };
        self.act("cut", a, b);
        self.network.net().cut(a, b, true);
        self.after(duration, Action::Join(a, b));
        if !short {
            self.long_cuts.push((a, b));
            self.doom_between(a, b, "its nodes were cut off from each other for long");
        }
    }

    /// The path between two nodes carries less than both ends, in one direction or both, for a
    /// while: no QP may notice.
    fn narrow_pair(&mut self) {
        let (a, b) = self.draw_pair();
        let sizes = [EVERY_PATH as usize, 1452, 2000, usize::MAX];
        let mtus = [
            pick(&mut self.random, &sizes[..3]),
            pick(&mut self.random, &sizes),
        ];
        let longest = pick(&mut self.random, &[50 * MS, 500 * MS, 5_000 * MS]);
        let duration = between(&mut self.random, MS, longest);
        self.act("narrow", a, b);
        self.network.net().narrow(a, b, mtus);
        self.after(duration, Action::Widen(a, b));
    }

    /// Everything that goes on between two nodes may fail.
    fn doom_between(&mut self, a: usize, b: usize, why: &'static str) {
        for group in 0..self.groups.len() {
            let nodes = |node: usize| {
                let mut shapes = self.groups[group].shapes.iter();
                shapes.any(|shape| shape.node == node)
            };
            if nodes(a) && nodes(b) {
                self.doom(group, Doom::Any(why));
            }
        }
    }

    /// A node stops and comes back later, remembering nothing.
    fn restart(&mut self) -> Verdict {
        let node = self.random.below(self.options.nodes as u64) as usize;
        if self.node(node).is_none() {
            return Ok(());
        }
        self.stop(node)?;
        let down = pick(&mut self.random, &[MS / 10, 5 * MS, 400 * MS]);
        let delay = between(&mut self.random, 0, down);
        self.after(delay, Action::Boot(node));
        Ok(())
    }

    fn stop_reader(&mut self) {
        let node = self.random.below(self.options.nodes as u64) as usize;
        let processes = self.places[node].processes.len() as u64;
        if processes == 0 {
            return;
        }
        let process = self.random.below(processes) as usize;
        let duration = between(&mut self.random, MS / 10, 20 * MS);
        self.act("stop reading", node, process);
        self.places[node].processes[process].stopped_until = self.now + duration;
        self.after(duration, Action::Resume(node, process));
    }

    /// A worker gets no processor for a while: less than what takes anybody for gone.
    fn stop_worker(&mut self) {
        let node = self.random.below(self.options.nodes as u64) as usize;
        let workers = self.places[node].stopped.len() as u64;
        if workers == 0 {
            return;
        }
        let worker = self.random.below(workers) as usize;
        let longest = pick(&mut self.random, &[50 * US, MS, 5 * MS]);
        let duration = between(&mut self.random, US, longest);
        self.act("stop worker", node, worker);
        self.places[node].stopped[worker] = self.now + duration;
        self.after(duration, Action::Wake(node));
    }

    fn idle(&mut self) {
        let long = pick(&mut self.random, &[50 * MS, 1_000 * MS, 15_000 * MS]);
        let duration = between(&mut self.random, MS, long);
        self.act("idle", (duration / MS) as usize, 0);
        self.idle_until = self.now + duration;
    }
}
