//! The proof that wire, conn and cm need no standard library.
//!
//! Stable Rust on a bare machine has no target without `std`, so the proof is one of linking:
//! `xtask/no_std` is a static library with a panic handler and an allocator of its own that pulls
//! in the three crates. Were `std` anywhere below it, with whatever features are active, there
//! would be two panic handlers and the compiler would refuse.

use crate::cargo;
use anyhow::{Context, Result};
use std::fs;

/// Builds the static library.
///
/// # Errors
/// What the compiler says.
pub(crate) fn check() -> Result<String> {
    let root = cargo::root();
    let folder = root.join("xtask").join("no_std");
    // Its own workspace, because it aborts on panic and must not share features; but the same
    // versions of everything.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).context("Cargo.lock")?;
    let mut command = cargo::cargo(&["build", "--quiet", "--manifest-path"]);
    command
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(cargo::target_dir()?.join("no_std"));
    cargo::output(command)?;
    Ok("wire, conn and cm link without the standard library".to_owned())
}
