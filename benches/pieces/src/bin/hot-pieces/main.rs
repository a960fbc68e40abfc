//! The hot pieces, each alone and as often as asked, for `cargo xtask instructions` to count their
//! instructions under valgrind. Nothing here depends on time, addresses or chance. Sums over
//! payload are missing on purpose: valgrind knows no AVX-512.

mod delivery;
mod engine;
mod scales;
mod tables;
mod times;
mod wire;

use std::process::ExitCode;
use trunkline_qpmap::queue::MAX_WR;

/// A piece: runs as often as told.
type Piece = fn(u32);

const PIECES: &[(&str, Piece)] = &[
    ("bth_build", wire::bth_build),
    ("bth_parse", wire::bth_parse),
    ("rc_write_headers_build", wire::rc_write_build),
    ("rc_write_headers_parse", wire::rc_write_parse),
    ("src_write_headers_build", wire::src_write_build),
    ("src_write_headers_parse", wire::src_write_parse),
    ("ack_parse", wire::ack_parse),
    ("icrc_start", wire::icrc_start),
    ("delivery_send_and_acked", delivery::send_and_acked),
    ("delivery_receive_and_ack", delivery::receive_and_ack),
    ("engine_send64", engine::send64),
    ("scheduler_turn", engine::scheduler_turn),
    ("mapping_lookup", tables::mapping_lookup),
    ("qpn_to_index", tables::qpn_to_index),
    ("region_check", tables::region_check),
];

/// A table: the piece that fills it with as many entries as told, and how many there may be.
type Scale = (&'static str, Piece, u32);

/// As many as anybody compares.
const ANY: u32 = 1_000_000;
/// Connections of a node, unless it is told otherwise. A million would take all memory.
const CONNECTIONS: u32 = 65_536;

const SCALES: &[Scale] = &[
    ("destroyed_qps", scales::destroyed_qps, ANY),
    ("moved_flows", scales::moved_flows, ANY),
    ("stranded_flows", scales::stranded_flows, ANY),
    ("watched_qps", scales::watched_qps, ANY),
    ("connections", scales::connections, CONNECTIONS),
    ("regions", scales::regions, ANY),
    ("completions", scales::completions, ANY),
    ("users_of_a_failed_cq", scales::users_of_a_failed_cq, ANY),
    ("routes", scales::flows::routes, ANY),
    ("staging", scales::flows::staging, ANY),
    ("requests", scales::flows::requests, MAX_WR),
    ("responses", scales::flows::responses, ANY),
    ("pings", scales::peers::pings, CONNECTIONS),
    ("replies", scales::peers::replies, CONNECTIONS),
    (
        "idle_connections",
        scales::peers::idle_connections,
        CONNECTIONS,
    ),
    ("handshakes", scales::handshakes::handshakes, CONNECTIONS),
    ("timers", scales::timers::timers, ANY),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => list(PIECES.iter().map(|(name, _)| *name)),
        ["--list-scales"] => list(SCALES.iter().map(|(name, ..)| *name)),
        ["--scales-time", ref tables @ ..] => times::compare(SCALES, tables),
        ["--time", name, entries] => {
            let piece = SCALES.iter().find(|(known, ..)| *known == name);
            let (Some((_, piece, _)), Ok(entries)) = (piece, entries.parse()) else {
                return wrong("--time takes a table and how many entries it gets");
            };
            times::print(*piece, entries);
            ExitCode::SUCCESS
        }
        [name, repetitions] => {
            let scales = SCALES.iter().map(|(name, piece, _)| (*name, *piece));
            let mut all = PIECES.iter().copied().chain(scales);
            let Some((_, piece)) = all.find(|(known, _)| *known == name) else {
                return wrong(&format!("no piece is called `{name}`; --list shows them"));
            };
            let Ok(repetitions) = repetitions.parse() else {
                return wrong(&format!("`{repetitions}` is no number of repetitions"));
            };
            piece(repetitions);
            ExitCode::SUCCESS
        }
        _ => wrong("say --list, --list-scales, --scales-time [TABLE...], or PIECE REPETITIONS"),
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> ExitCode {
    for name in names {
        println!("{name}");
    }
    ExitCode::SUCCESS
}

fn wrong(what: &str) -> ExitCode {
    eprintln!("hot-pieces: {what}");
    ExitCode::from(2)
}
