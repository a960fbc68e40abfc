//! What is measured: agreed between both ends, so believed by neither.

use crate::range::Range;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use trunkline::{CongestionControl, Workers};

/// Bytes of a message.
pub(crate) const SIZE: Range<u64> = Range::new(1, 1 << 30);
/// QPs at each end.
pub(crate) const QPS: Range<u64> = Range::new(1, 200_000);
/// Shared connections.
pub(crate) const CONNECTIONS: Range<u64> = Range::new(1, 64);
/// Requests outstanding on a QP.
pub(crate) const DEPTH: Range<u64> = Range::new(1, 4096);
/// Workers of a node.
pub(crate) const WORKERS: Range<u64> = Range::new(1, Workers::MOST as u64);
/// Seconds that nothing may move: up to a week.
pub(crate) const TIMEOUT: Range<f64> = Range::new(0.001, 604_800.0);
/// Requests outstanding on all QPs: what a completion queue holds, receives counted twice.
const OUTSTANDING: Range<u64> = Range::new(1, 1 << 21);
/// Bytes of buffers at one end.
const MEMORY: Range<u64> = Range::new(1, 4 << 30);
/// Buffers begin at multiples of this: atomics need 8, caches like 64.
const ALIGN: u64 = 64;
/// Bytes of an atomic.
pub(crate) const ATOMIC_SIZE: u64 = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Latency: one request at a time.
    Lat,
    /// Bandwidth: large messages, several under way.
    Bw,
    /// Message rate: small messages on many QPs.
    Rate,
}

/// With what.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// SEND into receives that the other end posted.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// FETCH_ADD of 8 bytes.
    Atomic,
}

/// Congestion control of the shared connections.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Controller {
    /// Window steered by queueing delay, and by loss where others fill the queue: the default of
    /// every node.
    Delay,
    /// Rate steps driven by ECN marks.
    Dcqcn,
    /// None: for links that drop nothing.
    None,
}

impl From<Controller> for CongestionControl {
    fn from(controller: Controller) -> Self {
        match controller {
            Controller::Delay => Self::Delay,
            Controller::Dcqcn => Self::Dcqcn,
            Controller::None => Self::None,
        }
    }
}

/// Which end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// Asks and measures.
    Client,
    /// Serves.
    Server,
}

/// A measurement.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Params {
    /// What is measured.
    pub(crate) mode: Mode,
    /// With what.
    pub(crate) op: Op,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// QPs at each end.
    pub(crate) qps: u32,
    /// Shared connections that they are on.
    pub(crate) connections: u32,
    /// Requests outstanding on each QP.
    pub(crate) depth: u32,
    /// How they avoid congestion.
    pub(crate) control: Controller,
    /// Whether what arrives is compared with what was sent.
    pub(crate) verify: bool,
    /// Workers of each node; with several each has a thread of its own.
    #[serde(default = "one")]
    pub(crate) workers: u8,
    /// How long nothing may move.
    pub(crate) timeout: Duration,
}

const fn one() -> u8 {
    1
}

/// What there may not be of something.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct OutOfBounds(String);

impl Mode {
    /// The word on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lat => "lat",
            Self::Bw => "bw",
            Self::Rate => "rate",
        }
    }
}

impl Op {
    /// The word on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }

    /// Whether the other end answers it in kind where latency is measured.
    pub(crate) const fn is_answered(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Atomic => "FETCH_ADD",
        })
    }
}

impl Params {
    /// Checks everything that could hurt whoever believed it.
    ///
    /// # Errors
    /// What is out of bounds, in the words of the command line.
    pub(crate) fn check(&self) -> Result<(), OutOfBounds> {
        within("--size", SIZE, self.size)?;
        within("--qps", QPS, self.qps.into())?;
        within("--connections", CONNECTIONS, self.connections.into())?;
        within("--depth", DEPTH, self.depth.into())?;
        within("--workers", WORKERS, self.workers.into())?;
        within("--timeout", TIMEOUT, self.timeout.as_secs_f64())?;
        if self.op == Op::Atomic && self.size != ATOMIC_SIZE {
            return Err(OutOfBounds(format!("--size of an atomic is {ATOMIC_SIZE}")));
        }
        let outstanding = u64::from(self.qps) * u64::from(self.depth);
        within("--qps times --depth", OUTSTANDING, outstanding)?;
        for side in [Side::Client, Side::Server] {
            within("bytes of buffers", MEMORY, self.memory(side))?;
        }
        Ok(())
    }

    /// Buffers of each QP at one end. Latency: one to send from, one to receive into. Otherwise
    /// one that all requests share, unless they must be told apart: then one for each request or
    /// receive that may be outstanding.
    pub(crate) const fn lanes(&self, side: Side) -> u64 {
        match (self.mode, self.op, side) {
            (Mode::Lat, ..) => 2,
            _ if !self.verify => 1,
            (_, Op::Send, Side::Server) => self.receives() as u64,
            _ => self.depth as u64,
        }
    }

    /// Receives that the server keeps posted on each QP: a message may arrive before the receive
    /// of an earlier one is posted again.
    pub(crate) const fn receives(&self) -> u32 {
        2 * self.depth
    }

