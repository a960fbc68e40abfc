//! Counts over a whole capture.

use super::record::{Record, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Counts of a capture. Every RoCEv2 packet is in exactly one of `icrc_ok`, `icrc_bad` and
/// `malformed`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// Frames of any kind.
    pub(crate) frames: u64,
    /// Packets to the UDP port of RoCEv2.
    pub(crate) roce: u64,
    /// Packets that are as they should be.
    pub(crate) icrc_ok: u64,
    /// Readable packets with a wrong ICRC.
    pub(crate) icrc_bad: u64,
    /// Packets that cannot be read.
    pub(crate) malformed: u64,
    /// Packets by the name of their opcode, where the headers are readable.
    pub(crate) by_opcode: BTreeMap<&'static str, u64>,
    /// Messages of connection management by name; their packets are among the opcodes too.
    pub(crate) by_cm: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Counts a RoCEv2 packet.
    pub(crate) fn count(&mut self, record: &Record) {
        self.roce += 1;
        match record.verdict {
            Verdict::Ok => self.icrc_ok += 1,
            Verdict::BadIcrc => self.icrc_bad += 1,
            Verdict::Malformed(_) => self.malformed += 1,
        }
        if let Some(opcode) = record.opcode {
            *self.by_opcode.entry(opcode).or_default() += 1;
        }
        if let Some(message) = record.cm {
            *self.by_cm.entry(message).or_default() += 1;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, count: u64| writeln!(f, "{name:<28} {count:>9}");
        row("frames", self.frames)?;
        row("RoCEv2 packets", self.roce)?;
        row("  ICRC ok", self.icrc_ok)?;
        row("  ICRC bad", self.icrc_bad)?;
        row("  malformed", self.malformed)?;
        for (title, counts) in [
            ("by opcode", &self.by_opcode),
            ("connection management", &self.by_cm),
        ] {
            if counts.is_empty() {
                continue;
            }
            writeln!(f, "{title}")?;
            for (name, count) in counts {
                writeln!(f, "  {name:<26} {count:>9}")?;
            }
        }
        Ok(())
    }
}
