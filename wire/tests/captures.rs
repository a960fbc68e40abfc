//! Real traffic: every frame is parsed, its ICRC checked, and written again byte for byte.

mod common;

use std::path::{Path, PathBuf};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/captures");
/// Another folder with captures and their INDEX.txt; or `none`, to do without.
const OVERRIDE: &str = "TRUNKLINE_CAPTURES";

fn folder() -> Option<PathBuf> {
    match std::env::var_os(OVERRIDE) {
        Some(value) if value == "none" => None,
        Some(value) => Some(PathBuf::from(value)),
        None => Some(PathBuf::from(FOLDER)),
    }
}

#[test]
fn every_frame_of_the_golden_captures_comes_back() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let counts = common::check_folder(&golden);
    assert_eq!(counts["frames"], 55);
    for packet in [
        "REQ",
        "REJ",
        "SIDR_REP",
        "CMPSWAP",
        "RD_REQ",
        "SEND_F",
        "UD_SEND_IMM",
    ] {
        assert!(counts.contains_key(packet), "{packet}");
    }
}

#[test]
fn every_frame_of_the_shared_captures_comes_back_and_is_counted() {
    let Some(folder) = folder() else {
        eprintln!("SKIPPED: {OVERRIDE}=none, so only the golden captures were checked");
        return;
    };
    assert!(
        folder.join("INDEX.txt").is_file(),
        "NO CAPTURES at {}: set {OVERRIDE} to a folder that has them, or to `none` to do without",
        folder.display()
    );
    let counts = common::check_folder(&folder);
    for (packet, count) in &counts {
        println!("{count:6} {packet}");
    }
    assert!(counts["frames"] > 2000, "{} frames", counts["frames"]);
}
