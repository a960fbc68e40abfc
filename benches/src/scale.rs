//! What QPs cost that are merely there, and what it costs to go round all of them.

use crate::engine::Sender;
use crate::rounds::alternate;
use crate::{Measurement, Setting};
use std::convert::Infallible;

/// QPs on the one connection.
const QPS: usize = 100_000;
/// QPs that a small node has.
const FEW: usize = 16;
const UNIT: &str = "messages/s, SENDs of 64 B, queues of 8";

/// `qp_scale_idle`
pub fn idle(setting: &Setting) -> Measurement {
    let note = "16 active of 100,000 QPs on one connection, against 16 alone";
    compare(setting, "qp_scale_idle", FEW, "16 QPs alone, the same load").note(note.into())
}

/// `qp_scale_active`
pub fn active(setting: &Setting) -> Measurement {
    let note = "all 100,000 QPs of one connection in turn, against 16 alone";
    compare(
        setting,
        "qp_scale_active",
        QPS,
        "16 QPs alone, the same load",
    )
    .note(note.into())
}

fn compare(
    setting: &Setting,
    name: &'static str,
    active: usize,
    yardstick: &'static str,
) -> Measurement {
    let (mut many, mut few) = (Sender::new(QPS, active), Sender::new(FEW, FEW));
    // Rings are there from first use on: that is not what is measured.
    many.go_round();
    few.go_round();
    let Ok(medians) = alternate::<Infallible>(
        setting.rounds,
        || Ok(many.run(setting.duration)),
        || Ok(few.run(setting.duration)),
    );
    Measurement::new(name, UNIT, yardstick, medians)
}
