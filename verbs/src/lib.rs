//! A library in place of `libibverbs.so.1`: programs that were built for verbs run on Trunkline as
//! they are.
//!
//! `cargo xtask verbs` links it, with the names and versions that such programs import. What it
//! offers, and what it refuses, is in `docs/verbs.md`; why it is built like this, in ADR 31.
//!
//! | module | what it does |
//! | --- | --- |
//! | `abi` | structures of the header, with their layout |
//! | `answer` | results in the words of C, and the one table of error numbers |
//! | `object` | what pointers of programs lead to |
//! | `node`, `complaint` | the node of this program; why it cannot be had |
//! | `device`, `context` | devices and their opening |
//! | `event_queue`, `unacked`, `registry` | asynchronous events and who is told of them |
//! | `cq_events`, `look`, `channel` | events of CQs, and how they are waited for |
//! | `cancellation` | where threads that wait may be cancelled |
//! | `query`, `gid`, `pd`, `mr`, `cq`, ... | verbs by object |
//! | `datagrams`, `completion` | completions on their way to the program |
//! | `refused` | what is not offered |
//! | `private` | what drivers of other hardware import, so that they load |
//! | `note` | what tells this library from others |
//!
//! Functions that C calls have the contract of their manual page: pointers are those that this
//! library gave, or lead to what the page says.

mod abi;
mod ah;
mod answer;
mod cancellation;
mod channel;
mod complaint;
mod completion;
mod context;
mod cq;
mod cq_events;
mod cq_ex;
mod datagrams;
mod device;
mod event_queue;
mod gid;
mod interruption;
mod look;
mod maps;
mod marshal;
mod mr;
mod mw;
mod node;
mod note;
mod object;
mod pd;
mod post;
mod private;
mod qp;
mod qp_modify;
mod qp_steps;
mod query;
mod refused;
mod registry;
mod spin;
mod srq;
mod strings;
mod sysfs;
mod unacked;
mod wr;
