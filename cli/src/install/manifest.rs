//! What an installation has put where, so that nothing else is ever removed.

use super::{library, render};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Its file, below the folder of the library.
const NAME: &str = "installed.json";

/// What was installed below a prefix.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Manifest {
    /// Version of the command that wrote it last.
    version: String,
    pub(super) files: Vec<Installed>,
    /// Folders that were not there before, those around others first.
    pub(super) folders: Vec<PathBuf>,
}

/// A file or link, and how it was.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Installed {
    /// Below the prefix.
    pub(super) path: PathBuf,
    bytes: u64,
    /// When it was written last, in seconds and nanoseconds since 1970.
    modified: (i64, i64),
    /// Where it leads, if it is a link.
    leads_to: Option<PathBuf>,
}

impl Installed {
    /// How it is now.
    ///
    /// # Errors
    /// It is not there, or cannot be looked at.
    pub(super) fn look(prefix: &Path, path: &Path) -> std::io::Result<Self> {
        let whole = prefix.join(path);
        let found = whole.symlink_metadata()?;
        let leads_to = match found.is_symlink() {
            true => Some(std::fs::read_link(whole)?),
            false => None,
        };
        Ok(Self {
            path: path.to_owned(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            leads_to,
        })
    }
}

impl Manifest {
    pub(super) fn path(prefix: &Path) -> PathBuf {
        prefix.join(library::INSTALLED).join(NAME)
    }

    /// That of what is installed; `None`: nothing is.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub(super) fn read(prefix: &Path) -> Result<Option<Self>> {
        let path = Self::path(prefix);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", render(&path)));
            }
        };
        // Which folders were there before is not known then: those of the installation stay.
        let remedy = format!("remove {} and install again", render(&path));
        let read: Self = serde_json::from_slice(&text)
            .with_context(|| format!("what is installed cannot be told: {remedy}"))?;
        let mut below = read
            .files
            .iter()
            .map(|file| &file.path)
            .chain(&read.folders);
        ensure!(
            below.all(|path| path
                .components()
                .all(|part| matches!(part, Component::Normal(_)))),
            "files that are not below {} are among what is installed: {remedy}",
            render(prefix)
        );
        Ok(Some(read))
    }

    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&mut self, prefix: &Path) -> Result<()> {
        env!("CARGO_PKG_VERSION").clone_into(&mut self.version);
        let path = Self::path(prefix);
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", render(&path)))
    }

    /// Notes a file that is installed now.
    pub(super) fn add(&mut self, file: Installed) {
        self.files.retain(|other| other.path != file.path);
        self.files.push(file);
    }
}
