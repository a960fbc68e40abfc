//! Where tasks say what they have found.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes a line to standard output.
///
/// # Errors
/// As [`taken`] says.
pub(crate) fn print(line: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    taken(writeln!(out, "{line}").and_then(|()| out.flush()))
}

/// What became of words for standard output. A reader that has seen enough and is gone is no error.
///
/// # Errors
/// They could not be written: standard output is a full disk, say.
pub(crate) fn taken(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Writes a line to standard error. Where nobody listens there is nobody to tell.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
