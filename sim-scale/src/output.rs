//! Where the commands put what they have found.

use anyhow::{Context, Result, bail};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Writes text to standard output. A reader that has seen enough and is gone is no error.
///
/// # Errors
/// It cannot be written: standard output is a full disk, say.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Writes a line to standard error. Where nobody listens there is nobody to tell.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A number of things, each of which is called `what`.
pub fn counted(number: u64, what: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {what}{many}")
}

/// A file for what a run will have found, open since before the run. What was in it stays until
/// then; one that was not there goes again if the run finds nothing.
#[derive(Debug)]
pub struct Sink {
    file: File,
    path: PathBuf,
    /// It was not there before, and nothing was written yet.
    blank: bool,
}

impl Sink {
    /// Opens the file at `path`, if there is one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(path: Option<&PathBuf>) -> Result<Option<Self>> {
        let opened = path.map(|path| Self::at(path).with_context(|| path.display().to_string()));
        opened.transpose()
    }

    /// Opens two files, as far as they are asked for.
    ///
    /// # Errors
    /// One of them cannot be written, or they are the same.
    pub fn open_two(paths: [Option<&PathBuf>; 2]) -> Result<[Option<Self>; 2]> {
        let [one, other] = paths;
        let sinks = [Self::open(one)?, Self::open(other)?];
        if let [Some(one), Some(other)] = &sinks
            && one.is(other)?
        {
            let path = other.path.display();
            bail!("{path}: one file does not hold two results");
        }
        Ok(sinks)
    }

    /// Whether what one writes is lost when the other one writes.
    fn is(&self, other: &Self) -> io::Result<bool> {
        let [one, other] = [self.file.metadata()?, other.file.metadata()?];
        Ok(one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let (file, blank) = match File::create_new(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (File::options().write(true).open(path)?, false)
            }
            created => (created?, true),
        };
        let path = path.to_owned();
        Ok(Self { file, path, blank })
    }

    /// Puts `text` into the file, in the place of what was there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn fill(mut self, text: &str) -> Result<()> {
        self.write(text)
            .with_context(|| self.path.display().to_string())
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.blank = false;
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.blank {
            // Whoever has taken it away meanwhile wanted the same.
            let _ = fs::remove_file(&self.path);
        }
    }
}
