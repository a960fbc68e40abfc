//! Programs of perftest, as they are, against `trunkline bench`, whose processes have nodes inside.

use super::programs::{embedded, perftest, perftest_promoting};
use super::service::{Service, Trunkline, cpu_ns_of};
use crate::cpus::{Pinned, stay_on};
use crate::rounds::{alternate, median};
use crate::{Measurement, Setting};
use anyhow::{Context, Result};
use std::thread::{available_parallelism, scope};

/// Bytes of a WRITE.
const SIZE: u64 = 65_536;
/// WRITEs that programs do in a second on any machine that we know, about.
const WRITES_PER_SECOND: f64 = 30_000.0;
/// Round trips in each round of a measurement of latency.
const TRIPS: usize = 10_000;
/// Round trips where all are on one CPU, and each wakes somebody up.
const SLOW_TRIPS: usize = 1000;
/// How many times the time of CPUs of embedded nodes a service may take for memory that it shares
/// with a program, and for other memory.
const SHARED: f64 = 1.1;
const FOREIGN: f64 = 1.3;
/// By how much a program of a service may be slower, in ns, on so many CPUs.
const SLOWER: f64 = 1500.0;
const ENOUGH_CPUS: usize = 4;
/// Nothing may stall so long at the median, in ns.
const STALL: f64 = 10e6;

/// `served_write64k`
///
/// # Errors
/// perftest is not installed, or a process fails.
pub fn write64k(setting: &Setting) -> Result<Measurement> {
    let trunkline = Trunkline::beside(&setting.program)?;
    let services = [
        Service::start(&trunkline, &[])?,
        Service::start(&trunkline, &[])?,
    ];
    let seconds = setting.duration.as_secs_f64();
    let writes = (seconds * WRITES_PER_SECOND).ceil().max(5.0);
    let line = format!("ib_write_bw -s {SIZE} -N -n {writes}");
    let bench = format!("bw --op write --size {SIZE} --depth 128 --warmup 0 --duration {seconds}");
    let (mut rates, mut embedded_rates, mut programs) = (Vec::new(), Vec::new(), Vec::new());
    let mut foreign = Vec::new();
    // Time of a CPU in ns per byte is seconds per GB.
    let costs = alternate(
        setting.rounds,
        || {
            let before = cpu_ns_of(&services)?;
            let (_, figures) = perftest_promoting(&trunkline, &services, "never", &line)?;
            foreign.push((cpu_ns_of(&services)? - before) as f64 / figures.bytes() * 1e3);
            let before = cpu_ns_of(&services)?;
            let (run, figures) = perftest_promoting(&trunkline, &services, "always", &line)?;
            rates.push(figures.bytes_per_s() / 1e9);
            programs.push(run.cpu_ns as f64 / figures.bytes() * 1e3);
            Ok((cpu_ns_of(&services)? - before) as f64 / figures.bytes() * 1e3)
        },
        || {
            let (run, report) = embedded(&trunkline, &bench)?;
            let bytes = (report.operations * report.size) as f64;
            embedded_rates.push(bytes / report.duration_s / 1e9);
            anyhow::Ok(run.cpu_ns as f64 / bytes * 1e3)
        },
    )?;
    let [rate, embedded, programs] =
        [&mut rates, &mut embedded_rates, &mut programs].map(|values| median(values));
    let foreign = median(&mut foreign);
    let (served, own) = costs;
    Ok(Measurement::new(
        "served_write64k",
        "ms of CPU per GB of two services, ib_write_bw of 64 KiB between them on loopback, with \
         memory that is shared (lower is better)",
        "ms of CPU per GB of both processes of trunkline bench bw, each with a node, by turns; \
         1.1 times is wanted",
        costs,
    )
    .want(
        served <= SHARED * own,
        format!("at most {SHARED} times with shared memory"),
    )
    .want(
        foreign <= FOREIGN * own,
        format!("at most {FOREIGN} times with other memory"),
    )
    .note(format!(
        "{foreign:.0} ms with other memory (TRUNKLINE_PROMOTE=never), {:.2} times; {FOREIGN} times \
         is wanted",
        foreign / own
    ))
    .note(format!(
        "{rate:.2} GB/s, and {embedded:.2} with a node in each process; the programs took \
         {programs:.0} ms of CPU per GB themselves, as ib_write_bw polls"
    )))
}

