//! The library and the programs that tests run with it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use trunkline_testkit::programs::is_installed;

/// The folder of the library, which is built once.
pub(crate) fn library() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args([
            "run",
            "--quiet",
            "--package",
            "xtask",
            "--",
            "verbs",
            "--profile",
            "dev",
        ]);
        let built = build.output().unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        PathBuf::from(String::from_utf8(built.stdout).unwrap().trim_end())
    })
}

/// Whether there is the program; says so if not.
pub(crate) fn is_there(program: &str) -> bool {
    let found = is_installed(program);
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}
