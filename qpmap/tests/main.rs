//! Laws of engines, each held by two of them or more on a clock turned by hand.
//!
//! They are one program: each program of tests would build all of the engine once more.

mod common;

mod adoption;
mod apart;
mod backlog;
mod binding;
mod burst;
mod completions;
mod dormancy;
mod engine;
mod failover;
mod handshakes;
mod hostile;
mod ibta;
mod idle;
mod leaving;
mod leaving_lies;
mod lies;
mod lives;
mod look_ahead;
mod mtu;
mod order;
mod pace;
mod packs;
mod packs_end;
mod packs_hostile;
mod packs_paths;
mod packs_sizes;
mod refusals;
mod regions_gone;
mod replies;
mod requests;
mod rights;
mod room;
mod routes;
mod secrets;
mod srq;
mod steering;
mod tenants;
mod trace;
mod unreachable;
mod waiting;
mod watch;
