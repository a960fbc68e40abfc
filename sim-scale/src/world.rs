//! A cluster of real nodes on virtual time: what there is, and how time goes on.

use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::failure::{Failure, Verdict};
use crate::liar::Liar;
use crate::net::{Flow, Network, Sabotage};
use crate::options::{MS, Options};
use crate::place::Place;
use crate::trace::{Event, Trace};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trunkline::{Access, Clock, Node, QpType};
use trunkline_conn::time::Instant;
use trunkline_dataplane::prng::Prng;

/// Something that is to happen at a certain time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Action {
    /// An endpoint connects to its peers.
    Connect(usize),
    /// An endpoint posts some requests.
    Post(usize),
    /// An endpoint posts receives.
    TopUp(usize),
    /// A process posts receives to its SRQ.
    TopUpShared(usize, usize),
    /// A process looks at its completions again.
    Resume(usize, usize),
    /// Something goes wrong.
    Trouble,
    /// A doomed group is looked after until all it posted has ended.
    Chase(usize, u64),
    /// An endpoint is destroyed or reset.
    Close(usize),
    /// A group that was closed is built again.
    Rebuild(usize),
    /// Two nodes see each other again.
    Join(usize, usize),
    /// The path between two nodes carries what both ends do.
    Widen(usize, usize),
    /// A node that stopped starts.
    Boot(usize),
    /// A worker of a node has a processor again.
    Wake(usize),
    /// The liar does something.
    Lie,
}

/// What a member of a group is made with, in every incarnation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) node: usize,
    pub(crate) process: usize,
    pub(crate) shared_receives: bool,
    pub(crate) max_send: usize,
    pub(crate) receives: usize,
    pub(crate) slot: usize,
    pub(crate) window: usize,
    pub(crate) landings: usize,
    pub(crate) landing: usize,
    pub(crate) pool: usize,
    pub(crate) max_sge: usize,
    pub(crate) max_inline: usize,
    pub(crate) signal_all: bool,
    pub(crate) late: bool,
    pub(crate) rd_atomic: u8,
    pub(crate) rnr_timer: u8,
    /// Retries after receiver-not-ready; 7: for ever.
    pub(crate) rnr_retry: u8,
    /// What its QP lets no peer do.
    pub(crate) denied: Option<Denied>,
}

/// A right that a QP does not give.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Denied {
    Writes,
    Reads,
    Atomics,
}

impl Denied {
    /// What is left to peers of a QP.
    pub(crate) fn rights(denied: Option<Self>) -> Access {
        let without = match denied {
            None => return Access::ALL,
            Some(Self::Writes) => Access::REMOTE_WRITE,
            Some(Self::Reads) => Access::REMOTE_READ,
            Some(Self::Atomics) => Access::REMOTE_ATOMIC,
        };
        Access::from_bits(Access::ALL.bits() & !without.bits())
    }
}

/// Why requests of a group may fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Doom {
    /// This endpoint posted a request that must fail, and nothing else is wrong.
    Poison(usize, u64),
    /// The network kept every try of a question between its nodes from being answered, so that one
    /// took the other for gone.
    Silence,
    /// Something was done to one of its QPs, regions or nodes.
    Any(&'static str),
}

/// How far a group is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Its QPs exist.
    Up,
    /// Its QPs are being closed.
    Closing,
    /// They are closed.
    Down,
}

/// QPs that talk to each other: two RC QPs, or several app-managed ones.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) kind: QpType,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) members: Vec<usize>,
    pub(crate) doom: Option<Doom>,
    pub(crate) phase: Phase,
    /// When its QPs were made.
    pub(crate) built_at: u64,
    /// A QP of it ended while the network kept one of its nodes silent to another.
    pub(crate) silenced: bool,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Send requests posted.
    pub posted: u64,
    /// Those that ended well.
    pub succeeded: u64,
    /// Those that ended otherwise, or were forgotten with their QP.
    pub failed: u64,
    /// Receives that ended well.
    pub received: u64,
    /// Incarnations of groups.
    pub built: u64,
    /// Troubles made.
    pub troubles: u64,
    /// Groups that took a peer for gone, as the network let no answer of it through.
    pub silences: u64,
    /// Paths that nodes which lived to the end found narrow.
    pub narrowed: u64,
}

