//! `trunkline decode`: captures of real peers, of our own nodes, and of nobody.

use crate::captures::{GOLDEN, Scratch, golden, number, packets, summary};
use crate::common::{End, PATIENCE};
use crate::formats::{Frame, frames, pcap, pcapng, pcapng_simple, relinked};
use crate::names::abbreviated;
use crate::{run, text, trunkline};
use pcap_file::{DataLink, Endianness, TsResolution};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use trunkline::{Drive, Node, SendOp};
use trunkline_dataplane::{Capture, MemoryConfig, MemoryPort};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/captures");
/// Another folder with captures and their INDEX.txt; or `none`, to do without.
const OVERRIDE: &str = "TRUNKLINE_CAPTURES";
/// Longer files were cut there after they had been counted.
const CUT: usize = 400;

type Counts = BTreeMap<String, usize>;

/// What INDEX.txt says of each file.
fn index(folder: &Path) -> BTreeMap<String, Counts> {
    let text = fs::read_to_string(folder.join("INDEX.txt")).unwrap();
    let counts = |words: &str| {
        let pairs = words
            .split_whitespace()
            .map(|pair| pair.rsplit_once(':').unwrap());
        pairs
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
            .collect()
    };
    let lines = text.lines().map(|line| line.split_once(": ").unwrap());
    lines
        .map(|(file, words)| (file.to_owned(), counts(words)))
        .collect()
}

