//! `trunkline decode` of what is damaged, cut off, or no capture at all.

use crate::captures::{Scratch, golden, number, packets, summary};
use crate::formats::{frames, pcap, pcapng, pcapng_simple};
use crate::{complaint, run, text, trunkline};
use pcap_file::{DataLink, Endianness, TsResolution};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::Stdio;

#[test]
fn an_unsupported_link_layer_is_an_error_after_the_counts() {
    let frames = frames(&golden("mtu1024-udaddy-sidr"));
    let (endianness, resolution) = (Endianness::Little, TsResolution::MicroSecond);
    let bytes = pcap(&frames, DataLink::from(105), endianness, resolution);
    let file = Scratch::new("wifi.pcap", &bytes);
    let output = run(&["decode", file.path(), "--summary", "--json"]);
    assert!(complaint(&output, 1).contains("link type 105"));
    let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((number(&counts["frames"]), number(&counts["roce"])), (8, 0));
}

#[test]
fn damaged_packets_are_counted_as_what_they_are() {
    let path = golden("mtu1024-nak-remote-access-read");
    let mut frames = frames(&path);
    let last = frames[3].1.len() - 1;
    frames[3].1[last] ^= 1;
    // The opcode of the next one is none.
    frames[4].1[42] = 0x15;
    // The class of a management datagram stays, but not its version; and the ICRC is made right.
    let mad = 14 + 20 + 8 + 12 + 8;
    frames[5].1[mad + 2] = 9;
    reseal(&mut frames[5].1);
    // A frame that was cut when it was captured.
    frames[6].1.truncate(100);
    let (endianness, resolution) = (Endianness::Little, TsResolution::MicroSecond);
    let bytes = pcap(&frames, DataLink::ETHERNET, endianness, resolution);
    let file = Scratch::new("damaged.pcap", &bytes);
    let counts = summary(file.path());
    let of = |key: &str| number(&counts[key]);
    assert_eq!((of("frames"), of("roce")), (7, 7));
    assert_eq!((of("icrc_ok"), of("icrc_bad"), of("malformed")), (3, 1, 3));
    let packets = packets(file.path());
    assert_eq!(packets[3]["icrc"], "bad");
    for (at, why) in [
        (4, "BTH: opcode is 0x15"),
        (5, "CM: class version is 0x9"),
        (6, "IP payload: 66 bytes where"),
    ] {
        let told = packets[at]["malformed"].as_str().unwrap();
        assert!(told.starts_with(why), "{told}");
    }
}

/// Makes the ICRC of an Ethernet frame with IPv4 right.
fn reseal(frame: &mut [u8]) {
    let parsed = trunkline_wire::Frame::parse(frame).unwrap();
    let roce = parsed.roce().unwrap();
    let (path, identification) = (roce.path, roce.identification);
    trunkline_wire::icrc::seal(&path, identification, &mut frame[42..]);
}

#[test]
fn a_capture_that_is_cut_off_tells_what_could_be_read() {
    let path = golden("mtu1024-nak-remote-access-read");
    let frames = frames(&path);
    let whole = fs::read(&path).unwrap();
    let ng = pcapng(&frames, DataLink::ETHERNET, Endianness::Little, None);
    for (name, bytes) in [("cut.pcap", &whole), ("cut.pcapng", &ng)] {
        let file = Scratch::new(name, &bytes[..bytes.len() - 10]);
        let output = run(&["decode", file.path()]);
        let line = complaint(&output, 1);
        assert!(
            line.contains("after frame 6: the capture is cut off"),
            "{line}"
        );
        assert_eq!(text(&output.stdout).lines().count(), 6);
        let output = run(&["decode", file.path(), "--summary", "--json"]);
        complaint(&output, 1);
        let counts: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(number(&counts["frames"]), 6);
    }
}

#[test]
fn what_is_no_capture_is_one_line_and_exit_code_1() {
    let script = Scratch::new("script", b"#!/bin/sh\n");
    let empty = Scratch::new("empty", b"");
    for (path, says) in [
        (script.path(), "not a capture: neither pcap nor pcapng"),
        (empty.path(), "not a capture: neither pcap nor pcapng"),
        ("/nowhere/at/all.pcap", "No such file or directory"),
        ("/", "Is a directory"),
    ] {
        for words in [
            &["decode", path][..],
            &["decode", path, "--summary", "--json"],
        ] {
            let output = run(words);
            let line = complaint(&output, 1);
            assert!(line.starts_with(path) && line.contains(says), "{line}");
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn a_reader_who_has_seen_enough_ends_it_quietly() {
    let frames = frames(&golden("mtu1024-udaddy-sidr"));
    let many: Vec<_> = frames.iter().cycle().take(20_000).cloned().collect();
    let bytes = pcapng(&many, DataLink::ETHERNET, Endianness::Little, None);
    let file = Scratch::new("many.pcapng", &bytes);
    let mut command = trunkline(&["decode", file.path()]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(!output.status.success());
}

/// Xorshift: the same bytes are damaged in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

#[test]
fn hostile_files_end_with_at_most_one_line_of_complaint() {
    let mut random = Random(0x7472_756e_6b6c_696e);
    let frames = frames(&golden("mtu1024-nak-remote-access-read"));
    let link = DataLink::ETHERNET;
    let files = [
        pcap(&frames, link, Endianness::Big, TsResolution::NanoSecond),
        pcap(&frames, link, Endianness::Little, TsResolution::MicroSecond),
        pcapng(&frames, link, Endianness::Big, Some(9)),
        pcapng(&frames, link, Endianness::Little, None),
        pcapng_simple(&frames, link, Endianness::Little),
    ];
    for round in 0..100 {
        let mut bytes = files[random.below(files.len())].clone();
        // Most of the harm is done at the front, where the lengths of everything else stand.
        let reach = if round % 2 == 0 {
            bytes.len()
        } else {
            200.min(bytes.len())
        };
        for _ in 0..=random.below(8) {
            let at = random.below(reach);
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
        }
        bytes.truncate(bytes.len() - random.below(bytes.len() / 2));
        let file = Scratch::new("hostile", &bytes);
        for words in [
            &["decode", file.path()][..],
            &["decode", file.path(), "--summary", "--json"],
        ] {
            let output = run(words);
            let stderr = text(&output.stderr);
            match output.status.code() {
                Some(0) => assert_eq!(stderr, "", "round {round}"),
                Some(1) => assert_eq!(stderr.lines().count(), 1, "round {round}: {stderr}"),
                other => panic!("round {round}: {other:?}: {stderr}"),
            }
            assert!(!stderr.contains("panicked"), "round {round}: {stderr}");
        }
    }
}
