//! Every cell of the state table: what each state does with everything that can happen to it.

use super::{Stage, answer, drain, messages, ms, sidr_answer};
use crate::ib::{CloseReason, Event};
use crate::message::Mad;
use crate::tests::matrix::{Actor, Enter, Input, check, says, unknown};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, ApStatus, CmMad, CommId, Message, PrivateData, RejReason};

const STATES: [(&str, Enter<Stage>); 12] = [
    ("ReqSent", Stage::req_sent),
    ("Replied", Stage::replied),
    ("ReqReceived", Stage::asked),
    ("RepSent", Stage::rep_sent),
    ("Asking", Stage::asking),
    ("Answering", Stage::answering),
    ("DreqSent", Stage::dreq_sent),
    ("TimeWait", Stage::time_wait),
    ("SidrSent", Stage::sidr_sent),
    ("SidrReqReceived", Stage::sidr_req_received),
    ("SidrDone", Stage::sidr_done),
    ("Gone", |s| {
        s.time_wait();
        s.now = ms(10_000);
        s.manager.handle_timeout(s.now);
        drain(&mut s.manager);
    }),
];

const INPUTS: [(&str, Input<Stage>); 34] = [
    ("REQ", |s| says(s, s.req())),
    ("REP", |s| says(s, s.rep())),
    ("RTU", |s| says(s, s.rtu())),
    ("REJ", |s| says(s, s.rej())),
    ("REJ0", |s| says(s, s.gave_up())),
    ("MRA(REQ)", |s| says(s, s.mra(Answered::Req))),
    ("MRA(REP)", |s| says(s, s.mra(Answered::Rep))),
    ("DREQ", |s| says(s, s.dreq())),
    ("DREP", |s| says(s, s.drep())),
    ("LAP", |s| says(s, s.lap())),
    ("APR", |s| says(s, s.apr())),
    ("SIDR_REQ", |s| says(s, s.sidr_req())),
    ("SIDR_REP", |s| says(s, s.sidr_rep())),
    // The same with another transaction.
    ("REQ'", |s| {
        s.transaction ^= 1;
        says(s, s.req())
    }),
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
        says(s, s.rej())
    }),
    ("MRA(REQ)'", |s| {
        s.transaction ^= 1;
        says(s, s.mra(Answered::Req))
    }),
    ("SIDR_REQ'", |s| {
        s.transaction ^= 1;
        says(s, s.sidr_req())
    }),
    ("SIDR_REP'", |s| {
        s.transaction ^= 1;
        says(s, s.sidr_rep())
    }),
    // The same with another number of the peer.
    ("REQ*", |s| {
        s.theirs = CommId(0x99);
        says(s, s.req())
    }),
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
        says(s, s.rej())
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
    ("deadlines", |s| {
        let before = s.state();
        while s.state() == before
            && let Some(due) = s.manager.poll_timeout()
        {
            drain(&mut s.manager);
            s.now = due;
            s.manager.handle_timeout(due);
        }
        None
    }),
    ("accept", |s| {
        unknown(s.manager.accept(s.now, s.id(), &answer(0x33)))
    }),
    ("reject", |s| {
        let (id, reason) = (s.id(), RejReason::ConsumerDefined);
        unknown(s.manager.reject(s.now, id, reason, PrivateData::default()))
    }),
    ("ready", |s| {
        unknown(s.manager.ready(s.now, s.id(), PrivateData::default()))
    }),
    ("confirm", |s| unknown(s.manager.confirm(s.id()))),
    ("close", |s| {
        unknown(s.manager.close(s.now, s.id(), PrivateData::default()))
    }),
    ("answer", |s| {
        unknown(s.manager.answer(s.now, s.id(), &sidr_answer(0x33)))
    }),
];

fn event_name(event: &Event) -> String {
    match event {
        Event::Rejected { reason, .. } => format!("Rejected({})", reason.code()),
        Event::Closed { reason, .. } => match reason {
            CloseReason::Abandoned(reason) => format!("Abandoned({})", reason.code()),
            reason => format!("Closed({reason:?})"),
        },
        event => {
            let text = format!("{event:?}");
            let name = text.split(' ').next();
            name.expect("an event has a name").to_string()
        }
    }
}

