//! What a second worker brings: two nodes on loopback, one thread for each worker of either.

use crate::end::{End, REGION as SIZE, connect_pairs};
use crate::rounds::alternate;
use crate::{Measurement, Setting};
use anyhow::{Result, ensure};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{Completion, Node, Qp, SendFlags, SendOp, SendWr, Status};

/// QPs at each worker.
const QPS: usize = 16;
/// Requests outstanding on each.
const DEPTH: usize = 32;
/// Pairs of QPs that are connected at a time.
const BATCH: usize = 256;
/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(10);
const UNIT: &str = "WRITEs of 64 B per second, two workers at each node, four threads in all";

/// `workers_scale`
///
/// # Errors
/// An address that is taken, or a node that refuses.
pub fn scale(setting: &Setting) -> Result<Measurement> {
    let (one, two) = (Pair::new(1)?, Pair::new(2)?);
    let (mut set_up_one, mut set_up_two) = (Vec::new(), Vec::new());
    let medians = alternate::<anyhow::Error>(
        setting.rounds,
        || {
            set_up_two.push(two.set_up(setting.duration)?);
            two.write(setting.duration)
        },
        || {
            set_up_one.push(one.set_up(setting.duration)?);
            one.write(setting.duration)
        },
    )?;
    let one = crate::rounds::median(&mut set_up_one);
    let two = crate::rounds::median(&mut set_up_two);
    let yardstick = "the same with one worker at each node, two threads in all";
    let note = format!(
        "pairs of QPs connected per second: {two:.0} with two workers, {one:.0} with one, \
         ratio {:.2}",
        two / one
    );
    Ok(Measurement::new("workers_scale", UNIT, yardstick, medians).note(note))
}

fn end(workers: u8, last: u8) -> Result<End> {
    let address = IpAddr::from([127, 77, 2 + workers, last]);
    let node = Node::builder().address(address).workers(workers).build()?;
    End::new(node, 4096)
}

struct Pair {
    ends: [End; 2],
    qps: Vec<[Qp; 2]>,
}

impl Pair {
    fn new(workers: u8) -> Result<Self> {
        let ends = [end(workers, 1)?, end(workers, 2)?];
        let qps = Vec::new();
        let mut pair = Self { ends, qps };
        pair.qps = pair.connect(QPS * usize::from(workers))?;
        Ok(pair)
    }

    fn connect(&self, count: usize) -> Result<Vec<[Qp; 2]>> {
        connect_pairs(&self.ends, count, || {
            std::thread::yield_now();
            Ok(())
        })
    }

    /// Pairs connected per second.
    fn set_up(&self, duration: Duration) -> Result<f64> {
        let (mut connecting, mut done) = (Duration::ZERO, 0);
        while connecting < duration {
            let started = Instant::now();
            let pairs = self.connect(BATCH)?;
            connecting += started.elapsed();
            done += pairs.len();
        }
        Ok(done as f64 / connecting.as_secs_f64())
    }

    /// Messages per second from all QPs of the first node.
    fn write(&self, duration: Duration) -> Result<f64> {
        let [a, b] = &self.ends;
        let sges = [a.mr.sge(0, SIZE)];
        let post = |at: usize| {
            let request = SendWr {
                wr_id: at as u64,
                op: SendOp::Write(b.mr.remote(0)),
                flags: SendFlags::SIGNALED,
                sges: &sges,
                inline: None,
                route: 0,
            };
            self.qps[at][0].post_send(&[request])
        };
        for at in 0..self.qps.len() {
            for _ in 0..DEPTH {
                post(at)?;
            }
        }
        let started = Instant::now();
        let (mut outstanding, mut done) = (self.qps.len() * DEPTH, 0_u64);
        let mut found = [Completion::BLANK; 64];
        let mut elapsed = Duration::ZERO;
        while outstanding > 0 {
            let taken = a.cq.poll(&mut found).expect("room in the CQ");
            if taken == 0 {
                std::thread::yield_now();
            }
            let running = elapsed < duration;
            for completion in &found[..taken] {
                ensure!(completion.status == Status::Success, "{completion:?}");
                outstanding -= 1;
                if running {
                    post(completion.wr_id as usize)?;
                    outstanding += 1;
                    done += 1;
                }
            }
            if running {
                elapsed = started.elapsed();
            }
            ensure!(started.elapsed() < duration + PATIENCE, "WRITEs do not end");
        }
        Ok(done as f64 / elapsed.as_secs_f64())
    }
}
