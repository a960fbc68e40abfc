//! One end of a measurement: a node, its QPs and its buffers.

use super::channel::EndAddress;
use super::failure::Failed;
use super::node::attributes;
use super::params::{Mode, Op, Params, Side};
use anyhow::{Context, Result, ensure};
use std::net::IpAddr;
use trunkline::{
    Access, Completion, Cq, Gid, Mr, Node, Psn, Qp, QpAddress, QpOptions, Qpn, RecvWr, Remote,
    Rkey, SendOp, SendWr, Sge,
};

/// Completions taken at once.
pub(crate) const BATCH: usize = 64;
/// Requests posted at once.
const POST: usize = 16;
/// Messages up to this length travel inside the request where latency counts.
const MAX_INLINE: u64 = 256;
/// Requests and receives of a QP where one at a time is under way: the next may be posted before
/// the completion of the last has been seen.
const LATENCY_WR: u32 = 4;

/// The QPs and buffers of this end.
#[derive(Debug)]
pub(crate) struct End {
    /// The node; inline.
    pub(crate) node: Node,
    send_cq: Cq,
    recv_cq: Cq,
    /// What completions are polled into: made once, as clearing it costs as much as a poll in vain.
    batch: Box<[Completion; BATCH]>,
    qps: Vec<Qp>,
    mr: Mr,
    side: Side,
    params: Params,
}

/// The buffers of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    node: IpAddr,
    remote: Remote,
    side: Side,
    params: Params,
}

impl Target {
    /// Address of the other end's node.
    pub(crate) const fn node(&self) -> IpAddr {
        self.node
    }

    /// How the other end's buffer is named.
    pub(crate) const fn lane(&self, qp: usize, lane: u64) -> Remote {
        let offset = self.params.offset(self.side, qp, lane);
        // Whatever address the other side gave: its node judges where it leads.
        Remote {
            addr: self.remote.addr.wrapping_add(offset),
            rkey: self.remote.rkey,
        }
    }
}

impl End {
    /// Makes the QPs and buffers of `params` on `node`.
    ///
    /// # Errors
    /// No memory, or more than the node has.
    pub(crate) fn open(node: Node, side: Side, params: Params) -> Result<Self> {
        let pd = node.alloc_pd();
        let mr = pd
            .register(params.memory(side) as usize, Access::ALL)
            .context("buffers")?;
        let (sends, receives) = match params.mode {
            Mode::Lat => (LATENCY_WR, LATENCY_WR),
            _ => (params.depth, params.receives()),
        };
        let cq = |requests: u32| {
            let cq = node.create_cq((requests * params.qps).max(BATCH as u32));
            cq.with_context(|| format!("completion queues of {}", node.gid().address()))
        };
        let (send_cq, recv_cq) = (cq(sends)?, cq(receives)?);
        let options = QpOptions {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: if inlined(&params) {
                params.size as u32
            } else {
                0
            },
            signal_all: true,
            ..QpOptions::default()
        };
        let qps = (0..params.qps)
            .map(|_| pd.create_qp(&send_cq, &recv_cq, &options))
            .collect::<Result<_, _>>()
            .context("QPs")?;
        Ok(Self {
            node,
            send_cq,
            recv_cq,
            batch: Box::new([Completion::BLANK; BATCH]),
            qps,
            mr,
            side,
            params,
        })
    }

    /// Which end it is.
    pub(crate) const fn side(&self) -> Side {
        self.side
    }

    /// What the other side needs to know.
    pub(crate) fn address(&self) -> EndAddress {
        let one = |qp: &Qp| (qp.qpn().get(), qp.address().psn.get());
        EndAddress {
            node: self.node.gid().address(),
            qps: self.qps.iter().map(one).collect(),
            addr: self.mr.addr(),
            rkey: self.mr.rkey().0,
        }
    }

