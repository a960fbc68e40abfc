//! `--capture-cm`: the management datagrams of a node, in a file.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::Path;
use trunkline::{Builder, Node};

/// Has the node write them to `file`, if there is to be one.
///
/// # Errors
/// The file cannot be made.
pub(crate) fn add(builder: Builder, file: Option<&Path>) -> Result<Builder> {
    let Some(file) = file else {
        return Ok(builder);
    };
    let name = || file.display().to_string();
    let made = File::create(file).with_context(name)?;
    builder.capture_management(made).with_context(name)
}

/// Whether all of them were written to `file`, if there is one.
///
/// # Errors
/// The capture ended early.
pub(crate) fn check(node: &Node, file: Option<&Path>) -> Result<()> {
    let failure = node.capture_state().and_then(|state| state.failure);
    match (file, failure) {
        (Some(file), Some(why)) => bail!("{}: the capture ended early: {why}", file.display()),
        _ => Ok(()),
    }
}
