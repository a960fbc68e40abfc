//! Two ends and what lies between them, in virtual time.

extern crate std;

mod goodput;
mod hostile;
mod law;
mod link;
mod unit;
