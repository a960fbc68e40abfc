//! A manager of one record that notes what it is told.

use super::{Sent, Setup, SetupState};
use crate::comm_id::Side;
use crate::event::Route;
use crate::message::{Mad, mad};
use crate::phase::Phase;
use crate::records::{Counts, Records};
use crate::retry::{Patience, Retry};
use crate::slots::{self, Record, Slots};
use crate::tests::{address, ms};
use std::format;
use std::string::String;
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::Worker;
use trunkline_wire::cm::{CmMad, CommId, Message, PrivateData, Rej, Rep, Rtu};

pub(super) const ROUTE: Route = Route {
    local: address(1),
    remote: address(2),
};
pub(super) const THEIRS: CommId = CommId(0x77);
pub(super) const TRANSACTION: u64 = 0x1234;
const RETRY: Retry = Retry {
    tries: 3,
    total_ns: 7_000_000,
};
const PATIENCE: Patience = Patience {
    times: 2,
    most_ns: 1_000_000_000,
};

/// What a record of each phase holds: a message that is sent again, or a deadline.
pub(super) struct State {
    phase: Phase,
    sent: Option<Sent>,
    deadline: Option<Instant>,
}

impl slots::State for State {
    const FREE: Self = Self {
        phase: Phase::Gone,
        sent: None,
        deadline: None,
    };

    fn is_free(&self) -> bool {
        self.phase == Phase::Gone
    }

    fn deadline(&self) -> Option<Instant> {
        let sent = self.sent.as_ref().map(|sent| sent.schedule.deadline);
        sent.or(self.deadline)
    }

    fn boxed_bytes(&self) -> usize {
        0
    }

    fn until(&self) -> Option<Instant> {
        None
    }
}

impl SetupState for State {
    fn phase(&self) -> Phase {
        self.phase
    }

    fn transaction(&self) -> Option<u64> {
        Some(TRANSACTION)
    }

    fn sent(&mut self) -> Option<&mut Sent> {
        self.sent.as_mut()
    }
}

pub(super) struct Entry(CommId, State);

impl Record for Entry {
    type State = State;

    fn new(id: CommId) -> Self {
        Self(id, slots::State::FREE)
    }

    fn id(&self) -> CommId {
        self.0
    }

    fn state(&self) -> &State {
        &self.1
    }
}

/// As far as the steps count.
#[derive(Default)]
struct Counters {
    received: u64,
    malformed: u64,
    unknown: u64,
    mismatch: u64,
    duplicate: u64,
    silent: u64,
    nobody: u64,
    misquoted: u64,
}

/// The manager.
pub(super) struct Noting {
    pub(super) slots: Slots<Entry>,
    counters: Counters,
    pub(super) index: u32,
    /// Random numbers that were drawn: each is one more than the one before.
    drawn: u64,
    /// Messages that were sent, what followed, and how it was counted.
    notes: Vec<String>,
    /// The last message that was sent.
    pub(super) last: Option<CmMad>,
}

impl Records for Noting {
    type Record = Entry;

    fn slots(&self) -> &Slots<Entry> {
        &self.slots
    }

    fn slots_mut(&mut self) -> &mut Slots<Entry> {
        &mut self.slots
    }

    fn counts(&mut self) -> Counts<'_> {
        crate::records::counts!(self.counters)
    }

    fn route_of(&self, _index: u32) -> Route {
        ROUTE
    }

    fn remote_of(&self, _index: u32) -> CommId {
        THEIRS
    }

    fn time_wait_limit(&self) -> u32 {
        1
    }

    fn forget(&mut self, _index: u32) {}
}

