//! Every cell of the state table: what each state does with everything that can happen to it.

use super::{Stage, drain, messages, ms, offer};
use crate::event::{CloseReason, Event};
use crate::refusal::RefusalCode;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;
use trunkline_wire::cm::CommId;

type Enter = fn(&mut Stage);

const STATES: [(&str, Enter); 8] = [
    ("ReqSent", |s| s.open()),
    ("Asked", |s| s.asked()),
    ("RepSent", |s| s.rep_sent()),
    ("Opener", |s| {
        s.established();
    }),
    ("Acceptor", |s| {
        s.established_as_acceptor();
    }),
    ("DreqSent", |s| s.dreq_sent()),
    ("TimeWait", |s| s.time_wait()),
    ("Gone", |s| {
        s.time_wait();
        s.now = ms(10_000);
        s.manager.handle_timeout(s.now);
    }),
];

type Input = fn(&mut Stage) -> Option<&'static str>;

/// The call's failure, if it fails.
fn unknown<T, E>(result: Result<T, E>) -> Option<&'static str> {
    result.err().map(|_| "unknown")
}

const INPUTS: [(&str, Input); 21] = [
    ("REQ", |s| {
        s.deliver(&s.req());
        None
    }),
    ("REP", |s| {
        s.deliver(&s.rep());
        None
    }),
    ("RTU", |s| {
        s.deliver(&s.rtu());
        None
    }),
    ("REJ", |s| {
        s.deliver(&s.rej(RefusalCode::Busy));
        None
    }),
    ("MRA", |s| {
        s.deliver(&s.mra());
        None
    }),
    ("DREQ", |s| {
        s.deliver(&s.dreq());
        None
    }),
    ("DREP", |s| {
        s.deliver(&s.drep());
        None
    }),
    // The same with another transaction.
    ("REP'", |s| {
        s.transaction ^= 1;
        s.deliver(&s.rep());
        None
    }),
    ("RTU'", |s| {
        s.transaction ^= 1;
        s.deliver(&s.rtu());
        None
    }),
    ("REJ'", |s| {
        s.transaction ^= 1;
        s.deliver(&s.rej(RefusalCode::Busy));
        None
    }),
    // The same with another number of the peer.
    ("REP*", |s| {
        s.theirs = CommId(0x99);
        s.deliver(&s.rep());
        None
    }),
    ("RTU*", |s| {
        s.theirs = CommId(0x99);
        s.deliver(&s.rtu());
        None
    }),
    ("REJ*", |s| {
        s.theirs = CommId(0x99);
        s.deliver(&s.rej(RefusalCode::Busy));
        None
    }),
    ("DREQ*", |s| {
        s.theirs = CommId(0x99);
        s.deliver(&s.dreq());
        None
    }),
    ("DREP*", |s| {
        s.theirs = CommId(0x99);
        s.deliver(&s.drep());
        None
    }),
    ("deadline", |s| {
        s.now = s.manager.poll_timeout().unwrap_or(s.now);
        s.manager.handle_timeout(s.now);
        None
    }),
    ("accept", |s| {
        let offer = offer(&mut s.random);
        unknown(s.manager.accept(s.now, s.id(), offer))
    }),
    ("reject", |s| {
        unknown(s.manager.reject(s.id(), RefusalCode::Policy))
    }),
    ("confirm", |s| unknown(s.manager.confirm(s.now, s.id()))),
    ("close", |s| unknown(s.manager.close(s.now, s.id()))),
    ("release", |s| unknown(s.manager.release(s.now, s.id()))),
];

fn event_name(event: &Event) -> String {
    match event {
        Event::Incoming { .. } => "Incoming".to_string(),
        Event::Established(_) => "Established".to_string(),
        Event::NotTrunkline { .. } => "NotTrunkline".to_string(),
        Event::Silent { .. } => "Silent".to_string(),
        Event::Refused { .. } => "Refused".to_string(),
        Event::PeerRestarted { .. } => "PeerRestarted".to_string(),
        Event::Closed { reason, .. } => match reason {
            CloseReason::Abandoned(_) => "Closed(Abandoned)".to_string(),
            reason => format!("Closed({reason:?})"),
        },
    }
}

