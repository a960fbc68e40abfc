//! What a second worker brings: two nodes on loopback whose programs drive them. Thread i drives
//! worker i of both nodes, and posts to the QPs of that worker; all QPs together are as many as
//! with one thread and one worker.

use crate::end::REGION as SIZE;
use crate::rounds::{alternate, median};
use crate::{Measurement, Setting};
use anyhow::{Context as _, Result, anyhow, ensure};
use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Completion, Cq, Drive, Mr, Node, Pd, Port, Qp, QpOptions, SendFlags, SendOp, SendWr,
    Status,
};
use trunkline_dataplane::{UdpConfig, UdpPort};
use trunkline_wire::Workers;

/// QPs of each node, at all workers together.
const QPS: usize = 32;
/// Requests outstanding on each.
const DEPTH: usize = 32;
/// Pairs of QPs that a thread connects at a time.
const BATCH: usize = 256;
/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(10);
const UNIT: &str = "WRITEs of 64 B per second, two threads, each drives a worker of both nodes";

/// `workers_scale`
///
/// # Errors
/// An address that is taken, or a node that refuses.
pub fn scale(setting: &Setting) -> Result<Measurement> {
    let (one, two) = (Pair::new(1, Sockets::Own)?, Pair::new(2, Sockets::Own)?);
    let (mut connect_one, mut connect_two) = (Vec::new(), Vec::new());
    let medians = alternate::<anyhow::Error>(
        setting.rounds,
        || {
            connect_two.push(two.run(|lane| lane.connect(setting.duration))?);
            two.run(|lane| lane.write(setting.duration))
        },
        || {
            connect_one.push(one.run(|lane| lane.connect(setting.duration))?);
            one.run(|lane| lane.write(setting.duration))
        },
    )?;
    let (one, two) = (median(&mut connect_one), median(&mut connect_two));
    let yardstick = "the same QPs at one worker of each node, one thread";
    let note = format!(
        "pairs of QPs connected and used per second: {two:.0} with two threads, {one:.0} with \
         one, ratio {:.2}",
        two / one
    );
    Ok(Measurement::new("workers_scale", UNIT, yardstick, medians).note(note))
}

/// `workers_astray`
///
/// # Errors
/// As [`scale`].
pub fn astray(setting: &Setting) -> Result<Measurement> {
    let (own, swapped) = (Pair::new(2, Sockets::Own)?, Pair::new(2, Sockets::Swapped)?);
    let medians = alternate::<anyhow::Error>(
        setting.rounds,
        || swapped.run(|lane| lane.write(setting.duration)),
        || own.run(|lane| lane.write(setting.duration)),
    )?;
    let yardstick = "the same with each worker at the socket that the kernel picks for it";
    let [right, wrong] = [&own, &swapped].map(Pair::astray);
    let note = format!("of 100 packets {right:.2} came out at the wrong worker, and {wrong:.2}");
    Ok(Measurement::new("workers_astray", UNIT, yardstick, medians).note(note))
}

/// Which socket of a node a worker has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sockets {
    /// Its own, which the kernel picks for its packets.
    Own,
    /// Another one's: all of its packets come out there.
    Swapped,
}

/// A node with what its QPs need.
struct End {
    node: Node,
    pd: Pd,
    mr: Mr,
}

impl End {
    fn new(workers: u8, sockets: Sockets, last: u8) -> Result<Self> {
        let network = 2 + workers + 10 * u8::from(sockets == Sockets::Swapped);
        let address = IpAddr::from([127, 77, network, last]);
        let count = Workers::new(workers).context("so many workers may be")?;
        let mut ports = UdpPort::open_group(&UdpConfig::new(address), count)?;
        if sockets == Sockets::Swapped {
            ports.reverse();
        }
        let ports = ports
            .into_iter()
            .map(|port| Box::new(port) as Box<dyn Port + Send>);
        let node = Node::builder().address(address).workers(workers);
        let node = node.drive(Drive::Inline).build_on_all(ports.collect())?;
        let pd = node.alloc_pd();
        let mr = pd.register(SIZE, Access::ALL)?;
        Ok(Self { node, pd, mr })
    }
}

struct Pair {
    ends: [End; 2],
    /// QPs by worker.
    qps: Vec<Qps>,
}

/// The QPs of a worker of either node, with a CQ of their own at each end.
struct Qps {
    cqs: [Cq; 2],
    pairs: Vec<[Qp; 2]>,
}

impl Pair {
    fn new(workers: u8, sockets: Sockets) -> Result<Self> {
        let ends = [
            End::new(workers, sockets, 1)?,
            End::new(workers, sockets, 2)?,
        ];
        let mut qps = Vec::new();
        for worker in 0..workers {
            let [a, b] = ends.each_ref().map(|end| end.node.create_cq(4096));
            let cqs = [a?, b?];
            let lane = Lane {
                ends: &ends,
                worker,
                cqs: &cqs,
                pairs: &[],
                alone: true,
            };
            let pairs = lane.connect_some(QPS / usize::from(workers))?;
            qps.push(Qps { cqs, pairs });
        }
        Ok(Self { ends, qps })
    }

