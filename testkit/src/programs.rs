//! Programs that tests start, alone or as server and client: what they print is kept, and none
//! outlives the time that it has.

use std::fmt;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// How often is looked whether something has come about.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a server may go on when its client has failed: it may wait for it for ever.
const AFTER_CLIENT: Duration = Duration::from_secs(5);

/// Whether a program is in a folder of `PATH`.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// How a program ended, and what it printed.
#[derive(Clone, Debug)]
pub struct Ended {
    /// `None`: it took too long and was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output, then its standard error.
    pub said: String,
}

impl Ended {
    /// It ended by itself, with status 0.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => writeln!(f, "{status}")?,
            None => writeln!(f, "it took too long and was killed")?,
        }
        f.write_str(&self.said)
    }
}

/// A program that runs. It is killed when it is dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// They read standard output and standard error, so that the program never waits for a reader.
    readers: [Option<JoinHandle<String>>; 2],
}

impl Program {
    /// Starts it, with nothing to read.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let readers = [
            child.stdout.take().map(|pipe| spawn(|| all_of(pipe))),
            child.stderr.take().map(|pipe| spawn(|| all_of(pipe))),
        ];
        Ok(Self { child, readers })
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until somebody listens at this TCP port in the program's network namespace; `false`:
    /// the program ended before, or `until` came.
    pub fn listens(&mut self, port: u16, until: Instant) -> bool {
        while self.is_running() && Instant::now() < until {
            if is_listened_to(self.id(), port) {
                return true;
            }
            sleep(PAUSE);
        }
        false
    }

    /// Kills it, if it has not ended.
    pub fn kill(&mut self) {
        // What has ended already needs no killing.
        let _ = self.child.kill();
    }

    /// Waits for its end, and kills it at `until`.
    pub fn wait(&mut self, until: Instant) -> Ended {
        let mut status = self.child.try_wait().ok().flatten();
        while status.is_none() && Instant::now() < until {
            sleep(PAUSE);
            status = self.child.try_wait().ok().flatten();
        }
        if status.is_none() {
            self.kill();
            // It was killed: it does end.
            let _ = self.child.wait();
        }
        let said = self.readers.iter_mut().filter_map(Option::take);
        let said = said.map(|reader| reader.join().unwrap_or_default());
        Ended {
            status,
            said: said.collect(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

fn all_of(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before an error is what there is.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether somebody listens at a TCP port of the network namespace of a process: `proc_net_tcp` of
/// the kernel's documentation says how its lines read.
fn is_listened_to(process: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let place = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&place)) && words.nth(1) == Some(LISTEN)
    };
    ["tcp", "tcp6"].into_iter().any(|list| {
        let list = std::fs::read_to_string(format!("/proc/{process}/net/{list}"));
        list.is_ok_and(|list| list.lines().any(listens))
    })
}

/// A server and its client.
#[derive(Debug)]
pub struct Pair {
    /// It was started first.
    pub server: Program,
    /// It talks to the server.
    pub client: Program,
}

/// How a pair ended.
#[derive(Clone, Debug)]
pub struct PairEnded {
    /// How the server did.
    pub server: Ended,
    /// How the client did.
    pub client: Ended,
}

impl PairEnded {
    /// Both ended by themselves, with status 0.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.server.is_good() && self.client.is_good()
    }
}

impl fmt::Display for PairEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server: {}\nclient: {}", self.server, self.client)
    }
}

impl Pair {
    /// Waits for the ends of both, and kills at `until` who has not ended. A server whose client
    /// has failed has 5 seconds.
    pub fn wait(mut self, until: Instant) -> PairEnded {
        let client = self.client.wait(until);
        let until = if client.is_good() {
            until
        } else {
            Instant::now() + AFTER_CLIENT
        };
        PairEnded {
            server: self.server.wait(until),
            client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        Program::start(command).expect("there is a shell")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn what_a_program_prints_is_kept_however_much_it_is() {
        let ended = shell("seq 100000; echo last >&2").wait(soon());
        assert!(ended.is_good());
        assert!(ended.said.starts_with("1\n2\n") && ended.said.ends_with("100000\nlast\n"));
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed_and_did_not_end_well() {
        let ended = shell("echo begun; exec sleep 1000").wait(Instant::now() + PAUSE * 40);
        assert!(ended.status.is_none() && !ended.is_good());
        assert_eq!(ended.said, "begun\n");
    }

    #[test]
    fn who_has_ended_was_not_killed_though_nobody_waits_for_long() {
        let mut program = shell("exit 7");
        while program.is_running() {
            sleep(PAUSE);
        }
        let ended = program.wait(Instant::now());
        assert_eq!(ended.status.and_then(|status| status.code()), Some(7));
    }

    #[test]
    fn a_server_does_not_wait_long_for_a_client_that_failed() {
        let pair = Pair {
            server: shell("exec sleep 1000"),
            client: shell("exit 3"),
        };
        let ended = pair.wait(soon());
        assert_eq!(
            ended.client.status.and_then(|status| status.code()),
            Some(3)
        );
        assert!(ended.server.status.is_none() && !ended.is_good());
    }

    #[test]
    fn a_port_is_known_to_be_listened_to() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        assert!(is_listened_to(std::process::id(), port));
        drop(listener);
        assert!(!is_listened_to(std::process::id(), port));
    }

    #[test]
    fn who_has_ended_listens_no_more() {
        assert!(!shell("exit 0").listens(1, soon()));
    }
}
