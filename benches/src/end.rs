//! A node with what its QPs need, and how two of them connect theirs.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use trunkline::{Access, Cq, Mr, Node, Pd, Qp, QpOptions, SendFlags, SendOp, SendWr};

/// Bytes of the region.
pub(crate) const REGION: usize = 64;
/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// One node.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) node: Node,
    pub(crate) pd: Pd,
    /// For sending and receiving.
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl End {
    /// With room for `depth` completions.
    pub(crate) fn new(node: Node, depth: u32) -> Result<Self> {
        let (pd, cq) = (node.alloc_pd(), node.create_cq(depth)?);
        let mr = pd.register(REGION, Access::ALL)?;
        Ok(Self { node, pd, cq, mr })
    }

    pub(crate) fn qp(&self, options: &QpOptions) -> Result<Qp> {
        Ok(self.pd.create_qp(&self.cq, &self.cq, options)?)
    }

    /// Posts a signalled SEND of 8 bytes.
    pub(crate) fn send(&self, qp: &Qp, wr_id: u64) -> Result<()> {
        let request = SendWr {
            wr_id,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            sges: &[self.mr.sge(0, 8)],
            inline: None,
            route: 0,
        };
        Ok(qp.post_send(&[request])?)
    }
}

/// Connects `count` pairs of new QPs, taking `turn`s until those of both ends may send.
pub(crate) fn connect_pairs(
    ends: &[End; 2],
    count: usize,
    mut turn: impl FnMut() -> Result<()>,
) -> Result<Vec<[Qp; 2]>> {
    let (options, [a, b]) = (QpOptions::default(), ends);
    let bound = || ends.each_ref().map(|end| end.node.counters().bound);
    let wanted = bound().map(|before| before + count as u64);
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let (qa, qb) = (a.qp(&options)?, b.qp(&options)?);
        qa.connect(qb.address())?;
        qb.connect(qa.address())?;
        pairs.push([qa, qb]);
    }
    let started = Instant::now();
    while bound() != wanted {
        turn()?;
        ensure!(started.elapsed() < PATIENCE, "QPs are not connected");
    }
    Ok(pairs)
}
