//! The Wireshark dissector (tools/wireshark), run by tshark, against the parsers of `wire`.

use crate::captures::{GOLDEN, Scratch};
use crate::decode::own_traffic;
use crate::forged::Forged;
use crate::formats::pcap;
use crate::text;
use crate::told::Told;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, TsResolution};
use std::fs;
use std::process::{Command, Output};
use std::time::Duration;
use trunkline_testkit::Rng;
use trunkline_wire::Opcode;

/// What makes tshark load the dissector.
const LOAD: &str = concat!(
    "lua_script:",
    env!("CARGO_MANIFEST_DIR"),
    "/../tools/wireshark/trunkline.lua"
);
/// The program to run instead of `tshark`; or `none`, to do without.
const TSHARK: &str = "TRUNKLINE_TSHARK";

/// Packets of a run.
const FORGED: usize = 2000;

/// What tshark is asked for, each after `trunkline.`: numbers, but for `received`.
const FIELDS: [&str; 47] = [
    "opcode",
    "solicited",
    "pkey",
    "conn",
    "ack_req",
    "psn",
    "version",
    "last",
    "has_hcrc",
    "abort",
    "sealed",
    "attempt",
    "generation",
    "token",
    "src_qp",
    "epoch",
    "dst_qp",
    "msn",
    "offset",
    "outstanding",
    "timestamp",
    "echo",
    "ack",
    "va",
    "rkey",
    "dma_length",
    "swap_or_add",
    "compare",
    "imm",
    "inv_rkey",
    "hcrc",
    "hcrc.status",
    "icrc",
    "icrc.status",
    "length",
    "original",
    "reason",
    "ce_count",
    "delay_ns",
    "sack",
    "syndrome",
    "kind",
    "status",
    "received",
    "malformed",
    "forbidden",
    "wrong_sum",
];

/// Runs tshark. `None` where none is wanted, which is said.
///
/// # Panics
/// There is none, or it complains.
fn run_tshark(words: &[&str]) -> Option<Output> {
    let program = std::env::var(TSHARK).unwrap_or_else(|_| "tshark".to_owned());
    if program == "none" {
        eprintln!("SKIPPED: {TSHARK}=none, so the Wireshark dissector was not run");
        return None;
    }
    let output = Command::new(&program).args(words).output();
    let output = output.unwrap_or_else(|error| {
        panic!("NO TSHARK ({program}: {error}): install it, or set {TSHARK}=none to do without")
    });
    let stderr = text(&output.stderr);
    assert!(
        output.status.success() && !stderr.contains("Lua"),
        "{stderr}"
    );
    Some(output)
}

/// What the dissector says of the frames of a capture, one after the other.
fn tshark(name: &str, capture: &[u8]) -> Option<Vec<Told>> {
    let file = Scratch::new(name, capture);
    let fields = FIELDS.map(|field| format!("trunkline.{field}"));
    let mut words = vec!["-r", file.path(), "-X", LOAD, "-T", "fields"];
    words.extend(["-E", "separator=/t", "-E", "aggregator=;"]);
    words.extend(["-e", "_ws.lua.error"]);
    words.extend(fields.iter().flat_map(|field| ["-e", field]));
    let output = run_tshark(&words)?;
    Some(text(&output.stdout).lines().map(row).collect())
}

/// The fields of a frame as tshark prints them.
fn row(line: &str) -> Told {
    let mut told = Told::default();
    let mut columns = line.split('\t');
    assert_eq!(columns.next(), Some(""), "an error of Lua");
    for (name, column) in FIELDS.into_iter().zip(columns) {
        let values = column.split(';').filter(|value| !value.is_empty());
        let values: Vec<u64> = match name {
            "received" => values.flat_map(numbers).collect(),
            "malformed" | "forbidden" | "wrong_sum" => values.take(1).map(|_| 1).collect(),
            _ => values.map(number).collect(),
        };
        for value in values {
            told.add(name, value);
        }
    }
    told
}

