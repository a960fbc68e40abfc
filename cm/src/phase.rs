//! Where handshakes and connections stand, as those see it who only watch.

use core::net::IpAddr;
use trunkline_wire::cm::CommId;

/// Where a handshake between nodes, or a connection or question of an ordinary host, stands. The
/// numbers are part of the interface: watchers from outside the process get them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Phase {
    /// It is not there: not begun, or forgotten.
    Gone = 0,
    /// A REQ of this end waits for its answer.
    ReqSent = 1,
    /// The peer agreed; this end has to confirm. Of ordinary hosts only.
    Replied = 2,
    /// The peer's REQ waits for this end's decision.
    ReqReceived = 3,
    /// This end agreed; the peer has to confirm.
    RepSent = 4,
    /// It stands.
    Established = 5,
    /// A DREQ of this end waits for its answer.
    DreqSent = 6,
    /// Closed, and remembered.
    TimeWait = 7,
    /// A SIDR_REQ of this end waits for its answer.
    SidrSent = 8,
    /// The peer's SIDR_REQ waits for this end's decision.
    SidrReqReceived = 9,
    /// The peer's SIDR_REQ was answered, and is remembered.
    SidrDone = 10,
}

impl Phase {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Gone,
        Self::ReqSent,
        Self::Replied,
        Self::ReqReceived,
        Self::RepSent,
        Self::Established,
        Self::DreqSent,
        Self::TimeWait,
        Self::SidrSent,
        Self::SidrReqReceived,
        Self::SidrDone,
    ];

    /// Its name, in words that go together.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::ReqSent => "req_sent",
            Self::Replied => "replied",
            Self::ReqReceived => "req_received",
            Self::RepSent => "rep_sent",
            Self::Established => "established",
            Self::DreqSent => "dreq_sent",
            Self::TimeWait => "time_wait",
            Self::SidrSent => "sidr_sent",
            Self::SidrReqReceived => "sidr_req_received",
            Self::SidrDone => "sidr_done",
        }
    }

    /// Whether it is on its way: somebody has to say something yet.
    pub const fn is_under_way(self) -> bool {
        !matches!(
            self,
            Self::Gone | Self::Established | Self::TimeWait | Self::SidrDone
        )
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Step {
    /// This end's number for it.
    pub id: CommId,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Where it stood.
    pub from: Phase,
    /// Where it stands. May be the same: asked anew.
    pub to: Phase,
}

#[cfg(test)]
mod tests {
    use super::Phase;

    #[test]
    fn phases_stand_at_the_place_of_their_number() {
        for (place, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, place);
        }
    }
}
