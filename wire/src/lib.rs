//! RoCEv2 on the wire: headers, the invariant CRC and management datagrams.
//!
//! Every header has a *view* (borrows an array of exactly its length, so accessors cannot fail)
//! and a *representation* (owned, only valid values), with the law `parse(emit(x)) == x`.
//!
//! The CRC comes from `crc32fast`; only when some crate of the program turns its `std` feature on
//! does it use the processor's instructions for it.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod ack;
mod aeth;
mod answer;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
mod bytes;
mod close;
mod cnp;
mod control;
mod crc;
mod deth;
mod error;
mod ext;
pub mod icrc;
mod id;
mod ieth;
mod imm_dt;
mod opcode;
mod path;
mod reth;
mod rnr;

pub use ack::AckPayload;
pub use aeth::{Aeth, AethView, NakCode, Syndrome};
pub use answer::{Answer, AnswerView};
pub use atomic_ack_eth::{AtomicAckEth, AtomicAckEthView};
pub use atomic_eth::{AtomicEth, AtomicEthView};
pub use bth::{Bth, BthView};
pub use close::{Close, CloseView};
pub use cnp::{Cnp, CnpView};
pub use control::{Control, ControlKind, ControlView};
pub use crc::Crc;
pub use deth::{Deth, DethView};
pub use error::WireError;
pub use ext::{SrcExt, SrcExtView};
pub use icrc::IcrcSeed;
pub use id::{Gid, Lkey, Psn, Qpn, Rkey};
pub use ieth::{Ieth, IethView};
pub use imm_dt::{ImmDt, ImmDtView};
pub use opcode::{Header, Headers, Opcode, Operation, Position, Transport};
pub use path::{Path, ROCE_PORT};
pub use reth::{Reth, RethView};
pub use rnr::rnr_timer_ns;
