//! Target `transactions`: the engine of shared connections against a peer that knows its tokens and
//! says whatever it likes.

mod node;
mod peer;

use crate::input::Input;
use node::Node;
use peer::Peer;

/// Operations of one run.
const MAX_OPERATIONS: usize = 1024;

/// Drives an engine by `data`: its program and its peer.
///
/// # Panics
/// When an invariant is broken: memory touched or told that the peer has no right to, a completion
/// out of order or twice, a packet sent that is none, something left over at the end.
pub fn transactions(data: &[u8]) {
    let mut input = Input::new(data);
    let mut node = Node::new(u64::from(input.byte()));
    let mut peer = Peer::new(&mut node, input.byte());
    input.drive(MAX_OPERATIONS, |input| {
        match input.byte() {
            op @ 0..128 => peer.step(&mut node, op, input),
            op => node.step(op & 127, input, &mut peer),
        }
        peer.hear(node.turn());
    });
    node.end();
}
