//! States and types of QPs.

use std::fmt;

/// State of a QP, with the values of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum QpState {
    /// As created: takes no work.
    #[default]
    Reset = 0,
    /// Takes receives, does nothing with them yet.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send, too.
    Rts = 3,
    /// Send queue drained: finishes what it began, begins nothing.
    Sqd = 4,
    /// The send queue met an error (not RC); receiving goes on.
    Sqe = 5,
    /// All work is flushed.
    Error = 6,
}

impl QpState {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Error,
    ];

    /// The state with this value.
    pub const fn from_value(value: u8) -> Option<Self> {
        if (value as usize) < Self::ALL.len() {
            Some(Self::ALL[value as usize])
        } else {
            None
        }
    }

    /// Whether `ibv_modify_qp(3)` may take a QP from here to `to`. SQE is entered by errors only;
    /// from RESET to ERR drivers disagree, and we refuse.
    pub const fn may_become(self, to: Self) -> bool {
        matches!(
            (self, to),
            (_, Self::Reset)
                | (
                    Self::Init | Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe | Self::Error,
                    Self::Error
                )
                | (Self::Reset | Self::Init, Self::Init)
                | (Self::Init, Self::Rtr)
                | (Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe, Self::Rts)
                | (Self::Rts | Self::Sqd, Self::Sqd)
        )
    }

    /// Whether sends may be posted (`ibv_post_send(3)`): in SQD they wait, in SQE and ERR they are
    /// flushed.
    pub const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Error)
    }

    /// Whether receives may be posted (`ibv_post_recv(3)`).
    pub const fn takes_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether packets of the peer are taken.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// Type of a QP, with the values of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection, over a shared connection where the peer knows them.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Over shared connections that the program manages itself: each request names its route.
    /// `IBV_QPT_DRIVER` to verbs.
    Src = 0xff,
}

impl QpType {
    /// The type with this value.
    pub const fn from_value(value: u8) -> Option<Self> {
        match value {
            2 => Some(Self::Rc),
            3 => Some(Self::Uc),
            4 => Some(Self::Ud),
            0xff => Some(Self::Src),
            _ => None,
        }
    }

    /// Whether every request is answered.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Src)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Src => "SRC",
        })
    }
}
