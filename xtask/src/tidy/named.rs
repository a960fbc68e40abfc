//! Papers that say which test holds what: each test that they name is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Those papers.
const PAPERS: &[&str] = &["docs/laws.md", "docs/bad-input.md"];
/// Words of a name, at least, by which it is told from a counter's and a command's.
const WORDS: usize = 4;

/// Tests that a paper names and no source has.
pub(super) fn faults(file: &Path, text: &str, sources: &[(PathBuf, String)]) -> Vec<String> {
    if !PAPERS.iter().any(|paper| file == Path::new(paper)) {
        return Vec::new();
    }
    let there: BTreeSet<&str> = sources
        .iter()
        .flat_map(|(_, source)| source.lines().filter_map(function))
        .collect();
    let named = text.lines().zip(1..).flat_map(|(line, at)| {
        let names = line.split('`').skip(1).step_by(2).filter(is_test);
        names.map(move |name| (name, at))
    });
    named
        .filter(|(name, _)| !there.contains(name))
        .map(|(name, at)| format!("{}:{at}: there is no test `{name}`", file.display()))
        .collect()
}

/// The function that a line begins.
fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    rest.split(['(', '<']).next()
}

fn is_test(word: &&str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(plain) && word.split('_').count() >= WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_a_paper_names_and_nobody_wrote_is_found() {
        let source = "#[test]\n    fn a_law_that_is_kept() {\n    }\n".to_owned();
        let sources = [(PathBuf::from("tests/laws.rs"), source)];
        let text = "| `a_law_that_is_kept`, `a_law_that_nobody_tests` and `C.bad_token` |\n";
        let found = faults(Path::new("docs/laws.md"), text, &sources);
        assert_eq!(
            found,
            ["docs/laws.md:1: there is no test `a_law_that_nobody_tests`"]
        );
        assert!(faults(Path::new("README.md"), text, &sources).is_empty());
    }
}
