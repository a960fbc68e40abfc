//! Programs of other processes, as a worker hears that they rang while it did not look.

use crate::error::Error;
use crate::worker::handle::WorkerHandle;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use trunkline_host::Words;
use trunkline_host::wake::{TAKEN_AT_ONCE, WakeSet};
use trunkline_qpmap::doorbell::{Apart, Bells};

/// Rounds after which a worker that is awake looks who has woken it: a look is a system call.
const PAUSE: u32 = 32;

/// What programs wake a worker by.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// From the first program on.
    wakes: OnceLock<Wakes>,
    rounds: AtomicU32,
}

#[derive(Debug)]
struct Wakes {
    set: Mutex<WakeSet>,
    fd: OwnedFd,
}

impl Wakes {
    fn new() -> std::io::Result<Self> {
        let set = WakeSet::new()?;
        let fd = set.as_fd().try_clone_to_owned()?;
        let set = Mutex::new(set);
        Ok(Self { set, fd })
    }

    fn set(&self) -> MutexGuard<'_, WakeSet> {
        // It is whole at any time.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerHandle {
    /// A program of another process rings these bells from now on. Gives what the engine calls it,
    /// and what it wakes the worker by.
    ///
    /// # Errors
    /// The node is down, or no descriptor is left.
    pub(crate) fn add_program(&self, bells: Bells<Apart<Words>>) -> Result<(u32, OwnedFd), Error> {
        let system = Error::system("epoll of a worker");
        let wakes = match self.programs.wakes.get() {
            Some(wakes) => wakes,
            None => {
                let wakes = Wakes::new().map_err(system)?;
                self.programs.wakes.get_or_init(|| wakes)
            }
        };
        let mut set = wakes.set();
        let program = self.core()?.engine.add_program(bells);
        let wake = set.add(program.into()).and_then(|()| {
            let wake = set.fd_for_client(program.into());
            wake.expect("it was added").try_clone_to_owned()
        });
        drop(set);
        // It would not look once it sleeps.
        self.wake();
        wake.map(|wake| (program, wake)).map_err(|error| {
            self.forget_program(program);
            Error::system("eventfd of a program")(error)
        })
    }

    /// A program is gone: nobody looks at its bells any more. Gives what it woke the worker by,
    /// which the program may keep from being closed soon.
    pub(crate) fn forget_program(&self, program: u32) -> Option<OwnedFd> {
        let mut set = self.programs.wakes.get().map(Wakes::set);
        // Before the engine may give its name to another one.
        let wake = set.as_mut().and_then(|set| set.remove(program.into()));
        if let Ok(mut core) = self.core() {
            let removed = core.engine.remove_program(program);
            debug_assert!(removed.is_ok(), "it was added");
        }
        wake
    }

    /// Readable when a program has rung that nobody looked at.
    pub(crate) fn programs_fd(&self) -> Option<BorrowedFd<'_>> {
        self.programs.wakes.get().map(|wakes| wakes.fd.as_fd())
    }

    /// Looks, from time to time, whether programs have rung that nobody looked at.
    #[inline]
    pub(crate) fn look_for_programs(&self) -> Result<(), Error> {
        if self.programs.wakes.get().is_none() {
            return Ok(());
        }
        // Only whoever drives the worker counts.
        let rounds = self.programs.rounds.load(Ordering::Relaxed);
        self.programs
            .rounds
            .store(rounds.wrapping_add(1), Ordering::Relaxed);
        match rounds % PAUSE {
            0 => self.hear_programs(),
            _ => Ok(()),
        }
    }

    /// Looks from now on at the bells of programs that have rung.
    pub(crate) fn hear_programs(&self) -> Result<(), Error> {
        let Some(wakes) = self.programs.wakes.get() else {
            return Ok(());
        };
        let mut rung = [0; TAKEN_AT_ONCE];
        let set = wakes.set();
        let count = set.take(&mut rung).unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        // The set is held: a program that is gone is in neither, or in both.
        let mut core = self.core_for_worker()?;
        for program in &rung[..count] {
            let heard = core.engine.hear_program(*program as u32);
            debug_assert!(heard.is_ok(), "it was added");
        }
        drop((core, set));
        Ok(())
    }
}
