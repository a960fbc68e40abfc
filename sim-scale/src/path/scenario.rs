//! What a path is like, what changes on it, and who sends over it.

use super::units;
use std::ops::RangeInclusive;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{MILLISECOND, SECOND};

/// What headers take of an IP packet of ours: IPv4 and UDP.
pub const UDP_IP: u32 = 28;
/// Bytes of the largest IP packet.
pub const MTUS: RangeInclusive<u32> = 576..=65_535;
/// Flows that a path is asked to carry, ours and TCP's.
pub const MOST_FLOWS: u32 = 1000;

/// Something about the path that changes while it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Round trip without queueing, in ns, from now on.
    Rtt(u64),
    /// Rate of the bottleneck in bits per second, from now on.
    Rate(u64),
    /// The next acknowledgement alone reports a delay longer by so many ns.
    AckDelay(u64),
}

/// A change and when it happens, in ns after the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// When.
    pub at: u64,
    /// What.
    pub change: Change,
}

/// An algorithm of TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rival {
    /// NewReno's growth (RFC 5681) with selective acknowledgements.
    Reno,
    /// CUBIC (RFC 9438) with the delay half of HyStart.
    Cubic,
}

impl Rival {
    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Rate of the bottleneck in bits of IP packets per second.
    pub rate: u64,
    /// Round trip without queueing in ns.
    pub rtt: u64,
    /// Bytes that may wait at the bottleneck.
    pub queue: u64,
    /// A packet that finds more bytes than this waiting is marked (ECN), if its flow asks for it.
    pub mark: Option<u64>,
    /// Share of packets that gets lost behind the bottleneck.
    pub loss: f64,
    /// Packets are late by up to this many ns in each direction; their order stays.
    pub jitter: u64,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// What changes, in order.
    pub steps: Vec<Step>,
    /// Times during which our flows have nothing to send, in ns after the start.
    pub idle: Vec<(u64, u64)>,
    /// Flows of ours.
    pub flows: u32,
    /// The TCP beside them, and how many flows of it.
    pub rival: Option<Rival>,
    /// See there.
    pub rivals: u32,
    /// Congestion control of our flows.
    pub control: CongestionControl,
    /// How long, in ns.
    pub length: u64,
    /// Everything random is drawn from it.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            rate: 1_000_000_000,
            rtt: 2 * MILLISECOND,
            queue: 250_000,
            mark: None,
            loss: 0.0,
            jitter: 0,
            mtu: 1500,
            steps: Vec::new(),
            idle: Vec::new(),
            flows: 1,
            rival: None,
            rivals: 1,
            control: CongestionControl::default(),
            length: 30 * SECOND,
            seed: 1,
        }
    }
}

/// Controllers by the names that they have on the command line.
pub const CONTROLS: &[(&str, CongestionControl)] = &[
    ("delay", CongestionControl::Delay),
    ("dcqcn", CongestionControl::Dcqcn),
    ("none", CongestionControl::None),
];

/// A controller's name.
pub fn control_name(kind: CongestionControl) -> &'static str {
    let named = CONTROLS.iter().find(|(_, other)| *other == kind);
    named.map_or("?", |(name, _)| name)
}

/// `T:rtt=TIME`, `T:rate=RATE` or `T:ack-delay=TIME`.
///
/// # Errors
/// What is wrong with it.
pub fn step(text: &str) -> Result<Step, String> {
    let form = || format!("`{text}` is not of the form TIME:rtt=TIME, :rate=RATE, :ack-delay=TIME");
    let (at, change) = text.split_once(':').ok_or_else(form)?;
    let (what, value) = change.split_once('=').ok_or_else(form)?;
    let change = match what {
        "rtt" => Change::Rtt(units::time(value)?),
        "rate" => Change::Rate(units::rate(value)?),
        "ack-delay" => Change::AckDelay(units::time(value)?),
        _ => return Err(form()),
    };
    Ok(Step {
        at: units::time(at)?,
        change,
    })
}

/// `T..T`.
///
/// # Errors
/// What is wrong with it.
pub fn span(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text
        .split_once("..")
        .ok_or_else(|| format!("`{text}` is not of the form TIME..TIME"))?;
    let (from, to) = (units::time(from)?, units::time(to)?);
    if from < to {
        Ok((from, to))
    } else {
        Err(format!("`{text}` ends before it begins"))
    }
}

