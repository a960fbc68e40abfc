//! What of a modelled link WRITEs get through when packets are lost, or overtake each other.

use crate::Measurement;
use crate::virtual_link::{Faults, VirtualLink};
use trunkline_conn::time::{Instant, MILLISECOND};
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::wqe::{OWN_BINDING, SendWr};

/// WRITEs under way.
#[derive(Clone, Copy, Debug)]
struct Load {
    qps: usize,
    /// On each QP.
    depth: usize,
    /// Of each WRITE.
    bytes: usize,
}

const LARGE: Load = Load {
    qps: 1,
    depth: 4,
    bytes: 1 << 20,
};
/// Those that share packets.
const SMALL: Load = Load {
    qps: 64,
    depth: 16,
    bytes: 64,
};
/// Time before measuring begins, in virtual ns: for congestion control to find its rate.
const WARM_UP: u64 = 10 * MILLISECOND;
/// Time to measure for a report, in virtual ns.
pub const LENGTH: u64 = 50 * MILLISECOND;
const UNIT: &str = "B/s of virtual time, 1 MiB WRITEs, 4 under way, 100 Gb/s, 10 us round trip";
const NONE: Faults = Faults {
    loss: 0.0,
    late: 0.0,
};

/// `loss1_goodput`, over `length` ns of virtual time.
///
/// # Panics
/// When a WRITE fails.
pub fn loss1(length: u64) -> Measurement {
    let faults = Faults { loss: 0.01, ..NONE };
    compare("loss1_goodput", faults, "the same without loss", length)
}

/// `reorder5_goodput`, over `length` ns of virtual time.
///
/// # Panics
/// When a WRITE fails.
pub fn reorder5(length: u64) -> Measurement {
    let faults = Faults { late: 0.05, ..NONE };
    let yardstick = "the same with all packets in order";
    compare("reorder5_goodput", faults, yardstick, length)
}

fn compare(
    name: &'static str,
    faults: Faults,
    yardstick: &'static str,
    length: u64,
) -> Measurement {
    let both = |plain, load| {
        let figure = |faults| goodput(faults, plain, load, length);
        (figure(faults), figure(NONE))
    };
    let (plain, plain_whole) = both(true, LARGE);
    let (small, small_whole) = both(false, SMALL);
    Measurement::new(name, UNIT, yardstick, both(false, LARGE))
        .note(format!(
            "rc, ACK timeout 1 ms: {plain:.0} against {plain_whole:.0}, {:.3}",
            plain / plain_whole
        ))
        .note(format!(
            "WRITEs of 64 B, which share packets, 1,024 under way on 64 QPs: {small:.0} against \
             {small_whole:.0}, {:.3}",
            small / small_whole
        ))
}

/// Bytes per second over `length` ns of virtual time, on a shared connection or (`plain`) an RC
/// one.
fn goodput(faults: Faults, plain: bool, load: Load, length: u64) -> f64 {
    let all = load.qps * load.depth;
    let mut link = VirtualLink::new(faults, load.qps, all * load.bytes, plain);
    for at in 0..all {
        post(&link.ends, load, at);
    }
    let mut done = 0;
    for (ns, counts) in [(WARM_UP, false), (length, true)] {
        link.run(ns, |_, ends| {
            let mut completions = [Completion::BLANK; 64];
            loop {
                let cq = &ends.nodes[0].cq;
                let got = cq.poll(&mut completions).expect("room in the CQ");
                for completion in &completions[..got] {
                    assert_eq!(completion.status, Status::Success, "a WRITE failed");
                    post(ends, load, completion.wr_id as usize);
                    done += usize::from(counts);
                }
                if got < completions.len() {
                    return Instant::FAR;
                }
            }
        });
    }
    (done * load.bytes) as f64 * 1e9 / length as f64
}

/// Posts the WRITE that has the `at`-th part of the memory.
fn post(ends: &trunkline_pieces::pair::Ends, load: Load, at: usize) {
    let [near, far] = &ends.nodes;
    let remote = Remote {
        addr: far.sge(at * load.bytes, 0).addr,
        rkey: far.key,
    };
    let request = SendWr {
        wr_id: at as u64,
        op: SendOp::Write(remote),
        flags: SendFlags::SIGNALED,
        sges: &[near.sge(at * load.bytes, load.bytes as u32)],
        inline: None,
        route: OWN_BINDING,
    };
    ends.post_send(0, at % load.qps, &[request]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: u64 = 10 * MILLISECOND;

    #[test]
    fn one_percent_of_loss_leaves_four_fifths_of_the_goodput() {
        let found = loss1(SHORT);
        assert!(found.ratio >= 0.8, "{found:?}");
        assert!(found.ratio < 1.0, "nothing was lost: {found:?}");
    }

    #[test]
    fn five_percent_of_reordering_leaves_nine_tenths_of_the_goodput() {
        let found = reorder5(SHORT);
        assert!(found.ratio >= 0.9, "{found:?}");
    }

    #[test]
    fn messages_that_share_packets_lose_as_little() {
        let figure = |faults| goodput(faults, false, SMALL, SHORT);
        let whole = figure(NONE);
        for (faults, least) in [
            (Faults { loss: 0.01, ..NONE }, 0.8),
            (Faults { late: 0.05, ..NONE }, 0.8),
        ] {
            let found = figure(faults) / whole;
            assert!((least..1.0).contains(&found), "{faults:?}: {found}");
        }
    }

    #[test]
    fn a_whole_link_is_used_up_to_its_headers() {
        let found = goodput(NONE, false, LARGE, SHORT);
        assert!((11.5e9..12.5e9).contains(&found), "{found}");
    }

    #[test]
    fn equal_seeds_give_equal_figures() {
        let faults = Faults {
            loss: 0.01,
            late: 0.05,
        };
        for load in [LARGE, SMALL] {
            let figure = || goodput(faults, false, load, 2 * MILLISECOND);
            assert_eq!(figure().to_bits(), figure().to_bits());
        }
    }
}