    /// Bytes from one buffer to the next.
    pub(crate) const fn stride(&self) -> u64 {
        self.size.next_multiple_of(ALIGN)
    }

    /// Bytes of all buffers at one end.
    pub(crate) const fn memory(&self, side: Side) -> u64 {
        self.stride() * self.lanes(side) * self.qps as u64
    }

    /// Where a buffer begins.
    pub(crate) const fn offset(&self, side: Side, qp: usize, lane: u64) -> u64 {
        (qp as u64 * self.lanes(side) + lane) * self.stride()
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            op,
            size,
            qps,
            connections,
            depth,
            ..
        } = self;
        write!(f, "{} {op} of {size} bytes, ", mode.name())?;
        write!(f, "QPs {qps}, connections {connections}, depth {depth}")
    }
}

fn within<T>(what: &str, range: Range<T>, value: T) -> Result<(), OutOfBounds>
where
    T: Copy + PartialOrd + fmt::Display,
{
    let checked = range.check(value);
    checked
        .map(drop)
        .map_err(|why| OutOfBounds(format!("{what}: {why}")))
}

/// Fills `out` with what message `serial` of QP `qp` holds: nothing can pass for something else.
pub(crate) fn pattern(qp: usize, serial: u64, out: &mut [u8]) {
    let mut state = (qp as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ serial.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    for chunk in out.chunks_mut(8) {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let word = (state ^ (state >> 29)).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params = Params {
        mode: Mode::Rate,
        op: Op::Send,
        size: 65,
        qps: 10,
        connections: 2,
        depth: 4,
        control: Controller::Delay,
        verify: true,
        workers: 1,
        timeout: Duration::from_secs(10),
    };

    #[test]
    fn delay_is_what_nodes_use_and_every_name_means_what_it_says() {
        assert_eq!(
            CongestionControl::from(Controller::Delay),
            CongestionControl::default()
        );
        for controller in [Controller::Delay, Controller::Dcqcn, Controller::None] {
            let kind = CongestionControl::from(controller);
            assert_eq!(format!("{controller:?}"), format!("{kind:?}"));
        }
    }

    #[test]
    fn bounds_are_told_in_the_words_of_the_command_line() {
        let told = |params: Params| params.check().expect_err("it is out of bounds").to_string();
        assert_eq!(PARAMS.check(), Ok(()));
        assert_eq!(
            told(Params { size: 0, ..PARAMS }),
            "--size: 0 is not in 1..=1073741824"
        );
        assert_eq!(
            told(Params { qps: 0, ..PARAMS }),
            "--qps: 0 is not in 1..=200000"
        );
        assert_eq!(
            told(Params {
                depth: 5000,
                ..PARAMS
            }),
            "--depth: 5000 is not in 1..=4096"
        );
        assert!(
            told(Params {
                connections: 65,
                ..PARAMS
            })
            .starts_with("--connections: 65 is")
        );
        let hasty = Params {
            timeout: Duration::ZERO,
            ..PARAMS
        };
        assert!(told(hasty).starts_with("--timeout: 0 is not in"));
        let atomic = Params {
            op: Op::Atomic,
            ..PARAMS
        };
        assert_eq!(told(atomic), "--size of an atomic is 8");
        let many = Params {
            qps: 200_000,
            depth: 4096,
            ..PARAMS
        };
        assert!(told(many).starts_with("--qps times --depth: 819200000 is"));
        let large = Params {
            size: SIZE.most(),
            ..PARAMS
        };
        assert!(told(large).starts_with("bytes of buffers: 42949672960 is"));
    }

    #[test]
    fn whatever_another_program_asks_for_is_judged_without_overflow() {
        let absurd = Params {
            size: u64::MAX,
            qps: u32::MAX,
            connections: u32::MAX,
            depth: u32::MAX,
            timeout: Duration::MAX,
            ..PARAMS
        };
        assert!(absurd.check().is_err());
        let largest = Params {
            size: SIZE.most(),
            qps: QPS.most() as u32,
            depth: 10,
            ..PARAMS
        };
        assert!(largest.check().is_err());
    }

    #[test]
    fn buffers_do_not_overlap() {
        assert_eq!((PARAMS.stride(), PARAMS.lanes(Side::Server)), (128, 8));
        let last = PARAMS.offset(Side::Server, 9, 7);
        assert_eq!(last + PARAMS.stride(), PARAMS.memory(Side::Server));
        let first_of_second = PARAMS.offset(Side::Client, 1, 0);
        assert_eq!(
            first_of_second,
            PARAMS.offset(Side::Client, 0, 3) + PARAMS.stride()
        );
    }

    #[test]
    fn messages_differ_by_qp_and_serial() {
        let message = |qp, serial| {
            let mut bytes = [0; 13];
            pattern(qp, serial, &mut bytes);
            bytes
        };
        assert_ne!(message(0, 0), [0; 13]);
        assert_ne!(message(0, 0), message(0, 1));
        assert_ne!(message(0, 1), message(1, 0));
        assert_eq!(message(3, 7), message(3, 7));
    }
}
