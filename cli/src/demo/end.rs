//! One end of all the QPs, and the thread that drives it.

use super::{DemoArgs, SLICE};
use crate::capture;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::taken;
use anyhow::{Context, Result, ensure};
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Completion, Cq, Drive, Mr, Node, Pd, Qp, QpAddress, QpOptions, SendOp, SendWr, Srq,
    Status,
};

/// QPs made, connected or destroyed between looks at Ctrl-C.
const STRIDE: usize = 256;
/// How long a thread polls with nothing to do before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep: what does not come as a packet is noticed after it.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The other end's thread has ended, for a reason of its own.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the other end is gone")]
pub(super) struct Gone;

/// The addresses of the QPs of both ends: what programs exchange out of band.
pub(super) struct Exchange {
    pub(super) ours: Sender<Vec<QpAddress>>,
    pub(super) theirs: Receiver<Vec<QpAddress>>,
}

/// A node, and what its QPs share.
pub(super) struct End {
    pub(super) name: &'static str,
    pub(super) node: Node,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    /// Buffers of [`SLICE`] bytes.
    pub(super) mr: Mr,
    /// Where the receives of its QPs come from, instead of from queues of their own.
    pub(super) srq: Option<Srq>,
    pd: Pd,
}

impl End {
    pub(super) fn open(
        name: &'static str,
        address: IpAddr,
        args: &DemoArgs,
        buffers: usize,
        capture: Option<&Path>,
    ) -> Result<Self> {
        let builder = Node::builder()
            .port(args.port.clone().within_host())
            .drive(Drive::Inline)
            .pool(args.connections);
        let builder = capture::add(builder, capture)?;
        let node = taken::build(builder, address, &format!("--{name}"))?;
        let pd = node.alloc_pd();
        let mr = pd.register(buffers * SLICE, Access::ALL)?;
        // Each buffer is of one operation, and an operation has few completions.
        let depth = 4 * buffers as u32;
        let cq = || {
            let cq = node.create_cq(depth);
            cq.with_context(|| format!("completion queues of {address}"))
        };
        let (send_cq, recv_cq) = (cq()?, cq()?);
        Ok(Self {
            name,
            node,
            send_cq,
            recv_cq,
            mr,
            srq: None,
            pd,
        })
    }

    /// The same whose QPs share their receives: one for each buffer.
    pub(super) fn share_receives(mut self, buffers: usize) -> Result<Self> {
        self.srq = Some(self.pd.create_srq(buffers as u32, 1)?);
        Ok(self)
    }

    /// Opens so many QPs and connects each to the other end's of the same place.
    pub(super) fn open_qps(
        &self,
        count: usize,
        exchange: &Exchange,
        interrupt: &Interrupt,
        progress: Option<&Progress>,
    ) -> Result<Vec<Qp>> {
        let mut qps = Vec::with_capacity(count);
        while qps.len() < count {
            interrupt.check()?;
            if let Some(progress) = progress {
                progress.show(qps.len(), count);
            }
            let first = qps.len();
            for _ in first..count.min(first + STRIDE) {
                qps.push(self.open_qp()?);
            }
            let ours = qps[first..].iter().map(Qp::address).collect();
            exchange.ours.send(ours).map_err(|_| Gone)?;
            let theirs = self.await_theirs(exchange, interrupt)?;
            for (qp, peer) in qps[first..].iter().zip(theirs) {
                qp.connect(peer)?;
            }
        }
        Ok(qps)
    }

    /// What connecting has to say leaves meanwhile.
    fn await_theirs(&self, exchange: &Exchange, interrupt: &Interrupt) -> Result<Vec<QpAddress>> {
        loop {
            self.node.poll()?;
            match exchange.theirs.recv_timeout(SPIN) {
                Ok(theirs) => return Ok(theirs),
                Err(RecvTimeoutError::Disconnected) => return Err(Gone.into()),
                Err(RecvTimeoutError::Timeout) => interrupt.check()?,
            }
        }
    }

    fn open_qp(&self) -> Result<Qp> {
        let options = QpOptions {
            srq: self.srq.clone(),
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
            ..QpOptions::default()
        };
        Ok(self.pd.create_qp(&self.send_cq, &self.recv_cq, &options)?)
    }

    /// Destroys all QPs. What they have to say leaves meanwhile.
    pub(super) fn close_qps(&self, mut qps: Vec<Qp>, interrupt: &Interrupt) -> Result<()> {
        while !qps.is_empty() {
            interrupt.check()?;
            qps.truncate(qps.len().saturating_sub(STRIDE));
            self.node.poll()?;
        }
        Ok(())
    }

    pub(super) fn post(&self, qp: &Qp, wr_id: u64, op: SendOp, at: (usize, usize)) -> Result<()> {
        let (offset, length) = at;
        let sges = [self.mr.sge(offset, length)];
        let request = SendWr::new(op).wr_id(wr_id).sges(&sges).signaled();
        Ok(qp.post_send(&[request])?)
    }

    pub(super) fn check_status(&self, done: &Completion) -> Result<()> {
        ensure!(
            done.status == Status::Success,
            "QP {} of the {}: {:?} ended with {:?}",
            done.qpn,
            self.name,
            done.opcode,
            done.status
        );
        Ok(())
    }
}

/// Takes what a CQ has into `all`.
pub(super) fn drain(cq: &Cq, all: &mut Vec<Completion>) -> Result<()> {
    let mut batch = [Completion::BLANK; 64];
    all.clear();
    loop {
        let count = cq.poll(&mut batch)?;
        all.extend_from_slice(&batch[..count]);
        if count < batch.len() {
            return Ok(());
        }
    }
}

/// What a thread does while there is nothing to do.
#[derive(Debug, Default)]
pub(super) struct Idle {
    since: Option<Instant>,
}

impl Idle {
    /// After a round in which something was done, or not.
    pub(super) fn round(&mut self, node: &Node, busy: bool) -> Result<()> {
        if busy {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < SPIN {
            // The other end's thread may want the processor.
            std::thread::yield_now();
            return Ok(());
        }
        Ok(node.wait(LONGEST_SLEEP)?)
    }
}
