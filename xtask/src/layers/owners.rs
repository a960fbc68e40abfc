//! The owners of the engine's state: none of them knows the engine, and none is in a circle.

use crate::cargo;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Where they are.
const ENGINE: &str = "qpmap/src/engine";
/// Owners and the words that they share, lowest first: each may name those before it.
const OWNERS: &[&str] = &[
    "coverage",
    "in_vain",
    "ending",
    "ack_delay",
    "seeded",
    "posted",
    "routes",
    "inbound",
    "tenants",
    "schedule",
    "completions",
    "events",
    "srq",
    "requests",
    "responses",
    "qp",
    "qps",
    "binding",
    "build",
    "packs",
    "control",
    "flows",
    "contents",
    "links",
    "packet",
    "pairing",
    "rx",
    "tx",
];
/// Fields that the engine itself may have: its owners, and little beside them.
const MOST_FIELDS: usize = 20;

/// What is wrong with owners and engine; with how many fields the engine has.
///
/// # Errors
/// A file is not there.
pub(super) fn check() -> Result<(Vec<String>, usize)> {
    let folder = cargo::root().join(ENGINE);
    let read = |file: &Path| fs::read_to_string(file).with_context(|| file.display().to_string());
    let mut faults = Vec::new();
    for (place, owner) in OWNERS.iter().enumerate() {
        let text = read(&folder.join(owner).with_extension("rs"))?;
        let found = owner_faults(&text, &OWNERS[..=place]).into_iter();
        faults.extend(found.map(|fault| format!("{ENGINE}/{owner}.rs {fault}")));
        let parts = parts_of(&folder.join(owner))?;
        let names = parts.iter().map(|(name, _)| name.as_str());
        let below: Vec<&str> = OWNERS[..=place].iter().copied().chain(names).collect();
        for (name, file) in &parts {
            let found = owner_faults(&read(file)?, &below).into_iter();
            faults.extend(found.map(|fault| format!("{ENGINE}/{owner}/{name}.rs {fault}")));
        }
    }
    let fields = fields_of_engine(&read(&folder.join("mod.rs"))?);
    if fields > MOST_FIELDS {
        faults.push(format!(
            "Engine has {fields} fields, at most {MOST_FIELDS}: let an owner have them"
        ));
    }
    Ok((faults, fields))
}

/// Files in the folder of an owner, where it has one, with their names; but for its tests.
fn parts_of(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut parts = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let file = entry?.path();
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            if name != "tests" && file.is_file() {
                parts.push((name.into_owned(), file.clone()));
            }
        }
    }
    Ok(parts)
}

/// What is wrong with the text of one owner, which may name the modules `below`.
fn owner_faults(text: &str, below: &[&str]) -> Vec<String> {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let mut faults = Vec::new();
    for line in code {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if words.any(|word| word == "Engine") {
            faults.push("knows the engine".to_owned());
        }
        for path in ["super::", "crate::engine::"] {
            for named in line.split(path).skip(1) {
                let module = named
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next();
                let module = module.unwrap_or("");
                let is_module = module.starts_with(|c: char| c.is_ascii_lowercase());
                if is_module && !below.contains(&module) {
                    faults.push(format!("names {module}, which is not below it"));
                }
            }
        }
    }
    faults.dedup();
    faults
}

fn fields_of_engine(text: &str) -> usize {
    let body = text.split("pub struct Engine<").nth(1);
    let body = body
        .and_then(|rest| rest.split("\n}\n").next())
        .unwrap_or("");
    let is_field = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("//") && line.ends_with(',') && line.contains(": ")
    };
    body.lines().filter(is_field).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_names_only_what_is_below_it() {
        let text = "\
//! Engine: super::qp may be named in a comment.
use super::ending::Ending;
use super::ConnId;
impl Owner {} // of an Engine
";
        assert_eq!(owner_faults(text, &["ending", "qp"]), [""; 0]);
        let text = "use super::waiting::Waiting;\nuse crate::engine::link::Conn;\n";
        let expected = [
            "names waiting, which is not below it",
            "names link, which is not below it",
        ];
        assert_eq!(owner_faults(text, &["ending", "qp"]), expected);
        let text = "impl<P: Platform> Engine<P> {\n";
        assert_eq!(owner_faults(text, &[]), ["knows the engine"]);
    }

    #[test]
    fn fields_are_counted() {
        let text = "\
pub struct Engine<P: Platform> {
    /// One: with a colon,
    one: u32,
    pub(crate) two: Vec<u32>,
}

struct Other {
    three: u32,
}
";
        assert_eq!(fields_of_engine(text), 2);
    }
}