    /// Connects every QP to its counterpart.
    ///
    /// # Errors
    /// The other side gave what cannot be.
    pub(crate) fn connect(&self, other: &EndAddress) -> Result<Target> {
        ensure!(
            other.qps.len() == self.qps.len(),
            "the other side has {} QPs, not {}",
            other.qps.len(),
            self.qps.len()
        );
        let (here, there) = (self.node.gid().address(), other.node);
        ensure!(
            here != there,
            "both nodes are on {here}: one needs another address (--bind)"
        );
        ensure!(
            here.is_ipv4() == there.is_ipv4(),
            "{here} and {there} are of different families"
        );
        let attributes = attributes(self.params.timeout);
        for (qp, &(qpn, psn)) in self.qps.iter().zip(&other.qps) {
            let Some(qpn) = Qpn::new(qpn) else {
                anyhow::bail!("the other side names a QP {qpn:#x}, of more than 24 bits");
            };
            let peer = QpAddress {
                gid: Gid::from(there),
                qpn,
                psn: Psn::from_wire(psn),
            };
            qp.connect_with(peer, Access::ALL, &attributes)?;
        }
        let remote = Remote {
            addr: other.addr,
            rkey: Rkey(other.rkey),
        };
        let side = match self.side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        Ok(Target {
            node: there,
            remote,
            side,
            params: self.params,
        })
    }

    fn sge(&self, qp: usize, lane: u64) -> Sge {
        let offset = self.params.offset(self.side, qp, lane);
        self.mr.sge(offset as usize, self.params.size as usize)
    }

    /// Posts one request on QP `qp`, from or to its buffer `lane`.
    ///
    /// # Errors
    /// The QP is not (any more) what it should be.
    pub(crate) fn post(&self, qp: usize, lane: u64, op: SendOp) -> Result<()> {
        self.post_all(qp, std::iter::once((lane, op)))
    }

