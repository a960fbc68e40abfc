//! What processes have taken, as /proc says.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// Time of a CPU that the threads of a process have taken which live still, in ns.
///
/// # Errors
/// There is no such process any more, or the kernel keeps no statistics of its scheduler.
pub(super) fn cpu_ns(process: u32) -> Result<u64> {
    of_threads(process, "schedstat", parse_cpu)
}

/// How often the threads of a process that live still have given up a CPU to wait.
///
/// # Errors
/// There is no such process any more.
pub(super) fn waits(process: u32) -> Result<u64> {
    of_threads(process, "status", parse_waits)
}

/// How often the thread has that the process began with.
///
/// # Errors
/// There is no such process any more.
pub(super) fn waits_of_first_thread(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/task/{process}/status");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("there is no process {process}"))?;
    parse_waits(&text).with_context(|| format!("{path} says something else"))
}

fn of_threads(process: u32, file: &str, parse: impl Fn(&str) -> Option<u64>) -> Result<u64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"))
        .with_context(|| format!("there is no process {process}"))?;
    let mut sum = 0;
    for thread in threads {
        let path: PathBuf = thread?.path().join(file);
        // A thread may end between being listed and being asked.
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        sum += parse(&text).with_context(|| format!("{} says something else", path.display()))?;
    }
    Ok(sum)
}

/// The first word is time on a CPU.
fn parse_cpu(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

fn parse_waits(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn time_and_waits_are_read_from_what_the_kernel_writes() {
        assert_eq!(parse_cpu("43329157 94142327 132\n"), Some(43_329_157));
        assert_eq!(parse_cpu(""), None);
        let status =
            "Threads:\t1\nvoluntary_ctxt_switches:\t108\nnonvoluntary_ctxt_switches:\t24\n";
        assert_eq!(parse_waits(status), Some(108));
        assert_eq!(parse_waits("nonvoluntary_ctxt_switches:\t24\n"), None);
    }

    #[test]
    fn a_process_that_works_takes_time_and_one_that_sleeps_waits() {
        let this = std::process::id();
        let (cpu, slept) = (
            cpu_ns(this).expect("it lives"),
            waits(this).expect("it lives"),
        );
        let until = Instant::now() + Duration::from_secs(20);
        while cpu_ns(this).expect("it lives") <= cpu {
            assert!(Instant::now() < until, "no time passes");
        }
        std::thread::sleep(Duration::from_millis(2));
        assert!(waits(this).expect("it lives") > slept);
        // Tests are in other threads than that, which waits for them.
        let first = waits_of_first_thread(this).expect("it lives");
        assert!(first < waits(this).expect("it lives"));
    }
}
