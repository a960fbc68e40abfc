//! Entries of [`Opcode::SRC_ANSWERS`](crate::Opcode::SRC_ANSWERS): what a node says to the requests
//! of its peer's QPs. Big-endian, 16 bytes each.
//!
//! ```text
//! |          QPN of the requester    | syndrome |  0..4
//! |                    MSN                      |  4..8
//! |      generation       |  epoch   | reserved |  8..12
//! |          QPN of the responder    | reserved |  12..16
//! ```

use crate::aeth::Syndrome;
use crate::bytes::{entries, header, put, put_u24, u16_at, u24_at, u32_at};
use crate::{Qpn, WireError};

/// An answer to one QP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// QP whose requests this is about.
    pub requester: Qpn,
    /// Verdict, coded as in an AETH.
    pub syndrome: Syndrome,
    /// First message not executed; for an RNR NAK or NAK the refused one.
    pub msn: u32,
    /// Incarnation of the binding, as in the requester's packets.
    pub generation: u16,
    /// Replay epoch of the requester that is answered.
    pub replay_epoch: u8,
    /// QP that answers: tells the flows of one requester apart.
    pub responder: Qpn,
}

header!(AnswerView of Answer, 16 bytes, "answer", checked);

impl AnswerView<'_> {
    /// QP whose requests this is about.
    pub const fn requester(self) -> Qpn {
        Qpn::from_wire(u24_at(self.0, 0))
    }

    /// Syndrome, not judged.
    pub const fn syndrome(self) -> u8 {
        self.0[3]
    }
}

impl Answer {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// A reserved type of syndrome.
    #[inline]
    pub const fn parse(view: AnswerView<'_>) -> Result<Self, WireError> {
        match Syndrome::from_byte(view.syndrome()) {
            Ok(syndrome) => Ok(Self {
                requester: view.requester(),
                syndrome,
                msn: u32_at(view.0, 4),
                generation: u16_at(view.0, 8),
                replay_epoch: view.0[10],
                responder: Qpn::from_wire(u24_at(view.0, 12)),
            }),
            Err(error) => Err(error),
        }
    }

    /// Writes the entry.
    ///
    /// # Panics
    /// See [`Syndrome::byte`].
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put_u24(out, 0, self.requester.get());
        out[3] = self.syndrome.byte();
        put(out, 4, self.msn.to_be_bytes());
        put(out, 8, self.generation.to_be_bytes());
        put(out, 10, [self.replay_epoch, 0]);
        put_u24(out, 12, self.responder.get());
        out[15] = 0;
    }

    /// The entries of a payload, each judged by itself.
    ///
    /// # Errors
    /// The payload is not a whole number of entries.
    pub fn entries(
        payload: &[u8],
    ) -> Result<impl ExactSizeIterator<Item = Result<Self, WireError>>, WireError> {
        let entries = entries("answer", payload)?;
        Ok(entries
            .iter()
            .map(|bytes| Self::parse(AnswerView::new(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aeth::NakCode;

    const NAK: Answer = Answer {
        requester: Qpn::from_wire(0x0001_0203),
        syndrome: Syndrome::Nak(NakCode::RemoteAccess),
        msn: 0x0405_0607,
        generation: 0x0809,
        replay_epoch: 0x0a,
        responder: Qpn::from_wire(0x000c_0d0e),
    };

    #[test]
    fn fields_stand_where_the_map_says() {
        let map = [
            1, 2, 3, 0x62, 4, 5, 6, 7, 8, 9, 0x0a, 0, 0x0c, 0x0d, 0x0e, 0,
        ];
        assert_eq!(NAK.to_bytes(), map);
    }

    #[test]
    fn one_bad_entry_leaves_the_others() {
        let mut payload = [0; 48];
        for place in payload.as_chunks_mut().0 {
            NAK.emit(place);
        }
        payload[19] = 0xff;
        let entries = Answer::entries(&payload).expect("three whole entries");
        assert_eq!(entries.len(), 3);
        assert!(entries.map(|entry| entry.is_ok()).eq([true, false, true]));
        assert!(Answer::entries(&payload[..47]).is_err());
        assert_eq!(
            Answer::entries(&[]).expect("none is a whole number").len(),
            0
        );
    }
}
