//! What no other tool looks at: lengths, dead files, stray marks, the papers of the repository.

mod changelog;
mod example;
mod limits;
mod modules;
mod named;
mod places;

use crate::cargo;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 800;
const MAX_COLUMNS: usize = 100;

/// Papers people should be able to read in one sitting, with the most lines they may have.
const PAPERS: &[(&str, usize)] = &[("README.md", 150), ("ARCHITECTURE.md", 400)];

/// Marks of unfinished work. Put together here so that this file does not contain them.
const MARKS: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
];

/// Sources that draw numbers which peers see; tests in files of their own and the command are not
/// among them.
const SECRET: &[&str] = &["src", "conn/src", "cm/src", "qpmap/src"];
const NOT_SECRET: &[&str] = &["cli/src"];

/// What names a generator whose outputs tell the others: SplitMix64's first factor, xoshiro's home.
const PREDICTABLE: &[&str] = &[concat!("0xbf58_476d", "_1ce4_e5b9"), concat!("prng", "::")];

/// Checks every file that git knows or would take.
///
/// # Errors
/// All that is wrong, one line each.
pub(crate) fn check() -> Result<String> {
    let root = cargo::root();
    let files = files()?;
    let mut faults = Vec::new();
    let mut sources = Vec::new();
    let mut papers = Vec::new();
    let mut manifests = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(root.join(file)) else {
            continue; // a capture, a corpus file: not text
        };
        if is_text(file) {
            faults.extend(text_faults(file, &text));
        }
        if file.extension().is_some_and(|extension| extension == "rs") {
            faults.extend(source_faults(file, &text));
            faults.extend(predictable_numbers(file, &text));
            sources.push((file.clone(), text));
        } else if file.extension().is_some_and(|extension| extension == "md") {
            papers.push((file, text));
        } else if file.ends_with("Cargo.toml") {
            if !takes_lints(file, &text) {
                let name = file.display();
                faults.push(format!("{name}: does not take the workspace's lints"));
            }
            manifests.push((file.clone(), text));
        }
    }
    for (file, text) in papers {
        faults.extend(named::faults(file, &text, &sources));
        faults.extend(limits::faults(file, &text, &sources));
        faults.extend(places::faults(file, &text, &files));
    }
    faults.extend(modules::faults(&sources, &manifests));
    faults.extend(paper_faults(&root).unwrap_or_else(|error| vec![format!("{error:#}")]));
    if !faults.is_empty() {
        bail!("{}", faults.join("\n       "));
    }
    Ok(format!(
        "{} files, {} of them Rust",
        files.len(),
        sources.len()
    ))
}

pub(crate) fn files() -> Result<Vec<PathBuf>> {
    let list = [
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    ];
    let list = cargo::output(cargo::command("git", &list))?;
    let mut files: Vec<_> = list
        .split('\0')
        .filter(|f| !f.is_empty())
        .map(PathBuf::from)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Whether a manifest takes over the lints of the workspace. The proof of `no_std` is not in it,
/// and that of a workspace alone has no code.
fn takes_lints(file: &Path, text: &str) -> bool {
    text.contains("[lints]\nworkspace = true")
        || file == Path::new("xtask/no_std/Cargo.toml")
        || !text.contains("[package]")
}

fn is_text(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("rs" | "toml" | "md" | "sh" | "yml")) || file.starts_with(".ci")
}

fn text_faults(file: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = format!("{}:{}", file.display(), index + 1);
        if line.ends_with([' ', '\t']) {
            faults.push(format!("{place}: blanks at the end"));
        }
        for mark in MARKS {
            let words = line.split(|c: char| !c.is_alphanumeric());
            if words.into_iter().any(|word| word == *mark) {
                faults.push(format!("{place}: stray {mark}"));
            }
        }
        if ["<<<<<<< ", ">>>>>>> "]
            .iter()
            .any(|conflict| line.starts_with(conflict))
        {
            faults.push(format!("{place}: unresolved conflict"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(format!("{}: no newline at the end", file.display()));
    }
    faults
}

fn source_faults(file: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        faults.push(format!(
            "{}: {lines} lines, at most {MAX_LINES}",
            file.display()
        ));
    }
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > MAX_COLUMNS {
            let place = format!("{}:{}", file.display(), index + 1);
            faults.push(format!("{place}: {columns} columns, at most {MAX_COLUMNS}"));
        }
    }
    faults
}

