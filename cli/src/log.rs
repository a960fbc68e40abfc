//! The log of nodes, on standard error.

use clap::ValueEnum;
use std::io::stderr;
use tracing_subscriber::filter::LevelFilter;

/// How much nodes say.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Level {
    /// Workers that failed.
    Error,
    /// And peers that fell silent, what the machine or a service refuses, and CQs that overran.
    Warn,
    /// And nodes that start and end, and peers that are met.
    Info,
    /// And each step of opening connections, and each QP that changes its connection.
    Debug,
}

/// From now on nodes of this process say so much.
pub(crate) fn install(level: Level) {
    let level = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(stderr)
        // What cannot be written is nobody's error: standard error may be a file on a full disk.
        .log_internal_errors(false)
        .with_target(false)
        .init();
}
