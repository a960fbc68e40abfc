//! What a seed decides beside the program itself: the shape of the cluster, its network, and which
//! kinds of trouble there will be.

use crate::net::{Link, ManagementFaults, PortShape};
use std::fmt;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::EVERY_PATH;
use trunkline_dataplane::prng::Prng;

/// One microsecond and one millisecond in ns.
pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

/// Draws one of `list`.
pub(crate) fn pick<T: Copy>(random: &mut Prng, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

/// Draws from `low ..= high`.
pub(crate) fn between(random: &mut Prng, low: u64, high: u64) -> u64 {
    low + random.below(high - low + 1)
}

/// Kinds of trouble, each present or not in a run (so that each also runs without the others).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Troubles {
    /// Requests that must be refused: bad keys, ranges, lengths.
    pub bad_requests: bool,
    /// Receives posted late.
    pub late_receives: bool,
    /// Regions deregistered under traffic.
    pub deregistration: bool,
    /// QPs destroyed or reset under traffic.
    pub destruction: bool,
    /// Live QPs moved to other connections.
    pub rebinding: bool,
    /// Connections closed under traffic.
    pub closing: bool,
    /// Pairs of nodes cut off from each other for a while.
    pub partitions: bool,
    /// Paths between nodes that carry less than both ends, for a while.
    pub narrowing: bool,
    /// Nodes that stop and come back as another incarnation.
    pub restarts: bool,
    /// Programs that do not look at their completions for a while.
    pub stopped_readers: bool,
    /// Long times in which nothing happens.
    pub idling: bool,
    /// Workers that get no processor for a while, beside others of their node that do.
    pub slow_workers: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes.
    pub nodes: usize,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Processes per node: protection domains with their queues.
    pub processes: usize,
    /// Groups of QPs that talk to each other.
    pub groups: usize,
    /// Requests posted in all.
    pub requests: u64,
    /// Largest message, in bytes.
    pub largest: usize,
    /// Every link.
    pub link: Link,
    /// Every port.
    pub port: PortShape,
    /// Connections per pool.
    pub pool: u32,
    /// Packets in flight per connection.
    pub window: u32,
    /// Congestion control.
    pub control: CongestionControl,
    /// Silence after which a peer is gone, in ns.
    pub peer_timeout_ns: u64,
    /// Bytes of packets that may wait for an earlier one.
    pub staging: usize,
    /// Most workers of a node; each start draws how many it has.
    pub workers: u8,
    /// Packets that come out at the port of any worker instead of the right one's, per million.
    pub astray_ppm: u32,
    /// Packets of one node more that are not true, per million; 0: there is no such node.
    pub lies_ppm: u32,
    /// What goes wrong.
    pub troubles: Troubles,
    /// Mean time between troubles, in ns.
    pub trouble_every_ns: u64,
}

impl Troubles {
    /// Whether connections end that QPs are bound to.
    pub(crate) const fn ends_connections(&self) -> bool {
        self.closing || self.partitions || self.narrowing || self.restarts
    }
}

impl Options {
    /// Draws them.
    pub fn draw(random: &mut Prng) -> Self {
        let nodes = pick(random, &[2, 2, 2, 3, 3, 4, 5]);
        let largest = pick(random, &[256, 4096, 4096, 20_000, 20_000, 60_000, 1 << 20]);
        let max_datagram = pick(random, &[1104, 2128, 4176, 4176, 8272]);
        let link = draw_link(random);
        let mut options = Self {
            nodes,
            v6: random.below(4) == 0,
            processes: pick(random, &[1, 1, 2, 3]),
            groups: between(random, 1, 2 + 3 * nodes as u64) as usize,
            requests: if largest > 100_000 {
                between(random, 20, 80)
            } else {
                between(random, 100, 1000)
            },
            largest,
            link,
            port: PortShape {
                max_datagram,
                ring: pick(random, &[2, 7, 32, 64, 256]),
                source_ports: pick(
                    random,
                    &[&[4791][..], &[4791], &[4791, 50_001, 50_002, 50_003]],
                ),
            },
            pool: pick(random, &[1, 1, 2, 4]),
            window: pick(random, &[64, 256, 1024]),
            control: pick(
                random,
                &[
                    CongestionControl::None,
                    CongestionControl::Dcqcn,
                    CongestionControl::Delay,
                    CongestionControl::Delay,
                ],
            ),
            peer_timeout_ns: pick(random, &[100, 300, 2000]) * MS,
            staging: pick(random, &[32 << 10, 256 << 10, 4 << 20]),
            workers: 1,
            astray_ppm: 0,
            lies_ppm: 0,
            troubles: draw_troubles(random),
            trouble_every_ns: pick(random, &[200 * US, 2 * MS, 20 * MS]),
        };
        options.link.management = draw_management(random);
        options.workers = pick(random, &[1, 2, 3, 3]);
        options.astray_ppm = pick(random, &[0, 0, 20_000, 1_000_000]);
        options.troubles.slow_workers = options.workers > 1 && random.below(2) == 0;
        options.troubles.narrowing = max_datagram > EVERY_PATH as usize && random.below(4) == 0;
        options.lies_ppm = pick(random, &[0, 0, 0, 20_000, 200_000, 600_000]);
        options
    }
}

