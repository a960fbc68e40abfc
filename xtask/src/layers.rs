//! Layers: which crate may depend on which, and which part of the engine on which.

mod owners;
mod unsafe_code;

use crate::cargo::{self, Metadata};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

const WIRE: &str = "trunkline-wire";
const CONN: &str = "trunkline-conn";
const QPMAP: &str = "trunkline-qpmap";
const CM: &str = "trunkline-cm";
const HOST: &str = "trunkline-host";
const DATAPLANE: &str = "trunkline-dataplane";
const ROOT: &str = "trunkline";
const TOKIO: &str = "trunkline-tokio";
const RPC: &str = "trunkline-rpc";
const GRPC: &str = "trunkline-grpc";
const GRPC_PROTOS: &str = "trunkline-grpc-protos";
const CLI: &str = "trunkline-cli";
const VERBS: &str = "trunkline-verbs";
const PIECES: &str = "trunkline-pieces";
const SIM: &str = "trunkline-sim";
const TESTKIT: &str = "trunkline-testkit";

/// Every member with what it may depend on, lowest floor first. A new edge is its own commit.
const ALLOWED: &[(&str, &[&str])] = &[
    (TESTKIT, &[]),
    (WIRE, &[]),
    (CONN, &[WIRE]),
    (QPMAP, &[WIRE, CONN]),
    (CM, &[WIRE, CONN]),
    (DATAPLANE, &[WIRE, CONN]),
    ("trunkline-conformance", &[WIRE, DATAPLANE, TESTKIT]),
    (HOST, &[WIRE, CONN, QPMAP]),
    (ROOT, &[WIRE, CONN, QPMAP, CM, DATAPLANE, HOST]),
    (TOKIO, &[ROOT]),
    (RPC, &[ROOT, TOKIO]),
    (GRPC, &[ROOT, TOKIO]),
    (GRPC_PROTOS, &[]),
    (CLI, &[WIRE, DATAPLANE, ROOT]),
    (VERBS, &[DATAPLANE, ROOT]),
    (SIM, &[WIRE, CONN, QPMAP, CM, DATAPLANE, ROOT]),
    (PIECES, &[WIRE, CONN, QPMAP, CM, DATAPLANE]),
    (
        "trunkline-benches",
        &[
            WIRE,
            CONN,
            QPMAP,
            CM,
            DATAPLANE,
            ROOT,
            TOKIO,
            RPC,
            GRPC,
            GRPC_PROTOS,
            PIECES,
            SIM,
            TESTKIT,
        ],
    ),
    (
        "trunkline-fuzz",
        &[WIRE, CONN, QPMAP, CM, DATAPLANE, HOST, ROOT, TESTKIT],
    ),
    ("trunkline-interop", &[WIRE, DATAPLANE, ROOT]),
    ("xtask", &[TESTKIT]),
];

/// What the `lib.rs` of a crate has to declare. The compiler then enforces it.
const DECLARED: &[(&str, &str)] = &[
    (WIRE, "#![no_std]"),
    (WIRE, "#![forbid(unsafe_code)]"),
    (CONN, "#![no_std]"),
    (CONN, "#![forbid(unsafe_code)]"),
    (CM, "#![no_std]"),
    (CM, "#![forbid(unsafe_code)]"),
    (QPMAP, "#![deny(unsafe_code)]"),
    (HOST, "#![deny(unsafe_code)]"),
];

/// What the comparison gave.
#[derive(Debug, Default, Eq, PartialEq)]
struct Findings {
    faults: Vec<String>,
    /// Edges of `dev-dependencies`: they do not reach users, so they are only told.
    dev: Vec<String>,
    edges: usize,
}

/// Compares the workspace with the table.
///
/// # Errors
/// All that is wrong, one line each.
pub(crate) fn check() -> Result<String> {
    let metadata = cargo::metadata()?;
    let mut found = compare(&metadata, ALLOWED);
    for (name, attribute) in DECLARED {
        let package = metadata
            .packages
            .iter()
            .find(|package| package.name == *name);
        let package = package.with_context(|| format!("{name} is not in the workspace"))?;
        let file = package.manifest_path.with_file_name("src").join("lib.rs");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        if !declares(&text, attribute) {
            found
                .faults
                .push(format!("{name}: src/lib.rs does not declare {attribute}"));
        }
    }
    let (faults, fields) = owners::check()?;
    found.faults.extend(faults);
    found.faults.extend(unsafe_code::check()?);
    if !found.faults.is_empty() {
        bail!("{}", found.faults.join("\n       "));
    }
    let mut note = format!("{} edges between crates, all pointing down", found.edges);
    write!(note, "; {fields} fields of the engine")?;
    if !found.dev.is_empty() {
        write!(note, "; for tests only: {}", found.dev.join(", "))?;
    }
    Ok(note)
}

