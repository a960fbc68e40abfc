//! RDMA-CM (rdma_cm(7)): connections by IP address and port, event by event or call by call.
//!
//! An [`EventChannel`] hands out the events of its [`CmId`]s. Each call of an ID is one of
//! librdmacm, and one command that the Linux kernel has for it. What librdmacm does on the side is
//! done here too: an ID with a QP of its own takes it through its states when the peer has
//! accepted. [`sync`] is the model in which each call waits for its event.
//!
//! ```text
//!   active                                      passive
//!     resolve_addr -> AddressResolved             bind, listen
//!     resolve_route -> RouteResolved
//!     create_qp, connect ---------------------->  ConnectRequest: a new ID
//!     Established  <----------------------------  create_qp, accept
//!                  ----------------------------> Established
//!     disconnect   ---------------------------->  Disconnected
//! ```

mod channel;
mod driver;
mod event;
mod id;
mod resolve;
pub mod sync;

pub use channel::EventChannel;
pub(crate) use channel::Ids;
pub(crate) use driver::CmDriver;
pub use event::{CmEvent, CmEventKind};
pub use id::CmId;
pub use resolve::ResolveError;
pub use trunkline_cm::Route;
pub use trunkline_cm::ib::{CloseReason, PathTerms};
pub use trunkline_cm::rdma::{
    Data, Error as CmError, Kind, Params, PeerParams, PortSpace, QpAttributes, Setting, UdPeer,
};
pub use trunkline_dataplane::RouteError;
pub use trunkline_wire::cm::{RejReason, SidrStatus};
