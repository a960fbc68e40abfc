//! A service that runs on when the command that started it has ended.

use super::NOTIFY_SOCKET;
use crate::interrupt::Interrupt;
use crate::output;
use crate::runtime::{self, try_lock};
use crate::shortage::MORE_MEMORY;
use crate::socket;
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use trunkline::service::Hold;
use trunkline_dataplane::process::detach;

/// The option that tells the process that it is the one which runs on.
pub(super) const DETACHED: &str = "detached";
/// How long a service that is ending has for it.
const ENDING: Duration = Duration::from_secs(5);
/// How often its end is looked for, and whether this command is to end.
const LOOK: Duration = Duration::from_millis(10);
/// Most bytes of a log that are searched for why a service did not start.
const MOST: u64 = 64 << 10;

/// Starts this command once more, detached, and waits until programs can attach at `socket`.
///
/// # Errors
/// Somebody serves there, or the service did not start: what it says. Nothing can be printed, or
/// somebody wants this command to end: the service is ended.
pub(super) fn start(socket: &Path, interrupt: &Interrupt) -> Result<()> {
    let path = log_of(socket)?;
    let mut log = open(&path).map_err(|error| {
        let shown = path.display();
        anyhow!("cannot open {shown}: {error}{}", remedy(&error))
    })?;
    own(&log, socket, &path)?;
    let begin = log.seek(SeekFrom::End(0));
    let begin = begin.with_context(|| format!("{} cannot be a log", path.display()))?;
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .arg(format!("--{DETACHED}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.try_clone()?);
    // Who started this waits for it, and not for a word to the manager of services.
    command.env_remove(NOTIFY_SOCKET);
    detach(&mut command);
    let mut child = command.spawn().context("cannot start a process")?;
    let heard = match child.stdout.take() {
        Some(stdout) => hear(stdout, interrupt),
        None => Ok(String::new()),
    };
    let told = match heard {
        Ok(line) if line.is_empty() => return Err(why(&mut log, begin, &path)),
        Ok(line) => tell(&line).and_then(|()| Ok(interrupt.check()?)),
        Err(error) => Err(error),
    };
    if told.is_err() {
        // Who is told of a failure does not expect a service. It may take longer to end than this
        // command has.
        interrupt.heed();
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let _ = child.wait();
    }
    told
}

/// The line that the service says when programs can attach; nothing: it has ended.
///
/// # Errors
/// Somebody wants this command to end before that.
fn hear(stdout: ChildStdout, interrupt: &Interrupt) -> Result<String> {
    let pause = Timespec::try_from(LOOK)?;
    loop {
        interrupt.check()?;
        let mut awaited = [PollFd::new(&stdout, PollFlags::IN)];
        match poll(&mut awaited, Some(&pause)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    Ok(line)
}

/// Says what the service says.
fn tell(line: &str) -> Result<()> {
    let mut out = output::out();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// The log of a service: beside its socket, or in the user's folder if that has no file.
fn log_of(socket: &Path) -> Result<PathBuf> {
    let mut path = match socket::file(socket.as_os_str()) {
        Ok(file) => file.as_os_str().to_owned(),
        Err(name) => {
            let name = String::from_utf8_lossy(name).replace('/', "-");
            runtime::folder()?.join(name).into_os_string()
        }
    };
    path.push(".log");
    Ok(path.into())
}

/// What to do where a log cannot be opened for that reason.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => ": make its folder, or choose another place with --socket",
        ErrorKind::NotADirectory => ": choose another place with --socket",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ": choose a place in a folder that this user may write to with --socket"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            ": make room on its file system, or choose another place with --socket"
        }
        _ => "",
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    // What has that name in a folder that others can write to is not followed, nor waited for.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options.open(path)
}

/// Takes the lock of the log, which a detached service has as long as it lives. One that is ending
/// has it for a moment longer than its socket.
fn own(log: &File, socket: &Path, path: &Path) -> Result<()> {
    let end = Instant::now() + ENDING;
    while !try_lock(log)? {
        let (at, log) = (socket.display(), path.display());
        if let Some(pid) = Hold::take(socket)?.and_then(|hold| hold.pid()) {
            bail!("cannot serve at {at}: {at} is taken: process {pid} serves there");
        }
        if Instant::now() > end {
            bail!("cannot serve at {at}: another service has its log {log}, and does not end");
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// How the runtime of this language says that there is no memory, before a process is ended.
const NO_MEMORY: &str = "memory allocation of ";

/// What a service said that did not start: its last words, or that it had no memory. More may
/// stand behind that, as processes which are ended so say where they were.
fn why(log: &mut File, begin: u64, path: &Path) -> anyhow::Error {
    let mut said = Vec::new();
    let read = log
        .seek(SeekFrom::Start(begin))
        .and_then(|_| log.take(MOST).read_to_end(&mut said));
    let text = String::from_utf8_lossy(&said);
    let is_short = |line: &&str| line.starts_with(NO_MEMORY);
    if let Some(line) = text.lines().find(is_short) {
        return anyhow!("the service was ended: {line}: {MORE_MEMORY}");
    }
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    match (read, last) {
        (Ok(_), Some(line)) => {
            let line = line.strip_prefix("trunkline: ").unwrap_or(line);
            anyhow!("{line}")
        }
        _ => anyhow!(
            "the service ended before it began, and its log {} does not say why: it was killed, or \
             the file system of the log is full",
            path.display()
        ),
    }
}
