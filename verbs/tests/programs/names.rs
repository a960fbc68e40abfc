//! The names that the library has, against those that programs of a distribution import.

use std::collections::BTreeSet;

/// Names and versions of the library.
const MAP: &str = include_str!("../../libibverbs.map");
/// What programs of Debian 12 import, which clones of this repository do not have.
const IMPORTED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../shared/reference/verbs-symbols.tsv"
);

/// Each name with its version.
fn names_of_the_map() -> BTreeSet<(&'static str, &'static str)> {
    let mut version = "";
    let mut names = BTreeSet::new();
    for line in MAP.lines() {
        if let Some(begins) = line.strip_suffix(" {") {
            version = begins;
        } else if let Some(name) = line.strip_prefix("\t\t")
            && name != "*;"
        {
            names.insert((version, name.strip_suffix(';').unwrap()));
        }
    }
    names
}

#[test]
fn the_library_has_each_name_that_programs_import_in_its_version() {
    let Ok(table) = std::fs::read_to_string(IMPORTED) else {
        eprintln!("SKIPPED: {IMPORTED} is not there");
        return;
    };
    let have = names_of_the_map();
    let mut lines = table
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let title = lines.next().unwrap();
    let column = |name: &str| title.iter().position(|title| *title == name).unwrap();
    let columns = ["library", "symbol", "version", "importer_groups"].map(column);
    let mut imported = 0;
    for line in lines {
        let [library, name, version, importers] = columns.map(|column| line[column]);
        if library == "libibverbs.so.1" && importers.parse::<u32>().unwrap() > 0 {
            assert!(have.contains(&(version, name)), "{name} of {version}");
            imported += 1;
        }
    }
    assert!(imported > 100, "{imported} names in {IMPORTED}");
}
