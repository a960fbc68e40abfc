//! What the engine is built on in this process: regions of its own memory, rings on its heap.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use trunkline_dataplane::Region;
use trunkline_qpmap::Platform;

/// Memory of rings in the program itself.
pub type Heap = Arc<[AtomicU64]>;

/// A node inside the program.
#[derive(Debug)]
pub struct Embedded;

impl Platform for Embedded {
    type RegionMemory = Region;
    type RingMemory = Heap;
}
