//! All figures of a benchmark: a line for each place, each way to share CPUs, and each carrier.

use super::Both;
use super::process::Over;
use crate::rounds::median;

/// What was found in one of them.
#[derive(Debug)]
pub(super) struct Line {
    place: &'static str,
    cpus: &'static str,
    over: Over,
    rates: Vec<f64>,
    /// Medians and 99th percentiles in ns.
    latencies: [Vec<f64>; 2],
    /// Time of CPUs for an answer in ns, both processes together.
    cpu_ns: Vec<f64>,
}

impl Line {
    pub(super) fn new(place: &'static str, cpus: &'static str, over: Over) -> Self {
        Self {
            place,
            cpus,
            over,
            rates: Vec::new(),
            latencies: [const { Vec::new() }; 2],
            cpu_ns: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {}, {}", self.place, self.cpus, self.over.word())
    }

    /// One round more.
    pub(super) fn add(&mut self, both: &Both) {
        let client = &both.client;
        self.rates.push(client.rate);
        let latencies = client.latency_ns.into_iter().flatten();
        for (all, latency) in self.latencies.iter_mut().zip(latencies) {
            all.push(latency);
        }
        let cpu_ns = (client.cpu_ns + both.server_cpu_ns) as f64;
        self.cpu_ns.push(cpu_ns / client.answers as f64);
    }

    /// Medians of all rounds.
    fn medians(&mut self) -> Medians {
        let us = |values: &mut Vec<f64>| (!values.is_empty()).then(|| median(values) / 1e3);
        Medians {
            rate: median(&mut self.rates),
            latency_us: self.latencies.each_mut().map(us),
            cpu_us: median(&mut self.cpu_ns) / 1e3,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Medians {
    rate: f64,
    latency_us: [Option<f64>; 2],
    cpu_us: f64,
}

/// All lines, in the order in which they were measured.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<(Line, Medians)>);

impl Table {
    pub(super) fn extend(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.0.extend(lines.into_iter().map(|mut line| {
            let medians = line.medians();
            (line, medians)
        }));
    }

    /// The rates of a carrier and of its yardstick in the first place, with a CPU each if there are
    /// two.
    pub(super) fn rates(&self, ours: Over) -> (f64, f64) {
        self.figures(ours, |medians| medians.rate)
    }

    /// The 99th percentiles of their latencies, in ns.
    pub(super) fn p99s(&self, ours: Over) -> (f64, f64) {
        let p99 = |medians: &Medians| medians.latency_us[1].map_or(f64::NAN, |us| us * 1e3);
        self.figures(ours, p99)
    }

    fn figures(&self, ours: Over, figure: impl Fn(&Medians) -> f64) -> (f64, f64) {
        let first = |over| self.0.iter().find(|(line, _)| line.over == over);
        let figure = |over| first(over).map_or(f64::NAN, |(_, medians)| figure(medians));
        (figure(ours), ours.yardstick().map_or(f64::NAN, figure))
    }

    /// A note for each line, with its rate and its time of CPUs as parts of those over TCP.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = self.0.iter().map(|(line, found)| {
            let mut note = format!("{:<28} {:>9.0}/s", line.name(), found.rate);
            let [median, most] = found.latency_us.map(|us| match us {
                Some(us) => format!("{us:>8.1}"),
                None => format!("{:>8}", "-"),
            });
            note += &format!(", p50 {median} us, p99 {most} us");
            note += &format!(", {:>6.2} us of CPU each", found.cpu_us);
            if let Some(tcp) = self.yardstick_of(line) {
                let (rate, cpu) = (found.rate / tcp.rate, found.cpu_us / tcp.cpu_us);
                note += &format!("; {rate:.2} and {cpu:.2} of TCP");
            }
            note
        });
        notes.collect()
    }

    /// What was found over TCP beside a line of another carrier.
    fn yardstick_of(&self, line: &Line) -> Option<&Medians> {
        let of = (line.place, line.cpus, line.over.yardstick()?);
        let is_it = |other: &Line| (other.place, other.cpus, other.over) == of;
        let (_, medians) = self.0.iter().find(|(other, _)| is_it(other))?;
        Some(medians)
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::Found;
    use super::*;

    fn both(rate: f64, latency_ns: Option<[f64; 2]>) -> Both {
        let client = Found {
            rate,
            latency_ns,
            answers: 10,
            cpu_ns: 15_000,
        };
        Both {
            client,
            server_cpu_ns: 5_000,
        }
    }

    #[test]
    fn medians_stand_beside_those_over_tcp() {
        let mut tcp = Line::new("loopback", "a CPU each", Over::Tcp);
        for rate in [1000.0, 3000.0, 2000.0] {
            tcp.add(&both(rate, Some([7000.0, 9000.0])));
        }
        let mut raw = Line::new("loopback", "a CPU each", Over::Raw);
        raw.add(&both(4000.0, None));
        let mut table = Table::default();
        table.extend([tcp, raw]);
        assert_eq!(table.rates(Over::Raw), (4000.0, 2000.0));
        assert_eq!(table.p99s(Over::Tcp).0, 9000.0);
        let [tcp, raw] = &table.notes()[..] else {
            panic!("a note for each line");
        };
        assert_eq!(
            tcp.split_whitespace().collect::<Vec<_>>().join(" "),
            "loopback, a CPU each, tcp 2000/s, p50 7.0 us, p99 9.0 us, 2.00 us of CPU each"
        );
        assert!(
            raw.ends_with("2.00 us of CPU each; 2.00 and 1.00 of TCP"),
            "{raw}"
        );
    }
}
