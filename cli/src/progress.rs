//! Progress of long work, on standard error, for people.

use std::cell::Cell;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Shows what is going on: steps always, a running count where someone is watching a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    on: bool,
    live: bool,
    shown: Cell<Instant>,
}

impl Progress {
    /// Progress that is shown if `on`.
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            live: on && stderr().is_terminal(),
            shown: Cell::new(Instant::now()),
        }
    }

    /// A step begins.
    pub(crate) fn step(&self, step: &str) {
        if self.on {
            let clear = if self.live { "\r\x1b[K" } else { "" };
            // Where nobody listens there is nobody to tell.
            let _ = writeln!(stderr(), "{clear}{step}");
        }
    }

    /// `done` of `all`, at most ten times a second.
    pub(crate) fn show(&self, done: usize, all: usize) {
        if self.live && self.shown.get().elapsed() > Duration::from_millis(100) {
            self.shown.set(Instant::now());
            // A terminal that is gone is not worth stopping for.
            let _ = write!(stderr(), "\r\x1b[K  {done} of {all}");
            let _ = stderr().flush();
        }
    }
}
