//! Owns the doorbells of programs in other processes: which of their bells stands for which QP, and
//! at whose bells the worker looks.
//!
//! A program that has not rung for some rounds is told so, and is not looked at until somebody says
//! that it [has rung](Programs::hear): one that is idle costs a round nothing. What a program
//! writes into its bells costs itself its turn, and others nothing: each turn hears a few.

use crate::doorbell::{Apart, Bells, Sweep};
use crate::error::VerbsError;
use crate::hash::IndexMap;
use crate::ring::RingMemory;
use crate::slab::{NONE, Slab, reach};
use std::collections::VecDeque;

/// Requests that a program's bells may cost in its turn, one each at least; and words of its bells
/// that are looked at, of which four tell of one bell.
const TURN: u32 = 256;
const LOOKS: u32 = 4 * TURN;
/// Rounds without a bell after which a program is not looked at any more.
const PATIENCE: u8 = 32;

/// Programs of other processes that have QPs of this engine.
#[derive(Debug)]
pub(crate) struct Programs<W> {
    slots: Slab<Program<W>>,
    /// Those that are looked at, in the order of their turns.
    heard: VecDeque<u32>,
    /// The program of a QP, and its bell there.
    bells: IndexMap<(u32, u32)>,
}

#[derive(Debug)]
struct Program<W> {
    bells: Bells<Apart<W>>,
    sweep: Sweep,
    /// QPs by bell.
    qps: Vec<u32>,
    /// Turns without a bell.
    silent: u8,
    is_heard: bool,
}

/// The turn of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    program: u32,
    left: u32,
    looks: u32,
}

impl Turn {
    /// Requests that may still be taken up in it.
    pub(crate) const fn left(self) -> u32 {
        self.left
    }

    /// So many were.
    pub(crate) const fn spend(&mut self, requests: u32) {
        self.left = self.left.saturating_sub(requests);
    }
}

/// What a program rang for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bell {
    /// A QP of its own.
    Qp(u32),
    /// A bell that stands for none.
    Nothing,
}

impl<W: RingMemory> Programs<W> {
    /// None.
    pub(crate) fn new() -> Self {
        Self {
            slots: Slab::new(),
            heard: VecDeque::new(),
            bells: IndexMap::default(),
        }
    }

    /// A program has bells from now on. Returns what it is called.
    pub(crate) fn add(&mut self, bells: Bells<Apart<W>>) -> u32 {
        bells.look();
        let program = self.slots.insert(Program {
            bells,
            sweep: Sweep::default(),
            qps: Vec::new(),
            silent: 0,
            is_heard: true,
        });
        self.heard.push_back(program);
        program
    }

    /// A program is gone: nobody looks at its bells any more.
    ///
    /// # Errors
    /// There is none of this index.
    pub(crate) fn remove(&mut self, program: u32) -> Result<(), VerbsError> {
        self.known(program)?;
        let gone = self.slots.remove(program);
        for qp in &gone.qps {
            self.bells.remove(qp);
        }
        self.heard.retain(|heard| *heard != program);
        Ok(())
    }

    /// A bell stands for this QP from now on; `None`: for none.
    ///
    /// # Errors
    /// No such program, or it has no such bell.
    pub(crate) fn assign(
        &mut self,
        program: u32,
        bell: u32,
        qp: Option<u32>,
    ) -> Result<(), VerbsError> {
        let record = self.known(program)?;
        if bell >= record.bells.size() {
            return Err(VerbsError::InvalidArgument { what: "doorbell" });
        }
        reach(&mut record.qps, bell, || NONE);
        let before = std::mem::replace(&mut record.qps[bell as usize], qp.unwrap_or(NONE));
        self.bells.remove(&before);
        if let Some(qp) = qp
            && let Some((other, bell)) = self.bells.insert(qp, (program, bell))
        {
            self.silence(other, bell);
        }
        Ok(())
    }