/// Counts of the packets by name, as INDEX.txt has them.
fn counted(packets: &[Value]) -> Counts {
    let mut counts = Counts::new();
    for packet in packets {
        let opcode = packet["opcode"].as_str().unwrap();
        let name = match (packet["cm"]["message"].as_str(), &packet["aeth"]["code"]) {
            (Some(message), _) => message.to_owned(),
            (None, code) if opcode == "RC_ACKNOWLEDGE" => format!("ACK({code})"),
            (None, _) => abbreviated(opcode),
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// Compares every capture of a folder with the folder's INDEX.txt; gives the number of frames.
fn check_folder(folder: &Path) -> usize {
    let mut total = 0;
    for (name, expected) in index(folder) {
        let file = folder.join(format!("{name}.pcap"));
        let path = file.to_str().unwrap();
        let (summary, packets) = (summary(path), packets(path));
        let of = |key: &str| number(&summary[key]);
        total += of("frames");
        assert_eq!(of("frames"), frames(&file).len(), "{name}");
        assert_eq!(
            (of("icrc_ok"), of("icrc_bad"), of("malformed")),
            (of("roce"), 0, 0),
            "{name}"
        );
        assert_eq!(packets.len(), of("roce"), "{name}");
        let by_opcode = summary["by_opcode"].as_object().unwrap();
        assert_eq!(
            by_opcode.values().map(number).sum::<usize>(),
            of("roce"),
            "{name}"
        );
        for (opcode, count) in by_opcode {
            let same = packets
                .iter()
                .filter(|packet| packet["opcode"] == **opcode)
                .count();
            assert_eq!(number(count), same, "{name}: {opcode}");
        }
        let found = counted(&packets);
        // Errors that routers send quote packets: they are not RoCEv2 themselves.
        let quoted = of("frames") - of("roce");
        if of("frames") == CUT {
            assert!(found.keys().eq(expected.keys()), "{name}");
        } else if quoted == 0 {
            assert_eq!(found, expected, "{name}");
        } else {
            let all: usize = expected.values().sum();
            assert_eq!(of("frames"), all, "{name}");
        }
        assert!(
            found
                .iter()
                .all(|(packet, count)| *count <= expected[packet]),
            "{name}"
        );
        for packet in &packets {
            assert_eq!(packet["icrc"], "ok", "{name}: {packet}");
        }
    }
    total
}

#[test]
fn golden_captures_are_counted_as_their_index_says() {
    assert_eq!(check_folder(Path::new(GOLDEN)), 55);
}

#[test]
fn shared_captures_are_counted_as_their_index_says() {
    let folder = match std::env::var_os(OVERRIDE) {
        Some(value) if value == "none" => {
            eprintln!("SKIPPED: {OVERRIDE}=none, so only the golden captures were checked");
            return;
        }
        Some(value) => PathBuf::from(value),
        None => PathBuf::from(SHARED),
    };
    assert!(
        folder.join("INDEX.txt").is_file(),
        "NO CAPTURES at {}: set {OVERRIDE} to a folder that has them, or to `none` to do without",
        folder.display()
    );
    assert!(check_folder(&folder) > 2000);
}

#[test]
fn lines_for_people_tell_what_each_packet_says() {
    let path = golden("mtu1024-nak-remote-access-read");
    let output = run(&["decode", path.to_str().unwrap()]);
    let stdout = text(&output.stdout);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 7);
    for (line, says) in [
        (
            0,
            "cm message=REQ local=0x57ae7b5c service_id=0x0000000001061d2f protocol=6 port=7471",
        ),
        (
            1,
            "cm message=REP local=0x023c7fd9 remote=0x57ae7b5c qpn=0x000014",
        ),
        (3, "RC_READ_REQUEST dest_qp=0x000014 psn=10155306"),
        (3, "reth va=0x00007fa68b257000 rkey=0x0000503d length=64"),
        (4, "aeth syndrome='NAK remote access error' code=98 msn=0"),
        (5, "cm message=DREQ"),
    ] {
        assert!(lines[line].contains(says), "{}", lines[line]);
        assert!(lines[line].ends_with("icrc ok"), "{}", lines[line]);
    }
    let reject = run(&[
        "decode",
        golden("mtu1024-cm-reject-consumer").to_str().unwrap(),
    ]);
    assert!(text(&reject.stdout).contains("reason='consumer defined' code=28"));
}

#[test]
fn a_table_of_counts_names_opcodes_and_messages() {
    let path = golden("mtu1024-nak-remote-access-read");
    let output = run(&["decode", "--summary", path.to_str().unwrap()]);
    let stdout = text(&output.stdout);
    let rows: Vec<Vec<_>> = stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for row in [
        &["frames", "7"][..],
        &["ICRC", "ok", "7"],
        &["RC_READ_REQUEST", "1"],
        &["RTU", "1"],
    ] {
        assert!(rows.iter().any(|found| found == row), "{row:?} in {stdout}");
    }
}

#[test]
fn every_format_of_capture_tells_the_same() {
    let path = golden("mtu1024-rc-pingpong-ipv6-linklocal-gid0");
    let (frames, expected) = (frames(&path), packets(path.to_str().unwrap()));
    assert_eq!(expected.len(), frames.len());
    let link = DataLink::ETHERNET;
    for endianness in [Endianness::Big, Endianness::Little] {
        for resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let file = Scratch::new("format.pcap", &pcap(&frames, link, endianness, resolution));
            assert_eq!(
                packets(file.path()),
                expected,
                "{endianness:?} {resolution:?}"
            );
        }
        for units in [None, Some(6), Some(9)] {
            let file = Scratch::new("format.pcapng", &pcapng(&frames, link, endianness, units));
            assert_eq!(packets(file.path()), expected, "{endianness:?} {units:?}");
        }
        let file = Scratch::new("simple.pcapng", &pcapng_simple(&frames, link, endianness));
        let simple = packets(file.path());
        assert_eq!(simple.len(), expected.len());
        for (mut packet, mut expected) in simple.into_iter().zip(expected.clone()) {
            assert_eq!(packet["time_ns"], 0);
            (packet["time_ns"], expected["time_ns"]) = (Value::Null, Value::Null);
            assert_eq!(packet, expected);
        }
    }
}

#[test]
fn other_link_layers_tell_the_same() {
    for name in [
        "mtu1024-rc-pingpong-ipv6-linklocal-gid0",
        "mtu1024-udaddy-sidr",
    ] {
        let path = golden(name);
        let (ethernet, expected) = (frames(&path), packets(path.to_str().unwrap()));
        let links: [(u32, Vec<Frame>); 4] = [
            (101, relinked(&ethernet, |_| Vec::new())),
            (
                113,
                relinked(&ethernet, |kind| [&[0; 14][..], &kind].concat()),
            ),
            (
                276,
                relinked(&ethernet, |kind| [&kind[..], &[0; 18]].concat()),
            ),
            (
                1,
                relinked(&ethernet, |kind| {
                    [&[0; 12][..], &[0x81, 0, 0, 7], &kind].concat()
                }),
            ),
        ];
        for (link, frames) in links {
            let (endianness, resolution) = (Endianness::Little, TsResolution::MicroSecond);
            let bytes = pcap(&frames, DataLink::from(link), endianness, resolution);
            let file = Scratch::new("link.pcap", &bytes);
            assert_eq!(packets(file.path()), expected, "link type {link}");
        }
    }
}

#[test]
fn standard_input_is_a_capture_too() {
    let path = golden("mtu1024-udaddy-sidr");
    let mut command = trunkline(&["decode", "-", "--json"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&fs::read(&path).unwrap())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let expected = run(&["decode", path.to_str().unwrap(), "--json"]);
    assert_eq!(text(&output.stdout), text(&expected.stdout));
}

/// A file that the test reads while a node writes it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A capture of what two nodes say to each other from their handshake to their end.
pub(crate) fn own_traffic() -> Vec<u8> {
    let (here, there) = MemoryPort::pair(MemoryConfig::default());
    let file = Shared::default();
    let captured = Capture::new(here, file.clone()).unwrap();
    let node = |address: [u8; 4]| Node::builder().address(address.into()).drive(Drive::Inline);
    let client = End::of(node([10, 0, 0, 1]).build_on(Box::new(captured)).unwrap());
    let server = End::of(node([10, 0, 0, 2]).build_on(Box::new(there)).unwrap());
    let (a, b) = (
        client.qp(&Default::default()),
        server.qp(&Default::default()),
    );
    a.connect(b.address()).unwrap();
    b.connect(a.address()).unwrap();
    server.receive(&b, 1, 0, 20_000);
    let add = trunkline::AtomicOp::FetchAdd { add: 1 };
    for (at, (op, length)) in [
        (SendOp::Send, 20_000),
        (SendOp::Write(server.mr.remote(0)), 64),
        (SendOp::Read(server.mr.remote(0)), 64),
        (SendOp::Atomic(server.mr.remote(0), add), 8),
    ]
    .into_iter()
    .enumerate()
    {
        client.post(&a, at as u64, op, 0, length);
    }
    let began = Instant::now();
    let mut done = 0;
    while done < 4 {
        client.node.poll().unwrap();
        server.node.poll().unwrap();
        done += usize::from(client.send_cq.poll_one().unwrap().is_some());
        assert!(began.elapsed() < PATIENCE, "{done} of 4 requests are done");
    }
    drop((a, b, client, server));
    let capture = file.0.lock().unwrap();
    capture.clone()
}

#[test]
fn traffic_between_our_own_nodes_is_told_down_to_its_answers() {
    let file = Scratch::new("own.pcapng", &own_traffic());
    let counts = summary(file.path());
    let of = |key: &str| number(&counts[key]);
    assert_eq!(
        (of("icrc_ok"), of("icrc_bad"), of("malformed")),
        (of("frames"), 0, 0),
        "{counts}"
    );
    assert!(number(&counts["by_cm"]["REQ"]) > 0, "{counts}");
    let packets = packets(file.path());
    let first = packets
        .iter()
        .find(|packet| packet["opcode"] == "SRC_SEND")
        .unwrap();
    assert_eq!(first["ext"]["offset"], 0);
    assert!(first["ext"]["token"].as_str().unwrap().starts_with("0x"));
    let records = |packet: &Value| packet["records"]["entries"].as_array().cloned();
    let records: Vec<Value> = packets.iter().filter_map(records).flatten().collect();
    for opcode in [
        "SRC_WRITE",
        "SRC_READ_REQ",
        "SRC_READ_RESP",
        "SRC_FETCH_ADD",
        "SRC_ATOMIC_RESP",
    ] {
        let said = records.iter().any(|record| record["opcode"] == opcode);
        assert!(said, "{opcode}: {records:?}");
    }
    assert!(number(&counts["by_opcode"]["SRC_PACKED"]) > 0, "{counts}");
    let alone = packets
        .iter()
        .map(|packet| &packet["answers"]["entries"][0]);
    let with_others = records.iter().map(|record| &record["entries"][0]);
    let mut answers = alone.chain(with_others);
    assert!(answers.any(|answer| answer["syndrome"] == "ACK"));
}
