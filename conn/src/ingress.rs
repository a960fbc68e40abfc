//! What a port says of a packet that arrived.

use trunkline_wire::Path;

/// How a packet came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arrival {
    /// From (`src`, `src_port`) to (`dst`).
    pub path: Path,
    /// IPv4 identification, which the ICRC covers.
    pub identification: Identification,
    /// A switch marked it: congestion experienced.
    pub ce: bool,
    /// Time it lay in the machine before it was handed over, in ns, where the port can tell; else
    /// 0. Not the network's doing: round trips are measured without it.
    pub waited_ns: u32,
}

/// IPv4 identification of a packet, as far as its port can tell. Meaningless over IPv6.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Identification {
    /// Read from the packet.
    Seen(u16),
    /// What a sender on a plain UDP socket would have put there.
    Predicted(u16),
}

impl Identification {
    /// The value to try first.
    pub const fn guess(self) -> u16 {
        match self {
            Self::Seen(value) | Self::Predicted(value) => value,
        }
    }
}
