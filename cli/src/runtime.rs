//! The folder of this user for what lives as long as processes do: sockets, locks, logs.

use anyhow::{Context, Result, anyhow, ensure};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The variable that names the folder which the system makes for a user's session.
pub(crate) const SESSION: &str = "XDG_RUNTIME_DIR";

/// Returns the folder, which nobody else can enter. It is made where it is missing.
///
/// # Errors
/// It cannot be made, or somebody else has made it.
pub(crate) fn folder() -> Result<PathBuf> {
    let uid = geteuid().as_raw();
    let session = std::env::var_os(SESSION).map(PathBuf::from);
    let candidates = [session, Some(format!("/run/user/{uid}").into())];
    let base = candidates
        .into_iter()
        .flatten()
        .find(|base| base.is_absolute() && is_own(base, uid));
    let base = base.unwrap_or_else(|| "/tmp".into());
    private(base.join(format!("trunkline-{uid}")), uid)
}

/// Whether it is a folder of that user: who became another one has the other's variables still.
fn is_own(folder: &Path, uid: u32) -> bool {
    let found = folder.metadata();
    found.is_ok_and(|found| found.is_dir() && found.uid() == uid)
}

fn private(folder: PathBuf, uid: u32) -> Result<PathBuf> {
    let shown = folder.display();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            let helps = remedy(&error);
            return Err(anyhow!("cannot make {shown}: {error}: {helps}"));
        }
        _ => {}
    }
    let found = folder.symlink_metadata();
    let found = found.with_context(|| format!("cannot look at {shown}"))?;
    ensure!(
        found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0,
        "{shown} is not a folder that user {uid} alone can enter: remove it, or set {SESSION}"
    );
    Ok(folder)
}

/// What to do where a file in the folder cannot be made for that reason.
pub(crate) fn remedy(error: &std::io::Error) -> String {
    let helps = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on its file system",
        ErrorKind::PermissionDenied => "let this user write there",
        _ => "see to that",
    };
    format!("{helps}, or set {SESSION} to another folder of this user's")
}

/// Takes the lock of an open file, for as long as it is open in whichever process; whether nobody
/// has it.
///
/// # Errors
/// The file system has no locks.
pub(crate) fn try_lock(file: &std::fs::File) -> std::io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_others_can_enter_or_have_made_is_refused() {
        let base = std::env::temp_dir().join(format!("trunkline-runtime-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let uid = geteuid().as_raw();
        let folder = base.join("own");
        assert_eq!(private(folder.clone(), uid).unwrap(), folder);
        assert_eq!(private(folder.clone(), uid).unwrap(), folder, "again");
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(private(folder.clone(), uid + 1).is_err());
        symlink(&folder, base.join("link")).unwrap();
        assert!(private(base.join("link"), uid).is_err());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o750)).unwrap();
        let why = private(folder, uid).unwrap_err().to_string();
        assert!(why.contains("alone can enter"), "{why}");
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_lock_is_had_once_until_the_file_is_closed() {
        let path = std::env::temp_dir().join(format!("trunkline-lock-{}", std::process::id()));
        let open = || std::fs::File::create(&path).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        let copy = first.try_clone().unwrap();
        drop(first);
        assert!(!try_lock(&second).unwrap(), "a copy is open");
        drop(copy);
        assert!(try_lock(&second).unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
