//! Where the commands put what they have found.

use anyhow::{Context, Result};
use std::io::{self, Write};

/// Writes text to standard output.
///
/// # Errors
/// Nobody takes it: standard output is full or closed.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("standard output")
}