fn number(text: &str) -> u64 {
    let parsed = match (text, text.strip_prefix("0x")) {
        ("True", _) => Ok(1),
        ("False", _) => Ok(0),
        (_, Some(hex)) => u64::from_str_radix(hex, 16),
        (_, None) => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The packet numbers of `5-7,9`.
fn numbers(spans: &str) -> Vec<u64> {
    let span = |span: &str| {
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        let (first, last) = (number(first) as u32, number(last) as u32);
        (0..=last.wrapping_sub(first)).map(move |i| first.wrapping_add(i).into())
    };
    spans.split(',').flat_map(span).collect()
}

/// The frames of datagrams as a capture.
fn capture(all: &[Forged]) -> Vec<u8> {
    let frames: Vec<_> = all
        .iter()
        .map(|forged| (Duration::ZERO, forged.frame()))
        .collect();
    let (endianness, resolution) = (Endianness::Little, TsResolution::MicroSecond);
    pcap(&frames, DataLink::ETHERNET, endianness, resolution)
}

/// Compares what tshark says of the frames of a capture with what the parsers say.
fn compare(name: &str, capture: &[u8], packets: &[Forged]) {
    let Some(rows) = tshark(name, capture) else {
        return;
    };
    assert_eq!(rows.len(), packets.len());
    for (at, (packet, row)) in packets.iter().zip(rows).enumerate() {
        let expected = Told::of(packet);
        let row = if expected.is_malformed() {
            row.malformed_alone()
        } else {
            row
        };
        assert_eq!(row, expected, "packet {at}: {:02x?}", packet.datagram);
    }
}

fn compare_forged(seed: u64, forge: fn(&mut Rng) -> Forged) {
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let packets: Vec<_> = (0..FORGED).map(|_| forge(&mut rng)).collect();
    compare(&format!("forged-{seed}"), &capture(&packets), &packets);
}

#[test]
fn wireshark_tells_what_the_parsers_do_of_packets_of_every_kind() {
    compare_forged(1, Forged::sound);
}

#[test]
fn wireshark_finds_malformed_what_the_parsers_do_and_never_fails() {
    for seed in 2..5 {
        compare_forged(seed, Forged::damaged);
    }
}

#[test]
fn wireshark_tells_what_the_parsers_do_of_our_own_nodes() {
    let file = own_traffic();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            packets.push(Forged::captured(&packet.data));
        }
    }
    let shared = |packet: &Forged| packet.datagram[0] == Opcode::SRC_PACKED.0;
    assert!(packets.iter().any(shared));
    compare("dissected", &file, &packets);
}

#[test]
fn wireshark_tells_of_ordinary_packets_what_it_tells_without_the_dissector() {
    let files = fs::read_dir(GOLDEN)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let captures = files.filter(|file| file.extension().is_some_and(|it| it == "pcap"));
    for file in captures {
        let words = ["-r", file.to_str().unwrap(), "-V", "-X", LOAD];
        let [without, with] = [&words[..3], &words].map(run_tshark);
        if let Some((without, with)) = without.zip(with) {
            // Wireshark lists every dissector that was asked.
            let with = text(&with.stdout).replace(":trunkline:infiniband", ":infiniband");
            assert!(with.contains("Base Transport Header"));
            assert_eq!(with, text(&without.stdout), "{}", file.display());
        }
    }
}

#[test]
fn wireshark_tells_of_packets_that_were_cut_when_captured() {
    let mut rng = Rng::new(9);
    let mut frames = Vec::new();
    for _ in 0..FORGED {
        let mut frame = Forged::sound(&mut rng).frame();
        let length = rng.within(42..frame.len() as u64 + 1) as usize;
        frame.truncate(length);
        frames.push((Duration::ZERO, frame));
    }
    let (endianness, resolution) = (Endianness::Little, TsResolution::MicroSecond);
    let file = pcap(&frames, DataLink::ETHERNET, endianness, resolution);
    if let Some(rows) = tshark("cut", &file) {
        assert_eq!(rows.len(), FORGED);
    }
}
