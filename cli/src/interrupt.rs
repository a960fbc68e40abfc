//! Ctrl-C: a flag that loops look at, so that they can end cleanly.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// What a command may take to end cleanly after the first signal.
const GRACE: Duration = Duration::from_millis(400);

/// Someone wants the command to end. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicUsize>);

/// The command ended because someone wanted so.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted {
    signal: u8,
}

impl Interrupted {
    /// What shells give a command that a signal ended: 130 for Ctrl-C.
    pub(crate) const fn exit_code(self) -> u8 {
        128 + self.signal
    }
}

impl Interrupt {
    /// Catches Ctrl-C and SIGTERM from now on. Who does not end by itself within a moment of the
    /// first, wherever it is busy, is ended; the second one ends the process at once. One that
    /// was ignored when the process began stays so: a shell without job control, which started it
    /// in the background, wanted that.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        let again = Arc::new(AtomicBool::new(false));
        let (heard, told) = UnixStream::pair()?;
        // Where nothing can be read nothing is known to be ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for signal in [SIGINT, SIGTERM] {
            if is_ignored(&status, signal) {
                continue;
            }
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(
                signal,
                Arc::clone(&interrupt.0),
                signal.unsigned_abs() as usize,
            )?;
            pipe::register(signal, told.try_clone()?)?;
        }
        interrupt.end_late(heard)?;
        Ok(interrupt)
    }

    /// Ends the process a moment after the first signal, unless it has ended by then.
    fn end_late(&self, mut heard: UnixStream) -> io::Result<()> {
        let interrupt = self.clone();
        let watch = move || {
            if heard.read_exact(&mut [0]).is_ok() {
                std::thread::sleep(GRACE);
                if let Err(interrupted) = interrupt.check() {
                    std::process::exit(interrupted.exit_code().into());
                }
            }
        };
        let thread = std::thread::Builder::new().name("interrupt".into());
        thread.spawn(watch).map(drop)
    }

    /// The command has heard the first signal and ends in its own time; the second one still ends
    /// the process at once.
    pub(crate) fn heed(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Nothing, until it is time to end.
    ///
    /// # Errors
    /// It is time to end.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            // Signal numbers are below 65.
            signal => Err(Interrupted {
                signal: signal as u8,
            }),
        }
    }
}

/// Whether a process with this status (`proc_pid_status(5)`) ignores a signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_ignores_stands_in_its_status() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001002\nSigCgt:\t4002\n";
        assert!(is_ignored(status, SIGINT));
        assert!(!is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGINT) && !is_ignored("SigIgn:\tnone\n", SIGINT));
    }

    #[test]
    fn ctrl_c_is_exit_code_130() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok());
        interrupt.0.store(SIGINT as usize, Ordering::Relaxed);
        let interrupted = interrupt.check().expect_err("a signal was noted");
        assert_eq!(interrupted.exit_code(), 130);
        interrupt.heed();
        assert!(interrupt.check().is_ok());
    }
}
