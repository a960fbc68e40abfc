//! Where an ID stands, as those see it who only watch.

use super::Id;

/// Where an ID stands. The numbers are part of the interface: watchers from outside the process get
/// them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum IdPhase {
    /// It is not there: not made, or given up.
    Gone = 0,
    /// Made; bound, if it has an address.
    Idle = 1,
    /// Takes peers' requests.
    Listening = 2,
    /// The way to the peer is known.
    Resolved = 3,
    /// The peer was asked.
    Connecting = 4,
    /// The peer has accepted; this end has to confirm.
    Responded = 5,
    /// A peer's request, to be decided on.
    Requested = 6,
    /// A peer's request that was accepted; the peer has to confirm.
    Accepted = 7,
    /// It stands.
    Established = 8,
    /// Of datagrams: the question was answered.
    Answered = 9,
    /// The peer was told that it ends.
    Disconnecting = 10,
    /// Over.
    Over = 11,
}

impl IdPhase {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Gone,
        Self::Idle,
        Self::Listening,
        Self::Resolved,
        Self::Connecting,
        Self::Responded,
        Self::Requested,
        Self::Accepted,
        Self::Established,
        Self::Answered,
        Self::Disconnecting,
        Self::Over,
    ];

    /// Its name, in words that go together.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Idle => "idle",
            Self::Listening => "listening",
            Self::Resolved => "resolved",
            Self::Connecting => "connecting",
            Self::Responded => "responded",
            Self::Requested => "requested",
            Self::Accepted => "accepted",
            Self::Established => "established",
            Self::Answered => "answered",
            Self::Disconnecting => "disconnecting",
            Self::Over => "over",
        }
    }
}

/// A change of state of an ID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IdStep {
    /// The ID.
    pub id: Id,
    /// Where it stood.
    pub from: IdPhase,
    /// Where it stands.
    pub to: IdPhase,
}

#[cfg(test)]
mod tests {
    use super::IdPhase;

    #[test]
    fn phases_stand_at_the_place_of_their_number() {
        for (place, phase) in IdPhase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, place);
        }
    }
}