fn compare(metadata: &Metadata, allowed: &[(&str, &[&str])]) -> Findings {
    let members: BTreeSet<_> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let mut found = Findings::default();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let Some((_, below)) = allowed.iter().find(|(member, _)| *member == name) else {
            found
                .faults
                .push(format!("{name} has no row in the table of layers"));
            continue;
        };
        for dependency in &package.dependencies {
            let to = dependency.name.as_str();
            if !members.contains(to) {
                continue;
            }
            if dependency.kind.as_deref() == Some("dev") {
                if to != name {
                    found.dev.push(format!("{name} -> {to}"));
                }
            } else if below.contains(&to) {
                found.edges += 1;
            } else {
                found.faults.push(format!("{name} must not depend on {to}"));
            }
        }
    }
    found
}

/// Whether `attribute` stands on a line of its own, so not in a comment or a string.
fn declares(text: &str, attribute: &str) -> bool {
    text.lines().any(|line| line.trim_end() == attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(json: &str) -> Metadata {
        let text = format!(
            r#"{{"target_directory": "/t", "packages": [{}]}}"#,
            json.replace('\'', "\"")
        );
        serde_json::from_str(&text).expect("the test's own JSON is right")
    }

    const TABLE: &[(&str, &[&str])] = &[("low", &[]), ("high", &["low"])];

    #[test]
    fn an_edge_that_points_down_is_counted() {
        let metadata = workspace(
            "{'name': 'low', 'manifest_path': ''},
             {'name': 'high', 'manifest_path': '', 'dependencies':
                [{'name': 'low', 'kind': null}, {'name': 'libc', 'kind': null}]}",
        );
        let found = compare(&metadata, TABLE);
        assert_eq!(
            found,
            Findings {
                edges: 1,
                ..Findings::default()
            }
        );
    }

    #[test]
    fn an_edge_that_points_up_is_found() {
        let metadata = workspace(
            "{'name': 'low', 'manifest_path': '', 'dependencies':
                [{'name': 'high', 'kind': null}]},
             {'name': 'high', 'manifest_path': ''}",
        );
        assert_eq!(
            compare(&metadata, TABLE).faults,
            ["low must not depend on high"]
        );
    }

    #[test]
    fn a_build_dependency_counts_like_any_other() {
        let metadata = workspace(
            "{'name': 'low', 'manifest_path': '', 'dependencies':
                [{'name': 'high', 'kind': 'build'}]},
             {'name': 'high', 'manifest_path': ''}",
        );
        assert_eq!(compare(&metadata, TABLE).faults.len(), 1);
    }

    #[test]
    fn a_dependency_of_tests_is_told_apart() {
        let metadata = workspace(
            "{'name': 'low', 'manifest_path': '', 'dependencies':
                [{'name': 'high', 'kind': 'dev'}, {'name': 'low', 'kind': 'dev'}]},
             {'name': 'high', 'manifest_path': ''}",
        );
        let found = compare(&metadata, TABLE);
        assert_eq!(found.faults, [""; 0]);
        assert_eq!(found.dev, ["low -> high"]);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let metadata = workspace("{'name': 'new', 'manifest_path': ''}");
        assert_eq!(
            compare(&metadata, TABLE).faults,
            ["new has no row in the table of layers"]
        );
    }

    #[test]
    fn the_table_itself_points_down() {
        for (index, (name, below)) in ALLOWED.iter().enumerate() {
            for to in *below {
                let at = ALLOWED.iter().position(|(member, _)| member == to);
                assert!(at.is_some_and(|at| at < index), "{name} -> {to}");
            }
        }
    }

    #[test]
    fn an_attribute_in_a_comment_does_not_count() {
        assert!(declares("//! Doc.\n#![no_std]\n", "#![no_std]"));
        assert!(!declares("//! #![no_std]\n// #![no_std]\n", "#![no_std]"));
    }
}
