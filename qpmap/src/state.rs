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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_transition_table_is_as_documented() {
        // Rows: from; columns: to; both in the order of ALL.
        let table = [
            "yes yes no  no  no  no  no ", // RESET
            "yes yes yes no  no  no  yes", // INIT
            "yes no  no  yes no  no  yes", // RTR
            "yes no  no  yes yes no  yes", // RTS
            "yes no  no  yes yes no  yes", // SQD
            "yes no  no  yes no  no  yes", // SQE
            "yes no  no  no  no  no  yes", // ERR
        ];
        for (from, row) in QpState::ALL.into_iter().zip(table) {
            let cells: Vec<_> = row.split_whitespace().collect();
            assert_eq!(cells.len(), QpState::ALL.len());
            for (to, cell) in QpState::ALL.into_iter().zip(cells) {
                assert_eq!(from.may_become(to), cell == "yes", "{from} -> {to}");
            }
        }
    }

    #[test]
    fn values_are_those_of_verbs_and_read_back() {
        for (value, state) in (0..).zip(QpState::ALL) {
            assert_eq!(
                (state as u8, QpState::from_value(value)),
                (value, Some(state))
            );
        }
        assert_eq!(QpState::from_value(7), None);
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Src] {
            assert_eq!(QpType::from_value(kind as u8), Some(kind));
        }
        assert_eq!((QpType::from_value(0), QpType::from_value(8)), (None, None));
    }

    #[test]
    fn work_is_taken_where_the_man_pages_say_so() {
        let taking = |predicate: fn(QpState) -> bool| {
            QpState::ALL
                .into_iter()
                .filter(|state| predicate(*state))
                .map(|state| state.to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(taking(QpState::takes_sends), "RTS SQD SQE ERR");
        assert_eq!(taking(QpState::takes_receives), "INIT RTR RTS SQD SQE ERR");
        assert_eq!(taking(QpState::receives), "RTR RTS SQD SQE");
    }
}
