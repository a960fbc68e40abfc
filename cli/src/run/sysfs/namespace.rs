//! A mount namespace for the program, in a user namespace where that is needed.

use crate::namespace::unshare;
use anyhow::{Context, Result};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities};
use std::fs::write;

/// Whether this process may mount file systems where it is.
pub(super) fn may_mount() -> bool {
    capabilities(None).is_ok_and(|may| may.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Enters a user namespace with this user and group alone if that is `allowed`, and needed to mount
/// file systems. There must be one thread only.
///
/// # Errors
/// The system lets nobody have one, or not this user.
pub(super) fn begin(allowed: bool) -> Result<()> {
    if !allowed || may_mount() {
        return Ok(());
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER).context("no user namespace can be had here")?;
    // Whoever may drop groups could get at files that a group is kept from.
    write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
    write("/proc/self/uid_map", format!("{user} {user} 1")).context("/proc/self/uid_map")?;
    write("/proc/self/gid_map", format!("{group} {group} 1")).context("/proc/self/gid_map")
}

/// Enters a mount namespace of its own, as does what this thread becomes.
///
/// # Errors
/// The system does not let this process have one.
pub(super) fn enter() -> Result<()> {
    unshare(UnshareFlags::NEWNS).context("no mount namespace can be had here")
}

/// From now on nothing that is mounted at `path` or below shows outside of the namespace. What is
/// mounted there outside still shows here, and elsewhere nothing changes.
///
/// # Errors
/// Nothing is mounted at `path`.
pub(super) fn keep_apart(path: &str) -> Result<()> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(path, flags).with_context(|| path.to_owned())
}
