//! Two ends and what lies between them, in virtual time.

extern crate std;

mod acks;
mod bottleneck;
mod flight;
mod goodput;
mod hostile;
mod law;
mod lies;
mod link;
mod mtu;
mod path;
mod turnaround;
mod unit;
