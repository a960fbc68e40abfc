//! The option that says what carries packets.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use trunkline::PortKind;

/// Takes the name of a kind of port.
pub(crate) fn kinds() -> impl TypedValueParser<Value = PortKind> {
    let value = |kind: PortKind| PossibleValue::new(kind.name()).help(help(kind));
    PossibleValuesParser::new(PortKind::ALL.map(value)).try_map(|name| name.parse())
}

/// What a kind of port is, in a line.
pub(crate) const fn help(kind: PortKind) -> &'static str {
    match kind {
        PortKind::Packet => "raw frames by an AF_PACKET socket; it takes CAP_NET_RAW",
        PortKind::Xdp => {
            "raw frames by AF_XDP, a worker for each receive queue; it takes CAP_NET_RAW, \
             CAP_NET_ADMIN and CAP_BPF"
        }
        _ => "a UDP socket",
    }
}
