//! Packets that are lost, overtaken and doubled on their way, in both directions.

use crate::pair::{Pair, Place, Terms, Way};
use crate::station::Op;
use crate::suite::Case;
use crate::verbs::{LONGEST, OPERATIONS, batch, in_turn, target, transfer};
use anyhow::Result;
use std::time::Duration;
use trunkline::QpType;
use trunkline_dataplane::fault::Faults;

/// One packet in a hundred.
const ONE_PERCENT: u32 = 10_000;
/// ACK timeout where many packets have to be sent again: 67 ms.
const QUICK: u8 = 14;
/// Changes to what the guest sends take no longer.
const LIMIT: Duration = Duration::from_secs(20);

struct Trouble {
    name: &'static str,
    /// To what we send.
    ours: Faults,
    /// To what the guest sends: words of tc-netem(8).
    guests: &'static str,
}

const NO_FAULTS: Faults = Faults {
    loss_ppm: 0,
    duplicate_ppm: 0,
    corrupt_ppm: 0,
    reorder_ppm: 0,
    reorder_packets: 0,
    reorder_hold_ns: 0,
    delay_ns: 0,
    jitter_ns: 0,
};

const TROUBLES: [Trouble; 4] = [
    Trouble {
        name: "loss",
        ours: Faults {
            loss_ppm: ONE_PERCENT,
            ..NO_FAULTS
        },
        guests: "loss 1%",
    },
    Trouble {
        name: "duplication",
        ours: Faults {
            duplicate_ppm: ONE_PERCENT,
            ..NO_FAULTS
        },
        guests: "duplicate 1%",
    },
    Trouble {
        name: "reordering",
        ours: Faults {
            reorder_ppm: ONE_PERCENT,
            reorder_packets: 3,
            reorder_hold_ns: 1_000_000,
            ..NO_FAULTS
        },
        guests: "delay 1ms reorder 99%",
    },
    Trouble {
        name: "all-of-it",
        ours: Faults {
            loss_ppm: ONE_PERCENT,
            duplicate_ppm: ONE_PERCENT,
            reorder_ppm: ONE_PERCENT,
            reorder_packets: 3,
            reorder_hold_ns: 1_000_000,
            ..NO_FAULTS
        },
        guests: "delay 1ms reorder 99% loss 1% duplicate 1%",
    },
];

/// All of this file.
pub(crate) fn cases(full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for trouble in &TROUBLES {
        for way in Way::BOTH {
            let name = format!("rc/{}/{}", trouble.name, way.word());
            cases.push(Case::new(name, move |place| {
                through(place, trouble, || traffic(place, trouble, way, full))
            }));
        }
    }
    if full {
        cases.extend(matrix());
    }
    cases
}

/// Each operation through each trouble, with messages of all lengths.
fn matrix() -> Vec<Case> {
    let mut cases = Vec::new();
    for trouble in &TROUBLES {
        for mtu in [1024, 4096] {
            for way in Way::BOTH {
                for (name, op) in OPERATIONS {
                    let name = format!("rc/{name}/{}/mtu{mtu}/{}", trouble.name, way.word());
                    cases.push(Case::new(name, move |place| {
                        through(place, trouble, || {
                            every_length(place, trouble, mtu, way, op)
                        })
                    }));
                }
            }
        }
    }
    cases
}

fn every_length(place: Place, trouble: &Trouble, mtu: u16, way: Way, op: Op) -> Result<()> {
    let terms = Terms {
        faults: Some(trouble.ours),
        timeout: QUICK,
        ..Terms::new(QpType::Rc, mtu, target(LONGEST) + LONGEST)
    };
    let mut pair = Pair::open(place, &terms)?;
    let packet = usize::from(mtu);
    let lengths = [0, 1, packet, packet + 1, 100_001, 1 << 20, LONGEST];
    in_turn(&mut pair, way, op, lengths)
}

fn through(place: Place, trouble: &Trouble, traffic: impl FnOnce() -> Result<()>) -> Result<()> {
    let mend = "/bin/tc qdisc del dev eth0 root 2>/dev/null; true";
    place.guest.run(mend, LIMIT)?;
    let disturb = format!(
        "/bin/tc qdisc add dev eth0 root netem limit 10000 {}",
        trouble.guests
    );
    place.guest.run(&disturb, LIMIT)?;
    let result = traffic();
    place.guest.run(mend, LIMIT)?;
    result
}

fn traffic(place: Place, trouble: &Trouble, way: Way, full: bool) -> Result<()> {
    let terms = Terms {
        faults: Some(trouble.ours),
        timeout: QUICK,
        ..Terms::new(QpType::Rc, 1024, 4 << 20)
    };
    let mut pair = Pair::open(place, &terms)?;
    let (rounds, length) = if full { (40, 1 << 20) } else { (6, 200_001) };
    for round in 0..rounds {
        let (from, to) = pair.sides(way);
        batch(from, to, round)?;
    }
    for (seed, op) in (1..).zip([Op::Send, Op::Write, Op::Read, Op::WriteImm(7)]) {
        let (from, to) = pair.sides(way);
        transfer(from, to, op, length, seed * 1_000_000_000)?;
    }
    for (wr_id, before) in (1..).zip(0..50) {
        let (from, to) = pair.sides(way);
        count(from, to, wr_id, before)?;
    }
    Ok(())
}

/// Adds one to a counter of the peer: what is repeated on the way must not count twice.
fn count(
    from: &mut dyn crate::station::Station,
    to: &mut dyn crate::station::Station,
    wr_id: u64,
    before: u64,
) -> Result<()> {
    use crate::station::Post;
    use trunkline::{SendFlags, Status};
    if before == 0 {
        to.put(0, 0)?;
    }
    from.post(&Post {
        wr_id,
        op: Op::FetchAdd { add: 1 },
        offset: 8,
        length: 8,
        remote: to.remote(0),
        flags: SendFlags::default(),
    })?;
    from.next()?.is(wr_id, Status::Success)?;
    anyhow::ensure!(from.get(8)? == before, "counted twice, or not at all");
    Ok(())
}
