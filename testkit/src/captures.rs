//! Recorded traffic of real peers: pcap files and the INDEX.txt that says what is in them.

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Beside the checkout.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/captures");
/// The few that the repository itself holds.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/tests/golden");
/// Another folder with captures and their INDEX.txt; or `none`, to do without.
const OVERRIDE: &str = "TRUNKLINE_CAPTURES";

/// A frame of a capture.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Captured {
    /// When it was captured, in ns since 1970.
    pub time_ns: u64,
    /// From its Ethernet header on.
    pub bytes: Vec<u8>,
}

/// The folder of captures; `None`, which is said, where none are wanted.
///
/// # Panics
/// Captures are wanted and not there.
pub fn folder() -> Option<PathBuf> {
    let folder = match env::var_os(OVERRIDE) {
        Some(value) if value == "none" => {
            eprintln!("SKIPPED: {OVERRIDE}=none");
            return None;
        }
        Some(value) => PathBuf::from(value),
        None => PathBuf::from(FOLDER),
    };
    assert!(
        folder.join("INDEX.txt").is_file(),
        "NO CAPTURES at {}: set {OVERRIDE} to a folder that has them, or to `none` to do without",
        folder.display()
    );
    Some(folder)
}

/// The folder of the captures that the repository holds.
pub fn golden() -> PathBuf {
    PathBuf::from(GOLDEN)
}

/// The captures of a folder by name, in the order of names.
///
/// # Panics
/// The folder or a capture cannot be read, or a capture holds no whole Ethernet frames.
pub fn files(folder: &Path) -> Vec<(String, Vec<Captured>)> {
    index(folder)
        .into_keys()
        .map(|name| {
            let frames = frames(&folder.join(format!("{name}.pcap")));
            (name, frames)
        })
        .collect()
}

/// What INDEX.txt says of each capture: packets by name, and how many.
///
/// # Panics
/// There is no INDEX.txt, or it has another form.
pub fn index(folder: &Path) -> BTreeMap<String, BTreeMap<String, usize>> {
    let text = fs::read_to_string(folder.join("INDEX.txt")).expect("the folder has an INDEX.txt");
    let counts = |words: &str| {
        let pairs = words.split_whitespace().map(|pair| {
            let (name, count) = pair.rsplit_once(':').expect("a pair is name:count");
            (name.to_owned(), count.parse().expect("a count is a number"))
        });
        pairs.collect()
    };
    let lines = text
        .lines()
        .map(|line| line.split_once(": ").expect("a line is file: counts"));
    lines
        .map(|(file, words)| (file.to_owned(), counts(words)))
        .collect()
}

fn frames(file: &Path) -> Vec<Captured> {
    let open = fs::File::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut reader = PcapReader::new(open).expect("a capture has a header");
    let ethernet = reader.header().datalink == DataLink::ETHERNET;
    assert!(ethernet, "{}", file.display());
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a capture is whole");
        let whole = packet.orig_len as usize == packet.data.len();
        assert!(whole, "{}: a frame was cut", file.display());
        frames.push(Captured {
            time_ns: u64::try_from(packet.timestamp.as_nanos()).expect("a time of this era"),
            bytes: packet.data.into_owned(),
        });
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_captures_of_the_repository_are_read_in_the_order_of_time() {
        let files = files(&golden());
        assert!(files.len() >= 5, "{} files", files.len());
        for (name, frames) in files {
            assert!(!frames.is_empty(), "{name}");
            assert!(frames.is_sorted_by_key(|frame| frame.time_ns), "{name}");
            assert!(frames.iter().all(|frame| frame.bytes.len() >= 14), "{name}");
        }
    }
}
