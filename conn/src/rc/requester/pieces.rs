//! Where the pieces of a READ end: as long as fits the window when they are asked for.

/// Lengths of a READ's pieces in packets: pieces end at multiples of their length.
///
/// What is asked for again has to end where it first did, so that of the pieces that may be under
/// way two lengths are known, and a third comes when the first is no longer used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pieces {
    /// First packet of the pieces of `length`, where one of those before ends.
    since: u32,
    before: u32,
    /// 0 until something is asked for.
    length: u32,
}

impl Pieces {
    /// The lengths where from `packet` on, which was never asked for, pieces are to have `length`;
    /// all before `progress` has come.
    pub(super) const fn resized(self, progress: u32, packet: u32, length: u32) -> Self {
        let both_used = self.since > 0 && progress <= self.since;
        if length == self.length || both_used {
            return self;
        }
        Self {
            since: packet,
            before: self.length,
            length,
        }
    }

    /// Where the piece with packet `packet` ends, of a READ of `packets`.
    pub(super) const fn end(self, packet: u32, packets: u32) -> u32 {
        let length = self.length_at(packet);
        let limit = if packet < self.since {
            self.since
        } else {
            packets
        };
        let rest = length - packet % length;
        if limit - packet < rest {
            limit
        } else {
            packet + rest
        }
    }

    pub(super) const fn is_first(self, packet: u32) -> bool {
        packet == self.since || packet.is_multiple_of(self.length_at(packet))
    }

    const fn length_at(self, packet: u32) -> u32 {
        if packet < self.since {
            self.before
        } else {
            self.length
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of the pieces of a READ of `packets`, from `packet` on.
    fn ends(pieces: Pieces, mut packet: u32, packets: u32) -> alloc::vec::Vec<u32> {
        let mut ends = alloc::vec::Vec::new();
        while packet < packets {
            assert!(pieces.is_first(packet));
            packet = pieces.end(packet, packets);
            ends.push(packet);
        }
        ends
    }

    #[test]
    fn pieces_end_at_multiples_of_their_length_and_keep_their_ends_when_later_ones_differ() {
        let pieces = Pieces::default().resized(0, 0, 2);
        assert_eq!(ends(pieces, 0, 7), [2, 4, 6, 7]);
        let pieces = pieces.resized(1, 6, 4);
        assert_eq!(ends(pieces, 0, 17), [2, 4, 6, 8, 12, 16, 17]);
        assert_eq!((pieces.end(3, 17), pieces.end(7, 17)), (4, 8));
        assert!(!pieces.is_first(5) && !pieces.is_first(7));
    }

    #[test]
    fn a_third_length_waits_until_the_first_has_come() {
        let pieces = Pieces::default().resized(0, 0, 4).resized(0, 8, 3);
        assert_eq!(ends(pieces, 0, 14), [4, 8, 9, 12, 14]);
        assert_eq!(ends(pieces.resized(8, 9, 5), 0, 14), [4, 8, 9, 12, 14]);
        let third = pieces.resized(9, 12, 5);
        assert_eq!(ends(third, 9, 17), [12, 15, 17]);
    }
}
