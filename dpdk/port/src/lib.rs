//! Ports of Trunkline whose frames DPDK carries, with any of its drivers: cards without the kernel,
//! interfaces of the kernel, shared memory between processes.
//!
//! [`Family`] makes texts like `dpdk:net_memif0,role=server` known to programs
//! ([`PortKind::add_family`](trunkline::PortKind::add_family)); [`DpdkSpec`] is what such a text
//! says. Under each port is a [`DpdkDevice`], which has a queue of its own; what is in the frames
//! is the business of [`LinkPort`](trunkline_dataplane::LinkPort).
//!
//! # What a process shares
//! DPDK has one environment per process (`trunkline_dpdk_eal`), which the first port sets up. It
//! takes huge pages where there are some, and does without else.

mod address;
mod caller;
mod descriptors;
mod device;
mod error;
mod family;
mod kernel;
mod leak;
mod memif;
mod open;
mod port;
mod ring;
mod size;
mod spec;
#[cfg(test)]
mod tests;

pub use device::DpdkDevice;
pub use error::DpdkOpenError;
pub use family::Family;
pub use spec::{DeviceSpec, DpdkSpec, Driver, SpecError};
pub use trunkline_dpdk_eal::EalError;