impl Noting {
    pub(super) fn new(phase: Phase) -> Self {
        let mut random = || 5;
        let mut slots = Slots::new((Side::Nodes, Worker::ONLY), &mut random);
        let mut noting = Self {
            index: slots.insert(&mut random),
            slots,
            counters: Counters::default(),
            drawn: 0,
            notes: Vec::new(),
            last: None,
        };
        let mad = mad(TRANSACTION, Rtu::default());
        let waits = matches!(phase, Phase::ReqSent | Phase::RepSent | Phase::DreqSent);
        let state = State {
            phase,
            sent: waits.then(|| noting.begin(ms(0), TRANSACTION, mad, RETRY)),
            deadline: (phase == Phase::ReqReceived).then(|| ms(1)),
        };
        noting.update(noting.index, |old| *old = state);
        noting
    }

    pub(super) fn ours(&self) -> CommId {
        self.slots.id(self.index)
    }

    fn note(&mut self, what: &str) {
        self.notes.push(String::from(what));
    }

    fn said(&mut self, to: &str, mad: &Mad) {
        let said = CmMad::parse(mad).expect("a message of ours");
        self.notes.push(format!("+{}{to}", said.message.name()));
        self.last = Some(said);
    }

    /// The notes since they were last read.
    pub(super) fn read(&mut self) -> String {
        let counters = core::mem::take(&mut self.counters);
        let counted = [
            ("unknown", counters.unknown),
            ("mismatch", counters.mismatch),
            ("duplicate", counters.duplicate),
            ("silent", counters.silent),
            ("nobody", counters.nobody),
            ("misquoted", counters.misquoted),
        ];
        let counted = counted.into_iter().filter(|(_, count)| *count > 0);
        self.notes
            .extend(counted.map(|(what, _)| format!("({what})")));
        core::mem::take(&mut self.notes).join(" ")
    }

    pub(super) fn hear_of(&mut self, transaction_id: u64, message: impl Into<Message>) -> String {
        let message = message.into();
        let mad = CmMad {
            transaction_id,
            message,
        };
        self.hear(ms(1), ROUTE, &mad);
        self.read()
    }
}

impl Setup for Noting {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn patience(&self) -> Patience {
        PATIENCE
    }

    fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut State) -> T) -> T {
        self.slots.update(index, |entry| change(&mut entry.1))
    }

    fn send_in(&mut self, _index: u32, mad: Mad) {
        self.said("", &mad);
    }

    fn send_to(&mut self, _route: Route, mad: Mad) {
        self.said("!", &mad);
    }

    fn find_request(&self, _route: Route, _transaction: u64, remote: CommId) -> Option<u32> {
        let theirs = !matches!(self.phase(self.index), Phase::ReqSent | Phase::Replied);
        (theirs && remote == THEIRS).then_some(self.index)
    }

    fn confirmation(&self, _index: u32, transaction: u64) -> Option<Mad> {
        (transaction == TRANSACTION).then(|| mad(transaction, Rtu::default()))
    }

    fn when_answered(&mut self, _now: Instant, _index: u32, _rep: &Rep) {
        self.note("answered");
    }

    fn when_confirmed(&mut self, _now: Instant, _index: u32, _rtu: &Rtu) {
        self.note("confirmed");
    }

    fn when_refused(&mut self, _now: Instant, _index: u32, _rej: &Rej) {
        self.note("refused");
    }

    fn when_abandoned(&mut self, _now: Instant, _index: u32, _rej: &Rej) {
        self.note("abandoned");
    }

    fn when_ended(&mut self, _now: Instant, _index: u32, said: PrivateData<224>) {
        self.notes.push(format!("ended {}", said.0[0]));
    }

    fn when_nobody(&mut self, _now: Instant, _index: u32) {
        self.note("nobody");
    }

    /// The record is gone: nothing is due any more.
    fn when_timed_out(&mut self, _now: Instant, index: u32) {
        self.note("timed out");
        self.slots.remove(index);
    }

    fn when_proved(&mut self, _index: u32) {
        self.note("proved");
    }

    fn when_unknown_confirmed(&mut self, _route: Route, _transaction: u64, _rtu: &Rtu) {
        self.note("confirms nothing");
    }

    fn hear_other(&mut self, _now: Instant, _route: Route, _transaction: u64, _message: &Message) {
        self.note("other");
    }
}