/// What happens: the next state, messages sent, events, and how the call failed. A cell in which
/// nothing at all happens is empty.
fn cell(enter: Enter, input: Input) -> String {
    let mut stage = Stage::new();
    enter(&mut stage);
    let (before, timeout) = (stage.state(), stage.manager.poll_timeout());
    let failed = input(&mut stage);
    let (sent, events) = drain(&mut stage.manager);
    let mut parts = Vec::new();
    if stage.state() != before {
        parts.push(stage.state().to_string());
    }
    for mad in messages(&sent) {
        parts.push(format!("+{}", mad.message.name()));
    }
    parts.extend(events.iter().map(event_name));
    parts.extend(failed.map(str::to_string));
    if parts.is_empty() && stage.manager.poll_timeout() != timeout {
        parts.push("waits longer".to_string());
    }
    parts.join(" ")
}

#[test]
fn every_cell_of_the_state_table_is_as_written() {
    let mut table = String::new();
    for (name, input) in INPUTS {
        for (state, enter) in STATES {
            let happens = cell(enter, input);
            if !happens.is_empty() {
                table += &format!("{state} {name}: {happens}\n");
            }
        }
    }
    let written: Vec<&str> = TABLE.trim().lines().map(str::trim).collect();
    let found: Vec<&str> = table.trim().lines().collect();
    assert_eq!(found, written, "\n{table}");
}

/// `state input: next state, messages sent, events, failure of a call`. Of the two that stand,
/// Opener and Acceptor, the table keeps no difference, nor the transaction. In cells that are not
/// listed nothing happens. "-" is no state at all; an apostrophe marks another transaction, a star
/// another number of the peer.
const TABLE: &str = "
    ReqSent REQ: +REQ
    RepSent REQ: +REP
    Gone REQ: Incoming
    ReqSent REP: Established +RTU Established
    Opener REP: +RTU
    Acceptor REP: +RTU
    TimeWait REP: +REJ
    Gone REP: +REJ
    RepSent RTU: Established Established
    ReqSent REJ: - Refused
    Asked REJ: - Closed(Abandoned)
    RepSent REJ: - Closed(Abandoned)
    Opener REJ: TimeWait Closed(Abandoned)
    Acceptor REJ: TimeWait Closed(Abandoned)
    ReqSent MRA: waits longer
    RepSent MRA: waits longer
    RepSent DREQ: TimeWait +DREP Closed(Peer)
    Opener DREQ: TimeWait +DREP Closed(Peer)
    Acceptor DREQ: TimeWait +DREP Closed(Peer)
    DreqSent DREQ: TimeWait +DREP Closed(Local)
    TimeWait DREQ: +DREP
    Gone DREQ: +DREP
    DreqSent DREP: TimeWait Closed(Local)
    Opener REP': +RTU
    Acceptor REP': +RTU
    TimeWait REP': +REJ
    Gone REP': +REJ
    Opener REJ': TimeWait Closed(Abandoned)
    Acceptor REJ': TimeWait Closed(Abandoned)
    ReqSent REP*: Established +RTU Established
    Gone REP*: +REJ
    ReqSent REJ*: - Refused
    Gone DREQ*: +DREP
    ReqSent deadline: +REQ
    Asked deadline: - +REJ Closed(Undecided)
    RepSent deadline: +REP
    DreqSent deadline: +DREQ
    TimeWait deadline: -
    ReqSent accept: unknown
    Asked accept: RepSent +REP
    RepSent accept: unknown
    Opener accept: unknown
    Acceptor accept: unknown
    DreqSent accept: unknown
    TimeWait accept: unknown
    Gone accept: unknown
    ReqSent reject: unknown
    Asked reject: - +REJ Closed(Local)
    RepSent reject: unknown
    Opener reject: unknown
    Acceptor reject: unknown
    DreqSent reject: unknown
    TimeWait reject: unknown
    Gone reject: unknown
    ReqSent confirm: unknown
    Asked confirm: unknown
    RepSent confirm: Established Established
    Opener confirm: unknown
    Acceptor confirm: unknown
    DreqSent confirm: unknown
    TimeWait confirm: unknown
    Gone confirm: unknown
    ReqSent close: - +REJ Closed(Local)
    Asked close: - +REJ Closed(Local)
    RepSent close: - +REJ Closed(Local)
    Opener close: DreqSent +DREQ
    Acceptor close: DreqSent +DREQ
    DreqSent close: unknown
    TimeWait close: unknown
    Gone close: unknown
    ReqSent release: unknown
    Asked release: unknown
    RepSent release: unknown
    Opener release: TimeWait Closed(Local)
    Acceptor release: TimeWait Closed(Local)
    DreqSent release: unknown
    TimeWait release: unknown
    Gone release: unknown
";
