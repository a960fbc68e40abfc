//! Cutting messages into packets (IBTA Vol 1, 9.4 and 9.2.1), for connections of both kinds.

use crate::work::SendOp;
use trunkline_wire::{Opcode, Position, Psn};

/// PSNs that may be outstanding: half the circle (IBTA Vol 1, 9.7.2).
pub(crate) const MAX_OUTSTANDING: u32 = 1 << 23;

/// Packets that steps from `from` to `to` on the PSN circle.
pub(crate) const fn distance(from: Psn, to: Psn) -> u32 {
    Psn::from_wire(to.get().wrapping_sub(from.get())).get()
}

/// Packets of a message of `length` bytes, at least 1.
pub(crate) const fn packets(length: u32, mtu: u32) -> u32 {
    if length == 0 { 1 } else { length.div_ceil(mtu) }
}

/// Packet `index` of a message: its offset and length.
pub(crate) const fn part(length: u32, mtu: u32, index: u32) -> (u32, u32) {
    let offset = index * mtu;
    let rest = length - offset;
    (offset, if rest < mtu { rest } else { mtu })
}

/// Packet `index` of `count`.
pub(crate) const fn position(index: u32, count: u32) -> Position {
    match (index == 0, index + 1 == count) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Pad bytes behind a payload.
pub(crate) const fn pad(length: usize) -> u8 {
    (length.wrapping_neg() & 3) as u8
}

/// The transport's three high bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Family {
    Rc = 0,
    Uc = 0x20,
}

/// Opcode of a packet of a SEND or WRITE. READ and atomic requests are always the only packet, and
/// connections refuse datagrams, and what sends nothing, when they are posted.
pub(crate) const fn opcode(family: Family, op: &SendOp, position: Position) -> Opcode {
    use crate::mem::AtomicOp;
    let opcode = match (op, position) {
        (SendOp::SendTo(_) | SendOp::Own(_), _) => Opcode::UD_SEND_ONLY,
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_), Position::First) => {
            Opcode::RC_SEND_FIRST
        }
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_), Position::Middle) => {
            Opcode::RC_SEND_MIDDLE
        }
        (SendOp::Send, Position::Last) => Opcode::RC_SEND_LAST,
        (SendOp::Send, Position::Only) => Opcode::RC_SEND_ONLY,
        (SendOp::SendImm(_), Position::Last) => Opcode::RC_SEND_LAST_IMM,
        (SendOp::SendImm(_), Position::Only) => Opcode::RC_SEND_ONLY_IMM,
        (SendOp::SendInvalidate(_), Position::Last) => Opcode::RC_SEND_LAST_INV,
        (SendOp::SendInvalidate(_), Position::Only) => Opcode::RC_SEND_ONLY_INV,
        (SendOp::Write(_) | SendOp::WriteImm(..), Position::First) => Opcode::RC_WRITE_FIRST,
        (SendOp::Write(_) | SendOp::WriteImm(..), Position::Middle) => Opcode::RC_WRITE_MIDDLE,
        (SendOp::Write(_), Position::Last) => Opcode::RC_WRITE_LAST,
        (SendOp::Write(_), Position::Only) => Opcode::RC_WRITE_ONLY,
        (SendOp::WriteImm(..), Position::Last) => Opcode::RC_WRITE_LAST_IMM,
        (SendOp::WriteImm(..), Position::Only) => Opcode::RC_WRITE_ONLY_IMM,
        (SendOp::Read(_), _) => Opcode::RC_READ_REQUEST,
        (SendOp::Atomic(_, AtomicOp::CompareSwap { .. }), _) => Opcode::RC_CMP_SWAP,
        (SendOp::Atomic(_, AtomicOp::FetchAdd { .. }), _) => Opcode::RC_FETCH_ADD,
    };
    Opcode(opcode.0 | family as u8)
}

/// Opcode of a packet of a READ response.
pub(crate) const fn read_response(position: Position) -> Opcode {
    match position {
        Position::First => Opcode::RC_READ_RESPONSE_FIRST,
        Position::Middle => Opcode::RC_READ_RESPONSE_MIDDLE,
        Position::Last => Opcode::RC_READ_RESPONSE_LAST,
        Position::Only => Opcode::RC_READ_RESPONSE_ONLY,
    }
}

/// Whether `length` bytes are what a packet at `position` of a message carries: full where more
/// follows, not empty where something came before (IBTA Vol 1, 9.7.4.1.6).
pub(crate) const fn length_fits(position: Position, length: u32, mtu: u32) -> bool {
    match position {
        Position::First | Position::Middle => length == mtu,
        Position::Last => length > 0 && length <= mtu,
        Position::Only => length <= mtu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{MAX_MESSAGE, Remote};
    use trunkline_wire::{Rkey, Transport};

    #[test]
    fn the_parts_of_a_message_add_up_to_it() {
        for mtu in [256, 1024, 4096] {
            for length in [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 10_001, MAX_MESSAGE] {
                let count = packets(length, mtu);
                let (offset, last) = part(length, mtu, count - 1);
                assert_eq!(offset + last, length);
                assert!(length_fits(position(count - 1, count), last, mtu));
                if count > 1 {
                    assert_eq!(part(length, mtu, 0), (0, mtu));
                    assert_eq!(position(0, count), Position::First);
                }
            }
        }
        assert_eq!(packets(MAX_MESSAGE, 256), MAX_OUTSTANDING);
    }

    #[test]
    fn pad_fills_words() {
        assert_eq!([0, 1, 2, 3, 4].map(pad), [0, 3, 2, 1, 0]);
    }

    #[test]
    fn opcodes_say_what_they_are_made_for() {
        let remote = Remote::default();
        let ops = [
            SendOp::Send,
            SendOp::SendImm(1),
            SendOp::SendInvalidate(Rkey(1)),
            SendOp::Write(remote),
            SendOp::WriteImm(remote, 1),
        ];
        let places = [
            Position::First,
            Position::Middle,
            Position::Last,
            Position::Only,
        ];
        for op in &ops {
            for place in places {
                let code = opcode(Family::Rc, op, place);
                assert_eq!(code.position(), Some(place));
                assert_eq!(code.transport(), Transport::Rc);
                let with_imm = matches!(op, SendOp::SendImm(_) | SendOp::WriteImm(..));
                assert_eq!(code.has_imm(), with_imm && place.ends());
                let invalidate = matches!(op, SendOp::SendInvalidate(_));
                assert_eq!(code.has_ieth(), invalidate && place.ends());
                let write = matches!(op, SendOp::Write(_) | SendOp::WriteImm(..));
                assert_eq!(code.has_reth(), write && place.starts());
                if !invalidate {
                    let code = opcode(Family::Uc, op, place);
                    assert_eq!(code.position(), Some(place));
                    assert_eq!(code.transport(), Transport::Uc);
                }
            }
        }
        for place in places {
            assert_eq!(read_response(place).position(), Some(place));
        }
    }
}
