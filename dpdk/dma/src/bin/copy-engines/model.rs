//! What a real engine would save at best: figures of this CPU, and published ones of Intel's Data
//! Streaming Accelerator (R. Kuper and others, ASPLOS 2024, for the 4th generation of Xeon).
//!
//! The accelerator sums CRC-32C, and the ICRC is CRC-32. So the CPU reads each byte as before, and
//! what an engine saves is the difference between the quicker of a fused pass and two passes, and
//! a sum, less the cost of handing the copy over.

use crate::arena::Way;
use crate::measure::{BATCHES, Measured};
use crate::table::size;
use std::fmt::Write;

/// What one accelerator copies at most, in bytes per nanosecond.
const ENGINE_RATE: f64 = 30.0;
/// Bytes from which on it is as fast as a CPU that waits for it.
const WORTH_WAITING_FOR: usize = 4096;
/// Payload of a packet.
const PACKET: usize = 4096;
/// Bytes of a READ response.
const RESPONSE: usize = 1 << 20;

/// What it would save.
pub(crate) fn text(measured: &[Measured]) -> String {
    let mut text = String::from("\nAn engine, computed from these:\n\n");
    for one in measured.iter().filter(|one| one.case.block == PACKET) {
        text.push_str(&saving(one));
    }
    // An engine takes as long for so many bytes as this CPU for a copy of as many in memory.
    let alike = |one: &&Measured| one.case.block == WORTH_WAITING_FOR && one.case.is_large();
    let wait = measured.iter().find(alike);
    let wait = wait.map_or(0.0, |one| one.copy.median);
    let later = |bytes: usize| (wait + bytes as f64 / ENGINE_RATE) / 1e3;
    let [.., batch] = BATCHES;
    let _ = writeln!(
        text,
        "- Later by: {wait:.0} ns for a packet alone, {:.1} us for the last of a batch of {batch}, \
         {:.1} us for the last of a READ response of {} that is handed over at once.",
        later(batch * PACKET),
        later(RESPONSE),
        size(RESPONSE),
    );
    text
}

fn saving(one: &Measured) -> String {
    let sum = one.sum.median;
    let by_cpu = one.fused.median.min(one.copy_then_sum.median);
    let at_best = by_cpu - sum;
    let share = |saved: f64| 100.0 * saved / by_cpu;
    let gigabits = |ns: f64| 8.0 * PACKET as f64 / ns;
    let packets = (RESPONSE / PACKET) as f64;
    let way = match one.case.way {
        Way::Place => "placed from",
        Way::Gather => "gathered from",
    };
    let mut text = format!(
        "- {} {way} {} into {}: a packet costs {by_cpu:.0} ns, and {sum:.0} ns if handing over \
         were free: {:.0} % less, {:.0} instead of {:.0} Gb/s a core. {} are {packets} packets, \
         which cost {:.1} us less at best. Handing over a packet may cost {at_best:.0} ns at most",
        size(PACKET),
        size(one.case.sources),
        size(one.case.destinations),
        share(at_best),
        gigabits(sum),
        gigabits(by_cpu),
        size(RESPONSE),
        packets * at_best / 1e3,
    );
    for (batch, hand_over) in BATCHES.into_iter().zip(one.hand_over) {
        let Some(hand_over) = hand_over else {
            continue;
        };
        let saved = at_best - hand_over.median;
        let _ = write!(
            text,
            "; at the {:.0} ns of batches of {batch} an engine saves {:.0} %",
            hand_over.median,
            share(saved),
        );
    }
    text.push_str(".\n");
    text
}