/// The cluster.
#[derive(Debug)]
pub struct World {
    pub(crate) options: Options,
    pub(crate) random: Prng,
    pub(crate) network: Network,
    pub(crate) now: u64,
    pub(crate) places: Vec<Place>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) groups: Vec<Group>,
    agenda: BinaryHeap<Reverse<(u64, u64, Action)>>,
    serial: u64,
    /// Requests that may still be posted.
    pub(crate) left: u64,
    /// Faults are over; everything has to end well.
    pub(crate) calm: bool,
    /// Since then, if they are.
    pub(crate) calm_at: u64,
    /// Pairs of nodes that are cut off from each other for long.
    pub(crate) long_cuts: Vec<(usize, usize)>,
    /// Nothing is posted before this time.
    pub(crate) idle_until: u64,
    pub(crate) tally: Tally,
    /// Value for the next CMP_SWAP.
    pub(crate) next_swap: u64,
    /// A node more, that lies.
    pub(crate) liar: Option<Liar>,
}

impl World {
    /// The cluster of `seed`, with nodes started and groups built.
    ///
    /// # Errors
    /// A node refuses what it should not.
    pub fn new(
        seed: u64,
        options: Options,
        sabotage: Sabotage,
        print: bool,
    ) -> Result<Self, Failure> {
        let mut random = Prng::new(seed ^ 0x5157_0c1d_a0be_11e5);
        let lies = options.lies_ppm > 0;
        let addresses: Vec<IpAddr> = (0..options.nodes + usize::from(lies))
            .map(|i| match options.v6 {
                true => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + i as u16)),
                false => IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + i as u8)),
            })
            .collect();
        let network = Network::new(
            random.next_u64(),
            &addresses,
            options.link,
            Trace::new(print),
        );
        network.net().sabotage(sabotage);
        network.net().lead_astray(options.astray_ppm);
        let mut world = Self {
            left: options.requests,
            random,
            network,
            now: MS,
            places: Vec::new(),
            addresses,
            endpoints: Vec::new(),
            channels: Vec::new(),
            groups: Vec::new(),
            agenda: BinaryHeap::new(),
            serial: 0,
            calm: false,
            calm_at: 0,
            long_cuts: Vec::new(),
            idle_until: 0,
            tally: Tally::default(),
            next_swap: 1,
            liar: None,
            options,
        };
        if lies {
            world.let_one_lie(seed);
        }
        for index in 0..world.addresses.len() {
            world.places.push(Place {
                node: None,
                clock: Clock::manual(),
                processes: Vec::new(),
                starts: 0,
                own: Vec::new(),
                stirred: true,
                stopped: Vec::new(),
            });
            world.boot(index)?;
        }
        world.draw_groups()?;
        if world.has_troubles() {
            world.after(MS, Action::Trouble);
        }
        Ok(world)
    }

    fn let_one_lie(&mut self, seed: u64) {
        let who = self.options.nodes;
        self.liar = Some(Liar::new(who, seed ^ 0x11a4));
        self.network.net().let_lie(who, seed, self.options.lies_ppm);
        self.after(MS, Action::Lie);
    }

    fn has_troubles(&self) -> bool {
        let t = &self.options.troubles;
        [
            t.bad_requests,
            t.deregistration,
            t.destruction,
            t.rebinding,
            t.closing,
            t.partitions,
            t.narrowing,
            t.restarts,
            t.stopped_readers,
            t.idling,
        ]
        .contains(&true)
    }

    /// Virtual time in ns.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// What was counted.
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// The network.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// What the seed decided.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// What the QP at one end of a channel sends to that at the other.
    pub(crate) fn flow(&self, channel: usize) -> Flow {
        let Channel { from, to, .. } = self.channels[channel];
        let ends = [from, to].map(|end| (self.endpoints[end].node, self.endpoints[end].qpn));
        Flow {
            nodes: (ends[0].0, ends[1].0),
            qps: (ends[0].1, ends[1].1),
        }
    }

    pub(crate) fn act(&self, what: &'static str, a: usize, b: usize) {
        let event = Event::Act {
            what,
            a: a as u32,
            b: b as u32,
        };
        self.network.net().trace.record(self.now, event);
    }

    pub(crate) fn after(&mut self, ns: u64, action: Action) {
        self.serial += 1;
        self.agenda
            .push(Reverse((self.now + ns, self.serial, action)));
    }

    pub(crate) fn node(&self, index: usize) -> Option<&Node> {
        self.places[index].node.as_ref()
    }

    /// Goes on to the next time at which anything happens, but not beyond `until`. Gives `false`
    /// when nothing happens before that.
    ///
    /// # Errors
    /// Whatever the model finds.
    pub fn step(&mut self, until: u64) -> Result<bool, Failure> {
        let stirred = self.places.iter().any(|place| place.stirred);
        let mut next = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let mut sooner = |at: Option<u64>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |other| other.min(at)));
            }
        };
        sooner(self.network.net().next_arrival());
        sooner(stirred.then_some(self.now));
        let mut due = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let at = place.next_timeout();
            sooner(at);
            due.extend(at.map(|at| (index, at)));
        }
        let Some(next) = next.map(|at| at.max(self.now)).filter(|at| *at <= until) else {
            self.set_now(until);
            return Ok(false);
        };
        self.set_now(next);
        for (index, at) in due {
            self.places[index].stirred |= at <= next;
        }
        let places = &mut self.places;
        self.network
            .net()
            .deliver(|index| places[index].stirred = true);
        while let Some(Reverse((at, ..))) = self.agenda.peek()
            && *at <= next
        {
            if let Some(Reverse((.., action))) = self.agenda.pop() {
                self.perform(action)?;
            }
        }
        self.poll_nodes()?;
        self.check_packets()?;
        Ok(true)
    }

    fn set_now(&mut self, now: u64) {
        self.now = now;
        self.network.net().set_now(now);
        for place in &self.places {
            place.clock.set(Instant::from_nanos(now));
        }
    }

    /// The programs of a node look at what happened.
    pub(crate) fn look_around(&mut self, index: usize) -> Verdict {
        self.take_events(index)?;
        for process in 0..self.places[index].processes.len() {
            if self.places[index].processes[process].stopped_until <= self.now {
                self.read_completions(index, process)?;
            }
        }
        if self.random.below(16) == 0 {
            self.witness(index)?;
        }
        Ok(())
    }

    /// Looks at memory that WRITEs go to.
    fn witness(&mut self, node: usize) -> Verdict {
        for channel in &mut self.channels {
            let to = &mut self.endpoints[channel.to];
            if to.node == node
                && !channel.closed
                && let Some(area) = &mut to.area
            {
                channel.witness(area)?;
            }
        }
        Ok(())
    }

    fn perform(&mut self, action: Action) -> Verdict {
        match action {
            Action::Connect(endpoint) => self.connect(endpoint),
            Action::Post(endpoint) => self.post(endpoint),
            Action::TopUp(endpoint) => self.top_up(endpoint),
            Action::TopUpShared(node, process) => self.top_up_shared(node, process),
            Action::Resume(node, process) => match self.places[node].processes.get(process) {
                Some(state) if state.stopped_until <= self.now => {
                    self.read_completions(node, process)
                }
                _ => Ok(()),
            },
            Action::Trouble => self.trouble(),
            Action::Chase(group, deadline) => self.chase(group, deadline),
            Action::Close(endpoint) => self.close(endpoint),
            Action::Rebuild(group) => self.build(group),
            Action::Join(a, b) => {
                self.act("join", a, b);
                self.network.net().cut(a, b, false);
                self.long_cuts.retain(|pair| *pair != (a, b));
                Ok(())
            }
            Action::Widen(a, b) => {
                self.act("widen", a, b);
                self.network.net().narrow(a, b, [usize::MAX; 2]);
                Ok(())
            }
            Action::Lie => self.lie(),
            Action::Wake(node) => {
                self.places[node].stirred = true;
                Ok(())
            }
            Action::Boot(node) if self.node(node).is_some() => Ok(()),
            Action::Boot(node) => self.boot(node),
        }
    }
}
