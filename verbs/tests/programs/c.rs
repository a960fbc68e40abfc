//! A program in C that was written for this: it asks for what the distribution's programs do not.

use crate::library::library;
use crate::pair::{Addresses, Services};
use std::path::Path;
use std::process::Command;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const SOURCES: [&str; 3] = ["laws.c", "requests.c", "events.c"];

/// Builds and runs it.
pub(crate) fn run() {
    let has_header = Path::new("/usr/include/infiniband/verbs.h").exists();
    if !has_header || Command::new("cc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: <infiniband/verbs.h> and a C compiler are needed");
        return;
    }
    let folder = std::env::temp_dir().join(format!("trunkline-laws-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("laws");
    let mut build = Command::new("cc");
    build
        .args(["-Wall", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .args(SOURCES)
        .current_dir(FOLDER);
    build.arg("-L").arg(library()).arg("-libverbs");
    let built = build.output().unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let services = Services::new();
    let address = Addresses::new().server;
    let socket = &services.sockets[0];
    for variables in [
        [
            ("TRUNKLINE_ADDRESS", address.as_str()),
            ("TRUNKLINE_PROMOTE", "auto"),
        ],
        [("TRUNKLINE_SOCKET", socket), ("TRUNKLINE_PROMOTE", "never")],
        [
            ("TRUNKLINE_SOCKET", socket),
            ("TRUNKLINE_PROMOTE", "always"),
        ],
    ] {
        let mut run = Command::new(&program);
        run.env("LD_LIBRARY_PATH", library()).envs(variables);
        let ran = run.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(
            ran.status.success(),
            "{variables:?}: {}\n{said}",
            ran.status
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
