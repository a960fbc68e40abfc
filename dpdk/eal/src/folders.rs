//! The folders that the environment makes for its files. One that fails leaves its own behind, and
//! one that shares memory with other processes has it as long as it lives.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A younger one may belong to a process that has not begun to use it.
const AGE: Duration = Duration::from_secs(60);

/// What the folder of this process is called (`--file-prefix`).
pub(crate) fn own() -> String {
    format!("{}{}", prefix(), std::process::id())
}

/// What those of our processes are called, before their numbers: these are of one PID namespace,
/// and others may have the same place for their folders.
fn prefix() -> String {
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = |text: &str| {
        text.chars()
            .filter(char::is_ascii_digit)
            .collect::<String>()
    };
    format!(
        "trunkline-{}-",
        namespace.to_str().map_or_else(String::new, digits)
    )
}

/// Removes that of this process, with what is in it: nothing runs that has it.
pub(crate) fn remove_own() {
    // There may be none.
    let _ = all().map(|all| std::fs::remove_dir_all(all.join(own())));
}

/// Removes those of processes that ended.
pub(crate) fn remove_ended() {
    let Some(all) = all() else { return };
    let found = std::fs::read_dir(all).into_iter().flatten().flatten();
    for folder in found.map(|entry| entry.path()).filter(|path| ended(path)) {
        tracing::debug!(?folder, "DPDK left a folder of a process that ended");
        let _ = std::fs::remove_dir_all(folder);
    }
}

fn ended(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    let process = name.and_then(|name| name.strip_prefix(&prefix())?.parse::<u32>().ok());
    let is_old = || {
        let changed = folder.symlink_metadata().and_then(|found| found.modified());
        changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > AGE))
    };
    process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists() && is_old())
}

/// Where DPDK makes them, if that is a folder of this user and nothing that leads elsewhere.
fn all() -> Option<PathBuf> {
    let said = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    // SAFETY: asks for a number.
    let user = unsafe { libc::getuid() };
    let otherwise = || match user {
        0 => OsString::from("/var/run"),
        _ => said("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into()),
    };
    let folder = said("RUNTIME_DIRECTORY").unwrap_or_else(otherwise);
    let folder = PathBuf::from(folder).join("dpdk");
    let found = folder.symlink_metadata().ok()?;
    (found.is_dir() && found.uid() == user).then_some(folder)
}
