//! Clusters of real Trunkline nodes on virtual time, from one seed.
//!
//! A run draws from its seed what the cluster is like, what its programs do and what goes wrong,
//! and holds every completion and every byte of registered memory to a plain model: exactly once,
//! in posting order, nothing reported before it is done, no QP harmed by what was done to another.
//! After a phase with faults everything is healed, and all that was posted has to end. Equal seeds
//! give equal runs, packet for packet.
//!
//! What goes wrong, each in a share of the seeds: packets are lost, doubled, reordered, delayed,
//! corrupted; management packets (to QP 1) on top of that, up to a fifth of them lost, and late by
//! more than a handshake waits for an answer; pairs of nodes are cut off from each other, nodes
//! restart, connections are closed, live QPs moved, QPs and regions taken away, requests are bad,
//! receives late, programs slow or silent. A node may end with a goodbye, or vanish.
//!
//! A node has up to three workers, another number at each start, that take turns in any order and
//! may get none for a while; packets come out at the port of the worker that they name, or at any.
//!
//! In a share of the seeds there is a node more, which lies in what it sends: of all that a peer
//! may say, in packets that are let in. Nothing is believed of what it brings about at those who
//! talk to it; all others must not notice, and nothing may be left of it once it is gone.
//!
//! No loss of management packets excuses a QP that fails, but one: the network, which knows what it
//! carried, finds that a node asked its peer as often as it does and that nothing that could answer
//! arrived in time ([`net`], `asks.rs`). In the calm at the end every QP that nothing was done to
//! must be connected, be it one that is made only then, and carry a request to each peer; the nodes
//! must agree on the connections between them, and none may have been confirmed twice.
//!
//! Some laws are about packets, and the network, which sees all of them, holds them ([`net`]):
//! others send a few packets over a connection while a request waits of a QP that had nothing to
//! send, where no connections end by themselves (`turns.rs`); what a receiver was not ready for
//! comes again when it said and not before, and fails when that message alone was refused as often
//! as its sender tries (`refusals.rs`).
//! What congestion marks do to a bottleneck is judged beside the cluster, with flows of the seed's
//! choice under control by delay ([`path`], `marks.rs`).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`run`] | one seed, from options to report |
//! | [`world`] | nodes, programs, events, time |
//! | [`net`] | the network between the nodes |
//! | [`path`] | connections over one bottleneck, with models of TCP beside them |
//! | [`state`] | what a node of a cluster keeps, beside other transports |
//! | [`output`] | where the commands put what they have found |

mod area;
mod channel;
mod chaos;
mod connect;
mod endpoint;
mod groups;
mod judge;
mod laws;
mod liar;
mod place;
mod plan;
mod poison;
mod post;
mod setup;
mod teardown;
mod words;

pub mod failure;
pub mod net;
pub mod options;
pub mod output;
pub mod path;
pub mod run;
pub mod state;
pub mod trace;
pub mod world;
