//! Frames of capture files.

use crate::gsi;
use std::env;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::vec::Vec;
use trunkline_wire::{Frame, MAD_LEN, Path};

/// Folder of the captures: beside the checkout, or where TRUNKLINE_CAPTURES says. Where neither is,
/// the few that the repository itself holds.
fn folder() -> PathBuf {
    let here = FilePath::new(env!("CARGO_MANIFEST_DIR"));
    let beside = here.join("../../shared/captures");
    match env::var_os("TRUNKLINE_CAPTURES") {
        Some(folder) => folder.into(),
        None if beside.is_dir() => beside,
        None => here.join("../wire/tests/golden"),
    }
}

/// All management datagrams of all captures, with the paths they took.
pub(crate) fn management() -> Vec<(Path, [u8; MAD_LEN])> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder()).expect("the captures are there") {
        let file = entry.expect("the folder can be listed").path();
        if file
            .extension()
            .is_some_and(|extension| extension == "pcap")
        {
            let bytes = fs::read(&file).expect("the capture can be read");
            frames(&bytes).for_each(|frame| found.extend(datagram(frame)));
        }
    }
    found
}

/// A pcap file: little-endian, microseconds, Ethernet.
fn frames(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    assert_eq!(file[..4], 0xa1b2_c3d4_u32.to_le_bytes());
    let mut rest = &file[24..];
    core::iter::from_fn(move || {
        let (head, behind) = rest.split_at_checked(16)?;
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let (frame, behind) = behind.split_at(length as usize);
        rest = behind;
        Some(frame)
    })
}

fn datagram(frame: &[u8]) -> Option<(Path, [u8; MAD_LEN])> {
    let frame = Frame::parse(frame).ok()?;
    let roce = frame.roce()?;
    let path = roce.path;
    let mad = gsi::parse(roce.datagram).ok()?;
    for identification in [None, Some(roce.identification)] {
        let checked = gsi::parse_checked(&path, identification, roce.datagram);
        assert_eq!(checked, Ok(mad), "captured ICRCs are right");
    }
    Some((path, *mad))
}
