//! A folder that another one of ours is mounted over.

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, open, readlinkat, statat};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind_recursive, mount_remount, unmount,
};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

/// How ours are mounted: there is nothing to be run there.
const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// A folder that is covered.
pub(super) struct Folder {
    path: &'static str,
    /// The one below.
    below: OwnedFd,
}

impl Folder {
    /// Covers the folder at `path` with an empty one.
    ///
    /// # Errors
    /// There is no folder, or nothing may be mounted.
    pub(super) fn cover(path: &'static str) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let below = open(path, flags, Mode::empty()).context(path)?;
        let data: &CStr = c"mode=755,size=1m";
        mount("trunkline", path, "tmpfs", FLAGS, data)
            .with_context(|| format!("mounting {path}"))?;
        Ok(Self { path, below })
    }

    /// Takes the cover away again.
    pub(super) fn uncover(&self) {
        // Where that fails nothing can be done: the program sees what there is.
        let _ = unmount(self.path, UnmountFlags::DETACH);
    }

    /// Lets show what is in the folder below and has such a name.
    ///
    /// # Errors
    /// The folder cannot be read, or something in it not be shown.
    pub(super) fn keep(&self, is_kept: impl Fn(&str) -> bool) -> Result<()> {
        // A directory in /proc leads to what is below, whatever is mounted there.
        let below = format!("/proc/self/fd/{}", self.below.as_raw_fd());
        for entry in std::fs::read_dir(&below).context(self.path)? {
            let name = entry.context(self.path)?.file_name();
            if !is_kept(&name.to_string_lossy()) {
                continue;
            }
            self.keep_one(&Path::new(&below).join(&name), &name)
                .with_context(|| format!("{}/{}", self.path, name.display()))?;
        }
        Ok(())
    }

    fn keep_one(&self, from: &Path, name: &OsStr) -> Result<()> {
        let at = Path::new(self.path).join(name);
        let Ok(found) = statat(&self.below, name, AtFlags::SYMLINK_NOFOLLOW) else {
            // It has just gone.
            return Ok(());
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => {
                let target = readlinkat(&self.below, name, Vec::new())?;
                symlink(OsStr::from_bytes(target.as_bytes()), &at)?;
                Ok(())
            }
            FileType::Directory => {
                self.make(&at)?;
                mount_bind_recursive(from, &at)?;
                Ok(())
            }
            _ => self.bind(from, &at),
        }
    }

    /// Lets the file `from` show at `at`.
    ///
    /// # Errors
    /// There is no such file, or it must not be mounted.
    pub(super) fn bind(&self, from: &Path, at: &Path) -> Result<()> {
        File::create(at).with_context(|| at.display().to_string())?;
        mount_bind_recursive(from, at).with_context(|| format!("mounting {}", at.display()))
    }

    /// Makes a folder, with those above it.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn make(&self, at: &Path) -> Result<()> {
        debug_assert!(at.starts_with(self.path), "it is in this folder");
        std::fs::create_dir_all(at).with_context(|| at.display().to_string())
    }

    /// Writes a file of a line, with the folders above it.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn write(&self, at: &Path, line: &str) -> Result<()> {
        if let Some(folder) = at.parent() {
            self.make(folder)?;
        }
        std::fs::write(at, format!("{line}\n")).with_context(|| at.display().to_string())
    }

    /// From now on nobody writes there, as nobody makes files under /sys.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn seal(&self) -> Result<()> {
        mount_remount(self.path, FLAGS | MountFlags::RDONLY, c"").context(self.path)
    }
}
