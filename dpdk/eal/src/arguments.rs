//! The command line of the environment.

use super::{EalError, folders};
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::path::Path;

/// Less than that in huge pages is not worth them.
const LEAST_HUGE: u64 = 256 << 20;
/// Where the kernel tells of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// What the environment is asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Arguments {
    /// What the user wants of it.
    given: Vec<String>,
    /// The device on the PCI bus that it is for.
    pci: Option<String>,
    /// All of it.
    words: Vec<String>,
}

impl Arguments {
    /// For a device on the PCI bus, or for none, with words of the user.
    pub fn new(pci: Option<&str>, given: &[String]) -> Self {
        let has = |names: &[&str]| {
            let named = |word: &String| names.iter().any(|name| is_named(word, name));
            given.iter().any(named)
        };
        let own_memory = has(&["--in-memory", "--no-huge", "--huge-dir", "--legacy-mem"]);
        let mut words = vec!["trunkline".to_owned()];
        let mut add = |text: &str| words.push(text.to_owned());
        if has(&["--no-huge"]) {
            add("--no-shconf");
        } else if !own_memory && free_huge_bytes() >= LEAST_HUGE {
            add("--in-memory");
        } else if !own_memory {
            add("--no-huge");
            add("--no-shconf");
        }
        if !has(&["-m", "--socket-mem", "--in-memory"]) && words.iter().any(|w| w == "--no-huge") {
            words.extend(["-m".to_owned(), "512".to_owned()]);
        }
        if !has(&["--file-prefix"]) {
            words.push(format!("--file-prefix={}", folders::own()));
        }
        if !has(&["-l", "-c", "-s", "--lcores"]) {
            words.extend(processors());
        }
        words.push("--no-telemetry".to_owned());
        words.push("--log-level=*:notice".to_owned());
        match pci {
            Some(device) => words.extend(["-a".to_owned(), device.to_owned()]),
            None => words.push("--no-pci".to_owned()),
        }
        words.extend_from_slice(given);
        Self {
            given: given.to_vec(),
            pci: pci.map(ToOwned::to_owned),
            words,
        }
    }

    /// Whether an environment that was set up with these serves who wants others.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn serve(&self, wanted: &Self) -> Result<(), EalError> {
        let words = wanted.given.is_empty() || wanted.given == self.given;
        let bus = wanted.pci.is_none() || self.pci.is_some();
        if words && bus {
            return Ok(());
        }
        Err(EalError::Other {
            running: self.to_string(),
            wanted: wanted.to_string(),
        })
    }

    /// As `main` of a C program gets them. DPDK may keep them, so nobody frees them.
    pub(super) fn leak(&self) -> (c_int, *mut *mut c_char) {
        // Words of a command line have no zeros.
        let words = self
            .words
            .iter()
            .filter_map(|word| CString::new(word.as_str()).ok());
        let mut words: Vec<_> = words.map(CString::into_raw).collect();
        let count = words.len() as c_int;
        words.push(std::ptr::null_mut());
        (count, Box::leak(words.into_boxed_slice()).as_mut_ptr())
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words[1..].join(" "))
    }
}

/// Looks whether words of a user, as they follow `--`, may be among the arguments.
///
/// # Errors
/// One of them has DPDK do something else than to serve this process.
pub fn check(given: &[String]) -> Result<(), EalError> {
    for (at, word) in given.iter().enumerate() {
        let refused = |why| {
            let word = word.clone();
            Err(EalError::Unfit { word, why })
        };
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), given.get(at + 1).map(String::as_str)),
        };
        if name == "-h" || abbreviates(name, "--help") {
            return refused("DPDK's guide has the EAL arguments, and `dpdk-testpmd --help`");
        }
        if abbreviates(name, "--proc-type") && value != Some("primary") {
            return refused("a port takes a primary process, so leave it out");
        }
    }
    Ok(())
}

/// Whether a word is an option, or the beginning of one, which getopt_long(3) takes for it.
fn abbreviates(word: &str, option: &str) -> bool {
    word.len() > "--".len() && option.starts_with(word)
}

/// Whether a word is that option, with or without its value.
fn is_named(word: &str, name: &str) -> bool {
    match word.strip_prefix(name) {
        Some(rest) => rest.is_empty() || rest.starts_with('=') || !name.starts_with("--"),
        None => false,
    }
}

/// One thread of DPDK, on any of our processors: by itself it makes one for each.
fn processors() -> Option<String> {
    // SAFETY: all zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for a set, and its size; this thread.
    let got = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if got != 0 {
        return None;
    }
    let most = libc::CPU_SETSIZE as usize;
    // SAFETY: all numbers are of the set.
    let ours = (0..most).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    let ours: Vec<_> = ours.map(|cpu| cpu.to_string()).collect();
    Some(format!("--lcores=0@({})", ours.join(",")))
}

/// Bytes of memory in huge pages that nobody has.
pub fn free_huge_bytes() -> u64 {
    let sizes = std::fs::read_dir(HUGE_PAGES)
        .into_iter()
        .flatten()
        .flatten();
    sizes.filter_map(|size| free_bytes(&size.path())).sum()
}

/// `hugepages-2048kB` and the like.
fn free_bytes(folder: &Path) -> Option<u64> {
    let name = folder.file_name()?.to_str()?;
    let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let free = std::fs::read_to_string(folder.join("free_hugepages")).ok()?;
    let (kib, free): (u64, u64) = (kib.parse().ok()?, free.trim().parse().ok()?);
    kib.checked_mul(1024)?.checked_mul(free)
}
