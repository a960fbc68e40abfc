//! Names of packets in the INDEX.txt of captures.

/// Names of `Opcode::name` as INDEX.txt abbreviates them.
pub(crate) fn abbreviated(opcode: &str) -> String {
    let mut short = opcode.strip_prefix("RC_").unwrap_or(opcode).to_owned();
    if let Some(rest) = short.strip_prefix("UD_SEND_ONLY") {
        return format!("UD_SEND{rest}");
    }
    for (word, letters) in [
        ("ATOMIC_ACKNOWLEDGE", "ATOMIC_ACK"),
        ("CMP_SWAP", "CMPSWAP"),
        ("FETCH_ADD", "FETCHADD"),
        ("READ_REQUEST", "RD_REQ"),
        ("READ_RESPONSE", "RD_RSP"),
        ("WRITE", "WR"),
        ("_FIRST", "_F"),
        ("_MIDDLE", "_M"),
        ("_LAST", "_L"),
        ("_ONLY", "_O"),
    ] {
        short = short.replace(word, letters);
    }
    short
}
