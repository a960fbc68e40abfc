//! The engines against captured traffic of soft-RoCE: given the requests, the responder says what
//! the real one said; given the answers, the requester sends what the real one sent and completes.

mod common;
#[path = "captures/requester.rs"]
mod requester;
#[path = "captures/responder.rs"]
mod responder;

use common::capture::{self, Conversation};
use common::path;
use trunkline_conn::rc::{Config, Mtu};
use trunkline_testkit::captures;
use trunkline_wire::{NakCode, Psn, Syndrome};

/// RC captures there are at least, and conversations in them.
const LEAST_FILES: usize = 32;
const LEAST_CONVERSATIONS: usize = 48;

/// Captures whose name says that a receive was too short. The refusal in them is remote operational
/// (0x63), though: what soft-RoCE says of a receive it cannot use (rxe_resp.c), while one that is
/// too short is an invalid request (0x61) to it as to IBTA (Vol 1, 9.7.5.2.7). So they are replayed
/// with a receive that names more memory than its region has; no capture holds an invalid request.
const UNUSABLE: &str = "recv-too-short";

/// Attributes that both ends of a captured conversation had, as far as packets show them.
fn config(name: &str, talk: &Conversation) -> Config {
    let (responder, requester) = talk.qpns();
    let fallback = if name.starts_with("mtu4096") {
        4096
    } else {
        1024
    };
    let full = talk.full().unwrap_or(fallback);
    let codes = (1..=5).filter_map(Mtu::from_code);
    let mtu = codes.into_iter().find(|mtu| mtu.bytes() as usize == full);
    let first = talk.requests().next();
    let psn = first.map_or(Psn::default(), |packet| packet.bth.psn);
    Config {
        path_mtu: mtu.expect("full packets are of the path MTU"),
        sq_psn: psn,
        rq_psn: psn,
        timeout: 0,
        min_rnr_timer: 0,
        max_rd_atomic: 128,
        max_dest_rd_atomic: 128,
        send_capacity: 1000,
        // The captured hosts count none.
        flow_control: false,
        ..Config::new(responder, requester, path(2, 1))
    }
}

/// PSN of the packet that was refused with `wanted`, if one was.
fn refused(talk: &Conversation, wanted: impl Fn(Syndrome) -> bool) -> Option<Psn> {
    let found = talk
        .responses()
        .find(|packet| packet.aeth.is_some_and(|aeth| wanted(aeth.syndrome)));
    found.map(|packet| packet.bth.psn)
}

fn refused_for_good(talk: &Conversation) -> Option<(Psn, NakCode)> {
    talk.responses()
        .find_map(|packet| match packet.aeth?.syndrome {
            Syndrome::Nak(code) if code != NakCode::PsnSequence => Some((packet.bth.psn, code)),
            _ => None,
        })
}

/// Runs `replay` over every RC conversation; it says how many packets it compared.
fn over_all(what: &str, replay: impl Fn(&str, &Conversation) -> usize) {
    let Some(folder) = captures::folder() else {
        return;
    };
    let (mut files, mut talks) = (0, 0);
    for (name, frames) in captures::files(&folder) {
        let conversations = capture::conversations(&frames);
        let mut compared = 0;
        for talk in &conversations {
            let count = replay(&name, talk);
            assert!(count > 0, "{name}: nothing was compared");
            compared += count;
        }
        if compared > 0 {
            files += 1;
            talks += conversations.len();
            println!(
                "{compared:5} {what} of {:2} conversations in {name}",
                conversations.len()
            );
        }
    }
    assert!(files >= LEAST_FILES, "{files} files");
    assert!(talks >= LEAST_CONVERSATIONS, "{talks} conversations");
}

#[test]
fn the_responder_says_what_the_captured_one_said() {
    over_all("answers", responder::replay);
}

#[test]
fn the_requester_sends_what_the_captured_one_sent_and_completes() {
    over_all("requests", requester::replay);
}

#[test]
fn a_receive_that_is_too_short_is_refused_where_the_unusable_one_was() {
    let Some(folder) = captures::folder() else {
        return;
    };
    let mut compared = 0;
    for (name, frames) in captures::files(&folder) {
        if name.ends_with(UNUSABLE) {
            for talk in &capture::conversations(&frames) {
                compared += responder::replay_short_receive(&name, talk);
            }
        }
    }
    assert_eq!(
        compared, 5,
        "two refusals, and three acknowledgements inside of one message"
    );
}
