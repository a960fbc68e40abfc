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
pub mod cm;
mod cnp;
mod control;
mod crc;
mod deth;
mod error;
mod eth;
mod ext;
mod frame;
pub mod icrc;
mod id;
mod ieth;
mod imm_dt;
mod ipv4;
mod ipv6;
pub mod law;
mod mad;
mod opcode;
mod packet;
mod path;
mod rdma_cm;
mod record;
mod reth;
mod rnr;
#[cfg(feature = "serde")]
mod serde;
mod sum;
mod udp;
mod workers;

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
pub use eth::{Eth, EthView, EtherType, Mac, Vlan, VlanView};
pub use ext::{MessageView, SrcExt, SrcExtPart, SrcExtView};
pub use frame::{Content, Frame, Ip, Roce};
pub use icrc::IcrcSeed;
pub use id::{Gid, Lkey, Psn, Qpn, Rkey, may_be_one_host};
pub use ieth::{Ieth, IethView};
pub use imm_dt::{ImmDt, ImmDtView};
pub use ipv4::{Ipv4, Ipv4View};
pub use ipv6::{Ipv6, Ipv6View};
pub use mad::{MAD_LEN, MadHeader, MadView};
pub use opcode::{Header, Headers, Opcode, Operation, Position, Transport};
pub use packet::{Packet, parse_datagram};
pub use path::{IpFields, Path, ROCE_PORT};
pub use rdma_cm::{Addresses, RdmaCmHeader, RdmaCmView, ServiceId};
pub use record::{PackedRecord, Record, RecordView, Records};
pub use reth::{Reth, RethView};
pub use rnr::rnr_timer_ns;
pub use sum::InternetSum;
pub use udp::{Udp, UdpView};
pub use workers::{Worker, Workers};
