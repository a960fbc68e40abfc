//! The paper of limits names constants and the files that define them: they are there.

use std::path::{Path, PathBuf};

const PAPER: &str = "LIMITS.md";

/// Files that are not there, and constants that none of the files beside them defines.
pub(super) fn faults(file: &Path, text: &str, sources: &[(PathBuf, String)]) -> Vec<String> {
    if file != Path::new(PAPER) {
        return Vec::new();
    }
    text.lines()
        .zip(1..)
        .flat_map(|(line, at)| {
            let wrong = row_faults(line, sources).into_iter();
            wrong.map(move |fault| format!("{PAPER}:{at}: {fault}"))
        })
        .collect()
}

/// What is wrong with the last column of a row.
fn row_faults(line: &str, sources: &[(PathBuf, String)]) -> Vec<String> {
    let Some(column) = line
        .strip_suffix('|')
        .and_then(|row| row.rsplit('|').next())
    else {
        return Vec::new();
    };
    let files = column
        .split([' ', ',', ';'])
        .filter(|word| word.ends_with(".rs"));
    let (mut faults, mut texts) = (Vec::new(), Vec::new());
    for file in files {
        match sources.iter().find(|(path, _)| path == Path::new(file)) {
            Some((_, source)) => texts.push(source),
            None => faults.push(format!("there is no {file}")),
        }
    }
    if texts.is_empty() {
        return faults;
    }
    let names = column.split('`').skip(1).step_by(2);
    let names = names.filter_map(|name| name.rsplit("::").next());
    for name in names.filter(|name| is_constant(name)) {
        let definition = format!("const {name}:");
        if !texts.iter().any(|source| source.contains(&definition)) {
            faults.push(format!("no file beside it defines {name}"));
        }
    }
    faults
}

fn is_constant(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_where_the_paper_of_limits_says() {
        let source = "const MOST: usize = 3;\n".to_owned();
        let sources = [(PathBuf::from("cm/src/binds.rs"), source)];
        let text = "\
| what | at most | constant |
| --- | --- | --- |
| BINDs | 3 | `Binds::MOST`, cm/src/binds.rs |
| BINDs | 3 | `MOST`, `LEAST`, cm/src/binds.rs |
| BINDs | 3 | `MOST`, cm/src/hello.rs |
| a setting | 4 | `Builder::pool` |
";
        let found = faults(Path::new(PAPER), text, &sources);
        assert_eq!(
            found,
            [
                "LIMITS.md:4: no file beside it defines LEAST",
                "LIMITS.md:5: there is no cm/src/hello.rs",
            ]
        );
        assert!(faults(Path::new("README.md"), text, &sources).is_empty());
    }
}