    /// A QP is gone: its bell stands for none any more.
    #[inline]
    pub(crate) fn release(&mut self, qp: u32) {
        if let Some((program, bell)) = self.bells.remove(&qp) {
            self.silence(program, bell);
        }
    }

    fn silence(&mut self, program: u32, bell: u32) {
        if let Some(record) = self.slots.get_mut(program) {
            record.qps[bell as usize] = NONE;
        }
    }

    /// A program that was not looked at has rung.
    ///
    /// # Errors
    /// There is none of this index.
    pub(crate) fn hear(&mut self, program: u32) -> Result<(), VerbsError> {
        let record = self.known(program)?;
        record.silent = 0;
        if !std::mem::replace(&mut record.is_heard, true) {
            record.bells.look();
            self.heard.push_back(program);
        }
        Ok(())
    }

    /// Whether there are programs that are looked at.
    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        !self.heard.is_empty()
    }

    /// Programs that are looked at.
    pub(crate) fn heard(&self) -> usize {
        self.heard.len()
    }

    /// The turn of the next program begins; it [ends](Self::end) before another one's begins.
    pub(crate) fn begin(&mut self) -> Option<Turn> {
        let program = self.heard.pop_front()?;
        Some(Turn {
            program,
            left: TURN,
            looks: LOOKS,
        })
    }

    /// What the program whose turn it is rang for next, if it did and its turn is not over.
    pub(crate) fn next(&mut self, turn: &mut Turn) -> Option<Bell> {
        if turn.left == 0 {
            return None;
        }
        let record = &mut self.slots[turn.program];
        let bell = record
            .bells
            .next_within(&mut record.sweep, &mut turn.looks)?;
        record.silent = 0;
        let qp = record.qps.get(bell as usize).filter(|qp| **qp != NONE);
        Some(qp.map_or(Bell::Nothing, |qp| Bell::Qp(*qp)))
    }

    /// The turn of a program is over. One that was silent for long is not looked at any more.
    pub(crate) fn end(&mut self, turn: Turn) {
        let record = &mut self.slots[turn.program];
        record.silent = record.silent.saturating_add(1);
        if record.silent > PATIENCE && record.bells.look_away(&record.sweep) {
            record.is_heard = false;
        } else {
            self.heard.push_back(turn.program);
        }
    }

    fn known(&mut self, program: u32) -> Result<&mut Program<W>, VerbsError> {
        let record = self.slots.get_mut(program);
        record.ok_or(VerbsError::InvalidArgument { what: "program" })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::doorbell::Rung;
    use crate::sync::AtomicU64;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    type Heap = Arc<[AtomicU64]>;

    /// A program with 400 bells, and its side of them.
    fn program(programs: &mut Programs<Heap>) -> (u32, Bells<Apart<Heap>>) {
        let memory = Heap::zeroed(Bells::<Apart<Heap>>::words_for(400));
        let side = || Bells::over(memory.clone(), 400).unwrap();
        (programs.add(side()), side())
    }

    /// What a round hears: the program, and its QP.
    fn round(programs: &mut Programs<Heap>) -> Vec<(u32, Bell)> {
        let mut found = Vec::new();
        for _ in 0..programs.heard() {
            let mut turn = programs.begin().unwrap();
            while let Some(bell) = programs.next(&mut turn) {
                found.push((turn.program, bell));
                turn.spend(1);
            }
            programs.end(turn);
        }
        found
    }

    #[test]
    fn a_bell_is_heard_as_the_qp_that_it_stands_for() {
        let mut programs = Programs::new();
        let (first, bells) = program(&mut programs);
        programs.assign(first, 7, Some(70)).unwrap();
        programs.assign(first, 9, Some(90)).unwrap();
        programs.assign(first, 9, None).unwrap();
        for bell in [7, 8, 9] {
            assert_eq!(bells.ring_and_look(bell), Rung::Heard);
        }
        let expected = [Bell::Qp(70), Bell::Nothing, Bell::Nothing].map(|bell| (first, bell));
        assert_eq!(round(&mut programs), expected);
        assert_eq!(round(&mut programs), []);
        assert!(programs.assign(first, 400, Some(1)).is_err());
        assert!(programs.assign(first + 1, 0, Some(1)).is_err());
    }

    #[test]
    fn a_silent_program_is_not_looked_at_until_it_is_said_to_have_rung() {
        let mut programs = Programs::new();
        let (silent, silent_bells) = program(&mut programs);
        let (busy, busy_bells) = program(&mut programs);
        for owner in [silent, busy] {
            programs.assign(owner, 0, Some(owner)).unwrap();
        }
        for _ in 0..2 * PATIENCE {
            assert_eq!(busy_bells.ring_and_look(0), Rung::Heard);
            assert_eq!(round(&mut programs), [(busy, Bell::Qp(busy))]);
        }
        assert_eq!(programs.heard(), 1);
        assert_eq!(silent_bells.ring_and_look(0), Rung::Unheard);
        assert_eq!(round(&mut programs), []);
        programs.hear(silent).unwrap();
        programs.hear(silent).unwrap();
        assert_eq!(round(&mut programs), [(silent, Bell::Qp(silent))]);
        assert_eq!(programs.heard(), 2);
        programs.remove(silent).unwrap();
        assert_eq!(programs.heard(), 1);
        assert!(programs.hear(silent).is_err() && programs.remove(silent).is_err());
    }

    #[test]
    fn who_rings_all_the_time_leaves_others_their_turn() {
        let mut programs = Programs::new();
        let (loud, loud_bells) = program(&mut programs);
        let (quiet, quiet_bells) = program(&mut programs);
        for bell in 0..400 {
            programs.assign(loud, bell, Some(bell)).unwrap();
            assert_eq!(loud_bells.ring_and_look(bell), Rung::Heard);
        }
        programs.assign(quiet, 0, Some(500)).unwrap();
        assert_eq!(quiet_bells.ring_and_look(0), Rung::Heard);
        let heard = round(&mut programs);
        assert_eq!(heard.len(), TURN as usize + 1);
        assert_eq!(heard.last(), Some(&(quiet, Bell::Qp(500))));
        let rest = 400 - TURN as usize;
        assert_eq!(round(&mut programs).len(), rest, "the rest is not lost");
    }

    #[test]
    fn the_bell_of_a_qp_that_is_gone_rings_for_nobody_who_has_its_index_later() {
        let mut programs = Programs::new();
        let (first, bells) = program(&mut programs);
        let (second, others) = program(&mut programs);
        programs.assign(first, 7, Some(70)).unwrap();
        programs.release(70);
        programs.release(71);
        programs.assign(second, 1, Some(70)).unwrap();
        assert_eq!(bells.ring_and_look(7), Rung::Heard);
        assert_eq!(others.ring_and_look(1), Rung::Heard);
        let expected = [(first, Bell::Nothing), (second, Bell::Qp(70))];
        assert_eq!(round(&mut programs), expected);
        // A QP has one bell.
        programs.assign(first, 8, Some(70)).unwrap();
        assert_eq!(others.ring_and_look(1), Rung::Heard);
        assert_eq!(round(&mut programs), [(second, Bell::Nothing)]);
        programs.remove(first).unwrap();
        programs.release(70);
    }

    #[test]
    fn a_turn_ends_though_the_words_above_say_that_bells_ring() {
        let size = Bells::<Apart<Heap>>::MOST;
        let memory = Heap::zeroed(Bells::<Apart<Heap>>::words_for(size));
        let mut programs = Programs::new();
        programs.add(Bells::over(memory.clone(), size).unwrap());
        for _ in 0..3 {
            // All words but those of the leaves: 4,096 of these would be looked at.
            memory[..17 + 64]
                .iter()
                .for_each(|word| word.store(u64::MAX, Relaxed));
            let mut turn = programs.begin().unwrap();
            assert_eq!(programs.next(&mut turn), None);
            assert_eq!(turn.looks, 0);
            programs.end(turn);
        }
        assert_eq!(programs.heard(), 1, "it goes on where it was");
    }
}
