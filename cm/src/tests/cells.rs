//! Every cell of the state table: what each state does with everything that can happen to it.

use super::matrix::{Actor, Enter, Input, check, says, unknown};
use super::{Stage, drain, messages, ms, offer};
use crate::binds::Bounds;
use crate::event::{CloseReason, Event};
use crate::message::Mad;
use crate::refusal::RefusalCode;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{CmMad, CommId};

const STATES: [(&str, Enter<Stage>); 8] = [
    ("ReqSent", |s| s.open()),
    ("ReqReceived", |s| s.asked()),
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

const INPUTS: [(&str, Input<Stage>); 21] = [
    ("REQ", |s| says(s, s.req())),
    ("REP", |s| says(s, s.rep())),
    ("RTU", |s| says(s, s.rtu())),
    ("REJ", |s| says(s, s.rej(RefusalCode::Busy))),
    ("MRA", |s| says(s, s.mra())),
    ("DREQ", |s| says(s, s.dreq())),
    ("DREP", |s| says(s, s.drep())),
    // The same with another transaction.
    ("REP'", |s| {
        s.transaction ^= 1;
        says(s, s.rep())
    }),
    ("RTU'", |s| {
        s.transaction ^= 1;
        says(s, s.rtu())
    }),
    ("REJ'", |s| {
        s.transaction ^= 1;
        says(s, s.rej(RefusalCode::Busy))
    }),
    // The same with another number of the peer.
    ("REP*", |s| {
        s.theirs = CommId(0x99);
        says(s, s.rep())
    }),
    ("RTU*", |s| {
        s.theirs = CommId(0x99);
        says(s, s.rtu())
    }),
    ("REJ*", |s| {
        s.theirs = CommId(0x99);
        says(s, s.rej(RefusalCode::Busy))
    }),
    ("DREQ*", |s| {
        s.theirs = CommId(0x99);
        says(s, s.dreq())
    }),
    ("DREP*", |s| {
        s.theirs = CommId(0x99);
        says(s, s.drep())
    }),
    ("deadline", |s| {
        s.now = s.manager.poll_timeout().unwrap_or(s.now);
        s.manager.handle_timeout(s.now);
        None
    }),
    ("accept", |s| {
        let offer = offer(&mut s.random);
        unknown(s.manager.accept(s.now, s.id(), offer, Bounds::default()))
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
        Event::Nobody { .. } => "Nobody".to_string(),
        Event::Refused { .. } => "Refused".to_string(),
        Event::PeerRestarted { .. } => "PeerRestarted".to_string(),
        Event::Closed { reason, .. } => match reason {
            CloseReason::Abandoned(_) => "Closed(Abandoned)".to_string(),
            reason => format!("Closed({reason:?})"),
        },
    }
}

fn message_name(mad: &CmMad) -> String {
    format!("+{}", mad.message.name())
}

impl Actor for Stage {
    fn new() -> Self {
        Self::new()
    }

    fn state(&self) -> &'static str {
        self.state()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.manager.poll_timeout()
    }

    fn deliver(&mut self, mad: &Mad) {
        self.deliver(mad);
    }

    fn wait(&mut self, due: Instant) {
        self.now = due;
        self.manager.handle_timeout(due);
    }

    fn names(&mut self) -> Vec<String> {
        let (sent, events) = drain(&mut self.manager);
        let said = messages(&sent);
        let names = said.iter().map(message_name);
        names.chain(events.iter().map(event_name)).collect()
    }
}

#[test]
fn every_cell_of_the_state_table_is_as_written() {
    check(&STATES, &INPUTS, TABLE);
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
    ReqReceived REJ: - Closed(Abandoned)
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
    ReqReceived deadline: - +REJ Closed(Undecided)
    RepSent deadline: +REP
    DreqSent deadline: +DREQ
    TimeWait deadline: -
    ReqSent accept: unknown
    ReqReceived accept: RepSent +REP
    RepSent accept: unknown
    Opener accept: unknown
    Acceptor accept: unknown
    DreqSent accept: unknown
    TimeWait accept: unknown
    Gone accept: unknown
    ReqSent reject: unknown
    ReqReceived reject: - +REJ Closed(Local)
    RepSent reject: unknown
    Opener reject: unknown
    Acceptor reject: unknown
    DreqSent reject: unknown
    TimeWait reject: unknown
    Gone reject: unknown
    ReqSent confirm: unknown
    ReqReceived confirm: unknown
    RepSent confirm: Established Established
    Opener confirm: unknown
    Acceptor confirm: unknown
    DreqSent confirm: unknown
    TimeWait confirm: unknown
    Gone confirm: unknown
    ReqSent close: - +REJ Closed(Local)
    ReqReceived close: - +REJ Closed(Local)
    RepSent close: - +REJ Closed(Local)
    Opener close: DreqSent +DREQ
    Acceptor close: DreqSent +DREQ
    DreqSent close: unknown
    TimeWait close: unknown
    Gone close: unknown
    ReqSent release: unknown
    ReqReceived release: unknown
    RepSent release: unknown
    Opener release: TimeWait Closed(Local)
    Acceptor release: TimeWait Closed(Local)
    DreqSent release: unknown
    TimeWait release: unknown
    Gone release: unknown
";
