use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Numbers that values are made of, again and again.
pub(super) type Draw<'a> = std::iter::Cycle<std::slice::Iter<'a, u64>>;

/// A type of which tests make any value.
pub(super) trait Any {
    fn any(draw: &mut Draw<'_>) -> Self;
}

impl Any for u64 {
    fn any(draw: &mut Draw<'_>) -> Self {
        *draw.next().expect("no end")
    }
}

impl Any for u32 {
    fn any(draw: &mut Draw<'_>) -> Self {
        u64::any(draw) as Self
    }
}

fn one_of<T: Copy>(draw: &mut Draw<'_>, values: &[T]) -> T {
    values[u32::any(draw) as usize % values.len()]
}

impl Any for &'static str {
    fn any(draw: &mut Draw<'_>) -> Self {
        one_of(draw, &["", "QPs", "n\u{153}uds"])
    }
}

impl Any for QpState {
    fn any(draw: &mut Draw<'_>) -> Self {
        one_of(draw, &Self::ALL)
    }
}

impl Any for Duration {
    fn any(draw: &mut Draw<'_>) -> Self {
        Self::new(u64::any(draw), u32::any(draw) % 1_000_000_000)
    }
}

impl Any for Allowed {
    fn any(draw: &mut Draw<'_>) -> Self {
        let (least, most) = (u32::any(draw), u32::any(draw));
        let at_least = Self::AtLeast(u64::any(draw));
        let (range, power) = (Self::Range(least, most), Self::PowerOfTwo(least, most));
        one_of(draw, &[range, power, at_least])
    }
}

impl Any for IpAddr {
    fn any(draw: &mut Draw<'_>) -> Self {
        let v4 = Ipv4Addr::from_bits(u32::any(draw));
        let [high, low] = [u64::any(draw), u64::any(draw)].map(u128::from);
        let v6 = Ipv6Addr::from_bits(high << 64 | low);
        one_of(draw, &[v4.into(), v6.into(), v4.to_ipv6_mapped().into()])
    }
}

proptest! {
    #[test]
    fn every_refusal_comes_back(numbers in vec(any::<u64>(), 1..20)) {
        for error in VerbsError::any_of_each_kind(&mut numbers.iter().cycle()) {
            prop_assert_eq!(VerbsError::from_parts(error.parts()), Some(error));
        }
    }
}

#[test]
fn parts_stand_in_the_order_of_the_fields() {
    let error = Allowed::PowerOfTwo(64, 256).refuse("window", 65);
    let parts = Parts {
        kind: 19,
        numbers: [65, 2, 64, 256, 0, 0],
        text: Some("window"),
    };
    assert_eq!(error.parts(), parts);
    let text = parts.map_text(str::len).text;
    assert_eq!(text, Some(6));
}

#[test]
fn parts_of_no_refusal_are_refused() {
    let cases = [
        (0, [0; 6], None, "there is no kind 0"),
        (35, [0; 6], None, "nor is there one behind the last"),
        (3, [1 << 32, 0, 0, 0, 0, 0], None, "a QPN is shorter"),
        (2, [17, 7, 0, 0, 0, 0], None, "a state that there is not"),
        (2, [17, 256, 0, 0, 0, 0], None, "one that is no byte"),
        (2, [17, 3, 1, 0, 0, 0], None, "more numbers than it has"),
        (
            2,
            [17, 3, 0, 0, 0, 0],
            Some("QP"),
            "a text, and it has none",
        ),
        (22, [0; 6], None, "no text, and it has one"),
        (
            25,
            [1, 1_000_000_000, 0, 0, 0, 0],
            Some("t"),
            "a whole second",
        ),
        (
            19,
            [9, 0, 0, 0, 0, 0],
            Some("cqe"),
            "allowed in no known way",
        ),
        (
            19,
            [9, 4, 0, 0, 0, 0],
            Some("cqe"),
            "in another unknown way",
        ),
        (27, [5, 0, 0, 0, 0, 0], None, "no family of addresses"),
        (
            27,
            [4, 1 << 32, 0, 0, 0, 0],
            None,
            "more than an IPv4 address",
        ),
    ];
    for (kind, numbers, text, why) in cases {
        let parts = Parts {
            kind,
            numbers,
            text,
        };
        assert_eq!(VerbsError::from_parts(parts), None, "{why}");
    }
}