    /// Posts requests on QP `qp`, each from or to a buffer of it.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub(crate) fn post_all(
        &self,
        qp: usize,
        mut requests: impl Iterator<Item = (u64, SendOp)>,
    ) -> Result<()> {
        loop {
            let mut batch = [(0, SendOp::Send); POST];
            let mut sges = [[Sge::default()]; POST];
            let mut count = 0;
            for (slot, request) in batch.iter_mut().zip(&mut requests) {
                sges[count] = [self.sge(qp, request.0)];
                *slot = request;
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let mut work: [SendWr<'_>; POST] = std::array::from_fn(|at| {
                let (lane, op) = batch[at];
                SendWr::new(op)
                    .wr_id(cookie(qp, lane))
                    .sges(&sges[at])
                    .signaled()
            });
            let mut bytes = [0; MAX_INLINE as usize];
            // Only latency is measured with inline requests, and there is one at a time.
            if count == 1 && inlined(&self.params) {
                let bytes = &mut bytes[..self.params.size as usize];
                self.read(qp, batch[0].0, bytes)?;
                work[0] = work[0].sges(&[]).inline(bytes);
            }
            self.qps[qp]
                .post_send(&work[..count])
                .context("posting requests")?;
        }
    }

    /// Posts a SEND of the first bytes of the first buffer on the first QP.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub(crate) fn post_ping(&self, bytes: u64) -> Result<()> {
        let offset = self.params.offset(self.side, 0, 0) as usize;
        let sges = [self.mr.sge(offset, bytes as usize)];
        let sges = if bytes == 0 { &[][..] } else { &sges };
        let work = SendWr::send().wr_id(cookie(0, 0)).sges(sges).signaled();
        self.qps[0].post_send(&[work]).context("posting requests")
    }

    /// Bytes of the message that came, if one did.
    ///
    /// # Errors
    /// A receive that failed.
    pub(crate) fn pinged(&self) -> Result<Option<u64>> {
        let mut done = [Completion::BLANK];
        if self.recv_cq.poll(&mut done)? == 0 {
            return Ok(None);
        }
        check(&done)?;
        Ok(Some(done[0].byte_len.into()))
    }

    /// Posts receives on QP `qp`, each into a buffer of it.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub(crate) fn receive_all(
        &self,
        qp: usize,
        mut lanes: impl Iterator<Item = u64>,
    ) -> Result<()> {
        loop {
            let mut batch = [0; POST];
            let mut count = 0;
            for (slot, lane) in batch.iter_mut().zip(&mut lanes) {
                *slot = lane;
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let sges: [_; POST] = std::array::from_fn(|at| [self.sge(qp, batch[at])]);
            let work: [_; POST] = std::array::from_fn(|at| {
                RecvWr::new().wr_id(cookie(qp, batch[at])).sges(&sges[at])
            });
            self.qps[qp]
                .post_recv(&work[..count])
                .context("posting receives")?;
        }
    }

    /// Takes completions of requests; gives QP and buffer of each to `each`. Gives how many there
    /// were.
    ///
    /// # Errors
    /// A request that failed.
    pub(crate) fn drain_requests(&mut self, each: impl FnMut(usize, u64)) -> Result<usize> {
        drain(&self.send_cq, &mut *self.batch, each)
    }

    /// The same of receives.
    ///
    /// # Errors
    /// A receive that failed.
    pub(crate) fn drain_receives(&mut self, each: impl FnMut(usize, u64)) -> Result<usize> {
        drain(&self.recv_cq, &mut *self.batch, each)
    }

    /// The first request of those that are left which failed for a reason of its own.
    pub(crate) fn failure(&mut self) -> Option<Failed> {
        let batch = &mut *self.batch;
        for cq in [&self.send_cq, &self.recv_cq] {
            while let Ok(count @ 1..) = cq.poll(batch) {
                let failed = Failed::first(&batch[..count]);
                if let Some(failed) = failed.filter(|failed| !failed.is_flushed()) {
                    return Some(failed);
                }
            }
        }
        None
    }

    /// Copies the first bytes of a buffer out.
    ///
    /// # Errors
    /// More bytes than it has.
    pub(crate) fn read(&self, qp: usize, lane: u64, out: &mut [u8]) -> Result<()> {
        Ok(self
            .mr
            .read(self.params.offset(self.side, qp, lane) as usize, out)?)
    }

    /// Copies the first bytes of a buffer in.
    ///
    /// # Errors
    /// More bytes than it has.
    pub(crate) fn write(&self, qp: usize, lane: u64, data: &[u8]) -> Result<()> {
        Ok(self
            .mr
            .write(self.params.offset(self.side, qp, lane) as usize, data)?)
    }

    /// Offset of the last byte of a message in a buffer, from the start of the region.
    fn last(&self, qp: usize, lane: u64) -> usize {
        (self.params.offset(self.side, qp, lane) + self.params.size) as usize - 1
    }

    /// The last byte of a buffer's message.
    ///
    /// # Errors
    /// There is no such buffer.
    pub(crate) fn last_byte(&self, qp: usize, lane: u64) -> Result<u8> {
        let mut byte = [0];
        self.mr.read(self.last(qp, lane), &mut byte)?;
        Ok(byte[0])
    }

    /// Sets the last byte of a buffer's message.
    ///
    /// # Errors
    /// There is no such buffer.
    pub(crate) fn set_last_byte(&self, qp: usize, lane: u64, byte: u8) -> Result<()> {
        Ok(self.mr.write(self.last(qp, lane), &[byte])?)
    }
}

/// Whether all of them are successes.
fn check(all: &[Completion]) -> Result<(), Failed> {
    Failed::first(all).map_or(Ok(()), Err)
}

fn drain(cq: &Cq, batch: &mut [Completion], mut each: impl FnMut(usize, u64)) -> Result<usize> {
    let count = cq.poll(batch)?;
    let all = &batch[..count];
    check(all)?;
    for done in all {
        each((done.wr_id >> 32) as usize, done.wr_id & 0xffff_ffff);
    }
    Ok(count)
}

/// Whether requests carry their bytes themselves.
fn inlined(params: &Params) -> bool {
    params.mode == Mode::Lat
        && matches!(params.op, Op::Send | Op::Write)
        && params.size <= MAX_INLINE
}

/// QP and buffer in a completion's cookie.
const fn cookie(qp: usize, lane: u64) -> u64 {
    (qp as u64) << 32 | lane
}
