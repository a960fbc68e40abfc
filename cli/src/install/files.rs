//! The files of an installation: how they get there.

use super::library;
use super::manifest::Manifest;
use super::render;
use anyhow::{Context, Result, bail};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The unit, for a prefix of /usr/local.
const UNIT: &str = include_str!("../../../packaging/trunkline.service");
const UNIT_PREFIX: &str = "/usr/local";

/// What a file is to hold.
#[derive(Debug)]
enum Content {
    CopyOf(PathBuf),
    Text(String),
    LinkTo(&'static str),
}

/// A file that is to be there.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Below the prefix.
    pub(super) path: PathBuf,
    content: Content,
    mode: u32,
}

/// Where the unit is, below the prefix.
pub(super) const UNIT_PATH: &str = "lib/systemd/system/trunkline.service";

/// All files of an installation below `prefix`, with this library.
///
/// # Errors
/// It cannot be told which program this is.
pub(super) fn all(prefix: &Path, library: PathBuf) -> Result<Vec<Wanted>> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let below = Path::new(library::INSTALLED);
    // A prefix that systemd would take for something else was refused.
    let unit = UNIT.replace(
        &format!("{UNIT_PREFIX}/bin/trunkline"),
        &format!("\"{}/bin/trunkline\"", prefix.display()),
    );
    let wanted = [
        (
            Path::new("bin/trunkline").to_owned(),
            Content::CopyOf(program),
            0o755,
        ),
        (below.join(library::NAME), Content::CopyOf(library), 0o755),
        (
            below.join("libibverbs.so"),
            Content::LinkTo(library::NAME),
            0,
        ),
        (UNIT_PATH.into(), Content::Text(unit), 0o644),
    ];
    let wanted = wanted.into_iter();
    Ok(wanted
        .map(|(path, content, mode)| Wanted {
            path,
            content,
            mode,
        })
        .collect())
}

impl Wanted {
    /// Whether there is something in its place; what must not be replaced is an error.
    ///
    /// # Errors
    /// There is a folder, or a library that is not ours.
    pub(super) fn is_there(&self, prefix: &Path) -> Result<bool> {
        let path = prefix.join(&self.path);
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot look at {}", render(&path)));
            }
        };
        if found.is_dir() {
            bail!("{} is a folder", render(&path));
        }
        if path.ends_with(library::NAME) && !library::is_ours(&path) {
            bail!("{} is another library: it is left as it is", render(&path));
        }
        Ok(true)
    }

    /// Puts it there, in one step for whoever looks.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn put(&self, prefix: &Path) -> Result<()> {
        let path = prefix.join(&self.path);
        let mut fresh = path.clone().into_os_string();
        fresh.push(".new");
        let written = self.write(Path::new(&fresh));
        let put = written.and_then(|()| std::fs::rename(&fresh, &path));
        put.inspect_err(|_| {
            // It may not be there.
            let _ = std::fs::remove_file(&fresh);
        })
        .with_context(|| format!("cannot write {}", render(&path)))
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        // What is left of an installation that was killed.
        let _ = std::fs::remove_file(path);
        match &self.content {
            Content::LinkTo(to) => return symlink(to, path),
            Content::CopyOf(of) => {
                std::fs::copy(of, path)?;
            }
            Content::Text(text) => File::create_new(path)?.write_all(text.as_bytes())?,
        }
        // Whatever the umask is.
        std::fs::set_permissions(path, Permissions::from_mode(self.mode))
    }
}

/// Makes a folder with those around it, and notes which were not there.
///
/// # Errors
/// One cannot be made.
pub(super) fn make_folder(folder: &Path, prefix: &Path, manifest: &mut Manifest) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make_folder(above, prefix, manifest)?;
    }
    std::fs::create_dir(folder)
        .and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot make {}", render(folder)))?;
    if let Ok(below) = folder.strip_prefix(prefix) {
        manifest.folders.push(below.to_owned());
    }
    Ok(())
}
