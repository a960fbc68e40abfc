//! Standard output: what cannot be written there is told as such, and never lost in silence.

use anyhow::Result;
use rustix::io::{Errno, fcntl_getfd, retry_on_intr, write};
use rustix::stdio::stdout;
use serde::Serialize;
use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the process was started without standard output.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Looked at before `main`: Rust's runtime opens `/dev/null` in the place of a descriptor that is
/// closed, and everything that is written there would count as written.
// SAFETY: the section holds functions of this kind, which the loader calls once, while there is
// one thread. This one needs nothing of Rust's runtime: a system call, and a store.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let closed = fcntl_getfd(stdout()) == Err(Errno::BADF);
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Standard output, without a buffer.
#[derive(Debug)]
pub(crate) struct Raw(());

/// Standard output with a buffer, to be flushed by whoever has something to print. Its errors say
/// what they are of.
pub(crate) type Out = BufWriter<Raw>;

/// Standard output, for one command: nothing else writes to it.
pub(crate) fn out() -> Out {
    BufWriter::new(Raw(()))
}

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check()?;
        retry_on_intr(|| write(stdout(), bytes)).map_err(|error| {
            if error == Errno::PIPE {
                // It ends quietly, as other tools. Rust ignores the signal, and so it has to: a
                // standard error that is closed ends nothing.
                let _ = emulate_default_handler(SIGPIPE);
            }
            named(error.into())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether there is a standard output.
///
/// # Errors
/// It was closed when the process began.
pub(crate) fn check() -> io::Result<()> {
    if CLOSED.load(Ordering::Relaxed) {
        return Err(named(Errno::BADF.into()));
    }
    Ok(())
}

/// Prints a line of JSON.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut out = out();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    Ok(out.flush()?)
}

/// The same error, with what it is of. Its kind stays: a pipe that is closed is no complaint.
pub(crate) fn named(error: io::Error) -> io::Error {
    let kind = error.kind();
    io::Error::new(kind, format!("standard output: {error}"))
}
