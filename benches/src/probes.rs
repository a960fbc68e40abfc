//! What it costs to be seen: QPs connected per second with connection management counted, timed and
//! full of probes, against none of that.

use crate::rounds::median;
use crate::warm::Pair;
use crate::{Measurement, Setting};
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};
use std::fs::{File, read, read_to_string};
use std::os::unix::fs::FileExt;

const UNIT: &str = "pairs of QPs per second, created and connected at both ends, one thread";

/// `cm_probes`
///
/// # Errors
/// An address that is taken, or an executable without probes.
pub fn cost(setting: &Setting) -> Result<Measurement> {
    let semaphores = Semaphores::find()?;
    let mut with = Pair::new([3, 4], true)?;
    let mut without = Pair::new([5, 6], false)?;
    let (mut off, mut none, mut on) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..setting.rounds {
        off.push(with.run(setting.duration)?.0);
        none.push(without.run(setting.duration)?.0);
        semaphores.set(true)?;
        let rate = with.run(setting.duration);
        semaphores.set(false)?;
        on.push(rate?.0);
    }
    let (off, none, on) = (median(&mut off), median(&mut none), median(&mut on));
    let yardstick = "the same with nobody told: neither counts, times nor probes";
    let percent = 100.0 * (1.0 - on / off);
    let note = format!(
        "with every semaphore set, so that each site puts its arguments together and meets its \
         nop: {on:.0}, {percent:.1} % less"
    );
    Ok(Measurement::new("cm_probes", UNIT, yardstick, (off, none)).note(note))
}

/// The semaphores of all probes of this process: who attaches counts them up, and so does this.
struct Semaphores {
    memory: File,
    address: u64,
    count: usize,
}

impl Semaphores {
    fn find() -> Result<Self> {
        let program = read("/proc/self/exe").context("this program")?;
        let object = object::File::parse(&*program).context("this program")?;
        let section = object.section_by_name(".probes");
        let section = section.context("no probes were built in")?;
        let memory = File::options().write(true).open("/proc/self/mem");
        Ok(Self {
            memory: memory.context("the memory of this program")?,
            address: bias()? + section.address(),
            count: section.size() as usize / 2,
        })
    }

    fn set(&self, on: bool) -> Result<()> {
        let values = u16::from(on).to_ne_bytes().repeat(self.count);
        let written = self.memory.write_at(&values, self.address);
        ensure!(
            written.context("semaphores")? == values.len(),
            "semaphores are cut off"
        );
        Ok(())
    }
}

/// Where this program was loaded.
fn bias() -> Result<u64> {
    let maps = read_to_string("/proc/self/maps").context("the maps of this program")?;
    let program = std::env::current_exe().context("where is this program?")?;
    let program = program.to_str().context("its name is no text")?;
    let first = maps.lines().find(|line| line.ends_with(program));
    let range = first.and_then(|line| line.split('-').next());
    let start = range.context("it is not in its maps")?;
    u64::from_str_radix(start, 16).context("the maps of this program")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn probes_can_be_switched_on_while_nodes_connect() {
        let setting = Setting {
            duration: Duration::from_millis(20),
            rounds: 1,
            cycles: 1,
            full: false,
            counters: false,
            program: std::env::current_exe().expect("this one"),
        };
        let measured = cost(&setting).expect("it runs anywhere");
        assert!(measured.value > 0.0 && measured.yardstick_value > 0.0);
    }
}
