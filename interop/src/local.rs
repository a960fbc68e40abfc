//! Our end: a node with a QP, driven by a thread of its own.

use crate::faulty::Faulty;
use crate::station::{Done, MARGIN, Op, Post, Station, pattern};
use anyhow::{Context, Result, bail};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{
    Access, Ah, AhAttributes, AtomicOp, Attributes, Completion, Cq, Extra, Mr, Node, Pd, PortKind,
    Qp, QpAddress, QpModify, QpOptions, QpType, Qpn, RecvWr, Remote, SendFlags, SendOp, SendWr,
};
use trunkline_dataplane::fault::Faults;

/// Pause between looks at a completion queue.
const PAUSE: Duration = Duration::from_micros(100);
/// Seed of faults: a run repeats as far as the guest does.
const SEED: u64 = 1;

/// A node at `address` on that kind of port; its outgoing packets have `faults`, if any.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn node((address, port): (IpAddr, &PortKind), faults: Option<Faults>) -> Result<Node> {
    let builder = Node::builder().address(address);
    let Some(faults) = faults else {
        return Ok(builder.port(port.clone()).build()?);
    };
    let port = port.open_alone(address)?;
    Ok(builder.build_on(Box::new(Faulty::new(port, faults, SEED)))?)
}

/// One QP with its buffer.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) qp: Qp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    /// Where the datagrams of a UD QP go.
    to: Option<(Ah, Qpn, u32)>,
}

impl Local {
    /// A QP in RESET with a buffer of `size` bytes.
    pub(crate) fn new(node: &Node, kind: QpType, size: usize, depth: u32) -> Result<Self> {
        let pd = node.alloc_pd();
        let cq = node.create_cq(2 * depth + 16)?;
        let options = QpOptions {
            kind,
            max_send_wr: depth,
            max_recv_wr: depth,
            ..QpOptions::default()
        };
        let qp = pd.create_qp(&cq, &cq, &options)?;
        let mr = pd.register(size, Access::ALL)?;
        Ok(Self {
            qp,
            cq,
            mr,
            pd,
            to: None,
        })
    }

    /// Takes a UD QP to RTS, and lets it send to `peer`.
    pub(crate) fn ready(&mut self, peer: QpAddress, attributes: &Attributes) -> Result<()> {
        let attributes = Attributes {
            sq_psn: self.qp.address().psn,
            ..*attributes
        };
        let access = Access::LOCAL_READ;
        self.qp.modify(&QpModify::Init { access })?;
        self.qp.modify(&QpModify::Rtr(attributes))?;
        self.qp.modify(&QpModify::Rts(attributes))?;
        let ah = self.pd.create_ah(&AhAttributes {
            remote: peer.gid,
            traffic_class: attributes.traffic_class,
            ..AhAttributes::default()
        })?;
        self.to = Some((ah, peer.qpn, attributes.qkey));
        Ok(())
    }

    /// Another region of the same domain: its key may be invalidated without harm to the first.
    pub(crate) fn register(&self, length: usize) -> Result<Mr> {
        let access = Access::ALL | Access::REMOTE_INVALIDATE;
        Ok(self.pd.register(length, access)?)
    }

    /// Requests of connected QPs, or datagrams.
    fn operation(&self, post: &Post) -> Result<SendOp> {
        if let Some((ah, qpn, qkey)) = &self.to {
            return match post.op {
                Op::Send => Ok(ah.send(*qpn, *qkey)),
                Op::SendImm(imm) => Ok(ah.send_imm(*qpn, *qkey, imm)),
                other => bail!("{other:?} is no datagram"),
            };
        }
        Ok(match post.op {
            Op::Send => SendOp::Send,
            Op::SendImm(imm) => SendOp::SendImm(imm),
            Op::SendInvalidate(key) => SendOp::SendInvalidate(key),
            Op::Write => SendOp::Write(post.remote),
            Op::WriteImm(imm) => SendOp::WriteImm(post.remote, imm),
            Op::Read => SendOp::Read(post.remote),
            Op::CompareSwap { compare, swap } => {
                SendOp::Atomic(post.remote, AtomicOp::CompareSwap { compare, swap })
            }
            Op::FetchAdd { add } => SendOp::Atomic(post.remote, AtomicOp::FetchAdd { add }),
        })
    }
}

impl From<Completion> for Done {
    fn from(completion: Completion) -> Self {
        Self {
            wr_id: completion.wr_id,
            status: completion.status as u8,
            opcode: completion.opcode as u8,
            length: completion.byte_len,
            extra: match completion.extra {
                Extra::None => None,
                Extra::Immediate(imm) => Some(imm),
                Extra::Invalidated(key) => Some(key.0),
            },
            src_qp: completion.src_qp.get(),
        }
    }
}

impl Station for Local {
    fn name(&self) -> &'static str {
        "our end"
    }

    fn fill(&mut self, offset: usize, length: usize, seed: u64) -> Result<()> {
        let bytes: Vec<u8> = (0..length).map(|index| pattern(seed, index)).collect();
        Ok(self.mr.write(offset, &bytes)?)
    }

    fn check(&mut self, offset: usize, length: usize, seed: u64) -> Result<()> {
        let mut bytes = vec![0; length];
        self.mr.read(offset, &mut bytes)?;
        let wrong = |(index, byte): (usize, &u8)| *byte != pattern(seed, index);
        match bytes.iter().enumerate().position(wrong) {
            Some(index) => bail!("our end: byte {index} of {length} is wrong"),
            None => Ok(()),
        }
    }

    fn put(&mut self, offset: usize, value: u64) -> Result<()> {
        Ok(self.mr.write(offset, &value.to_ne_bytes())?)
    }

    fn get(&mut self, offset: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.mr.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn remote(&self, offset: usize) -> Remote {
        self.mr.remote(offset)
    }

    fn size(&self) -> usize {
        self.mr.len() - MARGIN
    }

    fn recv(&mut self, wr_id: u64, offset: usize, length: usize) -> Result<()> {
        let sges = [self.mr.sge(offset, length)];
        Ok(self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }])?)
    }

    fn post(&mut self, post: &Post) -> Result<()> {
        let sges = [self.mr.sge(post.offset, post.length)];
        let request = SendWr {
            wr_id: post.wr_id,
            op: self.operation(post)?,
            flags: SendFlags::SIGNALED.with(post.flags),
            sges: &sges,
            inline: None,
            route: 0,
        };
        self.qp
            .post_send(&[request])
            .with_context(|| format!("{:?}", post.op))
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<Done>> {
        let started = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll_one().expect("room in the CQ") {
                return Ok(Some(completion.into()));
            }
            if started.elapsed() >= limit {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
    }
}
