//! What a service that carries the QPs of a host's programs shares with these programs.
//!
//! The service makes each [`Segment`], a sealed memory file, and gives out [`Piece`]s of it, in
//! which rings lie.
//!
//! Both sides may be hostile to each other: names of pieces are judged, and the words of a piece
//! are atomics, which the other side may change at any time.
//!
//! The unsafe code of this crate is in [`segment`] and [`piece`]; every block says why it is sound.

#![deny(unsafe_code)]

pub mod piece;
pub mod pieces;
pub mod segment;

pub use piece::{Piece, PieceName, SegmentTable};
pub use pieces::Pieces;
pub use segment::Segment;