fn message_name(mad: &CmMad) -> String {
    let detail = match &mad.message {
        Message::Rej(rej) => format!("({})", rej.reason.code()),
        Message::Apr(apr) if apr.status == ApStatus::Unsupported => "(no)".to_string(),
        Message::SidrRep(rep) => format!("({})", rep.status.code()),
        _ => String::new(),
    };
    format!("+{}{detail}", mad.message.name())
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

/// `state input: next state, messages sent, events, failure of a call`. Asking and Answering are
/// the two ends of a connection that stands. In cells that are not listed nothing happens. "-" is
/// no state at all; REJ0 is the REJ of who gave up and never knew our number; an apostrophe marks
/// another transaction, a star another number of the peer.
const TABLE: &str = "
    ReqSent REQ: Incoming
    Replied REQ: +REJ(10)
    RepSent REQ: +REP
    Asking REQ: DreqSent +DREQ +REJ(10)
    TimeWait REQ: +REJ(10)
    SidrSent REQ: Incoming
    SidrReqReceived REQ: Incoming
    SidrDone REQ: Incoming
    Gone REQ: Incoming
    ReqSent REP: Replied Replied
    Asking REP: +RTU
    TimeWait REP: +REJ(6)
    Gone REP: +REJ(6)
    RepSent RTU: Established Established
    TimeWait RTU: +REJ(6)
    Gone RTU: +REJ(6)
    ReqSent REJ: - Rejected(28)
    Replied REJ: TimeWait Rejected(28)
    ReqReceived REJ: - Abandoned(28)
    RepSent REJ: TimeWait Abandoned(28)
    Asking REJ: TimeWait Abandoned(28)
    Answering REJ: TimeWait Abandoned(28)
    DreqSent REJ: TimeWait Closed(Local)
    ReqReceived REJ0: - Abandoned(4)
    RepSent REJ0: TimeWait Abandoned(4)
    ReqSent MRA(REQ): waits longer
    RepSent MRA(REP): waits longer
    Replied DREQ: TimeWait +DREP Closed(Peer)
    RepSent DREQ: TimeWait +DREP Closed(Peer)
    Asking DREQ: TimeWait +DREP Closed(Peer)
    Answering DREQ: TimeWait +DREP Closed(Peer)
    DreqSent DREQ: TimeWait +DREP Closed(Local)
    TimeWait DREQ: +DREP
    Gone DREQ: +DREP
    DreqSent DREP: TimeWait Closed(Local)
    ReqSent LAP: +APR
    Replied LAP: +APR
    ReqReceived LAP: +APR
    RepSent LAP: +APR
    Asking LAP: +APR(no)
    Answering LAP: +APR(no)
    DreqSent LAP: +APR
    TimeWait LAP: +APR
    SidrSent LAP: +APR
    SidrReqReceived LAP: +APR
    SidrDone LAP: +APR
    Gone LAP: +APR
    ReqSent SIDR_REQ: SidrIncoming
    Replied SIDR_REQ: SidrIncoming
    ReqReceived SIDR_REQ: SidrIncoming
    RepSent SIDR_REQ: SidrIncoming
    Asking SIDR_REQ: SidrIncoming
    Answering SIDR_REQ: SidrIncoming
    DreqSent SIDR_REQ: SidrIncoming
    TimeWait SIDR_REQ: SidrIncoming
    SidrSent SIDR_REQ: SidrIncoming
    SidrDone SIDR_REQ: +SIDR_REP(0)
    Gone SIDR_REQ: SidrIncoming
    SidrSent SIDR_REP: - SidrAnswered
    ReqSent REQ': Incoming
    Replied REQ': +REJ(10)
    ReqReceived REQ': +REJ(30)
    RepSent REQ': +REJ(30)
    Asking REQ': DreqSent +DREQ +REJ(10)
    TimeWait REQ': +REJ(10)
    SidrSent REQ': Incoming
    SidrReqReceived REQ': Incoming
    SidrDone REQ': Incoming
    Gone REQ': Incoming
    TimeWait REP': +REJ(6)
    Gone REP': +REJ(6)
    TimeWait RTU': +REJ(6)
    Gone RTU': +REJ(6)
    Asking REJ': TimeWait Abandoned(28)
    Answering REJ': TimeWait Abandoned(28)
    DreqSent REJ': TimeWait Closed(Local)
    ReqSent SIDR_REQ': SidrIncoming
    Replied SIDR_REQ': SidrIncoming
    ReqReceived SIDR_REQ': SidrIncoming
    RepSent SIDR_REQ': SidrIncoming
    Asking SIDR_REQ': SidrIncoming
    Answering SIDR_REQ': SidrIncoming
    DreqSent SIDR_REQ': SidrIncoming
    TimeWait SIDR_REQ': SidrIncoming
    SidrSent SIDR_REQ': SidrIncoming
    Gone SIDR_REQ': SidrIncoming
    ReqSent REQ*: Incoming
    Replied REQ*: +REJ(10)
    ReqReceived REQ*: +REJ(10)
    RepSent REQ*: +REP +REJ(10)
    Asking REQ*: DreqSent +DREQ +REJ(10)
    Answering REQ*: DreqSent +DREQ +REJ(10)
    DreqSent REQ*: +REJ(10)
    TimeWait REQ*: Incoming
    SidrSent REQ*: Incoming
    SidrReqReceived REQ*: Incoming
    SidrDone REQ*: Incoming
    Gone REQ*: Incoming
    ReqSent REP*: Replied Replied
    Gone REP*: +REJ(6)
    Gone RTU*: +REJ(6)
    ReqSent REJ*: - Rejected(28)
    Gone DREQ*: +DREP
    ReqSent deadline: +REQ
    Replied deadline: +MRA
    ReqReceived deadline: +MRA
    RepSent deadline: +REP
    Asking deadline: +RTU
    DreqSent deadline: +DREQ
    TimeWait deadline: - TimeWaitExit
    SidrSent deadline: +SIDR_REQ
    SidrReqReceived deadline: SidrDone +SIDR_REP(3) SidrClosed
    SidrDone deadline: -
    ReqSent deadlines: - +REJ(4) Unreachable
    Replied deadlines: TimeWait +REJ(3) Closed(Undecided)
    ReqReceived deadlines: - +REJ(3) Closed(Undecided)
    RepSent deadlines: TimeWait +REJ(4) Closed(Unconfirmed)
    Asking deadlines: waits no longer
    DreqSent deadlines: TimeWait Closed(Local)
    TimeWait deadlines: - TimeWaitExit
    SidrSent deadlines: - Unreachable
    SidrReqReceived deadlines: SidrDone +SIDR_REP(3) SidrClosed
    SidrDone deadlines: -
    ReqSent accept: unknown
    Replied accept: unknown
    ReqReceived accept: RepSent +REP
    RepSent accept: unknown
    Asking accept: unknown
    Answering accept: unknown
    DreqSent accept: unknown
    TimeWait accept: unknown
    SidrSent accept: unknown
    SidrReqReceived accept: unknown
    SidrDone accept: unknown
    Gone accept: unknown
    ReqSent reject: unknown
    Replied reject: TimeWait +REJ(28) Closed(Local)
    ReqReceived reject: - +REJ(28) Closed(Local)
    RepSent reject: unknown
    Asking reject: unknown
    Answering reject: unknown
    DreqSent reject: unknown
    TimeWait reject: unknown
    SidrSent reject: unknown
    SidrReqReceived reject: unknown
    SidrDone reject: unknown
    Gone reject: unknown
    ReqSent ready: unknown
    Replied ready: Established +RTU Established
    ReqReceived ready: unknown
    RepSent ready: unknown
    Asking ready: unknown
    Answering ready: unknown
    DreqSent ready: unknown
    TimeWait ready: unknown
    SidrSent ready: unknown
    SidrReqReceived ready: unknown
    SidrDone ready: unknown
    Gone ready: unknown
    ReqSent confirm: unknown
    Replied confirm: unknown
    ReqReceived confirm: unknown
    RepSent confirm: Established Established
    Asking confirm: waits no longer
    Answering confirm: unknown
    DreqSent confirm: unknown
    TimeWait confirm: unknown
    SidrSent confirm: unknown
    SidrReqReceived confirm: unknown
    SidrDone confirm: unknown
    Gone confirm: unknown
    ReqSent close: - +REJ(4) Closed(Local)
    Replied close: TimeWait +REJ(28) Closed(Local)
    ReqReceived close: - +REJ(28) Closed(Local)
    RepSent close: TimeWait +REJ(4) Closed(Local)
    Asking close: DreqSent +DREQ
    Answering close: DreqSent +DREQ
    DreqSent close: unknown
    TimeWait close: unknown
    SidrSent close: - SidrClosed
    SidrReqReceived close: SidrDone +SIDR_REP(3) SidrClosed
    SidrDone close: unknown
    Gone close: unknown
    ReqSent answer: unknown
    Replied answer: unknown
    ReqReceived answer: unknown
    RepSent answer: unknown
    Asking answer: unknown
    Answering answer: unknown
    DreqSent answer: unknown
    TimeWait answer: unknown
    SidrSent answer: unknown
    SidrReqReceived answer: SidrDone +SIDR_REP(0) SidrClosed
    SidrDone answer: unknown
    Gone answer: unknown
";
