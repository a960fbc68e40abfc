//! A model of binding, explored exhaustively: two QPs, one of which wants to send a message, with
//! all that their programs may do to them, and a network that delays, overtakes, loses and doubles
//! what they say of bindings, or is cut: then connections die, and all that is on its way is lost.
//! What an entry means is asked of the engine's own [`Flow`]s.

#![expect(
    clippy::disallowed_types,
    reason = "what was seen is only asked for, never walked through"
)]

use super::*;
use crate::slab::NONE;
use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How far a QP is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Phase {
    /// In RESET or INIT.
    Idle,
    /// Ready, and it names the other one.
    Ready,
    /// Ready, and it names a third one.
    Elsewhere,
    Error,
    Gone,
}

/// What became of the message.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Wish {
    None,
    Posted,
    /// Sent to the life of the peer with this generation.
    Sent,
    Done,
    Failed,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct End {
    life: u32,
    phase: Phase,
    flow: Option<Flow>,
    /// The flow of a former life, whose end the peer has not heard of.
    last: Option<Flow>,
    /// A BIND that waits for this QP.
    waiting: Option<Entry>,
    wish: Wish,
    /// The message was sent over a connection that died since.
    again: bool,
    /// It has executed the message of the peer's life with this generation.
    executed: Option<u32>,
    /// The other one has left in order, and no other life of it was heard of.
    left: bool,
    /// A life of it ended and no connection was there to say so: what it has executed is not known.
    silenced: bool,
    /// What whoever holds a connection of this QP knows: it is to the peer's life with this
    /// generation.
    partner: Option<u32>,
}

/// A [`ControlEntry`] without what is known.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Entry {
    kind: u8,
    generation: u32,
    status: u32,
    msn: u32,
    verdict: u8,
}

/// What is on its way, to the end `to`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Said {
    Entry {
        to: usize,
        entry: Entry,
    },
    /// The packet with the UNBIND of this life of the other end has arrived.
    Told {
        to: usize,
        life: u32,
    },
    /// The message, between these lives.
    Message {
        to: usize,
        lives: [u32; 2],
    },
    /// It was executed; or nobody is there.
    Answer {
        to: usize,
        lives: [u32; 2],
        done: bool,
    },
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct World {
    ends: [End; 2],
    net: BTreeSet<Said>,
    /// Lives that the number of each QP may still have.
    lives_left: [u32; 2],
    /// What may still be lost, doubled, or find no place.
    faults_left: u32,
    /// There is no connection now.
    cut: bool,
    /// The program of the asker does nothing but post.
    loyal: bool,
}

fn number(end: usize) -> Qpn {
    Qpn::from_wire(end as u32 + 2)
}

impl Entry {
    fn of(entry: &ControlEntry) -> Self {
        Self {
            kind: entry.kind as u8,
            generation: entry.generation,
            status: entry.status,
            msn: entry.msn,
            verdict: entry.replay_epoch,
        }
    }

    fn to(self, to: usize) -> ControlEntry {
        ControlEntry {
            kind: ControlKind::from_byte(self.kind).expect("it was one"),
            src_qp: number(1 - to),
            replay_epoch: self.verdict,
            dest_qp: number(to),
            generation: self.generation,
            status: self.status,
            msn: self.msn,
        }
    }
}

impl World {
    fn new(lives: [u32; 2], faults: u32) -> Self {
        let end = End {
            life: 1,
            phase: Phase::Idle,
            flow: None,
            last: None,
            waiting: None,
            wish: Wish::None,
            again: false,
            executed: None,
            left: false,
            silenced: false,
            partner: None,
        };
        Self {
            ends: [end.clone(), end],
            net: BTreeSet::new(),
            lives_left: lives.map(|lives| lives - 1),
            faults_left: faults,
            cut: false,
            loyal: false,
        }
    }

