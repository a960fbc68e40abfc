//! The environment of DPDK, in a process where it was not set up: when it does not start, and when
//! it is wanted otherwise.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use trunkline::{PortFamily, Workers};
use trunkline_dpdk::{DpdkDevice, DpdkSpec, Family};

fn open(text: &str) -> Result<Vec<DpdkDevice>, String> {
    let spec: DpdkSpec = text.parse().unwrap();
    DpdkDevice::open_group(&spec, Workers::ONE).map_err(|error| error.to_string())
}

/// Where the environment makes its folders.
struct Folders(PathBuf);

impl Folders {
    /// One that nobody else has. The variable is set before there is a thread that reads some.
    fn new() -> Self {
        let name = format!("trunkline-environment-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // SAFETY: this process runs one test, which is at its beginning.
        unsafe { std::env::set_var("RUNTIME_DIRECTORY", &folder) };
        let all = folder.join("dpdk");
        fs::create_dir_all(&all).unwrap();
        Self(folder)
    }

    /// One of a process with that number, of that age.
    fn add(&self, process: u32, age: Duration) {
        let folder = self.0.join(format!("dpdk/{}{process}", prefix()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("config"), "left behind").unwrap();
        let then = SystemTime::now() - age;
        File::open(folder).unwrap().set_modified(then).unwrap();
    }

    /// The processes of those that there are.
    fn processes(&self) -> Vec<u32> {
        let found = fs::read_dir(self.0.join("dpdk")).unwrap();
        let names = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // Those of other namespaces are others' affair.
        let process = |name: String| name.strip_prefix(&prefix())?.parse().ok();
        let mut all: Vec<_> = names.filter_map(process).collect();
        all.sort_unstable();
        all
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What folders of processes of this PID namespace are called, before their numbers.
fn prefix() -> String {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_str().unwrap();
    let digits = namespace.trim_matches(|c: char| !c.is_ascii_digit());
    format!("trunkline-{digits}-")
}

/// Above all numbers of processes.
const NOBODY: u32 = 1 << 22;

/// In one test, as a process has one environment.
#[test]
fn a_process_lives_when_dpdk_does_not_start_and_has_it_as_it_was_first_wanted() {
    let folders = Folders::new();
    let (old, young) = (Duration::from_secs(3600), Duration::ZERO);
    for (process, age) in [(1, old), (NOBODY, old), (NOBODY + 1, young)] {
        folders.add(process, age);
    }
    for (words, why) in [
        ("--no-such-option", "no-such-option"),
        ("-vh", "DPDK ended the process instead"),
        ("--huge-dir=/nowhere", "more huge pages"),
        ("--lcores=some", "--lcores=some"),
        ("--in-memory --no-huge", "--in-memory"),
    ] {
        let said = open(&format!("ring -- {words}")).expect_err(words);
        assert!(said.starts_with("DPDK does not start with `"), "{said}");
        assert!(said.contains(why), "{said}");
        eprintln!("{said}");
        // Nothing of what did not start is left, nor of who ended long ago.
        assert_eq!(folders.processes(), [1, NOBODY + 1], "{words}");
    }
    let said = Family.look([127, 0, 0, 1].into()).unwrap();
    assert!(said.starts_with("DPDK 2"), "{said}");
    let said = Family.look([192, 0, 2, 1].into()).unwrap_err().to_string();
    let why = "192.0.2.1 is not an address of this machine";
    assert!(said.starts_with(why), "{said}");

    let first = open("ring -- -m 200").unwrap();
    assert_eq!(folders.processes(), [1, NOBODY + 1]);
    let second = open("ring").unwrap();
    drop((first, second));
    open("ring -- -m 200").unwrap();
    let said = open("ring -- -m 77").expect_err("it runs already");
    let why = "give all ports of a process the same arguments";
    assert!(said.contains(why), "{said}");
    let said = open("0000:ff:1f.7 prefix=24").expect_err("it runs without a bus");
    assert!(said.contains("PCI bus first"), "{said}");
    let said = Family.look([127, 0, 0, 1].into()).unwrap();
    assert!(said.starts_with("DPDK 2"), "{said}");
}
