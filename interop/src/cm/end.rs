//! What each counterpart has: a node with a domain, a completion queue and a buffer.

use crate::local::node;
use crate::pair::Place;
use crate::station::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::sync::Resources;
use trunkline::rdma_cm::{CmEvent, CmEventKind, CmId, EventChannel, Kind, Params, PortSpace};
use trunkline::{
    Access, Completion, Cq, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendFlags, SendOp, SendWr, Status,
};

/// Bytes of the buffer.
const SIZE: usize = 1 << 20;

pub(crate) struct End {
    node: Node,
    pub(crate) pd: Pd,
    pub(crate) mr: Mr,
    pub(crate) channel: EventChannel,
    cq: Cq,
    place: Place,
}

/// What is connected and accepted with, unless something else is said.
pub(crate) fn params() -> Params<'static> {
    Params {
        responder_resources: 1,
        initiator_depth: 1,
        ..Params::default()
    }
}

impl End {
    pub(crate) fn new(place: Place) -> Result<Self> {
        let node = node(place.ours(), None)?;
        let pd = node.alloc_pd();
        Ok(Self {
            mr: pd.register(SIZE, Access::ALL)?,
            cq: node.create_cq(4096)?,
            channel: node.create_event_channel()?,
            pd,
            node,
            place,
        })
    }

    pub(crate) const fn node(&self) -> &Node {
        &self.node
    }

    /// What QPs are made with where calls wait.
    pub(crate) const fn resources<'a>(&'a self, options: &'a QpOptions) -> Resources<'a> {
        Resources {
            pd: &self.pd,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            options,
        }
    }

    /// A QP that no ID knows.
    pub(crate) fn bare_qp(&self, options: &QpOptions) -> Result<Qp> {
        Ok(self.pd.create_qp(&self.cq, &self.cq, options)?)
    }

    /// A QP of the ID's own.
    pub(crate) fn qp(&self, id: &CmId) -> Result<Qp> {
        let options = QpOptions::default();
        Ok(id.create_qp(&self.pd, &self.cq, &self.cq, &options)?)
    }

    /// The next event.
    pub(crate) fn event(&self) -> Result<CmEvent> {
        self.channel.get_event(PATIENCE).context("no event")
    }

    /// An ID that leads to the guest's port.
    pub(crate) fn resolved(&self, space: PortSpace, kind: Kind, port: u16) -> Result<CmId> {
        let id = self.channel.create_id(space, kind)?;
        id.resolve_addr((self.place.guest.address, port).into(), PATIENCE)?;
        let event = self.event()?;
        let kind = event.kind;
        ensure!(matches!(kind, CmEventKind::AddressResolved), "{kind:?}");
        id.resolve_route()?;
        let kind = self.event()?.kind;
        ensure!(matches!(kind, CmEventKind::RouteResolved), "{kind:?}");
        Ok(id)
    }

    /// A listener.
    pub(crate) fn listen(&self, space: PortSpace, kind: Kind, port: u16) -> Result<CmId> {
        let id = self.channel.create_id(space, kind)?;
        id.bind((self.place.address, port).into())?;
        id.listen(0)?;
        Ok(id)
    }

    /// Connects to the guest's port, where somebody listens soon; `prepare` gets each ID before.
    pub(crate) fn connect(
        &self,
        (space, kind, port): (PortSpace, Kind, u16),
        mut prepare: impl FnMut(&Qp) -> Result<()>,
    ) -> Result<(CmId, CmEventKind)> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let id = self.resolved(space, kind, port)?;
            prepare(&self.qp(&id)?)?;
            id.connect(&params())?;
            match self.event()?.kind {
                established @ CmEventKind::Established { .. } => return Ok((id, established)),
                other if Instant::now() > give_up => bail!("{other:?}"),
                CmEventKind::Rejected { .. } | CmEventKind::Unreachable { .. } => {}
                other => bail!("{other:?}"),
            }
            drop(id);
            self.drain()?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Takes what came of receives whose QP did not come about.
    fn drain(&self) -> Result<()> {
        while let Some(done) = self.cq.poll_one().expect("room in the CQ") {
            ensure!(done.status == Status::Flushed, "{done:?}");
        }
        Ok(())
    }

    /// Takes the next request and accepts it; `prepare` gets its QP before.
    pub(crate) fn accept(&self, prepare: impl FnOnce(&Qp) -> Result<()>) -> Result<CmId> {
        let event = self.event()?;
        ensure!(
            matches!(event.kind, CmEventKind::ConnectRequest { .. }),
            "{:?}",
            event.kind
        );
        prepare(&self.qp(&event.id)?)?;
        event.id.accept(&params())?;
        Ok(event.id)
    }

    /// Waits for the other end to confirm.
    pub(crate) fn established(&self) -> Result<()> {
        let kind = self.event()?.kind;
        ensure!(matches!(kind, CmEventKind::Established { .. }), "{kind:?}");
        Ok(())
    }

    /// Waits for the end of a connection.
    pub(crate) fn disconnected(&self) -> Result<CmId> {
        loop {
            let event = self.event()?;
            match event.kind {
                CmEventKind::Disconnected { .. } => return Ok(event.id),
                CmEventKind::TimewaitExit => {}
                other => bail!("{other:?}"),
            }
        }
    }

    pub(crate) fn receive(&self, qp: &Qp, wr_id: u64, offset: usize, length: usize) -> Result<()> {
        let sges = [self.mr.sge(offset, length)];
        Ok(qp.post_recv(&[RecvWr { wr_id, sges: &sges }])?)
    }

    pub(crate) fn post(&self, qp: &Qp, op: SendOp, offset: usize, length: usize) -> Result<()> {
        let request = SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            sges: &[self.mr.sge(offset, length)],
            inline: None,
            route: 0,
        };
        Ok(qp.post_send(&[request])?)
    }

    /// The next completion, a good one.
    pub(crate) fn done(&self) -> Result<Completion> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(done) = self.cq.poll_one().expect("room in the CQ") {
                ensure!(done.status == Status::Success, "{done:?}");
                return Ok(done);
            }
            ensure!(Instant::now() < give_up, "no completion");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// `count` completions.
    pub(crate) fn all_done(&self, count: usize) -> Result<Vec<Completion>> {
        (0..count).map(|_| self.done()).collect()
    }
}
