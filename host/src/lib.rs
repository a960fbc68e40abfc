//! What a service that carries the QPs of a host's programs shares with these programs.
//!
//! The service makes each [`Segment`], a sealed memory file, and gives out [`Piece`]s of it, in
//! which rings lie. Programs ask for objects by [control messages](control) over a
//! [socket], and name them by [handles].
//!
//! Both sides may be hostile to each other: whatever comes over the socket is parsed once and
//! refused with a typed error, and the words of a piece are atomics, which the other side may
//! change at any time.
//!
//! The unsafe code of this crate is in [`segment`], [`piece`], [`socket`] and `words`; every block
//! says why it is sound.

#![deny(unsafe_code)]

pub mod budget;
pub mod closer;
pub mod control;
mod free;
pub mod handles;
pub mod lent;
pub mod piece;
pub mod pieces;
pub mod segment;
pub mod socket;
pub mod wake;
mod words;

pub use budget::{Budget, Share};
pub use closer::Closer;
pub use handles::{Handle, Table};
pub use lent::Lent;
pub use piece::{Piece, PieceName, SegmentTable};
pub use pieces::Pieces;
pub use segment::Segment;
pub use wake::{Signal, WakeSet};
pub use words::Words;