impl Scenario {
    /// Bytes that fit into one round trip at the rate.
    pub fn product(&self) -> u64 {
        (u128::from(self.rate) * u128::from(self.rtt) / 8 / u128::from(SECOND)) as u64
    }

    /// # Errors
    /// Why the scenario cannot be run.
    pub fn check(&self) -> Result<(), String> {
        if self.flows == 0 && self.rival.is_none() {
            return Err("nobody sends: --flows 0 needs a --rival".to_owned());
        }
        if self.rival.is_some() && self.rivals == 0 {
            return Err("--rival without --rivals: at least 1".to_owned());
        }
        let flows = u64::from(self.flows) + self.rival.map_or(0, |_| u64::from(self.rivals));
        if flows > MOST_FLOWS.into() {
            return Err(format!("{flows} flows: at most {MOST_FLOWS}"));
        }
        if !MTUS.contains(&self.mtu) {
            let (least, most) = (MTUS.start(), MTUS.end());
            return Err(format!("an MTU of {}: {least} to {most}", self.mtu));
        }
        if self.length < 100 * MILLISECOND {
            return Err("a run takes at least 0.1 s".to_owned());
        }
        let changes = self.steps.iter().map(|step| ("a change", step.at));
        let rests = self.idle.iter().map(|&(from, _)| ("a rest", from));
        let late = changes.chain(rests).find(|&(_, at)| at >= self.length);
        if let Some((what, at)) = late {
            let [at, length] = [at, self.length].map(|ns| ns as f64 / SECOND as f64);
            return Err(format!(
                "{what} at {at} s never happens: the run ends after {length} s"
            ));
        }
        if self.queue < u64::from(self.mtu) {
            return Err(format!(
                "a queue of {} bytes does not hold a packet of {}",
                self.queue, self.mtu
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_spans_are_read_as_they_are_typed() {
        assert_eq!(
            step("2s:rtt=6ms"),
            Ok(Step {
                at: 2 * SECOND,
                change: Change::Rtt(6 * MILLISECOND)
            })
        );
        assert_eq!(
            step("0.5s:rate=100m").map(|step| step.change),
            Ok(Change::Rate(100_000_000))
        );
        assert_eq!(
            step("2s:ack-delay=5ms").map(|step| step.change),
            Ok(Change::AckDelay(5 * MILLISECOND))
        );
        assert_eq!(span("1s..2s"), Ok((SECOND, 2 * SECOND)));
        for wrong in ["2s", "2s:rtt", "2s:mtu=5", "x:rtt=1ms"] {
            assert!(step(wrong).is_err(), "{wrong}");
        }
        assert!(span("2s..1s").is_err() && span("2s").is_err());
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert!(Scenario::default().check().is_ok());
        let none = Scenario {
            flows: 0,
            ..Scenario::default()
        };
        assert!(none.check().is_err());
        let small = Scenario {
            queue: 100,
            ..Scenario::default()
        };
        assert!(small.check().is_err());
    }

    #[test]
    fn only_flows_that_there_are_count() {
        let most = Scenario {
            flows: 1000,
            ..Scenario::default()
        };
        assert_eq!(most.check(), Ok(()));
        let beside = Scenario {
            rival: Some(Rival::Reno),
            ..most
        };
        assert_eq!(beside.check(), Err("1001 flows: at most 1000".to_owned()));
    }

    #[test]
    fn a_change_after_the_end_is_refused() {
        let at = |at| Scenario {
            steps: vec![Step {
                at,
                change: Change::Rtt(MILLISECOND),
            }],
            length: SECOND,
            ..Scenario::default()
        };
        assert_eq!(at(SECOND - 1).check(), Ok(()));
        let says = at(5 * SECOND).check().expect_err("it never happens");
        assert_eq!(
            says,
            "a change at 5 s never happens: the run ends after 1 s"
        );
    }

    #[test]
    fn the_product_is_rate_times_round_trip() {
        assert_eq!(Scenario::default().product(), 250_000);
    }
}
