//! What a subscriber of `tracing` writes.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing_subscriber::filter::LevelFilter;

/// What was written.
#[derive(Clone, Default)]
pub struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    /// The lines that say `what`.
    pub fn lines(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains(what));
        lines.map(str::to_owned).collect()
    }

    /// Has all threads of this process write there from now on.
    pub fn install(level: LevelFilter) -> Self {
        let written = Self::default();
        let writer = written.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .init();
        written
    }
}
