//! Every committed input goes through its target, on stable, with every test run: as it is, cut
//! short at every length, and with bits flipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use trunkline_fuzz::TARGETS;

/// Cuts and flips tried per input.
const VARIANTS: usize = 128;

fn below(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

fn names(folder: &str) -> BTreeSet<String> {
    let stem = |path: &PathBuf| {
        path.file_stem()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
    };
    below(folder).iter().filter_map(stem).collect()
}

#[test]
fn every_target_has_a_binary_and_a_corpus() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets, names("fuzz_targets"));
    assert_eq!(targets, names("corpus"));
}

#[test]
fn no_committed_input_breaks_its_target() {
    for (name, target) in TARGETS {
        let inputs = below(&format!("corpus/{name}"));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for path in inputs {
            let data = fs::read(&path).expect("a file that was just listed");
            target(&data);
        }
    }
}

#[test]
fn no_cut_or_flipped_input_breaks_its_target() {
    for (name, target) in TARGETS {
        for path in below(&format!("corpus/{name}")) {
            let data = fs::read(&path).expect("a file that was just listed");
            for length in (0..data.len()).step_by(1 + data.len() / VARIANTS) {
                target(&data[..length]);
            }
            let bits = data.len() * 8;
            let mut flipped = data;
            for bit in (0..bits).step_by(1 + bits / VARIANTS) {
                flipped[bit / 8] ^= 1 << (bit % 8);
                target(&flipped);
                flipped[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
