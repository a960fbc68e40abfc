//! Reliable connections as sans-I/O state machines.
//!
//! Nothing here reads a clock, touches memory of a program, or sends a packet: time, memory and
//! packets are arguments. Two engines share the words of [`work`] and the memory trait of [`mem`]:
//! `rc`, the InfiniBand reliable connection (with `uc` and `ud` beside it), and `delivery`, that of
//! packets on connections that many QPs share.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod control;
mod dcqcn;
pub mod delivery;
pub mod egress;
pub mod host;
pub mod ingress;
pub mod mem;
pub mod observer;
pub mod rc;
pub mod secret;
pub mod time;
pub mod uc;
pub mod ud;
pub mod wheel;
pub mod work;
