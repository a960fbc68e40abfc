//! What a program asks for, once it is attached.

mod completions;
mod memory;
mod names;
mod queues;

use super::client::Client;
use super::events::Owners;
use super::limits::Limits;
use super::reply::{Refusal, Reply};
use crate::node::Node;
use crate::node::attributes::{AtomicCap, PortState};
use crate::node::shared::Shared;
use std::sync::Arc;
use trunkline_host::Piece;
use trunkline_host::control::answers::{
    DeviceQueried, Done, EventsWatched, PortQueried, RingGiven,
};
use trunkline_host::control::attributes::{PortState as Told, RingKind};
use trunkline_host::control::requests::{RequestRing, WatchEvents};
use trunkline_host::control::{Request, Text};
use trunkline_host::handles::TableFull;
use trunkline_qpmap::VerbsError;

/// A request is answered or refused.
type Answered = Result<Reply, Refusal>;

/// What the requests of one program are answered with.
pub(super) struct Desk<'a> {
    pub(super) node: &'a Node,
    pub(super) limits: &'a Limits,
    pub(super) owners: &'a mut Owners,
    pub(super) client: &'a mut Client,
    /// What the service calls the program.
    pub(super) token: u64,
}

impl Desk<'_> {
    /// Does what a program asks for. `None`: an attached program must not send this.
    pub(super) fn answer(&mut self, request: &Request) -> Option<Answered> {
        Some(match request {
            Request::Hello(_) | Request::Hold(_) | Request::Detach(_) => return None,
            Request::AllocPd(_) => self.alloc_pd(),
            Request::DeallocPd(request) => self.dealloc_pd(request.pd),
            Request::CheckPeer(request) => self.check_peer(request.remote),
            Request::CreateCq(request) => self.create_cq(request.depth),
            Request::ResizeCq(request) => self.resize_cq(request.cq, request.depth),
            Request::DestroyCq(request) => self.destroy_cq(request.cq),
            Request::CreateSrq(request) => self.create_srq(request),
            Request::ModifySrq(request) => self.modify_srq(request),
            Request::QuerySrq(request) => self.query_srq(request.srq),
            Request::DestroySrq(request) => self.destroy_srq(request.srq),
            Request::CreateQp(request) => self.create_qp(request),
            Request::ModifyQp(request) => self.modify_qp(request),
            Request::QueryQp(request) => self.query_qp(request.qp),
            Request::DestroyQp(request) => self.destroy_qp(request.qp),
            Request::AllocMemory(request) => self.alloc_memory(request.words),
            Request::FreeMemory(request) => self.free_memory(request.memory),
            Request::LendMemory(request) => self.lend_memory(request.bytes),
            Request::ReturnMemory(request) => self.return_memory(request.lent),
            Request::OpenUserfault(_) => self.open_userfault(),
            Request::RegisterMr(request) => self.register_mr(request),
            Request::ReregisterMr(request) => self.reregister_mr(request),
            Request::DeregisterMr(request) => self.deregister_mr(request.mr, request.unbind),
            Request::AllocMw(request) => self.alloc_mw(request.pd, request.kind),
            Request::DeallocMw(request) => self.dealloc_mw(request.mw),
            Request::RequestRing(request) => self.request_ring(request),
            Request::WatchEvents(request) => self.watch_events(request),
            Request::TakeEvent(_) => Ok(self.client.events.take().into()),
            Request::QueryDevice(_) => self.query_device(),
            Request::QueryPort(_) => self.query_port(),
        })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.node.shared
    }

    fn request_ring(&mut self, request: &RequestRing) -> Answered {
        let worker = request.worker;
        let object = || request.object.ok_or_else(|| Refusal::unknown("object"));
        let piece = match request.ring {
            RingKind::Doorbells => return self.doorbells(worker),
            RingKind::Send => self.send_ring(object()?)?,
            RingKind::Receive => self.receive_ring(object()?)?,
            RingKind::Shared => self.shared_ring(object()?)?,
            RingKind::CompletionHeader => self.completion_header(object()?, worker)?,
            RingKind::Completions => self.completions(object()?, worker)?,
        };
        Ok(self.given(&piece))
    }

    fn given(&self, piece: &Piece) -> Reply {
        let given = |piece, new_segment| RingGiven { piece, new_segment };
        self.client.belongings.name(piece, given)
    }

    fn doorbells(&mut self, worker: u8) -> Answered {
        let all = &mut self.client.belongings;
        let (piece, wake) = all.bells.at(&self.node.shared, worker, &all.pieces)?;
        let (piece, wake) = (Arc::clone(piece), Arc::clone(wake));
        Ok(Reply {
            descriptor: Some(wake),
            ..self.given(&piece)
        })
    }

    fn watch_events(&self, request: &WatchEvents) -> Answered {
        let descriptor = match request.cq {
            Some(cq) => self.cq(cq)?.watched()?,
            None => Arc::clone(self.client.events.waited()),
        };
        Ok(Reply {
            descriptor: Some(descriptor),
            ..EventsWatched {}.into()
        })
    }

    fn query_device(&self) -> Answered {
        let device = self.node.device_attributes()?;
        let limits = self.limits;
        let max_qp = device.max_qp.min(limits.qps).min(limits.qps_per_user);
        let max_cq = limits.cqs.min(limits.cqs_per_user);
        let max_mr = limits.mrs.min(limits.mrs_per_user);
        let registered = limits.registered_bytes;
        let registered = registered.min(limits.registered_bytes_per_user);
        Ok(DeviceQueried {
            fw_ver: Text::clipped(device.fw_ver),
            node_guid: device.node_guid,
            gid: self.node.gid(),
            max_mr_size: device.max_mr_size.min(registered),
            page_size_cap: device.page_size_cap,
            max_qp,
            max_qp_wr: device.max_qp_wr,
            max_sge: device.max_sge,
            max_inline: device.max_inline,
            max_cq: device.max_cq.min(max_cq),
            max_cqe: device.max_cqe.min(limits.cqe),
            max_mr: device.max_mr.min(max_mr),
            max_pd: device.max_pd.min(max_mr),
            max_qp_rd_atom: device.max_qp_rd_atom,
            max_qp_init_rd_atom: device.max_qp_init_rd_atom,
            max_res_rd_atom: u64::from(max_qp) * u64::from(device.max_qp_rd_atom),
            atomic_cap: AtomicCap::Hca as u8,
            max_srq: device.max_srq.min(max_cq),
            max_srq_wr: device.max_srq_wr,
            max_srq_sge: device.max_srq_sge,
            max_pkeys: device.max_pkeys,
        }
        .into())
    }

    fn query_port(&self) -> Answered {
        let port = self.node.port_attributes()?;
        Ok(PortQueried {
            state: match port.state {
                PortState::Down => Told::Down,
                PortState::Active => Told::Active,
            },
            max_mtu: port.max_mtu,
            active_mtu: port.active_mtu,
            gid_tbl_len: port.gid_tbl_len,
            max_msg_sz: port.max_msg_sz,
            pkey_tbl_len: port.pkey_tbl_len,
            rate_mbps: port.rate_mbps,
            active_speed: port.active_speed,
            active_width: port.active_width,
        }
        .into())
    }
}

/// The refusal to destroy what others need.
fn busy(what: &'static str) -> Refusal {
    VerbsError::Busy { what, users: 1 }.into()
}

/// An answer that tells nothing.
fn done() -> Answered {
    Ok(Done {}.into())
}

/// The refusal of one object more than a program may have.
fn full(what: &'static str) -> impl Fn(TableFull) -> Refusal {
    move |full| (what, full).into()
}

/// The entry of that name in a table.
macro_rules! entry {
    ($table:expr, $handle:expr, $what:literal) => {{
        let found = $table.get($handle);
        found.ok_or_else(|| $crate::service::reply::Refusal::unknown($what))
    }};
    (mut $table:expr, $handle:expr, $what:literal) => {{
        let found = $table.get_mut($handle);
        found.ok_or_else(|| $crate::service::reply::Refusal::unknown($what))
    }};
}

use entry;