    /// Both QPs are bound to each other, and their connections have just died; one has sent its
    /// message (`sent`) or wants nothing.
    fn cut_off(lives: [u32; 2], sent: bool) -> Self {
        let mut world = Self::new(lives, 0);
        for at in [0, 1] {
            world.ready(at);
        }
        loop {
            let spoke = [0, 1].map(|at| world.speak(at));
            if let Some(said) = world.net.pop_first() {
                world.arrive(said, true);
            } else if spoke == [false, false] {
                break;
            }
        }
        assert!(world.ends.iter().all(|end| end.partner == Some(1)));
        if sent {
            world.post(0);
            assert!(world.speak(0));
        }
        world.lose_connections();
        world.loyal = true;
        world
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn begun(&self, at: usize) -> bool {
        matches!(self.ends[at].wish, Wish::Sent | Wish::Done)
    }

    fn say(&mut self, to: usize, entry: &ControlEntry) {
        let entry = Entry::of(entry);
        self.net.insert(Said::Entry { to, entry });
    }

    /// The QP goes to error, and its message, if it is not done, fails.
    fn fail(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if !matches!(end.wish, Wish::Posted | Wish::Sent) {
            return;
        }
        end.wish = Wish::Failed;
        self.err(at);
    }

    fn err(&mut self, at: usize) {
        let end = &mut self.ends[at];
        end.phase = Phase::Error;
        end.partner = None;
        if matches!(end.wish, Wish::Posted | Wish::Sent) {
            // The program did that.
            end.wish = Wish::None;
        }
        if let Some(flow) = &mut end.flow {
            flow.end(false);
        }
        self.refuse_waiting(at);
    }

    fn refuse_waiting(&mut self, at: usize) {
        if let Some(entry) = self.ends[at].waiting.take() {
            self.hear_bind(at, &entry.to(at), true);
        }
    }

    /// The life of a QP is over.
    fn close(&mut self, at: usize) {
        let end = &mut self.ends[at];
        (end.wish, end.again, end.partner, end.left) = (Wish::None, false, None, false);
        let Some(mut flow) = end.flow.take() else {
            return;
        };
        end.silenced |= self.cut;
        if end.last.is_some() || flow.ending == Ending::Told || self.cut {
            return;
        }
        flow.leave();
        flow.end(true);
        end.last = Some(flow);
    }

    fn begin_life(&mut self, at: usize) {
        let end = &mut self.ends[at];
        end.life += 1;
        end.phase = Phase::Idle;
        self.lives_left[at] -= 1;
    }

    /// A QP gets ready, and names the other one.
    fn ready(&mut self, at: usize) {
        let end = &mut self.ends[at];
        end.phase = Phase::Ready;
        let mut flow = Flow::new(at as u32, NONE, number(1 - at), end.life);
        flow.ask_anew();
        // The one message has number 0.
        flow.expected_msn = 0;
        end.flow = Some(flow);
        self.refuse_waiting(at);
    }

    /// All connections die. What was sent over them goes again, in a new replay epoch.
    fn lose_connections(&mut self) {
        self.net.clear();
        self.cut = true;
        for end in &mut self.ends {
            end.silenced |= end.last.take().is_some();
            let Some(flow) = &mut end.flow else { continue };
            flow.ending = flow.ending.lost();
            if end.wish == Wish::Sent && !end.again {
                flow.replay_epoch += 1;
                end.again = true;
            }
            if flow.ending == Ending::No && !flow.has_lapsed() {
                flow.ask_anew();
            }
            if flow.flags.has(Flags::PEER_BOUND) && flow.ending == Ending::No {
                flow.flags.set(Flags::BOUND_DUE);
            }
        }
    }

    fn apply(&mut self, at: usize, effects: Effects) {
        if effects.stale {
            return;
        }
        let end = &mut self.ends[at];
        let flow = end.flow.as_mut().expect("it heard");
        if effects.forget {
            (flow.expected_msn, flow.remote_replay_epoch) = (0, 0);
        }
        let returns = effects.forget && std::mem::replace(&mut end.left, false);
        if let Some(replay_epoch) = effects.first.or(effects.enter) {
            flow.remote_replay_epoch = replay_epoch;
        }
        if effects.replaced || effects.fail {
            end.partner = None;
        }
        if effects.bound {
            end.partner = Some(flow.remote_generation);
        }
        if effects.over {
            self.fail(at);
        }
        if let Some((msn, _)) = effects.verdict {
            let end = &mut self.ends[at];
            if msn == 1 && end.phase == Phase::Ready {
                assert!(matches!(end.wish, Wish::Sent | Wish::Done), "{end:?}");
                end.wish = Wish::Done;
            }
        }
        let end = &mut self.ends[at];
        end.left |= effects.left && effects.fail && end.phase == Phase::Ready;
        if effects.fail && !end.left {
            self.fail(at);
        } else if returns && !effects.fail && matches!(end.wish, Wish::Posted | Wish::Sent) {
            let flow = end.flow.as_mut().expect("it heard");
            if flow.has_lapsed() {
                flow.ask_anew();
            }
        }
    }

    /// What waits for another life of a QP that has left has waited for long enough.
    fn end_grace(&mut self, at: usize) -> bool {
        let end = &self.ends[at];
        let waits = end.left && matches!(end.wish, Wish::Posted | Wish::Sent);
        if waits {
            self.fail(at);
        }
        waits
    }

    /// A BIND arrives; there may be no place for it to wait.
    fn hear_bind(&mut self, at: usize, entry: &ControlEntry, place: bool) {
        let begun = self.begun(at);
        let end = &mut self.ends[at];
        let of_former = entry.status != 0 && entry.status != end.life;
        match (&mut end.flow, end.phase) {
            _ if of_former => {}
            (Some(flow), Phase::Ready) => {
                let effects = flow.hear_bind(entry, begun);
                return self.apply(at, effects);
            }
            (Some(flow), _)
                if flow.ending.is_untold() && entry.generation == flow.remote_generation =>
            {
                return;
            }
            (_, Phase::Idle) if entry.msn == 0 || entry.msn == end.life => {
                let newer = |old: &Entry| !is_newer(old.generation, entry.generation);
                if place && end.waiting.as_ref().is_none_or(newer) {
                    end.waiting = Some(Entry::of(entry));
                }
                return;
            }
            _ => {}
        }
        let meant = |flow: &Flow| flow.remote_generation == entry.generation;
        if end.last.as_ref().is_some_and(meant) {
            return;
        }
        let refusal = ControlEntry {
            kind: ControlKind::Refused,
            src_qp: entry.dest_qp,
            dest_qp: entry.src_qp,
            status: 1,
            ..*entry
        };
        self.say(1 - at, &refusal);
    }

    fn hear(&mut self, at: usize, entry: &ControlEntry, place: bool) {
        let begun = self.begun(at);
        let end = &mut self.ends[at];
        if entry.kind == ControlKind::Bind {
            return self.hear_bind(at, entry, place);
        }
        if entry.kind == ControlKind::Unbind
            && let Some(waiting) = &end.waiting
            && !is_newer(waiting.generation, entry.generation)
        {
            end.waiting = None;
        }
        let Some(flow) = &mut end.flow else { return };
        let mine = flow.generation == entry.generation;
        let effects = match entry.kind {
            ControlKind::Unbind => flow.hear_unbind(entry, begun),
            ControlKind::Bound if mine && !flow.ending.is_untold() => flow.hear_bound(entry, begun),
            ControlKind::Refused if mine => flow.hear_refused(entry),
            _ => return,
        };
        self.apply(at, effects);
    }

    fn message(&mut self, at: usize, lives: [u32; 2]) {
        let end = &mut self.ends[at];
        let fits = |flow: &Flow| [flow.remote_generation, flow.generation] == lives;
        let done = match &mut end.flow {
            Some(flow) if flow.flags.has(Flags::PEER_BOUND) => {
                if !fits(flow) {
                    return;
                }
                if end.phase == Phase::Ready {
                    flow.expected_msn = 1;
                    end.executed = Some(lives[0]);
                }
                flow.expected_msn == 1
            }
            _ if end.last.as_ref().is_some_and(fits) => return,
            _ => false,
        };
        let to = 1 - at;
        self.net.insert(Said::Answer { to, lives, done });
    }

    fn arrive(&mut self, said: Said, place: bool) {
        match said {
            Said::Entry { to, entry } => {
                let entry = entry.to(to);
                if entry.kind == ControlKind::Unbind {
                    let life = entry.generation;
                    self.net.insert(Said::Told { to: 1 - to, life });
                }
                self.hear(to, &entry, place);
            }
            Said::Told { to, life } => {
                let end = &mut self.ends[to];
                let flow = end.flow.as_mut().filter(|flow| flow.generation == life);
                if let Some(flow) = flow
                    && flow.ending == Ending::Sent
                {
                    flow.ending = Ending::Told;
                }
                let told = |flow: &Flow| flow.generation == life && flow.ending == Ending::LastSent;
                if end.last.as_ref().is_some_and(told) {
                    end.last = None;
                }
            }
            Said::Message { to, lives } => self.message(to, lives),
            Said::Answer { to, lives, done } => {
                let end = &mut self.ends[to];
                let current = |flow: &Flow| [flow.generation, flow.remote_generation] == lives;
                if end.wish == Wish::Sent && end.flow.as_ref().is_some_and(current) {
                    if done {
                        end.wish = Wish::Done;
                    } else if !end.left {
                        self.fail(to);
                    }
                }
            }
        }
    }

    /// An end says what it owes, one entry at a time.
    fn speak(&mut self, at: usize) -> bool {
        if self.cut {
            return false;
        }
        let begun = self.begun(at);
        let end = &mut self.ends[at];
        if let Some(flow) = end.last.as_mut().filter(|flow| flow.ending.is_due()) {
            let entry = flow.control_entry(number(at), ControlKind::Unbind, false);
            flow.ending = flow.ending.said();
            self.say(1 - at, &entry);
            return true;
        }
        let held = end.last.is_some();
        let Some(flow) = end.flow.as_mut().filter(|_| !held) else {
            return false;
        };
        let kind = if flow.ending.is_due() {
            flow.ending = flow.ending.said();
            ControlKind::Unbind
        } else if flow.flags.has(Flags::BOUND_DUE) {
            flow.flags.clear(Flags::BOUND_DUE);
            ControlKind::Bound
        } else if flow.flags.has(Flags::BIND_DUE) {
            flow.flags.clear(Flags::BIND_DUE);
            flow.asked();
            flow.asks = flow.asks.min(2);
            ControlKind::Bind
        } else if flow.flags.has(Flags::BOUND)
            && (end.wish == Wish::Posted || end.wish == Wish::Sent && end.again)
        {
            (end.wish, end.again) = (Wish::Sent, false);
            let lives = [flow.generation, flow.remote_generation];
            self.net.insert(Said::Message { to: 1 - at, lives });
            return true;
        } else {
            return false;
        };
        let entry = flow.control_entry(number(at), kind, begun);
        self.say(1 - at, &entry);
        true
    }

    /// A BIND was answered by nobody for long.
    fn ask_again(&mut self, at: usize) -> bool {
        let flow = self.ends[at].flow.as_mut();
        let Some(flow) = flow.filter(|flow| flow.is_asking()) else {
            return false;
        };
        let due = flow.flags.has(Flags::BIND_DUE);
        flow.flags.set(Flags::BIND_DUE);
        !due
    }

    fn post(&mut self, at: usize) {
        let end = &mut self.ends[at];
        end.wish = Wish::Posted;
        if let Some(flow) = end.flow.as_mut().filter(|flow| flow.has_lapsed()) {
            flow.ask_anew();
        }
    }

    /// All that may happen next.
    fn next(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut push = |change: &mut dyn FnMut(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            if next != *self {
                next.check();
                found.push(next);
            }
        };
        for at in [0, 1] {
            push(&mut |next| {
                next.speak(at);
            });
            push(&mut |next| {
                next.ask_again(at);
            });
            push(&mut |next| {
                next.end_grace(at);
            });
            let (phase, more) = (self.ends[at].phase, self.lives_left[at] > 0);
            if phase == Phase::Idle {
                push(&mut |next| next.ready(at));
                if at == 1 {
                    push(&mut |next| {
                        next.ends[at].phase = Phase::Elsewhere;
                        next.refuse_waiting(at);
                    });
                }
            }
            let ends = at == 1 || !self.loyal;
            if ends && !matches!(phase, Phase::Gone | Phase::Error) {
                push(&mut |next| next.err(at));
            }
            if ends && phase != Phase::Gone {
                push(&mut |next| {
                    next.close(at);
                    next.ends[at].phase = Phase::Gone;
                    next.refuse_waiting(at);
                });
            }
            if more && phase != Phase::Idle {
                push(&mut |next| {
                    next.close(at);
                    next.begin_life(at);
                });
            }
        }
        if self.ends[0].phase == Phase::Ready && self.ends[0].wish == Wish::None {
            push(&mut |next| next.post(0));
        }
        if self.cut {
            push(&mut |next| next.cut = false);
        }
        for said in &self.net {
            push(&mut |next| {
                next.net.remove(said);
                next.arrive(*said, true);
            });
            let Said::Entry { to, entry } = *said else {
                continue;
            };
            if self.faults_left == 0 {
                continue;
            }
            let kind = entry.to(to).kind;
            if kind == ControlKind::Bind {
                // There is no place where it could wait.
                push(&mut |next| {
                    next.faults_left -= 1;
                    next.net.remove(said);
                    next.arrive(*said, false);
                });
            }
            if kind != ControlKind::Refused {
                // It arrives twice.
                push(&mut |next| {
                    next.faults_left -= 1;
                    next.arrive(*said, true);
                });
            }
            push(&mut |next| {
                next.faults_left -= 1;
                next.net.remove(said);
                if kind == ControlKind::Unbind {
                    // Its connection died, and its end knows that.
                    let end = &mut next.ends[1 - to];
                    for flow in [&mut end.flow, &mut end.last].into_iter().flatten() {
                        if flow.generation == entry.generation {
                            flow.ending = flow.ending.lost();
                        }
                    }
                }
            });
        }
        found
    }

    /// What holds always.
    fn check(&self) {
        let [asker, asked] = &self.ends;
        let life = asker.life;
        match asker.wish {
            Wish::Done => assert_eq!(asked.executed, Some(life), "done, not executed: {self:?}"),
            Wish::Failed if !asked.silenced => {
                assert_ne!(asked.executed, Some(life), "executed: {self:?}")
            }
            _ => {}
        }
    }

    /// Nothing more is done to the QPs and nothing lost: it all comes to an end, and to which?
    fn settle(mut self, settled: &mut HashSet<u64>) {
        let start = self.clone();
        self.cut = false;
        let mut asked_in_vain = false;
        for _ in 0..60 {
            if !settled.insert(self.key()) {
                // From here on it was looked at before.
                return;
            }
            let mut moved = false;
            while let Some(said) = self.net.pop_first() {
                self.arrive(said, true);
                self.check();
                moved = true;
            }
            for at in [0, 1] {
                while self.speak(at) {
                    moved = true;
                }
            }
            if !moved
                && ![0, 1].map(|at| self.ask_again(at)).contains(&true)
                && ![0, 1].map(|at| self.end_grace(at)).contains(&true)
            {
                return self.check_settled(&start);
            }
            if !moved && self.ends.iter().any(|end| end.phase == Phase::Idle) {
                if asked_in_vain {
                    // It waits for a program.
                    return self.check_settled(&start);
                }
                asked_in_vain = true;
            }
        }
        panic!("it goes on for ever: {start:?} {self:?}");
    }

    fn check_settled(&self, start: &Self) {
        let [asker, asked] = &self.ends;
        if asked.phase != Phase::Idle {
            let waits = matches!(asker.wish, Wish::Posted | Wish::Sent);
            assert!(!waits, "a request hangs: {start:?} {self:?}");
        }
        for at in [0, 1] {
            let (end, other) = (&self.ends[at], &self.ends[1 - at]);
            assert!(end.last.is_none(), "an end is not told: {start:?} {self:?}");
            let Some(flow) = end.flow.as_ref().filter(|_| end.phase == Phase::Ready) else {
                continue;
            };
            if flow.flags.has(Flags::BOUND) {
                let lives = (other.phase, other.life) == (Phase::Ready, flow.remote_generation);
                assert!(lives, "bound to a life that is over: {start:?} {self:?}");
                let theirs = other.flow.as_ref().expect("it is ready");
                let agreed = (
                    theirs.remote_generation,
                    theirs.flags.has(Flags::PEER_BOUND),
                );
                assert_eq!(agreed, (flow.generation, true), "{start:?} {self:?}");
            }
            if let Some(partner) = end.partner {
                let lives = (other.phase, other.life) == (Phase::Ready, partner);
                assert!(lives, "it outlives its partner: {start:?} {self:?}");
            }
            if (other.phase, flow.has_lapsed()) == (Phase::Ready, false) {
                assert!(
                    flow.flags.has(Flags::BOUND),
                    "it still asks: {start:?} {self:?}"
                );
            }
        }
    }
}

/// Goes through all that may happen; gives the number of states.
fn explore(first: World) -> usize {
    let mut seen = HashSet::from([first.key()]);
    let mut settled = HashSet::new();
    let mut ahead = vec![first];
    while let Some(world) = ahead.pop() {
        for next in world.next() {
            if seen.insert(next.key()) {
                ahead.push(next);
            }
        }
        world.settle(&mut settled);
    }
    let states = seen.len();
    println!("{states} states");
    states
}

// The numbers of states tell that the model has not shrunk.

#[test]
fn whatever_programs_do_every_asker_ends_and_none_is_bound_to_the_dead() {
    assert!(explore(World::new([1, 2], 0)) > 1_000_000);
}

#[test]
fn whatever_is_lost_every_asker_ends_and_none_is_bound_to_the_dead() {
    assert!(explore(World::new([1, 1], 2)) > 300_000);
}

#[test]
fn whatever_a_cut_loses_every_end_hears_that_its_partner_is_gone() {
    for sent in [false, true] {
        assert!(explore(World::cut_off([1, 2], sent)) > 100_000);
    }
}
