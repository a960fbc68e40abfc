//! On which CPUs the processes of a benchmark run.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs for a server and its client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pinned {
    pub(crate) server: usize,
    pub(crate) client: usize,
}

impl Pinned {
    /// The ways in which both may run here: with a CPU each, if this program may use several, and
    /// on one together.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(crate) fn ways() -> Result<Vec<Self>> {
        let allowed = sched_getaffinity(None).context("which CPUs may be used")?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let client = allowed.next().context("no CPU may be used")?;
        let servers = allowed.next().into_iter().chain([client]);
        Ok(servers.map(|server| Self { server, client }).collect())
    }

    /// In words.
    pub(crate) fn name(self) -> &'static str {
        if self.server == self.client {
            "one CPU"
        } else {
            "a CPU each"
        }
    }
}

/// Keeps this thread, and all that it starts, on one CPU.
///
/// # Errors
/// There is no such CPU, or this program may not use it.
pub(crate) fn stay_on(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).with_context(|| format!("CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_way_is_on_one_cpu_and_any_other_on_two() {
        let ways = Pinned::ways().expect("this program runs somewhere");
        let (last, others) = ways.split_last().expect("one at least");
        assert_eq!(last.name(), "one CPU");
        assert!(others.iter().all(|way| way.name() == "a CPU each"));
        std::thread::spawn(move || {
            stay_on(ways[0].server).expect("it may run there");
            let alone = Pinned::ways().expect("it still runs");
            assert_eq!(alone.len(), 1);
            assert_eq!(alone[0].client, ways[0].server);
        })
        .join()
        .expect("the thread ends well");
    }
}
