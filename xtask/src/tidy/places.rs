//! Papers that tell a reader where something is: the files and folders that they name are there.

use std::path::{Path, PathBuf};

/// Folders whose papers tell of their own time.
const OF_THEIR_TIME: &[&str] = &["docs/results", "docs/adr"];
const CHANGES: &str = "CHANGELOG.md";

/// Places that a paper names and that are not there. A place is a word that ends in `.rs`, or one
/// in backticks that ends in `/`; it may leave out the folders in front.
pub(super) fn faults(file: &Path, text: &str, files: &[PathBuf]) -> Vec<String> {
    if file == Path::new(CHANGES) || OF_THEIR_TIME.iter().any(|folder| file.starts_with(folder)) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (line, at) in text.lines().zip(1..) {
        for place in places(line) {
            if !files.iter().any(|file| leads_to(&place, file)) {
                faults.push(format!("{}:{at}: there is no {place}", file.display()));
            }
        }
    }
    faults
}

/// The places that a line names, each alternative of `{a,b}` for itself.
fn places(line: &str) -> Vec<String> {
    let splits = |c: char| c.is_whitespace() || "()|;\"".contains(c);
    let words = line.split(splits);
    let files = words
        .map(|word| word.trim_matches(|c: char| "`,:.[]*".contains(c)))
        .filter(|word| word.ends_with(".rs"));
    let folders = line.split('`').skip(1).step_by(2);
    let folders = folders.filter(|word| word.ends_with('/') && !word.contains([' ', ':', '<']));
    files.chain(folders).flat_map(alternatives).collect()
}

fn alternatives(place: &str) -> Vec<String> {
    let Some((before, rest)) = place.split_once('{') else {
        return vec![place.to_owned()];
    };
    let Some((among, after)) = rest.split_once('}') else {
        return vec![place.to_owned()];
    };
    let each = among.split(',');
    each.map(|one| format!("{before}{one}{after}")).collect()
}

/// Whether a place is the end of a file's path, or of one of its folders'.
fn leads_to(place: &str, file: &Path) -> bool {
    match place.strip_suffix('/') {
        Some(folder) => file.ancestors().skip(1).any(|at| at.ends_with(folder)),
        None => file.ends_with(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_where_a_paper_says() {
        let files = ["cm/src/ib/mod.rs", "cm/src/rdma/mod.rs", "cm/src/table.rs"];
        let files = files.map(PathBuf::from);
        let text = "\
The table (cm/src/table.rs), or table.rs; `cm/src/{ib,rdma}/mod.rs`.
| `cm/src/ib/`, `rdma/` | `src/sidr/` |
There was able.rs, and rdma/table.rs.
";
        let found = faults(Path::new("ARCHITECTURE.md"), text, &files);
        let expected = [
            "ARCHITECTURE.md:2: there is no src/sidr/",
            "ARCHITECTURE.md:3: there is no able.rs",
            "ARCHITECTURE.md:3: there is no rdma/table.rs",
        ];
        assert_eq!(found, expected);
        let old = Path::new("docs/results/bench.md");
        assert!(faults(old, text, &files).is_empty());
    }
}
