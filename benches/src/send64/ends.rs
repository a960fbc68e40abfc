//! The two processes: one sends, one receives, both drive their nodes themselves.

use super::{SIZE, WARM_UP};
use crate::cpus::stay_on;
use crate::process::{Parent, SILENCE};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{
    Access, Completion, Cq, Drive, Mr, Node, Pd, Qp, QpAddress, QpOptions, RecvWr, SendWr, Status,
};

/// QPs at each end.
const QPS: usize = 64;
/// Messages under way on each.
const DEPTH: usize = 16;
/// Receives that wait on each.
const RECEIVES: usize = 2 * DEPTH;
/// Completions taken at once.
const BATCH: usize = 64;

/// Arguments of a process at one end.
#[derive(Args, Clone, Debug)]
pub struct SendArgs {
    /// Which end it is.
    role: Role,
    /// Address of its node.
    address: IpAddr,
    /// The CPU that it stays on.
    #[arg(long)]
    cpu: usize,
    /// Length of a round.
    #[arg(long)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Role {
    /// Receives.
    Server,
    /// Sends.
    Client,
}

/// One end.
///
/// # Errors
/// Whatever went wrong.
pub fn part(arguments: &SendArgs) -> Result<()> {
    stay_on(arguments.cpu)?;
    let parent = Parent::new();
    let mut end = End::open(arguments.address)?;
    match arguments.role {
        Role::Server => {
            end.connect(&parent)?;
            for qp in 0..QPS {
                end.receive(qp, RECEIVES)?;
            }
            parent.exchange(&())?;
            end.serve(&parent)
        }
        Role::Client => {
            end.connect(&parent)?;
            // The receives are there then.
            parent.exchange(&())?;
            end.ask(&parent, Duration::from_secs_f64(arguments.seconds))
        }
    }
}

/// A node, its QPs, and how much is to be posted on each.
struct End {
    node: Node,
    cq: Cq,
    qps: Vec<Qp>,
    mr: Mr,
    /// QPs with something to post.
    due: Vec<usize>,
    /// How much, for each QP.
    count: Vec<usize>,
    _pd: Pd,
}

impl End {
    fn open(address: IpAddr) -> Result<Self> {
        let node = Node::builder()
            .address(address)
            .drive(Drive::Inline)
            .build()?;
        let pd = node.alloc_pd();
        let cq = node.create_cq((QPS * (DEPTH + RECEIVES)) as u32)?;
        let options = QpOptions {
            max_send_wr: DEPTH as u32,
            max_recv_wr: RECEIVES as u32,
            ..QpOptions::default()
        };
        let qps = (0..QPS).map(|_| pd.create_qp(&cq, &cq, &options));
        Ok(Self {
            qps: qps.collect::<Result<_, _>>()?,
            mr: pd.register(QPS * SIZE, Access::ALL)?,
            node,
            cq,
            due: Vec::with_capacity(QPS),
            count: vec![0; QPS],
            _pd: pd,
        })
    }

    /// Connects each QP to its like at the other end.
    fn connect(&self, parent: &Parent) -> Result<()> {
        let mine: Vec<QpAddress> = self.qps.iter().map(Qp::address).collect();
        let theirs: Vec<QpAddress> = parent.exchange(&mine)?;
        for (qp, peer) in self.qps.iter().zip(theirs) {
            qp.connect(peer)?;
        }
        Ok(())
    }

    fn receive(&self, qp: usize, count: usize) -> Result<()> {
        let sges = [self.mr.sge(qp * SIZE, SIZE)];
        let request = RecvWr::new().wr_id(qp as u64).sges(&sges);
        Ok(self.qps[qp].post_recv(&[request; RECEIVES][..count])?)
    }

    fn send(&self, qp: usize, count: usize) -> Result<()> {
        let sges = [self.mr.sge(qp * SIZE, SIZE)];
        let request = SendWr::send().wr_id(qp as u64).sges(&sges).signaled();
        Ok(self.qps[qp].post_send(&[request; DEPTH][..count])?)
    }

    /// One round of the node. Gives how many requests are done: that many are due again.
    fn turn(&mut self) -> Result<usize> {
        self.node.poll()?;
        let mut found = [Completion::BLANK; BATCH];
        let mut all = 0;
        loop {
            let taken = self.cq.poll(&mut found)?;
            for done in &found[..taken] {
                ensure!(done.status == Status::Success, "a request: {done:?}");
                self.add(done.wr_id as usize, 1);
            }
            all += taken;
            if taken < BATCH {
                return Ok(all);
            }
        }
    }

    /// So much more is to be posted on a QP.
    fn add(&mut self, qp: usize, count: usize) {
        if self.count[qp] == 0 {
            self.due.push(qp);
        }
        self.count[qp] += count;
    }

    /// A QP with something to post, and how much.
    fn next_due(&mut self) -> Option<(usize, usize)> {
        let qp = self.due.pop()?;
        Some((qp, std::mem::take(&mut self.count[qp])))
    }

    /// Receives until all is over, and says how many messages came.
    fn serve(&mut self, parent: &Parent) -> Result<()> {
        let mut received = 0;
        while !parent.has_line() {
            for _ in 0..64 {
                received += self.turn()? as u64;
                while let Some((qp, count)) = self.next_due() {
                    self.receive(qp, count)?;
                }
            }
        }
        parent.say(&received)
    }

    /// Sends; says how many messages, and how many of them in how many seconds.
    fn ask(&mut self, parent: &Parent, duration: Duration) -> Result<()> {
        (0..QPS).for_each(|qp| self.add(qp, DEPTH));
        let mut moved = Instant::now();
        let (mut posted, mut done) = (0, 0);
        let (mut started, mut before) = (moved, None);
        let mut in_time = None;
        while in_time.is_none() || done < posted {
            while in_time.is_none()
                && let Some((qp, count)) = self.next_due()
            {
                self.send(qp, count)?;
                posted += count as u64;
            }
            let taken = self.turn()? as u64;
            done += taken;
            let now = Instant::now();
            if taken > 0 {
                moved = now;
            }
            ensure!(now - moved < SILENCE, "nothing moved for {SILENCE:?}");
            let elapsed = now - started;
            match before {
                None if elapsed >= WARM_UP => (started, before) = (now, Some(done)),
                Some(before) if in_time.is_none() && done > before && elapsed >= duration => {
                    in_time = Some((done - before, elapsed.as_secs_f64()));
                }
                _ => {}
            }
        }
        let (in_time, seconds) = in_time.unwrap_or_default();
        parent.say(&(done, in_time, seconds))?;
        // The last acknowledgement of this end may be under way still.
        while !parent.has_line() {
            self.node.poll()?;
        }
        Ok(())
    }
}