fn draw_link(random: &mut Prng) -> Link {
    let rate = pick(random, &[1, 10, 25, 100, 100]) * 1_000_000_000;
    let queue = pick(random, &[64 << 10, 256 << 10, 4 << 20]);
    let mut sometimes = |list: &[u32]| {
        if random.below(2) == 0 {
            pick(random, list)
        } else {
            0
        }
    };
    let (loss_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm) = (
        sometimes(&[100, 2_000, 10_000, 50_000]),
        sometimes(&[100, 2_000, 20_000]),
        sometimes(&[1_000, 20_000, 100_000]),
        sometimes(&[100, 2_000, 20_000]),
    );
    Link {
        rate_bps: rate,
        delay_ns: pick(random, &[US, 5 * US, 50 * US, 500 * US]),
        jitter_ns: pick(random, &[0, 100, 5 * US]),
        queue_bytes: queue,
        mark_bytes: pick(random, &[queue / 16, queue / 4, queue]),
        loss_ppm,
        duplicate_ppm,
        reorder_ppm,
        reorder_ns: pick(random, &[5 * US, 50 * US, 2 * MS]),
        corrupt_ppm,
        management: ManagementFaults::NONE,
    }
}

/// What befalls management packets alone, in a third of the seeds.
fn draw_management(random: &mut Prng) -> ManagementFaults {
    if random.below(3) > 0 {
        return ManagementFaults::NONE;
    }
    ManagementFaults {
        loss_ppm: pick(random, &[0, 20_000, 100_000, 200_000, 200_000]),
        duplicate_ppm: pick(random, &[0, 0, 20_000, 200_000]),
        delay_ppm: pick(random, &[0, 0, 20_000, 200_000]),
        delay_ns: pick(random, &[MS, 20 * MS, 150 * MS]),
        corrupt_ppm: pick(random, &[0, 0, 20_000]),
    }
}

fn draw_troubles(random: &mut Prng) -> Troubles {
    let mut in_ten = |n: u64| random.below(10) < n;
    Troubles {
        bad_requests: in_ten(4),
        late_receives: in_ten(4),
        deregistration: in_ten(2),
        destruction: in_ten(3),
        rebinding: in_ten(5),
        closing: in_ten(3),
        partitions: in_ten(3),
        restarts: in_ten(2),
        stopped_readers: in_ten(3),
        idling: in_ten(2),
        narrowing: false,
        slow_workers: false,
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.link;
        let percent = |ppm: u32| f64::from(ppm) / 10_000.0;
        writeln!(
            f,
            "nodes {} ({}) processes {} groups {} requests {} largest {} B",
            self.nodes,
            if self.v6 { "IPv6" } else { "IPv4" },
            self.processes,
            self.groups,
            self.requests,
            self.largest
        )?;
        writeln!(
            f,
            "links: {} Gb/s delay {}..{} us queue {} KiB marked from {} KiB, loss {} % dup {} % \
             reorder {} % by {} us corrupt {} %",
            link.rate_bps / 1_000_000_000,
            link.delay_ns as f64 / 1e3,
            (link.delay_ns + link.jitter_ns) as f64 / 1e3,
            link.queue_bytes >> 10,
            link.mark_bytes >> 10,
            percent(link.loss_ppm),
            percent(link.duplicate_ppm),
            percent(link.reorder_ppm),
            link.reorder_ns as f64 / 1e3,
            percent(link.corrupt_ppm)
        )?;
        if link.management != ManagementFaults::NONE {
            let more = &link.management;
            writeln!(
                f,
                "management packets beside that: loss {} % dup {} % late {} % by up to {} ms \
                 corrupt {} %",
                percent(more.loss_ppm),
                percent(more.duplicate_ppm),
                percent(more.delay_ppm),
                more.delay_ns / MS,
                percent(more.corrupt_ppm)
            )?;
        }
        writeln!(
            f,
            "ports: datagram {} B ring {} source ports {}; pool {} window {} control {:?} peer \
             timeout {} ms staging {} KiB",
            self.port.max_datagram,
            self.port.ring,
            self.port.source_ports.len(),
            self.pool,
            self.window,
            self.control,
            self.peer_timeout_ns / MS,
            self.staging >> 10
        )?;
        if self.workers > 1 {
            writeln!(
                f,
                "up to {} workers, {} % of the packets at any of them",
                self.workers,
                percent(self.astray_ppm)
            )?;
        }
        if self.lies_ppm > 0 {
            writeln!(
                f,
                "a node more that lies in {} % of its packets",
                percent(self.lies_ppm)
            )?;
        }
        write!(f, "troubles every {} us:", self.trouble_every_ns / US)?;
        let t = &self.troubles;
        for (on, name) in [
            (t.bad_requests, "bad requests"),
            (t.late_receives, "late receives"),
            (t.deregistration, "deregistration"),
            (t.destruction, "destruction"),
            (t.rebinding, "re-binding"),
            (t.closing, "closed connections"),
            (t.partitions, "partitions"),
            (t.narrowing, "narrow paths"),
            (t.restarts, "restarts"),
            (t.stopped_readers, "stopped readers"),
            (t.idling, "idling"),
            (t.slow_workers, "slow workers"),
        ] {
            if on {
                write!(f, " [{name}]")?;
            }
        }
        Ok(())
    }
}