/// Numbers that peers see come from `trunkline_conn::secret`.
fn predictable_numbers(file: &Path, text: &str) -> Vec<String> {
    let below = |folders: &[&str]| folders.iter().any(|folder| file.starts_with(folder));
    let of_tests = file
        .iter()
        .any(|part| part == "tests" || part == "tests.rs");
    if !below(SECRET) || below(NOT_SECRET) || of_tests {
        return Vec::new();
    }
    let named = PREDICTABLE.iter().filter(|name| text.contains(**name));
    let fault = |name: &&str| format!("{}: {name} is predictable", file.display());
    named.map(fault).collect()
}

fn paper_faults(root: &Path) -> Result<Vec<String>> {
    let read = |name: &str| fs::read_to_string(root.join(name)).with_context(|| name.to_owned());
    let mut faults = changelog::faults(&read("CHANGELOG.md")?);
    faults.extend(example::faults(&read("README.md")?, &read("src/lib.rs")?));
    let manifest = read("Cargo.toml")?;
    let rust = key(&manifest, "rust-version").context("Cargo.toml has no rust-version")?;
    for name in ["README.md", "CONTRIBUTING.md"] {
        let text = read(name)?;
        for version in versions_after(&text, "Rust ") {
            if version != rust {
                faults.push(format!(
                    "{name}: says Rust {version}, Cargo.toml says {rust}"
                ));
            }
        }
    }
    let version = key(&manifest, "version").context("Cargo.toml has no version")?;
    for told in versions_after(&read("README.md")?, "trunkline = \"") {
        if !version.starts_with(&told) {
            faults.push(format!(
                "README.md: says trunkline {told}, Cargo.toml says {version}"
            ));
        }
    }
    for (name, most) in PAPERS {
        let lines = read(name)?.lines().count();
        if lines > *most {
            faults.push(format!("{name}: {lines} lines, at most {most}"));
        }
    }
    Ok(faults)
}

/// Value of the first `name = "value"` line.
fn key(manifest: &str, name: &str) -> Option<String> {
    manifest.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?.trim_start().strip_prefix('=')?;
        Some(rest.trim().trim_matches('"').to_owned())
    })
}

/// Every `1.2` or `1.2.3` that stands right after `word`.
fn versions_after(text: &str, word: &str) -> Vec<String> {
    text.match_indices(word)
        .filter_map(|(at, _)| {
            let rest = &text[at + word.len()..];
            let end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(rest.len());
            let version = rest[..end].trim_end_matches('.');
            version.contains('.').then(|| version.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_and_a_long_file_are_found() {
        let file = Path::new("a/src/lib.rs");
        let long = format!("{}\n", "x".repeat(101));
        assert_eq!(
            source_faults(file, &long),
            ["a/src/lib.rs:1: 101 columns, at most 100"]
        );
        let many = "x\n".repeat(801);
        assert_eq!(
            source_faults(file, &many),
            ["a/src/lib.rs: 801 lines, at most 800"]
        );
        assert!(source_faults(file, &"x\n".repeat(800)).is_empty());
        assert!(source_faults(file, &format!("{}\n", "\u{b5}".repeat(100))).is_empty());
    }

    #[test]
    fn a_stray_mark_is_found_and_a_word_around_it_is_not() {
        let file = Path::new("a.rs");
        let mark = MARKS[0];
        assert_eq!(text_faults(file, &format!("// {mark}: later\n")).len(), 1);
        assert!(text_faults(file, &format!("// A{mark}B\n")).is_empty());
    }

    #[test]
    fn a_predictable_generator_is_found_where_peers_see_its_numbers() {
        let text = format!("use trunkline_dataplane::{}Prng;\n", PREDICTABLE[1]);
        for (file, faults) in [
            ("src/worker/core.rs", 1),
            ("qpmap/src/engine/mod.rs", 1),
            ("cli/src/demo.rs", 0),
            ("sim-scale/src/net.rs", 0),
            ("src/rdma_cm/resolve/tests.rs", 0),
        ] {
            assert_eq!(predictable_numbers(Path::new(file), &text).len(), faults);
        }
    }

    #[test]
    fn blanks_and_a_missing_newline_are_found() {
        assert_eq!(text_faults(Path::new("a.md"), "x \ny").len(), 2);
        assert!(text_faults(Path::new("a.md"), "x\ny\n").is_empty());
    }

    #[test]
    fn versions_are_read_out_of_prose() {
        assert_eq!(
            versions_after("needs Rust 1.95. Also Rust code.", "Rust "),
            ["1.95"]
        );
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\nrust-version = \"1.95\"\n";
        assert_eq!(key(manifest, "version").as_deref(), Some("0.1.0"));
        assert_eq!(key(manifest, "rust-version").as_deref(), Some("1.95"));
    }
}
