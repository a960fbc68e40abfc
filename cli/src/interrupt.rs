//! Ctrl-C: a flag that loops look at, so that they can end cleanly.

use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM};
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
    /// first, wherever it is busy, is ended; the second one ends the process at once. SIGPIPE
    /// ends it quietly, as other tools, where Rust's default would make a closed pipe an error.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        let again = Arc::new(AtomicBool::new(false));
        let (heard, told) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(
                signal,
                Arc::clone(&interrupt.0),
                signal.unsigned_abs() as usize,
            )?;
            pipe::register(signal, told.try_clone()?)?;
        }
        flag::register_conditional_default(SIGPIPE, Arc::new(AtomicBool::new(true)))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_is_exit_code_130() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok());
        interrupt.0.store(SIGINT as usize, Ordering::Relaxed);
        let interrupted = interrupt.check().expect_err("a signal was noted");
        assert_eq!(interrupted.exit_code(), 130);
    }
}
