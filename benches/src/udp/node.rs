//! A node with one QP at one end of a link.

use crate::process::{Parent, SILENCE};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{
    Access, Completion, Cq, Drive, Mr, Node, Pd, Psn, Qp, QpAddress, QpOptions, Qpn, Remote, Rkey,
    Status,
};

/// What the two ends tell each other, out of band.
#[derive(Debug, Deserialize, Serialize)]
struct Hello {
    address: IpAddr,
    qpn: u32,
    psn: u32,
    memory: u64,
    rkey: u32,
    /// Where it listens for TCP.
    tcp: u16,
}

/// A node, driven by this thread, with one connected QP.
pub(super) struct End {
    pub(super) node: Node,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) qp: Qp,
    pub(super) mr: Mr,
    /// The other end's memory.
    pub(super) remote: Remote,
    /// Where the other end listens for TCP.
    pub(super) tcp: u16,
    peer: IpAddr,
    _pd: Pd,
}

impl End {
    /// Opens a node on `address` with `bytes` of memory, and connects its QP to the other end.
    /// `tcp` is where this end listens.
    pub(super) fn open(parent: &Parent, address: IpAddr, bytes: usize, tcp: u16) -> Result<Self> {
        let node = Node::builder()
            .address(address)
            .drive(Drive::Inline)
            .pool(1)
            .build()?;
        let pd = node.alloc_pd();
        let (send_cq, recv_cq) = (node.create_cq(256)?, node.create_cq(256)?);
        let qp = pd.create_qp(&send_cq, &recv_cq, &QpOptions::default())?;
        let mr = pd.register(bytes, Access::ALL)?;
        let mine = Hello {
            address,
            qpn: qp.qpn().get(),
            psn: qp.address().psn.get(),
            memory: mr.addr(),
            rkey: mr.rkey().0,
            tcp,
        };
        let theirs = parent.exchange(&mine)?;
        qp.connect(QpAddress {
            gid: theirs.address.into(),
            qpn: Qpn::from_wire(theirs.qpn),
            psn: Psn::from_wire(theirs.psn),
        })?;
        let remote = Remote {
            addr: theirs.memory,
            rkey: Rkey(theirs.rkey),
        };
        Ok(Self {
            node,
            send_cq,
            recv_cq,
            qp,
            mr,
            remote,
            tcp: theirs.tcp,
            peer: theirs.address,
            _pd: pd,
        })
    }

    /// Drives the node for a while, so that both ends are quiet afterwards.
    pub(super) fn settle(&self, while_: Duration) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < while_ {
            self.node.poll()?;
        }
        Ok(())
    }

    /// Says on standard error what node, port and connections counted.
    pub(super) fn print_counters(&self, role: &str) {
        for (name, count) in self.node.counters().named().filter(|(_, count)| *count > 0) {
            eprintln!("{role}: {name} {count}");
        }
        eprintln!("{role}: {:?}", self.node.port_counters());
        for connection in self.node.connections(self.peer) {
            eprintln!("{role}: {:?}", connection.stats());
        }
    }

    /// Takes completions of requests; gives how many.
    pub(super) fn take_sent(&self) -> Result<usize> {
        let mut done = [Completion::BLANK; 16];
        let got = self.send_cq.poll(&mut done).expect("room in the CQ");
        for completion in &done[..got] {
            ensure!(
                completion.status == Status::Success,
                "a request: {:?}",
                completion.status
            );
        }
        Ok(got)
    }
}

/// Ends loops in which nothing moves.
#[derive(Debug)]
pub(super) struct Watch(Instant);

impl Watch {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Something moved.
    pub(super) fn moved(&mut self) {
        self.0 = Instant::now();
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.0.elapsed() < SILENCE, "nothing moved for {SILENCE:?}");
        Ok(())
    }
}
