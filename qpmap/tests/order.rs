//! Law: the last byte of a WRITE shows when all others do, and each byte is written once.

use crate::common::Pair;
use proptest::prelude::*;
use trunkline_conn::mem::Order;
use trunkline_conn::work::{Remote, SendOp};

const SECOND: u64 = 1_000_000_000;
/// Where requests take their bytes from.
const SOURCE: u64 = 512 << 10;
/// Room of each request's target.
const SLOT: u32 = 16 << 10;
/// This many losses in a row end no connection, and are made good in [`LONG`].
const LOST: usize = 16;
/// What a sender that hears nothing waits before it tries again is doubled each time.
const LONG: u64 = 60 * SECOND;

/// Requests of these lengths, by turns WRITEs and SENDs, each to a place of its own. Of the
/// datagrams of the node that asks those are lost for which `lost` says so, [`LOST`] at most.
fn check(lengths: &[u32], lost: Vec<bool>) {
    let mut pair = Pair::new(1);
    let [qp, target] = pair.connected();
    let (addr, rkey) = (pair.nodes[1].buffer.addr, pair.nodes[1].key);
    for (at, length) in (0..).zip(lengths) {
        let place = at * u64::from(SLOT);
        let op = if at % 2 == 0 {
            let addr = addr + place;
            SendOp::Write(Remote { addr, rkey })
        } else {
            pair.receive(&target, at, &[pair.sge(1, place, SLOT)]);
            SendOp::Send
        };
        pair.post(0, &qp, at, op, &[pair.sge(0, SOURCE, *length)]);
    }
    let (mut lost, mut count) = (lost.into_iter(), 0);
    pair.fate = Box::new(move |from, _| {
        let is_lost = from == 0 && count < LOST && lost.next().unwrap_or(false);
        count += usize::from(is_lost);
        usize::from(!is_lost)
    });
    pair.run(LONG);
    assert_eq!(pair.completions(0).len(), lengths.len());
    let copied = pair.nodes[1].buffer.copied_in();
    for (at, length) in lengths.iter().enumerate() {
        let begin = at * SLOT as usize;
        let whole = begin..begin + *length as usize;
        let its = |place: usize| whole.contains(&place);
        let pieces: Vec<_> = copied
            .iter()
            .filter(|(range, _)| its(range.start))
            .collect();
        let bytes: usize = pieces.iter().map(|(range, _)| range.len()).sum();
        assert_eq!(bytes, whole.len(), "{pieces:?}");
        let (last, before) = pieces.split_last().expect("a message has bytes");
        assert!(before.iter().all(|(_, order)| *order == Order::Any));
        let order = Order::of_write(at % 2 == 0);
        assert_eq!((last.0.end, last.1), (whole.end, order));
    }
}

#[test]
fn the_last_byte_of_a_write_of_one_packet_and_of_more_is_last() {
    check(&[1, 1, 900, 900, 9000, 9000, SLOT, SLOT], Vec::new());
}

#[test]
fn the_last_byte_of_a_write_is_last_where_many_are_lost_in_a_row() {
    check(&[1], vec![true; LOST]);
    check(&[SLOT; 15], vec![true; LOST]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_last_byte_of_a_write_is_last_whatever_is_lost(
        lengths in proptest::collection::vec(1..=SLOT, 1..16),
        lost in proptest::collection::vec(any::<bool>(), 0..60),
    ) {
        check(&lengths, lost);
    }
}
