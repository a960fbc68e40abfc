//! Real traffic: every frame is parsed, its ICRC checked, and written again byte for byte.

mod common;

use trunkline_testkit::captures;

#[test]
fn every_frame_of_the_golden_captures_comes_back() {
    let counts = common::check_folder(&captures::golden());
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
    let Some(folder) = captures::folder() else {
        return;
    };
    let counts = common::check_folder(&folder);
    for (packet, count) in &counts {
        println!("{count:6} {packet}");
    }
    assert!(counts["frames"] > 2000, "{} frames", counts["frames"]);
}
