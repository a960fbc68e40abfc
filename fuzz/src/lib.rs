//! Fuzz targets: one harness function each, which a fuzzer calls with bytes of its making and the
//! tests with those of `corpus/`. A harness returns nothing; what it finds is a panic.

pub mod connections;
pub mod delivery;
mod forge;
pub mod handshakes;
pub mod host;
pub mod input;
pub mod memory;
pub mod messages;
pub mod neighbours;
mod network;
pub mod nodes;
pub mod packet;
mod program;
pub mod rc;
mod requests;
pub mod rings;
pub mod soak;
pub mod transactions;
pub mod uc;
pub mod ud;
pub mod wire;

/// A harness: bytes in, panic when something is wrong.
pub type Target = fn(&[u8]);

/// Every target by the name of its file in `fuzz_targets/` and of its folder in `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("checksum", wire::checksum),
    ("connections", connections::connections),
    ("control", host::control),
    ("datagram", packet::datagram),
    ("delivery", delivery::delivery),
    ("frame", packet::frame),
    ("handshakes", handshakes::handshakes),
    ("headers", wire::headers),
    ("management", packet::management),
    ("neighbours", neighbours::neighbours),
    ("nodes", nodes::nodes),
    ("payloads", wire::payloads),
    ("pieces", host::pieces),
    ("reliable", rc::reliable),
    ("rings", rings::rings),
    ("rpc", messages::rpc),
    ("stream", messages::stream),
    ("transactions", transactions::transactions),
    ("uc", uc::uc),
    ("ud", ud::ud),
];
