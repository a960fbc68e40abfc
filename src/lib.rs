//! Trunkline: a software RNIC in user space.
//!
//! A program's queue pair (QP) is a light channel between the program and its node; a small pool of
//! reliable connections per peer node carries all of them. On the wire it is RoCEv2.
//!
//! ```no_run
//! use std::time::Duration;
//! use trunkline::{Access, Node, QpOptions, SendWr};
//!
//! # fn program(peer: trunkline::QpAddress) -> Result<(), trunkline::Error> {
//! let node = Node::builder().address([127, 0, 0, 1].into()).build()?;
//! let pd = node.alloc_pd();
//! let cq = node.create_cq(64)?;
//! let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
//! let mr = pd.register(4096, Access::ALL)?;
//! qp.connect(peer)?; // the peer's QpAddress, by whatever way the two know each other
//! mr.write(0, b"hello")?;
//! qp.post_send(&[SendWr::send().wr_id(1).sges(&[mr.sge(0, 5)]).signaled()])?;
//! let done = cq.wait(Duration::from_secs(5))?; // None: nothing came in time
//! # Ok(())
//! # }
//! ```

mod attached;
mod error;
#[cfg(doctest)]
mod guides;
mod node;
mod observe;
mod platform;
mod pools;
pub mod rdma_cm;
pub mod service;
mod verbs;
mod worker;

pub use attached::{AttachOptions, Promotion};
pub use error::{Error, NoConnection};
pub use node::attributes::{AtomicCap, DeviceAttributes, LinkLayer, PortAttributes, PortState};
pub use node::life::{Down, Health};
pub use node::ports::{
    PortConflict, PortFamily, PortKind, PortRequest, PortSource, PortTrial, UnknownPort,
};
pub use node::state_bytes::StateBytes;
pub use node::{Builder, Drive, Node};
pub use observe::capture::CaptureState;
pub use observe::cm_counters::CmCounters;
pub use observe::status;
pub use pools::ConnectionState;
pub use trunkline_conn::control::CongestionControl;
pub use trunkline_conn::delivery::Counters as DeliveryCounters;
pub use trunkline_conn::host::QpEvent;
pub use trunkline_conn::mem::{Access, AtomicOp, PdId, Sge};
pub use trunkline_conn::time::{Instant, TICK_BITS, TICK_HZ};
pub use trunkline_conn::ud::GRH_LEN;
pub use trunkline_conn::work::{
    BindMw, Completion, Datagram, Extra, OwnOp, Remote, SendFlags, SendOp, Status, VendorError,
    WorkOpcode, inc_rkey,
};
pub use trunkline_dataplane::{
    Errno, InterfaceName, LinkOpenError, Port, PortCounters, PortError, UdpOpenError,
};
pub use trunkline_qpmap::cq::{CqOverflow, Notify};
pub use trunkline_qpmap::regions::MwType;
pub use trunkline_qpmap::wqe::{RecvWr, SendWr};
pub use trunkline_qpmap::{
    Allowed, Attributes, Changes, ConnId, ConnectionStats, Counters, CqId, LAST_WQE, LiveObjects,
    PostError, QpModify, QpState, QpType, SrqAttributes, SrqId, VerbsError,
};
pub use trunkline_wire::{Gid, Lkey, Psn, Qpn, Rkey, Workers};
pub use verbs::ah::{Ah, AhAttributes};
pub use verbs::connection::{Connection, ConnectionOptions};
pub use verbs::cq::{Cq, CqError};
pub use verbs::event::Event;
pub use verbs::mr::{Mr, Pd, Reregister};
pub use verbs::mw::{BindOptions, Mw};
pub use verbs::qp::{LookAhead, Qp, QpAddress, QpOptions};
pub use verbs::srq::Srq;
pub use worker::clock::Clock;
pub use worker::messages::HandOvers;
pub use worker::spin::Spin;
