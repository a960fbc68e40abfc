//! Management datagrams of captures.

use crate::gsi;
use std::vec::Vec;
use trunkline_conn::ingress::Identification;
use trunkline_testkit::captures;
use trunkline_wire::{Frame, MAD_LEN, Path};

/// All management datagrams of all captures, or of those that the repository holds where no others
/// are wanted, with the paths they took.
pub(crate) fn management() -> Vec<(Path, [u8; MAD_LEN])> {
    let folder = captures::folder().unwrap_or_else(captures::golden);
    let files = captures::files(&folder).into_iter();
    let frames = files.flat_map(|(_, frames)| frames);
    frames.filter_map(|frame| datagram(&frame.bytes)).collect()
}

fn datagram(frame: &[u8]) -> Option<(Path, [u8; MAD_LEN])> {
    let frame = Frame::parse(frame).ok()?;
    let roce = frame.roce()?;
    let path = roce.path;
    let mad = gsi::parse(roce.datagram).ok()?;
    for identification in [
        Identification::Predicted(0),
        Identification::Seen(roce.identification),
    ] {
        let checked = gsi::parse_checked(&path, identification, roce.datagram);
        assert_eq!(checked, Ok(mad), "captured ICRCs are right");
    }
    Some((path, *mad))
}
