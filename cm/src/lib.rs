//! Connection management as sans-I/O state machines: how Trunkline nodes meet, and how their QPs
//! connect to those of ordinary hosts.
//!
//! The latter is in [`ib`], InfiniBand's communication manager, and [`rdma`], RDMA-CM on top of it.
//! [`Concerns`] says which manager a datagram is for. The rest of this page is about nodes.
//!
//! A node asks a peer once whether it is a Trunkline node: a REQ of IB communication management
//! to [`TRUNKLINE_SERVICE`], with a [`Hello`] in its private data. A Trunkline node answers REP and
//! the two share connections from then on; every other RoCEv2 host refuses with "invalid service
//! ID", and what is silent is silent.
//!
//! ```text
//!   opener                                             acceptor
//!     open --> ReqSent -------- REQ (Hello) ---------> ReqReceived --> Event::Incoming
//!                 |                                     | accept
//!     Established <----------- REP (HelloReply) ------ RepSent
//!                 `----------- RTU -------------------> Established
//!     close --> DreqSent ----- DREQ ------------------> TimeWait
//!     TimeWait <-------------- DREP -------------------'
//! ```
//!
//! [`NodeCm`] holds all handshakes of a node. It reads no clock and sends nothing: time and
//! datagrams are arguments, randomness comes from a [`Random`] that its owner supplies. After any
//! call drain [`NodeCm::poll_transmit`], then [`NodeCm::poll_event`], then look at
//! [`NodeCm::poll_timeout`] again. [`gsi`] wraps its datagrams for the wire.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod binds;
mod bytes;
mod comm_id;
mod concerns;
mod config;
mod credit;
mod directory;
mod event;
pub mod gsi;
mod handshakes;
mod hello;
pub mod ib;
mod identity;
mod message;
mod outbox;
mod phase;
mod places;
mod quote;
mod random;
pub mod rdma;
mod records;
mod refusal;
mod retry;
mod room;
mod setup;
mod shares;
mod slots;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use binds::{Bind, Binds, Bound, Bounds, Entry, Few};
pub use concerns::{At, Concerns};
pub use config::{Config, Limits};
pub use directory::{Directory, PeerMode};
pub use event::{CloseReason, Established, Event, HandshakeId, OpenError, Outgoing, Refused};
pub use event::{Role, Route, UnknownHandshake};
pub use handshakes::{Counters, Load, NodeCm};
pub use hello::{ConnectRequest, End, Hello, HelloError, HelloReply, Offer, Purpose, WINDOW_UNIT};
pub use identity::{Identity, IdentityError};
pub use phase::{Phase, Step};
pub use quote::Quote;
pub use random::Random;
pub use refusal::{Refusal, RefusalCode};
pub use retry::{Patience, Retry};

use trunkline_wire::ServiceId;

/// What a Trunkline node listens on: "trnkline" in ASCII.
///
/// The first byte of a service ID names who hands it out. 0x74 is none of the groups in use: IBTA
/// and RDMA-CM (0x00), IETF (0x01, 0x10), operating systems that pick one by themselves (0x02).
pub const TRUNKLINE_SERVICE: ServiceId = ServiceId(u64::from_be_bytes(*b"trnkline"));
