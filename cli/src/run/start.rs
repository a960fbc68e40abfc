//! The program takes the place of the command, or cannot be started.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most bytes of the first line of a script that name who runs it, as execve(2) has it.
const LINE: u64 = 256;

/// The program was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStarted {
    /// The system says why.
    #[error("cannot start {program}: {why}")]
    Program {
        program: String,
        why: std::io::Error,
    },
    /// It is there, and what is to run it is not.
    #[error("cannot start {program}: {by} is missing, which runs it: install that, or {other}")]
    Interpreter {
        program: String,
        by: String,
        other: &'static str,
    },
}

impl NotStarted {
    /// What shells say: 127 of a program that is not found, 126 of others.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Program { why, .. } if why.kind() == ErrorKind::NotFound => 127,
            Self::Program { .. } | Self::Interpreter { .. } => 126,
        }
    }
}

/// Runs `command` in place of this process. It returns why that fails.
pub(super) fn become_it(program: &OsStr, command: &mut Command) -> anyhow::Error {
    let why = command.exec();
    let missing = (why.kind() == ErrorKind::NotFound)
        .then(|| file_of(program))
        .flatten();
    let program = program.to_string_lossy().into_owned();
    match missing.map(|file| interpreter(&file)) {
        Some(Some(by)) => NotStarted::Interpreter {
            program,
            by,
            other: "change the first line",
        },
        Some(None) => NotStarted::Interpreter {
            program,
            by: "the loader".to_owned(),
            other: "take a program that was built for this system",
        },
        None => NotStarted::Program { program, why },
    }
    .into()
}

/// The file that execvp(3) would run.
fn file_of(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        let file = Path::new(program);
        return file.is_file().then(|| file.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.is_file())
}

/// Who runs a script, by its first line; nobody does other files.
fn interpreter(file: &Path) -> Option<String> {
    let mut begin = Vec::new();
    File::open(file)
        .ok()?
        .take(LINE)
        .read_to_end(&mut begin)
        .ok()?;
    let line = begin.split(|byte| *byte == b'\n').next()?;
    let named = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    named.split_whitespace().next().map(str::to_owned)
}
