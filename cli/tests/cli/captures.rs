//! Captures as files, and what the command makes of them.

use crate::{run, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Captures that are part of this repository.
pub(crate) const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/tests/golden");

/// A file that is gone when the test is over.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("trunkline-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(crate) fn summary(path: &str) -> Value {
    let output = run(&["decode", path, "--summary", "--json"]);
    assert!(output.status.success(), "{path}: {}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{path}");
    serde_json::from_str(&stdout).unwrap()
}

/// One object for each packet.
pub(crate) fn packets(path: &str) -> Vec<Value> {
    let output = run(&["decode", path, "--json"]);
    assert!(output.status.success(), "{path}: {}", text(&output.stderr));
    text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(crate) fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(GOLDEN).join(format!("{name}.pcap"))
}
