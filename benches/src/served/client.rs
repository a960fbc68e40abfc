//! Programs of a service, each a process: what they do, and the QPs that they do it with.

use super::{calls, idle, streams, victims};
use crate::process::Parent;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::ptr::NonNull;
use std::time::Duration;
use trunkline::{
    Access, AttachOptions, Completion, Cq, Mr, Node, Pd, Promotion, Qp, QpAddress, QpOptions,
    Remote, Rkey, Status,
};

/// Arguments of a program of a service.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Where it attaches.
    #[arg(long)]
    socket: String,
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Has connected QPs on which nothing happens.
    Idle(idle::IdleArgs),
    /// Writes as fast as it can.
    Writer(Shape),
    /// Is written to.
    Target(Shape),
    /// Sends until it is killed.
    Victim,
    /// Sends to itself until it is killed, and uses no service.
    Stranger,
    /// Connects QPs that go at once, and ends.
    Churn,
    /// Receives of one victim after another.
    Witness,
    /// Measures round trips.
    Ping,
    /// Answers.
    Pong,
}

/// What a program has.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Shape {
    /// QPs.
    #[arg(long)]
    pub(super) qps: usize,
    /// Requests under way on each.
    #[arg(long)]
    pub(super) depth: usize,
    /// Bytes of a message.
    #[arg(long)]
    pub(super) size: usize,
    /// Where its memory is.
    #[arg(long, value_enum)]
    pub(super) memory: Memory,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Memory {
    /// In a segment that the program shares with the service.
    Segment,
    /// In the program's own heap, which becomes shared while it is registered.
    Promoted,
    /// In the program's own heap, which stays as it is.
    Heap,
}

impl Memory {
    /// The word on the command line.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Promoted => "promoted",
            Self::Heap => "heap",
        }
    }

    /// Whether memory of the heap becomes shared.
    const fn promotion(self) -> Promotion {
        match self {
            Self::Segment | Self::Heap => Promotion::Never,
            Self::Promoted => Promotion::Always,
        }
    }
}

/// What a program of a service does.
///
/// # Errors
/// Whatever went wrong.
pub fn part(arguments: &ClientArgs) -> Result<()> {
    let parent = Parent::new();
    let socket = arguments.socket.as_str();
    match arguments.role {
        Role::Idle(ref idle) => idle::part(&parent, socket, idle),
        Role::Writer(shape) => streams::write(&parent, socket, shape),
        Role::Target(shape) => streams::be_written(&parent, socket, shape),
        Role::Victim => victims::victim(&parent, socket),
        Role::Stranger => victims::stranger(&parent),
        Role::Churn => victims::churn(socket),
        Role::Witness => victims::witness(&parent, socket),
        Role::Ping => calls::ping(&parent, socket),
        Role::Pong => calls::pong(&parent, socket),
    }
}

/// How QPs are reached, and memory.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Addresses {
    pub(super) qps: Vec<QpAddress>,
    addr: u64,
    rkey: u32,
}

impl Addresses {
    /// The memory from `offset` on.
    pub(super) const fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset as u64),
            rkey: Rkey(self.rkey),
        }
    }
}

/// A node, its QPs, and memory with room for one message of each request under way of one QP.
pub(super) struct End {
    pub(super) cq: Cq,
    pub(super) qps: Vec<Qp>,
    pub(super) mr: Mr,
    pub(super) shape: Shape,
    pd: Pd,
    node: Node,
}

impl End {
    /// Attaches, and makes them.
    ///
    /// # Errors
    /// No service, or one that refuses.
    pub(super) fn open(socket: &str, shape: Shape) -> Result<Self> {
        let promotion = shape.memory.promotion();
        let node = Node::attach_with(socket, &AttachOptions { promotion })?;
        let pd = node.alloc_pd();
        // Requests and receives of all QPs.
        let cq = node.create_cq((2 * shape.qps.max(1) * shape.depth) as u32)?;
        let length = shape.size * shape.depth;
        let mr = match shape.memory {
            Memory::Segment => pd.register(length, Access::ALL)?,
            Memory::Promoted | Memory::Heap => register_heap(&pd, length)?,
        };
        // Of the heap whole pages only.
        let (is_shared, wanted) = (mr.shared_len() != 0, shape.memory != Memory::Heap);
        ensure!(
            is_shared == wanted,
            "shared memory: {is_shared}, not {wanted}"
        );
        let mut end = Self {
            cq,
            qps: Vec::new(),
            mr,
            shape,
            pd,
            node,
        };
        for _ in 0..shape.qps {
            end.add_qp()?;
        }
        Ok(end)
    }

    /// Makes one QP more.
    ///
    /// # Errors
    /// The service refuses.
    pub(super) fn add_qp(&mut self) -> Result<()> {
        let options = QpOptions {
            max_send_wr: self.shape.depth as u32,
            max_recv_wr: self.shape.depth as u32,
            ..QpOptions::default()
        };
        let qp = self.pd.create_qp(&self.cq, &self.cq, &options)?;
        self.qps.push(qp);
        Ok(())
    }

    /// Workers of the node.
    pub(super) fn workers(&self) -> u8 {
        self.node.workers().count()
    }

    /// Takes the events that wait: a service keeps them for who does not.
    pub(super) fn take_events(&self) {
        while self.node.poll_event().is_some() {}
    }

    /// How others reach them.
    pub(super) fn addresses(&self) -> Addresses {
        Addresses {
            qps: self.qps.iter().map(Qp::address).collect(),
            addr: self.mr.addr(),
            rkey: self.mr.rkey().0,
        }
    }

    /// Connects each QP to its like at the other end.
    ///
    /// # Errors
    /// The other end has fewer, or the service refuses.
    pub(super) fn connect(&self, others: &Addresses) -> Result<()> {
        ensure!(self.qps.len() == others.qps.len(), "the ends differ");
        for (qp, peer) in self.qps.iter().zip(&others.qps) {
            qp.connect(*peer)?;
        }
        Ok(())
    }

    /// Completions, of which the first may take as long as `patience`; none: it took longer.
    ///
    /// # Errors
    /// The service is gone, or the CQ overran.
    pub(super) fn completions<'a>(
        &self,
        found: &'a mut [Completion],
        patience: Duration,
    ) -> Result<&'a [Completion]> {
        let mut count = self.cq.poll(found)?;
        if count == 0
            && let Some(first) = self.cq.wait(patience)?
        {
            found[0] = first;
            count = 1 + self.cq.poll(&mut found[1..])?;
        }
        Ok(&found[..count])
    }
}

/// # Errors
/// A request that failed.
pub(super) fn check(done: &Completion) -> Result<()> {
    ensure!(done.status == Status::Success, "a request: {done:?}");
    Ok(())
}

/// Registers memory of the heap, which stays allocated until the process ends.
fn register_heap(pd: &Pd, length: usize) -> Result<Mr> {
    let bytes: &'static mut [u8] = Box::leak(vec![1; length].into_boxed_slice());
    let address = NonNull::new(bytes.as_mut_ptr()).context("an address")?;
    // SAFETY: the bytes are leaked, so they stay mapped, and nobody has a reference to them.
    Ok(unsafe { pd.register_foreign(address, length, Access::ALL)? })
}