    /// Of a hundred packets those that came out at the wrong worker.
    fn astray(&self) -> f64 {
        let nodes = self.ends.each_ref().map(|end| &end.node);
        let astray: u64 = nodes.iter().map(|node| node.hand_overs().packets).sum();
        let received: u64 = nodes.iter().map(|node| node.counters().received).sum();
        100.0 * astray as f64 / received.max(1) as f64
    }

    /// What all lanes, each on a thread, do per second together.
    fn run(&self, work: impl Fn(&Lane<'_>) -> Result<f64> + Sync) -> Result<f64> {
        let start = Barrier::new(self.qps.len());
        let at_work = AtomicUsize::new(self.qps.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&self.qps)
                .map(|(worker, Qps { cqs, pairs })| {
                    let lane = Lane {
                        ends: &self.ends,
                        worker,
                        cqs,
                        pairs,
                        alone: false,
                    };
                    let (start, at_work, work) = (&start, &at_work, &work);
                    scope.spawn(move || {
                        start.wait();
                        let rate = work(&lane);
                        at_work.fetch_sub(1, Ordering::Relaxed);
                        // What others wait for may come out here.
                        while at_work.load(Ordering::Relaxed) > 0 {
                            lane.poll()?;
                        }
                        rate
                    })
                })
                .collect();
            let rates = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
            rates.sum()
        })
    }
}

/// What one thread drives.
struct Lane<'a> {
    ends: &'a [End; 2],
    worker: u8,
    cqs: &'a [Cq; 2],
    pairs: &'a [[Qp; 2]],
    /// No other thread drives workers: this one drives all of them.
    alone: bool,
}

impl Lane<'_> {
    fn poll(&self) -> Result<()> {
        for end in self.ends {
            if self.alone {
                end.node.poll()?;
            } else {
                end.node.poll_worker(self.worker)?;
            }
        }
        Ok(())
    }

    fn post(&self, qp: &Qp, wr_id: usize) -> Result<()> {
        let [a, b] = self.ends;
        let request = SendWr {
            wr_id: wr_id as u64,
            op: SendOp::Write(b.mr.remote(0)),
            flags: SendFlags::SIGNALED,
            sges: &[a.mr.sge(0, SIZE)],
            inline: None,
            route: 0,
        };
        Ok(qp.post_send(&[request])?)
    }

    /// Waits for completions; `again` says what to do with each.
    fn complete(&self, mut left: usize, mut again: impl FnMut(u64) -> Result<bool>) -> Result<()> {
        let mut found = [Completion::BLANK; 64];
        let mut heard = Instant::now();
        while left > 0 {
            self.poll()?;
            let taken = self.cqs[0].poll(&mut found)?;
            for completion in &found[..taken] {
                ensure!(completion.status == Status::Success, "{completion:?}");
                left -= usize::from(!again(completion.wr_id)?);
            }
            if taken > 0 {
                heard = Instant::now();
            }
            ensure!(heard.elapsed() < PATIENCE, "WRITEs do not end");
        }
        Ok(())
    }

    /// Connects that many pairs of new QPs, and uses each once.
    fn connect_some(&self, count: usize) -> Result<Vec<[Qp; 2]>> {
        let options = QpOptions {
            worker: Some(self.worker),
            ..QpOptions::default()
        };
        let mut pairs = Vec::with_capacity(count);
        for at in 0..count {
            let [a, b] = self.ends;
            let [near, far] = self.cqs;
            let near = a.pd.create_qp(near, near, &options)?;
            let far = b.pd.create_qp(far, far, &options)?;
            near.connect(far.address())?;
            far.connect(near.address())?;
            self.post(&near, at)?;
            pairs.push([near, far]);
        }
        self.complete(count, |_| Ok(false))?;
        Ok(pairs)
    }

    /// Pairs connected and used per second.
    fn connect(&self, duration: Duration) -> Result<f64> {
        let (mut connecting, mut done) = (Duration::ZERO, 0);
        while connecting < duration {
            let started = Instant::now();
            let pairs = self.connect_some(BATCH)?;
            connecting += started.elapsed();
            done += pairs.len();
        }
        Ok(done as f64 / connecting.as_secs_f64())
    }

    /// WRITEs per second from the QPs of the first node.
    fn write(&self, duration: Duration) -> Result<f64> {
        for (at, [near, _]) in self.pairs.iter().enumerate() {
            for _ in 0..DEPTH {
                self.post(near, at)?;
            }
        }
        let started = Instant::now();
        let (mut done, mut elapsed) = (0_u64, Duration::ZERO);
        self.complete(self.pairs.len() * DEPTH, |at| {
            if elapsed >= duration {
                return Ok(false);
            }
            done += 1;
            if done.is_multiple_of(64) {
                elapsed = started.elapsed();
            }
            self.post(&self.pairs[at as usize][0], at as usize)?;
            Ok(true)
        })?;
        Ok(done as f64 / elapsed.as_secs_f64())
    }
}
