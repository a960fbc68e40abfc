//! `trunkline install`: there and back.

use crate::directory::Directory;
use crate::library::library;
use crate::{complaint, run, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FILES: [&str; 4] = [
    "bin/trunkline",
    "lib/trunkline/libibverbs.so.1",
    "lib/trunkline/libibverbs.so",
    "lib/systemd/system/trunkline.service",
];

fn install(prefix: &str, words: &[&str]) -> Output {
    let library = library().join("libibverbs.so.1");
    let options = ["install", "--prefix", prefix, "--library"];
    let library = [library.to_str().unwrap()];
    run(&[&options[..], &library, words].concat())
}

fn uninstall(prefix: &str, words: &[&str]) -> Output {
    run(&[&["install", "--prefix", prefix, "--uninstall"], words].concat())
}

/// What is below a folder, but for folders.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.extend([entry.path()]),
        }
    }
    found
}

#[test]
fn what_was_installed_works_and_is_removed_and_nothing_else() {
    let directory = Directory::new();
    // A folder that is not there yet, with a space.
    let prefix = directory.file("to this/place");
    let below = |path: &str| Path::new(&prefix).join(path);
    let output = install(&prefix, &["--dry-run"]);
    assert!(
        text(&output.stdout).contains("would install"),
        "{}",
        text(&output.stderr)
    );
    assert!(!Path::new(&prefix).exists());
    let output = install(&prefix, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for file in FILES {
        let line = format!("installed {}\n", below(file).display());
        assert!(
            text(&output.stdout).contains(&line),
            "{}",
            text(&output.stdout)
        );
        assert!(below(file).exists(), "{file}");
    }
    assert_eq!(
        below(FILES[0]).metadata().unwrap().permissions().mode() & 0o777,
        0o755
    );
    let unit = std::fs::read_to_string(below(FILES[3])).unwrap();
    let starts = format!("ExecStart=\"{prefix}/bin/trunkline\" serve --socket");
    assert!(unit.contains(&starts), "{unit}");
    // What is installed finds its library.
    let mut installed = Command::new(below(FILES[0]));
    installed.args(["run", "--socket", &directory.file("none"), "true"]);
    installed.env_remove("TRUNKLINE_LIBRARY");
    let says = complaint(&installed.output().unwrap(), 1);
    assert!(says.starts_with("no service at"), "{says}");
    let own = below("lib/trunkline/mine");
    std::fs::write(&own, "precious").unwrap();
    let output = uninstall(&prefix, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(files(Path::new(&prefix)), BTreeSet::from([own]));
    assert!(!below("bin").exists(), "it was not there before");
    let says = complaint(&uninstall(&prefix, &[]), 1);
    assert_eq!(says, format!("nothing is installed below {prefix}"));
}

#[test]
fn what_is_replaced_or_kept_is_said() {
    let directory = Directory::new();
    let prefix = directory.file("prefix");
    let actions = |output: &Output| -> Vec<String> {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let files = report["files"].as_array().unwrap().iter();
        files
            .map(|file| file["action"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(actions(&install(&prefix, &["--json"])), ["installed"; 4]);
    assert_eq!(actions(&install(&prefix, &["--json"])), ["replaced"; 4]);
    let at = |n: usize| Path::new(&prefix).join(FILES[n]);
    std::fs::write(at(3), "of the user's own").unwrap();
    std::fs::remove_file(at(2)).unwrap();
    let expected = ["removed", "removed", "gone", "kept"];
    assert_eq!(
        actions(&uninstall(&prefix, &["--json", "--dry-run"])),
        expected
    );
    assert!(at(0).exists());
    assert_eq!(actions(&uninstall(&prefix, &["--json"])), expected);
    assert_eq!(files(Path::new(&prefix)), BTreeSet::from([at(3)]));
}

#[test]
fn a_damaged_list_of_what_is_installed_is_told_with_what_helps() {
    let directory = Directory::new();
    let prefix = directory.file("prefix");
    assert!(install(&prefix, &[]).status.success());
    let list = Path::new(&prefix).join("lib/trunkline/installed.json");
    let outside = br#"{"version":"0","files":[],"folders":["../x"]}"#;
    for damage in [&b""[..], b"{\"files\"", b"\xff\xfe", outside] {
        std::fs::write(&list, damage).unwrap();
        for output in [install(&prefix, &[]), uninstall(&prefix, &[])] {
            let says = complaint(&output, 1);
            let remedy = format!("remove {} and install again", list.display());
            assert!(says.contains(&remedy), "{says}");
        }
    }
    // What it says helps.
    std::fs::remove_file(&list).unwrap();
    assert!(install(&prefix, &[]).status.success());
    assert!(uninstall(&prefix, &[]).status.success());
    assert_eq!(files(Path::new(&prefix)), BTreeSet::new());
}

#[test]
fn the_library_of_somebody_else_is_neither_installed_nor_replaced() {
    let directory = Directory::new();
    let (other, prefix) = (directory.file("libibverbs.so.1"), directory.file("prefix"));
    std::fs::copy(env!("CARGO_BIN_EXE_trunkline"), &other).unwrap();
    let words = ["install", "--prefix", &prefix, "--library", &other];
    let says = complaint(&run(&words), 1);
    assert_eq!(says, format!("{other} is not Trunkline's library"));
    assert!(!Path::new(&prefix).exists());
    let folder = Path::new(&prefix).join("lib/trunkline");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::rename(&other, folder.join("libibverbs.so.1")).unwrap();
    let says = complaint(&install(&prefix, &[]), 1);
    assert!(
        says.ends_with("is another library: it is left as it is"),
        "{says}"
    );
    assert_eq!(files(Path::new(&prefix)).len(), 1);
}

#[test]
fn a_prefix_that_cannot_be_gets_one_line() {
    let directory = Directory::new();
    let file = directory.file("file");
    std::fs::write(&file, "precious").unwrap();
    for (prefix, code, part) in [
        ("", 2, "a value is required for '--prefix <DIR>'"),
        ("/a:b", 2, "has none of"),
        ("/a%b", 2, "has none of"),
        (&file, 1, "Not a directory"),
        ("/proc/here", 1, "cannot make /proc/here"),
    ] {
        let says = complaint(&install(prefix, &[]), code);
        assert!(says.contains(part), "{prefix}: {says}");
    }
    assert_eq!(files(&directory.0).len(), 1);
}