/// `served_lat64`
///
/// # Errors
/// perftest is not installed, or a process fails.
pub fn lat64(setting: &Setting) -> Result<Measurement> {
    let trunkline = Trunkline::beside(&setting.program)?;
    let service = [Service::start(&trunkline, &[])?];
    let line = format!("ib_send_lat -s 64 -n {TRIPS}");
    let bench = format!("lat --op send --size 64 --iterations {TRIPS}");
    let (mut woken, mut waits, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    let medians = alternate(
        setting.rounds,
        || Ok(perftest(&trunkline, &service, &line)?.1.median_ns()),
        || {
            let (run, figures) = perftest(&trunkline, &service, &format!("{line} -e"))?;
            woken.push(figures.median_ns());
            // Each round trip is a message of each program.
            let messages = (2 * TRIPS) as f64;
            waits.push(run.own_waits as f64 / messages);
            beside.push((run.waits - run.own_waits) as f64 / messages);
            anyhow::Ok(embedded(&trunkline, &bench)?.1.p50_us * 1e3)
        },
    )?;
    let measurement = Measurement::new(
        "served_lat64",
        "ns, ib_send_lat of 64 B, both programs on one service, median (lower is better)",
        "ns, trunkline bench lat between two processes with a node each, median (lower is better)",
        medians,
    );
    let crowded = on_one_cpu(setting, &trunkline)?;
    let (difference, cpus) = (medians.0 - medians.1, cpus()?);
    let [woken, waits, beside] = [&mut woken, &mut waits, &mut beside].map(|values| median(values));
    Ok(measurement
        .want(
            cpus < ENOUGH_CPUS || difference <= SLOWER,
            format!("at most {SLOWER:.0} ns slower"),
        )
        .want(crowded < STALL, format!("no stall of {STALL:.0} ns"))
        .want(beside < 0.01, "no thread of the library waits")
        .note(slower(difference, cpus))
        .note(format!(
            "with -e: {woken:.0} ns, the programs waited {waits:.2} times for each message; one \
             wake-up is wanted, and they ask for two events: its sender for one when it is sent, \
             and its receiver"
        ))
        .note(format!(
            "with -e: threads of the library waited {beside:.2} times for each message; none is \
             wanted"
        ))
        .note(format!(
            "with -e, both programs and the service on one CPU: {crowded:.0} ns; below {STALL:.0} \
             is wanted"
        )))
}

fn cpus() -> Result<usize> {
    Ok(available_parallelism().context("CPUs")?.get())
}

fn slower(difference: f64, cpus: usize) -> String {
    let verdict = match difference <= SLOWER {
        _ if cpus < ENOUGH_CPUS => "not judged with fewer than 4 CPUs",
        true => "as wanted",
        false => "more than wanted",
    };
    format!("{difference:.0} ns slower; at most {SLOWER:.0} is wanted: {verdict}")
}

/// The median in ns where programs wait for events, and they and the service have one CPU.
fn on_one_cpu(setting: &Setting, trunkline: &Trunkline) -> Result<f64> {
    let cpu = Pinned::ways()?[0].client;
    let line = format!("ib_send_lat -s 64 -e -n {SLOW_TRIPS}");
    let measure = || {
        stay_on(cpu)?;
        let service = [Service::start(trunkline, &[])?];
        let rounds = (0..setting.rounds).map(|_| {
            let (_, figures) = perftest(trunkline, &service, &line)?;
            Ok(figures.median_ns())
        });
        Ok(median(&mut rounds.collect::<Result<Vec<_>>>()?))
    };
    // All that the thread starts stays on the CPU with it.
    scope(|scope| scope.spawn(measure).join()).expect("the thread gives its errors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_judged_where_there_are_cpus_for_all() {
        assert!(slower(1500.0, 4).ends_with("as wanted"));
        assert!(slower(1501.0, 4).ends_with("more than wanted"));
        assert!(slower(9000.0, 2).contains("not judged"));
    }
}
