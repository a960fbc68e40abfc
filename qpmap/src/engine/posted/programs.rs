//! Owns the doorbells of programs in other processes: which of their bells stands for which QP, and
//! at whose bells the worker looks.
//!
//! A program that has not rung for some rounds is told so, and is not looked at until somebody says
//! that it [has rung](Programs::hear): one that is idle costs a round nothing. What a program
//! writes into its bells costs itself its turn, and others nothing: each turn hears a few.

use crate::doorbell::{Apart, Bells, Sweep};
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::slab::{NONE, Slab, reach};
use std::collections::VecDeque;

/// Bells of one program that are heard in its turn.
const TURN: u32 = 64;
/// Rounds without a bell after which a program is not looked at any more.
const PATIENCE: u8 = 32;

/// Programs of other processes that have QPs of this engine.
#[derive(Debug)]
pub(crate) struct Programs<W> {
    slots: Slab<Program<W>>,
    /// Those that are looked at, in the order of their turns.
    heard: VecDeque<u32>,
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
    pub(crate) const fn new() -> Self {
        Self {
            slots: Slab::new(),
            heard: VecDeque::new(),
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
        self.slots.discard(program);
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
        record.qps[bell as usize] = qp.unwrap_or(NONE);
        Ok(())
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
        })
    }

    /// What the program whose turn it is rang for next, if it did and its turn is not over.
    pub(crate) fn next(&mut self, turn: &mut Turn) -> Option<Bell> {
        turn.left = turn.left.checked_sub(1)?;
        let record = &mut self.slots[turn.program];
        let bell = record.bells.next(&mut record.sweep)?;
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

    type Heap = Arc<[AtomicU64]>;

    /// A program with 100 bells, and its side of them.
    fn program(programs: &mut Programs<Heap>) -> (u32, Bells<Apart<Heap>>) {
        let memory = Heap::zeroed(Bells::<Apart<Heap>>::words_for(100));
        let side = || Bells::over(memory.clone(), 100).unwrap();
        (programs.add(side()), side())
    }

    /// What a round hears: the program, and its QP.
    fn round(programs: &mut Programs<Heap>) -> Vec<(u32, Bell)> {
        let mut found = Vec::new();
        for _ in 0..programs.heard() {
            let mut turn = programs.begin().unwrap();
            while let Some(bell) = programs.next(&mut turn) {
                found.push((turn.program, bell));
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
        assert!(programs.assign(first, 100, Some(1)).is_err());
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
        for bell in 0..100 {
            programs.assign(loud, bell, Some(bell)).unwrap();
            assert_eq!(loud_bells.ring_and_look(bell), Rung::Heard);
        }
        programs.assign(quiet, 0, Some(500)).unwrap();
        assert_eq!(quiet_bells.ring_and_look(0), Rung::Heard);
        let heard = round(&mut programs);
        assert_eq!(heard.len(), TURN as usize + 1);
        assert_eq!(heard.last(), Some(&(quiet, Bell::Qp(500))));
        let rest = 100 - TURN as usize;
        assert_eq!(round(&mut programs).len(), rest, "the rest is not lost");
    }
}
