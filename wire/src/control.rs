//! Entries of [`Opcode::SRC_CONTROL`](crate::Opcode::SRC_CONTROL): QPs come to a shared connection
//! and leave it. Big-endian, 20 bytes each.
//!
//! ```text
//! |   kind   |            source QP             |  0..4
//! |  epoch   |          destination QP          |  4..8
//! |                 generation                  |  8..12
//! |                   status                    |  12..16
//! |                    MSN                      |  16..20
//! ```

use crate::bytes::{entries, header, put, put_u24, u24_at, u32_at};
use crate::{Qpn, WireError};

/// What a control entry says.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ControlKind {
    /// Asks to bind the pair of QPs.
    Bind = 1,
    /// Agrees.
    Bound = 2,
    /// Does not, for the reason in the status.
    Refused = 3,
    /// The QP that says it is gone, or in error: its last word to the other QP.
    Unbind = 4,
}

impl ControlKind {
    /// From the byte on the wire.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Bind),
            2 => Some(Self::Bound),
            3 => Some(Self::Refused),
            4 => Some(Self::Unbind),
            _ => None,
        }
    }
}

/// A control entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Control {
    /// What it says.
    pub kind: ControlKind,
    /// QP of the node that says it.
    pub src_qp: Qpn,
    /// Replay epoch: of the sender of a BIND, of the BIND that is refused, or the last one that the
    /// sender of a BOUND has heard. In an UNBIND, the verdict on message `msn`:
    /// [`LEFT`](Self::LEFT), or coded as in an AETH, an acknowledgement where that message was not
    /// refused.
    pub replay_epoch: u8,
    /// QP of the other node.
    pub dest_qp: Qpn,
    /// Incarnation of the QP that asks, or is gone.
    pub generation: u32,
    /// Reason of a refusal; incarnation of the QP that agrees; in a BIND, that of the destination
    /// QP if something was begun with it, or 0; in an UNBIND, that of the destination QP whose BIND
    /// was taken, or 0.
    pub status: u32,
    /// In an UNBIND, the first message of the destination QP that was not executed. In a BIND, no
    /// message but the incarnation of the destination QP that has agreed to an earlier BIND, or 0;
    /// in a REFUSED, that of the BIND. Else 0.
    pub msn: u32,
}

header!(ControlView of Control, 20 bytes, "control", checked);

impl ControlView<'_> {
    /// Kind, not judged.
    pub const fn kind(self) -> u8 {
        self.0[0]
    }
}

impl Control {
    /// Verdict of an UNBIND: the QP has left in order, and refused nothing. As an AETH it would be
    /// an acknowledgement.
    pub const LEFT: u8 = 0x1e;

    /// Judges what the view shows.
    ///
    /// # Errors
    /// An unknown kind.
    #[inline]
    pub const fn parse(view: ControlView<'_>) -> Result<Self, WireError> {
        let Some(kind) = ControlKind::from_byte(view.kind()) else {
            let value = view.kind() as u32;
            return Err(WireError::Invalid {
                header: "control",
                field: "kind",
                value,
            });
        };
        Ok(Self {
            kind,
            src_qp: Qpn::from_wire(u24_at(view.0, 1)),
            replay_epoch: view.0[4],
            dest_qp: Qpn::from_wire(u24_at(view.0, 5)),
            generation: u32_at(view.0, 8),
            status: u32_at(view.0, 12),
            msn: u32_at(view.0, 16),
        })
    }

    /// The life of the sender's QP, where the entry says it; 0 is none.
    pub const fn sender_life(&self) -> Option<u32> {
        match self.kind {
            ControlKind::Bind | ControlKind::Unbind => Some(self.generation),
            ControlKind::Bound => Some(self.status),
            ControlKind::Refused => None,
        }
    }

    /// Writes the entry.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0] = self.kind as u8;
        put_u24(out, 1, self.src_qp.get());
        out[4] = self.replay_epoch;
        put_u24(out, 5, self.dest_qp.get());
        put(out, 8, self.generation.to_be_bytes());
        put(out, 12, self.status.to_be_bytes());
        put(out, 16, self.msn.to_be_bytes());
    }

    /// The entries of a payload, each judged by itself.
    ///
    /// # Errors
    /// The payload is not a whole number of entries.
    pub fn entries(
        payload: &[u8],
    ) -> Result<impl ExactSizeIterator<Item = Result<Self, WireError>>, WireError> {
        let entries = entries("control", payload)?;
        Ok(entries
            .iter()
            .map(|bytes| Self::parse(ControlView::new(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_map_says() {
        let control = Control {
            kind: ControlKind::Bind,
            src_qp: Qpn::from_wire(0x0002_0304),
            replay_epoch: 5,
            dest_qp: Qpn::from_wire(0x0006_0708),
            generation: 0x090a_0b0c,
            status: 0x0d0e_0f10,
            msn: 0x1112_1314,
        };
        assert_eq!(control.to_bytes(), core::array::from_fn(|i| i as u8 + 1));
    }

    #[test]
    fn unknown_kinds_and_parts_of_entries_are_refused() {
        for kind in 0..=255 {
            let mut bytes = [0; 20];
            bytes[0] = kind;
            assert_eq!(Control::read(&bytes).is_ok(), (1..=4).contains(&kind));
        }
        assert!(Control::entries(&[1; 21]).is_err());
        assert_eq!(
            Control::entries(&[1; 40]).expect("two whole entries").len(),
            2
        );
    }
}
