//! Files that no `mod` leads to: nothing builds them.

use std::path::{Path, PathBuf};

/// A file and what is in it.
type Text = (PathBuf, String);

/// Sources below a `src` folder, or of tests that are one program, that no other one names in a
/// `mod`.
pub(super) fn faults(sources: &[Text], manifests: &[Text]) -> Vec<String> {
    let mut faults = Vec::new();
    for (file, _) in sources {
        let in_src = file.components().any(|part| part.as_os_str() == "src");
        if !(in_src || is_part_of_tests(file, manifests)) || is_crate_root(file) {
            continue;
        }
        let Some((module, folder)) = module_of(file) else {
            continue;
        };
        let parents = ["lib.rs", "main.rs", "mod.rs"].map(|name| folder.join(name));
        let beside = folder.with_extension("rs");
        let named = sources.iter().any(|(other, text)| {
            (parents.contains(other) || *other == beside) && names_module(text, &module)
        });
        let by_path = sources
            .iter()
            .any(|(other, text)| other != file && has_path_to(text, file));
        if !named && !by_path {
            faults.push(format!("{}: no `mod {module};` leads here", file.display()));
        }
    }
    faults
}

/// Whether a file of tests is no program of its own: its package names those that are.
fn is_part_of_tests(file: &Path, manifests: &[Text]) -> bool {
    let Some((package, inside)) = file.parent().and_then(|folder| {
        let mut folders = folder.ancestors();
        let tests = folders.find(|folder| folder.ends_with("tests"))?;
        Some((tests.parent()?, file.strip_prefix(tests).ok()?))
    }) else {
        return false;
    };
    let manifest = manifests
        .iter()
        .find(|(other, _)| other.parent() == Some(package));
    manifest.is_some_and(|(_, text)| {
        let names = |name: &Path| text.contains(&format!("path = \"tests/{}\"", name.display()));
        text.contains("autotests = false") && !names(inside)
    })
}

fn is_crate_root(file: &Path) -> bool {
    let folder = file
        .parent()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    let name = file.file_name().and_then(|name| name.to_str());
    matches!((folder, name), (Some("src"), Some("lib.rs" | "main.rs")))
        || folder == Some("bin")
        || file.iter().rev().nth(2).is_some_and(|part| part == "bin") && name == Some("main.rs")
}

/// Name of the module a file holds, and the folder where its parent's children live.
fn module_of(file: &Path) -> Option<(String, PathBuf)> {
    let folder = file.parent()?;
    if file.file_name()? == "mod.rs" {
        let module = folder.file_name()?.to_str()?.to_owned();
        return Some((module, folder.parent()?.to_path_buf()));
    }
    Some((file.file_stem()?.to_str()?.to_owned(), folder.to_path_buf()))
}

fn names_module(text: &str, module: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        let line = match line.strip_prefix("pub(") {
            Some(rest) => rest.split_once(") ").map_or(line, |(_, rest)| rest),
            None => line.strip_prefix("pub ").unwrap_or(line),
        };
        line.strip_prefix("mod ").is_some_and(|rest| {
            let rest = rest.strip_prefix("r#").unwrap_or(rest);
            rest.strip_prefix(module) == Some(";")
        })
    })
}

fn has_path_to(text: &str, file: &Path) -> bool {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    text.lines()
        .any(|line| line.trim_start().starts_with("#[path") && line.contains(&format!("{name}\"]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_mod_is_dead() {
        let file = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
        let sources = [
            file(
                "a/src/lib.rs",
                "pub mod rc;\npub(crate) mod sub;\n// mod ghost;\n",
            ),
            file("a/src/rc/mod.rs", "mod timer;\n"),
            file("a/src/rc/timer.rs", ""),
            file(
                "a/src/sub.rs",
                "mod inner;\n#[path = \"odd_place.rs\"]\nmod odd;\n",
            ),
            file("a/src/sub/inner.rs", ""),
            file("a/src/sub/odd_place.rs", ""),
            file("a/src/ghost.rs", ""),
            file("a/src/bin/tool.rs", ""),
            file("a/tests/captures.rs", ""),
            file("b/tests/main.rs", "mod named;\nmod common;\n"),
            file("b/tests/named.rs", ""),
            file("b/tests/common/mod.rs", "mod part;\n"),
            file("b/tests/common/part.rs", ""),
            file("b/tests/alone.rs", ""),
            file("b/tests/lost.rs", ""),
        ];
        let manifests = [
            file("a/Cargo.toml", ""),
            file(
                "b/Cargo.toml",
                "autotests = false\npath = \"tests/main.rs\"\npath = \"tests/alone.rs\"\n",
            ),
        ];
        assert_eq!(
            faults(&sources, &manifests),
            [
                "a/src/ghost.rs: no `mod ghost;` leads here",
                "b/tests/lost.rs: no `mod lost;` leads here",
            ]
        );
    }
}
