use super::*;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use trunkline_qpmap::error::Parts;
use trunkline_qpmap::{Allowed, VerbsError};

impl Any for Parts<Text<64>> {
    fn any(draw: &mut Draw<'_>) -> Self {
        let (bits, value) = (u32::any(draw), u64::any(draw));
        let (state, address) = (QpState::any(draw), IpAddr::from(draw.array::<16>()));
        let error = draw.one_of(&[
            VerbsError::EmptyRegion,
            VerbsError::WrongState { qpn: bits, state },
            VerbsError::OtherFamily {
                peer: address,
                own: Ipv4Addr::from_bits(bits).into(),
            },
            VerbsError::TooShort {
                what: "",
                value: Duration::from_nanos(value),
                least: Duration::ZERO,
            },
            Allowed::Range(bits, 9).refuse("", value),
        ]);
        error.parts().map_text(|_| Text::any(draw))
    }
}

#[test]
fn refusals_that_there_are_not_are_refused() {
    let state = QpState::Rts;
    let error = VerbsError::FixedAttribute { what: "sl", state };
    let failed = Failed {
        errno: 22,
        text: Text::clipped("sl cannot change in RTS"),
        error: Some(error.parts().map_text(Text::clipped)),
    };
    let good = Answer::from(failed).to_bytes(3);
    assert_eq!(Answer::parse(&good), Ok((3, failed.into())));
    let kind = good.len() - Parts::<Text<64>>::LEN;
    let (state, there) = (kind + 2, good.len() - Option::<Text<64>>::LEN);
    for (at, byte) in [(kind, 0), (state, 7), (state + 8, 1), (there, 0)] {
        let mut bad = good.clone();
        bad[at] = byte;
        let blamed = match Answer::parse(&bad) {
            Err(ControlError::Invalid { message, field, .. }) => (message, field),
            other => panic!("{other:?}"),
        };
        assert_eq!(blamed, ("failed", "error"), "byte {at}");
    }
}
