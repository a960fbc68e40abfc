//! The hot pieces, each alone and as often as asked, for `cargo xtask instructions` to count their
//! instructions under valgrind. Nothing here depends on time, addresses or chance. Sums over
//! payload are missing on purpose: valgrind knows no AVX-512.

mod delivery;
mod engine;
mod scales;
mod tables;
mod wire;

use std::process::ExitCode;

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

/// Tables, with as many entries as told.
const SCALES: &[(&str, Piece)] = &[
    ("destroyed_qps", scales::destroyed_qps),
    ("moved_flows", scales::moved_flows),
    ("stranded_flows", scales::stranded_flows),
    ("watched_qps", scales::watched_qps),
    ("connections", scales::connections),
    ("regions", scales::regions),
    ("completions", scales::completions),
    ("users_of_a_failed_cq", scales::users_of_a_failed_cq),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => list(PIECES),
        ["--list-scales"] => list(SCALES),
        [name, repetitions] => {
            let piece = PIECES
                .iter()
                .chain(SCALES)
                .find(|(known, _)| *known == name);
            let Some((_, piece)) = piece else {
                return wrong(&format!("no piece is called `{name}`; --list shows them"));
            };
            let Ok(repetitions) = repetitions.parse() else {
                return wrong(&format!("`{repetitions}` is no number of repetitions"));
            };
            piece(repetitions);
            ExitCode::SUCCESS
        }
        _ => wrong("say --list, --list-scales, or PIECE REPETITIONS"),
    }
}

fn list(pieces: &[(&str, Piece)]) -> ExitCode {
    for (name, _) in pieces {
        println!("{name}");
    }
    ExitCode::SUCCESS
}

fn wrong(what: &str) -> ExitCode {
    eprintln!("hot-pieces: {what}");
    ExitCode::from(2)
}
