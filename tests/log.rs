//! What a program with a subscriber of `tracing` reads of its nodes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, Pair, inline, until};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;
use trunkline::{ConnectionOptions, ConnectionState, QpState, SendOp};

/// What was written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

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
    fn lines(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains(what));
        lines.map(str::to_owned).collect()
    }
}

/// Reads what inline nodes of this thread say while `run` runs.
fn log_of(level: LevelFilter, run: impl FnOnce(&Written)) -> Written {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(level)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || run(&written));
    written
}

#[test]
fn a_log_tells_of_nodes_that_meet_and_part() {
    let log = log_of(LevelFilter::INFO, |_| {
        let pair = Pair::new();
        let (qa, qb) = pair.qps();
        pair.until("them to meet", || {
            qa.connection().is_some() && qb.connection().is_some()
        });
        // Whether everything was acknowledged does not matter here.
        let _ = pair.a.node.shutdown(Duration::ZERO);
    });
    assert_eq!(log.lines("node started").len(), 2);
    let met = log.lines("peer met");
    assert_eq!(met.len(), 2, "{met:?}");
    // Whose node says so stands beside it.
    assert!(
        met.iter().all(|line| line.contains("worker{node=127.")),
        "{met:?}"
    );
    // One was shut down, the other one let go of.
    assert_eq!(log.lines("node ended").len(), 2);
    assert!(log.lines("handshake").is_empty() && log.lines("WARN").is_empty());
}

#[test]
fn a_log_tells_each_step_of_a_connection_and_what_its_end_took_along() {
    let log = log_of(LevelFilter::DEBUG, |log| {
        let a = End::new(inline().peer_timeout(Duration::from_millis(50)));
        let pair = Pair {
            a,
            b: End::new(inline()),
        };
        let (qa, qb) = pair.qps();
        pair.until("them to be bound", || {
            qa.connection().is_some() && qb.connection().is_some()
        });
        assert!(log.lines("WARN").is_empty());
        // The peer is driven no more.
        let write = SendOp::Write(pair.b.mr.remote(0));
        pair.a.post(&qa, 1, write, 0, 64);
        until(&[&pair.a.node], "the QP to fail", || {
            qa.state() == QpState::Error
        });
    });
    let steps = log.lines("connection_setup{between=\"nodes\"");
    for from_to in [
        "from=\"gone\" to=\"req_sent\"",
        "to=\"rep_sent\"",
        "to=\"established\"",
    ] {
        assert!(
            steps.iter().any(|line| line.contains(from_to)),
            "{from_to}: {steps:?}"
        );
    }
    assert!(log.lines("connection opened").len() >= 2);
    let silent = log.lines("WARN");
    assert!(
        silent.iter().any(|line| line.contains("is silent")),
        "{silent:?}"
    );
}

#[test]
fn a_log_says_why_a_program_gets_no_connection() {
    let log = log_of(LevelFilter::INFO, |_| {
        let end = End::new(inline());
        let options = ConnectionOptions::default();
        let nobody = "127.1.2.3".parse().unwrap();
        let opened = end.node.open_connection(nobody, &options).unwrap();
        until(&[&end.node], "the failure", || {
            opened.state() != ConnectionState::Opening
        });
    });
    let said = log.lines("no connection");
    assert!(
        matches!(&said[..], [line] if line.contains("peer=127.1.2.3")
            && line.contains("no node runs there")),
        "{said:?}"
    );
}
