//! RoCEv2 on the wire: headers, the invariant CRC and management datagrams.
//!
//! Every header has a *view* (borrows an array of exactly its length, so accessors cannot fail)
//! and a *representation* (owned, only valid values), with the law `parse(emit(x)) == x`.
#![no_std]
#![forbid(unsafe_code)]

mod crc;
mod error;
mod id;
mod path;

pub use crc::Crc;
pub use error::WireError;
pub use id::{Gid, Lkey, Psn, Qpn, Rkey};
pub use path::{Path, ROCE_PORT};
