//! How far a flow is with the last word of its end.

/// Whether a flow still has to say that its end is gone or in error.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub(crate) enum Ending {
    /// Its QP lives.
    No,
    /// Its QP is in error, and the peer has to hear it.
    Due,
    /// That is on its way.
    Sent,
    /// The peer has heard it.
    Told,
    /// Its QP was destroyed or reset, and the flow is there only until the peer has heard it.
    LastDue,
    /// That is on its way.
    LastSent,
}

impl Ending {
    /// Whether the flow belongs to no QP any more.
    pub(crate) const fn is_last(self) -> bool {
        matches!(self, Self::LastDue | Self::LastSent)
    }

    /// Whether the peer has to be told.
    pub(crate) const fn is_due(self) -> bool {
        matches!(self, Self::Due | Self::LastDue)
    }

    /// Whether the peer does not know yet.
    pub(crate) const fn is_untold(self) -> bool {
        !matches!(self, Self::No | Self::Told)
    }

    /// It was said; the peer has not acknowledged it.
    pub(crate) const fn said(self) -> Self {
        match self {
            Self::Due => Self::Sent,
            Self::LastDue => Self::LastSent,
            other => other,
        }
    }

    /// What was said is lost.
    pub(crate) const fn lost(self) -> Self {
        match self {
            Self::Sent => Self::Due,
            Self::LastSent => Self::LastDue,
            other => other,
        }
    }
}
