//! Nodes, processes, groups of QPs: how they come and go.

use crate::area::{Area, Maybe};
use crate::channel::Channel;
use crate::endpoint::{
    Cookie, Endpoint, GAP, Landings, Process, Receives, Stage, WORDS, post_receive,
};
use crate::failure::{Failure, Verdict};
use crate::options::{MS, US, between, pick};
use crate::words::{Cell, Counter};
use crate::world::{Action, Doom, Group, Phase, Shape, World};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{
    Access, Attributes, Connection, ConnectionOptions, ConnectionState, Drive, Node, Qp, QpModify,
    QpOptions, QpType, RecvWr,
};
use trunkline_conn::time::SECOND;

/// Slots of an SRQ, and bytes of each.
const SHARED_SLOTS: usize = 48;
/// Spares per endpoint, and bytes of each.
const SPARES: usize = 3;
const SPARE: usize = 64;
/// How long after it was doomed a group may take to end what it posted, in ns.
const PATIENCE: u64 = 30 * SECOND;

/// A call that must not fail did.
pub(crate) fn refused(what: &'static str) -> impl FnOnce(trunkline::Error) -> Failure {
    move |error| Failure::wrong(format!("{what}: {error}"))
}

impl World {
    /// Random bytes.
    fn noise(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.random.next_u64().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Starts a node, as a new incarnation if there was one before.
    pub(crate) fn boot(&mut self, index: usize) -> Verdict {
        self.act("boot", index, self.places[index].starts as usize);
        let port = self.network.plug(index, self.options.port);
        let place = &mut self.places[index];
        place.starts += 1;
        let seed = self.random.next_u64();
        let options = &self.options;
        let node = Node::builder()
            .address(self.addresses[index])
            .drive(Drive::Inline)
            .clock(place.clock.clone())
            .seed(seed)
            .pool(options.pool)
            .control(options.control)
            .window(options.window)
            .staging(options.staging)
            .peer_timeout(Duration::from_nanos(options.peer_timeout_ns))
            .max_datagram(options.port.max_datagram as u32)
            .build_on(Box::new(port))
            .map_err(refused("start of a node"))?;
        place.node = Some(node);
        place.stirred = true;
        for process in 0..self.options.processes {
            let made = self
                .make_process(index, process)
                .map_err(refused("set-up of a process"))?;
            self.places[index].processes.push(made);
            self.top_up_shared(index, process)?;
        }
        Ok(())
    }

    fn make_process(&mut self, node: usize, process: usize) -> Result<Process, trunkline::Error> {
        let handle = self.places[node].node.clone().expect("it was just started");
        let pd = handle.alloc_pd();
        let queues = pick(&mut self.random, &[1, 1, 2]);
        let cqs = (0..queues)
            .map(|_| handle.create_cq(16_384))
            .collect::<Result<_, _>>()?;
        let name = |what: &str| format!("{what} of process {process} of node {node}");
        let words = Area::new(&pd, vec![0; 2 * WORDS * 8], Access::ALL, name("the words"))?;
        let slot = self.options.largest.min(10_000);
        let count = pick(&mut self.random, &[4, 16, SHARED_SLOTS]);
        let content = self.noise(Receives::bytes(count, slot));
        let area = Area::new(&pd, content, Access::LOCAL_WRITE, name("the SRQ memory"))?;
        let random = &mut self.random;
        let receives = Receives::new(0, count, slot, false, || {
            random.below(slot as u64 + 1) as usize
        });
        let srq = pd.create_srq(count as u32, 4)?;
        Ok(Process {
            pd,
            cqs,
            words,
            counters: (0..WORDS).map(|_| Counter::default()).collect(),
            cells: (0..WORDS).map(|_| Cell::default()).collect(),
            srq: Some((srq, area, receives)),
            stopped_until: 0,
            top_up_due: false,
        })
    }

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
                    self.draw_shape(node)
                })
                .collect();
            let kind = if app { QpType::Src } else { QpType::Rc };
            self.groups.push(Group {
                kind,
                shapes,
                members: Vec::new(),
                doom: None,
                phase: Phase::Down,
            });
            let delay = self.random.below(2 * MS);
            self.after(delay, Action::Rebuild(group));
        }
        Ok(())
    }

    fn draw_shape(&mut self, node: usize) -> Shape {
        let largest = self.options.largest;
        let big = largest > 100_000;
        let process = self.random.below(self.options.processes as u64) as usize;
        let random = &mut self.random;
        let late = self.options.troubles.late_receives && random.below(2) == 0;
        let impatient = self.options.troubles.bad_requests && late && random.below(3) == 0;
        Shape {
            node,
            process,
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
        if self.calm && self.tally.built > 0 {
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
            let (from, to) = (self.channels[channel].from, self.channels[channel].to);
            self.endpoints[from].outgoing.push(channel);
            self.endpoints[to].incoming.push(channel);
        }
        let impatient = self.groups[group]
            .shapes
            .iter()
            .any(|shape| shape.rnr_retry < 7);
        let cut = self
            .long_cuts
            .iter()
            .any(|(a, b)| nodes.contains(a) && nodes.contains(b));
        let state = &mut self.groups[group];
        state.members = (first..first + count).collect();
        state.phase = Phase::Up;
        state.doom = match (cut, impatient) {
            (true, _) => Some(Doom::Any("its nodes were cut off when it was built")),
            (_, true) => Some(Doom::Any("few RNR retries")),
            _ => None,
        };
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
            top_up_due: false,
            send_failed: false,
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
            worker: None,
        };
        let made = process
            .pd
            .create_qp(&process.cqs[0], &process.cqs[last], &options);
        made.map_err(refused("create_qp"))
    }

    /// Connects an endpoint to its peers.
    pub(crate) fn connect(&mut self, endpoint: usize) -> Verdict {
        if self.endpoints[endpoint].stage != Stage::Made {
            return Ok(());
        }
        let group = self.endpoints[endpoint].group;
        let at = self.groups[group]
            .members
            .iter()
            .position(|member| *member == endpoint);
        let Some(at) = at else { return Ok(()) };
        let shape = self.groups[group].shapes[at];
        let attributes = Attributes {
            max_rd_atomic: shape.rd_atomic,
            max_dest_rd_atomic: 16,
            min_rnr_timer: shape.rnr_timer,
            rnr_retry: shape.rnr_retry,
            ..Attributes::default()
        };
        self.act("connect", endpoint, group);
        let made = match self.groups[group].kind {
            QpType::Src => self.open_routes(endpoint, &attributes)?,
            _ => {
                let peer = self.channels[self.endpoints[endpoint].outgoing[0]].to;
                let address = self.endpoints[peer].qp.as_ref().map(Qp::address);
                let (Some(qp), Some(address)) = (&self.endpoints[endpoint].qp, address) else {
                    // The peer's node stopped before.
                    return Ok(());
                };
                qp.connect_with(address, Access::ALL, &attributes)
                    .map_err(refused("connect"))?;
                true
            }
        };
        if !made {
            self.after(200 * US, Action::Connect(endpoint));
            return Ok(());
        }
        self.endpoints[endpoint].stage = Stage::Live;
        self.places[shape.node].stirred = true;
        self.top_up(endpoint)?;
        self.refresh_spares(endpoint)?;
        let delay = self.random.below(100 * US);
        self.after(delay, Action::Post(endpoint));
        Ok(())
    }

    /// Opens the routes of an app-managed QP. `false`: a connection is still being opened.
    fn open_routes(&mut self, endpoint: usize, attributes: &Attributes) -> Result<bool, Failure> {
        let here = self.endpoints[endpoint].node;
        let mut peers = Vec::new();
        for channel in self.endpoints[endpoint].outgoing.clone() {
            let to = self.channels[channel].to;
            let Some(remote) = self.endpoints[to].qp.as_ref().map(Qp::qpn) else {
                return Ok(false);
            };
            let Some(connection) = self.own_connection(here, self.endpoints[to].node)? else {
                return Ok(false);
            };
            peers.push((channel, remote, connection));
        }
        let qp = self.endpoints[endpoint]
            .qp
            .clone()
            .expect("an endpoint that connects has a QP");
        let steps = [
            QpModify::Init {
                access: Access::ALL,
            },
            QpModify::Rtr(*attributes),
            QpModify::Rts(*attributes),
        ];
        for step in &steps {
            qp.modify(step).map_err(refused("modify_qp"))?;
        }
        for (channel, remote, connection) in peers {
            match qp.route(&connection, remote) {
                Ok(route) => self.channels[channel].route = route,
                Err(error) => {
                    let group = self.endpoints[endpoint].group;
                    if self.groups[group].doom.is_none() {
                        return Err(refused("route")(error));
                    }
                }
            }
        }
        Ok(true)
    }

    /// A connection that the program opened itself, or opens now: `None` while it is not open.
    pub(crate) fn own_connection(
        &mut self,
        here: usize,
        there: usize,
    ) -> Result<Option<Arc<Connection>>, Failure> {
        let address = self.addresses[there];
        let place = &mut self.places[here];
        let dead = |connection: &Connection| {
            matches!(
                connection.state(),
                ConnectionState::Failed(_) | ConnectionState::Closed
            )
        };
        place.own.retain(|(_, connection)| !dead(connection));
        let found = place.own.iter().find(|(to, _)| *to == there);
        if let Some((_, connection)) = found {
            return Ok(connection.is_open().then(|| Arc::clone(connection)));
        }
        let Some(node) = &place.node else {
            return Ok(None);
        };
        let options = ConnectionOptions {
            source_ports: pick(&mut self.random, &[1, 4]),
            weight: pick(&mut self.random, &[1, 1, 3]),
            ..ConnectionOptions::default()
        };
        let opened = node
            .open_connection(address, &options)
            .map_err(refused("open_connection"))?;
        place.own.push((there, Arc::new(opened)));
        place.stirred = true;
        Ok(None)
    }

    /// Posts receives until all slots of an endpoint are.
    pub(crate) fn top_up(&mut self, endpoint: usize) -> Verdict {
        let state = &mut self.endpoints[endpoint];
        state.top_up_due = false;
        if state.stage != Stage::Live {
            return Ok(());
        }
        let (Some(receives), Some(qp), Some(area)) = (&mut state.receives, &state.qp, &state.area)
        else {
            return Ok(());
        };
        let Some(mr) = area.mr() else { return Ok(()) };
        while let Some((slot, sges)) = receives.take(mr) {
            let cookie = Cookie::Receive(endpoint, slot);
            post_receive(qp, cookie, &sges).map_err(refused("post_recv"))?;
        }
        self.places[state.node].stirred = true;
        Ok(())
    }

    /// Posts receives until all slots of a process's SRQ are.
    pub(crate) fn top_up_shared(&mut self, node: usize, process: usize) -> Verdict {
        let Some(state) = self.places[node].processes.get_mut(process) else {
            return Ok(());
        };
        state.top_up_due = false;
        let Some((srq, area, receives)) = &mut state.srq else {
            return Ok(());
        };
        while let Some((slot, sges)) = receives.take(area.region()) {
            let request = RecvWr {
                wr_id: Cookie::Shared(slot).word(),
                sges: &sges,
            };
            srq.post_recv(&[request])
                .map_err(refused("post_srq_recv"))?;
        }
        Ok(())
    }

    /// Registers small regions for peers to invalidate.
    pub(crate) fn refresh_spares(&mut self, endpoint: usize) -> Verdict {
        let state = &mut self.endpoints[endpoint];
        let Some(process) = self.places[state.node].processes.get(state.process) else {
            return Ok(());
        };
        for spare in &mut state.spares {
            if spare.0.is_none() {
                let mr = process
                    .pd
                    .register(SPARE, Access::ALL)
                    .map_err(refused("registration"))?;
                *spare = (Some(mr), false);
            }
        }
        Ok(())
    }

    /// Requests of a group may fail from now on, and it will be closed.
    pub(crate) fn doom(&mut self, group: usize, why: Doom) {
        let state = &mut self.groups[group];
        if state.phase != Phase::Up {
            return;
        }
        if !matches!((state.doom, why), (Some(Doom::Any(_)), _)) {
            state.doom = Some(why);
        }
        self.look_after(group);
    }

    /// A doomed group is closed once all it posted has ended, or (sometimes) before.
    pub(crate) fn look_after(&mut self, group: usize) {
        if self.groups[group].phase != Phase::Up {
            return;
        }
        let patience = match self.random.below(3) {
            0 => 0,
            _ => PATIENCE,
        };
        let delay = between(&mut self.random, 0, 3 * MS);
        self.after(delay, Action::Chase(group, self.now + patience));
    }

    /// Looks whether all that a doomed group posted has ended.
    pub(crate) fn chase(&mut self, group: usize, deadline: u64) -> Verdict {
        if self.groups[group].phase != Phase::Up {
            return Ok(());
        }
        let members = self.groups[group].members.clone();
        let waiting = members.iter().copied().find(|member| {
            let state = &self.endpoints[*member];
            !state.posted.is_empty() && state.stage != Stage::Gone
        });
        let impatient = deadline < self.now + SECOND;
        match waiting {
            Some(endpoint) if !impatient && self.now > deadline - SECOND => {
                let first = &self.endpoints[endpoint].posted[0];
                Err(Failure::stuck(format!(
                    "e{endpoint} #{} was posted at {} us, its group {group} was doomed ({:?}), and \
                     it has not ended {} s later",
                    first.seq,
                    first.at / US,
                    self.groups[group].doom,
                    PATIENCE / SECOND
                )))
            }
            Some(_) if !impatient => {
                self.after(2 * MS, Action::Chase(group, deadline));
                Ok(())
            }
            _ => {
                self.close_group(group);
                Ok(())
            }
        }
    }

    /// Closes all QPs of a group, at slightly different times.
    pub(crate) fn close_group(&mut self, group: usize) {
        self.act("close group", group, 0);
        self.groups[group].phase = Phase::Closing;
        self.groups[group].doom = Some(Doom::Any("it is being closed"));
        for member in self.groups[group].members.clone() {
            let delay = self.random.below(300 * US);
            self.after(delay, Action::Close(member));
        }
    }

    /// Destroys or resets a QP. What was outstanding is forgotten; its memory must be as it should
    /// be, and is watched from now on for anything that comes late.
    pub(crate) fn close(&mut self, endpoint: usize) -> Verdict {
        if self.endpoints[endpoint].stage == Stage::Gone {
            return Ok(());
        }
        let (node, process) = (
            self.endpoints[endpoint].node,
            self.endpoints[endpoint].process,
        );
        self.read_completions(node, process)?;
        let reset = self.random.below(3) == 0 && self.left > 0;
        self.act(if reset { "reset" } else { "destroy" }, endpoint, node);
        let state = &mut self.endpoints[endpoint];
        state.stage = Stage::Gone;
        if reset {
            let qp = state
                .qp
                .as_ref()
                .expect("an endpoint that is there has its QP");
            qp.modify(&QpModify::Reset).map_err(refused("reset"))?;
        } else {
            state.qp = None;
        }
        self.places[node].stirred = true;
        self.forget(endpoint)?;
        self.closed_one(endpoint);
        Ok(())
    }

    /// Forgets what was outstanding at an endpoint that is gone.
    pub(crate) fn forget(&mut self, endpoint: usize) -> Verdict {
        let loose = self.loose(endpoint);
        let posted = std::mem::take(&mut self.endpoints[endpoint].posted);
        for posted in &posted {
            self.lose(endpoint, posted);
        }
        let state = &mut self.endpoints[endpoint];
        state.landings.reset();
        state.spares.clear();
        let maybe: Vec<Maybe<'_>> = state
            .incoming
            .iter()
            .flat_map(|channel| self.channels[*channel].maybe())
            .collect();
        let why = format!("e{endpoint} was closed");
        if let Some(area) = &mut state.area {
            area.close(&loose, &maybe, &why)?;
        }
        if let Some(pool) = &mut state.pool {
            pool.close(&[], &[], &why)?;
        }
        for channel in &self.endpoints[endpoint].incoming {
            self.channels[*channel].closed = true;
        }
        Ok(())
    }

    /// Where anything may be at an endpoint that is not at rest.
    fn loose(&mut self, endpoint: usize) -> Vec<Range<usize>> {
        let state = &mut self.endpoints[endpoint];
        let mut loose = state.landings.used();
        if let Some(receives) = &mut state.receives {
            loose.extend(receives.forget());
        }
        loose
    }

    fn closed_one(&mut self, endpoint: usize) {
        let group = self.endpoints[endpoint].group;
        let members = &self.groups[group].members;
        if members
            .iter()
            .any(|member| self.endpoints[*member].stage != Stage::Gone)
        {
            return;
        }
        self.groups[group].phase = Phase::Down;
        if self.left > 0 && !self.calm {
            let delay = between(&mut self.random, 0, 5 * MS);
            self.after(delay, Action::Rebuild(group));
        }
    }

    /// A node stops without a word.
    pub(crate) fn crash(&mut self, index: usize) -> Verdict {
        self.act("crash", index, 0);
        for process in 0..self.places[index].processes.len() {
            self.read_completions(index, process)?;
        }
        for endpoint in 0..self.endpoints.len() {
            let state = &mut self.endpoints[endpoint];
            if state.node != index {
                continue;
            }
            let group = state.group;
            if state.stage != Stage::Gone {
                self.doom(group, Doom::Any("a node stopped"));
                self.endpoints[endpoint].stage = Stage::Gone;
                self.endpoints[endpoint].qp = None;
                self.forget(endpoint)?;
                self.closed_one(endpoint);
            }
            let state = &mut self.endpoints[endpoint];
            (state.qp, state.area, state.pool) = (None, None, None);
        }
        let place = &mut self.places[index];
        place.processes.clear();
        place.own.clear();
        place.node = None;
        Ok(())
    }
}
