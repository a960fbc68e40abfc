//! What tests that failed have said: kept while they run, as it is far up in the output by the end.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that are kept of one program of tests.
const MOST_LINES: usize = 200;
/// For how long the ends of both streams are waited for once cargo has ended: a program that a test
/// left behind keeps them open.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who writes a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Writer {
    /// The test harness, on standard output.
    Harness,
    /// cargo, on standard error.
    Cargo,
}

impl Writer {
    /// Whether `line` is the first that tells of a failure.
    fn begins(self, line: &str) -> bool {
        match self {
            Self::Harness => line == "failures:",
            Self::Cargo => line.starts_with("error"),
        }
    }

    /// Whether `line` is the last.
    fn ends(self, line: &str) -> bool {
        match self {
            Self::Harness => line.starts_with("test result:"),
            Self::Cargo => ["Running ", "Doc-tests "]
                .iter()
                .any(|word| line.trim_start().starts_with(word)),
        }
    }
}

/// Lines of failed tests and of cargo's errors, from streams that are read as they are written.
pub(crate) struct Failures {
    lines: Receiver<String>,
    others: Sender<String>,
}

impl Failures {
    pub(crate) fn new() -> Self {
        let (others, lines) = channel();
        Self { lines, others }
    }

    /// Hands `stream` on to `shown`, line by line, and keeps what it says of failures.
    pub(crate) fn watch<R, W>(&self, writer: Writer, stream: R, mut shown: W)
    where
        R: Read + Send + 'static,
        W: Write + Send + 'static,
    {
        let kept = self.others.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut excerpt = Excerpt { writer, left: None };
            let mut bytes = Vec::new();
            while stream.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
                // Where nobody listens there is nobody to tell.
                let _ = shown.write_all(&bytes).and_then(|()| shown.flush());
                let line = String::from_utf8_lossy(&bytes);
                let line = line.trim_end();
                if excerpt.keeps(line) {
                    let _ = kept.send(line.to_owned());
                }
                bytes.clear();
            }
        });
    }

    /// What was kept, after all streams have ended or long enough after their program has.
    pub(crate) fn told(self) -> String {
        let Self { lines, others } = self;
        drop(others);
        let until = Instant::now() + PATIENCE;
        let mut told = Vec::new();
        while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            told.push(line);
        }
        told.join("\n")
    }
}

/// Which lines of one stream tell of failures.
#[derive(Debug)]
struct Excerpt {
    writer: Writer,
    /// Lines that the failure which is being told may still have, if there is one.
    left: Option<usize>,
}

impl Excerpt {
    fn keeps(&mut self, line: &str) -> bool {
        if self.left.is_none() && self.writer.begins(line) {
            self.left = Some(MOST_LINES);
        }
        let Some(left) = self.left else {
            return false;
        };
        let ends = self.writer.ends(line);
        self.left = (!ends).then(|| left.saturating_sub(1));
        left > 0 || ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const SAID: &str = "\
running 2 tests
test good ... ok
test bad ... FAILED

failures:

---- bad stdout ----
error: it says so
thread 'bad' panicked at src/lib.rs:1:1:

failures:
    bad

test result: FAILED. 1 passed; 1 failed
running 1 test
test other ... ok
test result: ok. 1 passed
";

    fn told(writer: Writer, said: &str) -> String {
        let failures = Failures::new();
        let said = io::Cursor::new(said.to_owned());
        failures.watch(writer, said, io::sink());
        failures.told()
    }

    #[test]
    fn what_failed_is_told_whole_and_nothing_else() {
        let (_, rest) = SAID.split_once("failures:").expect("it is above");
        let (bad, _) = rest.split_once("\nrunning 1").expect("it is above");
        assert_eq!(told(Writer::Harness, SAID), format!("failures:{bad}"));
        let good = "running 1 test\ntest good ... ok\ntest result: ok. 1 passed";
        assert_eq!(told(Writer::Harness, good), "");
    }

    #[test]
    fn a_program_that_was_killed_is_told_with_what_ran_it() {
        let killed = "error: test failed\n\nCaused by:\n  `a` (signal: 6)\n";
        let next = "     Running tests/b.rs";
        let end = "error: 1 target failed:\n    `--test a`";
        let said = format!("     Running tests/a.rs\n{killed}{next}\n{next}\n{end}");
        assert_eq!(told(Writer::Cargo, &said), format!("{killed}{next}\n{end}"));
    }

    #[test]
    fn a_test_that_says_too_much_leaves_room_for_the_others() {
        let much = "much\n".repeat(MOST_LINES);
        let said = format!("failures:\n{much}test result: FAILED.\n{SAID}");
        let told = told(Writer::Harness, &said);
        let (first, others) = told.split_once("test result: FAILED.\n").expect("it ends");
        assert_eq!(first.lines().count(), MOST_LINES);
        assert!(others.starts_with("failures:\n") && others.contains("bad stdout"));
    }

    #[test]
    fn a_stream_that_somebody_else_keeps_open_is_not_waited_for() {
        let (read, write) = io::pipe().expect("there are descriptors");
        let failures = Failures::new();
        failures.watch(Writer::Cargo, read, io::sink());
        (&write).write_all(b"error: one\n").expect("there is room");
        assert_eq!(failures.told(), "error: one");
        drop(write);
    }
}
