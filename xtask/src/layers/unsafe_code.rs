//! The one module of the ground floor that may hold unsafe code.

use crate::{cargo, tidy};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Whose `lib.rs` denies unsafe code, so that a module may allow it.
const CRATE: &str = "qpmap/src";
/// The module that does.
const MODULE: &str = "qpmap/src/rcu.rs";

/// Files of the crate that allow unsafe code and are not the module.
///
/// # Errors
/// A file cannot be read.
pub(super) fn check() -> Result<Vec<String>> {
    let root = cargo::root();
    let mut faults = Vec::new();
    for file in tidy::files()? {
        if file.starts_with(CRATE) && file.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(root.join(&file));
            let text = text.with_context(|| file.display().to_string())?;
            faults.extend(fault(&file, &text));
        }
    }
    Ok(faults)
}

fn fault(file: &Path, text: &str) -> Option<String> {
    let denies = |line: &str| line.trim_end() == "#![deny(unsafe_code)]";
    let allows = text
        .lines()
        .any(|line| line.contains("unsafe_code") && !denies(line));
    let fault = || {
        format!(
            "{} may hold no unsafe code, only {MODULE} may",
            file.display()
        )
    };
    (allows && file != Path::new(MODULE)).then(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_module_allows_unsafe_code() {
        let allowing = "#![allow(\n    unsafe_code,\n    reason = \"speed\"\n)]\n";
        assert_eq!(fault(Path::new(MODULE), allowing), None);
        let other = fault(Path::new("qpmap/src/ring.rs"), allowing);
        assert!(other.is_some_and(|fault| fault.starts_with("qpmap/src/ring.rs")));
        assert!(fault(Path::new("qpmap/src/lib.rs"), "#![expect(unsafe_code)]").is_some());
        let denying = "#![deny(unsafe_code)]\nmod rcu;\n";
        assert_eq!(fault(Path::new("qpmap/src/lib.rs"), denying), None);
    }
}
