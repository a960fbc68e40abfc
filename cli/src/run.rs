//! `trunkline run`: a program that was built for libibverbs, on a service.

pub(crate) mod service;
mod start;
mod sysfs;

use super::interrupt::Interrupt;
use super::port::kinds;
use super::serve::LINGER;
use super::{environment, library, log, socket};
use crate::usage::wrong;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::io::{FdFlags, fcntl_setfd};
pub(crate) use start::NotStarted;
use start::become_it;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use sysfs::Sysfs;
use trunkline::service::{Hold, several};
use trunkline::{PortKind, UnknownPort};

/// Says where the service is, here and to the library.
const SOCKET: &str = "TRUNKLINE_SOCKET";
/// Says which address a service is to have.
const ADDRESS: &str = "TRUNKLINE_ADDRESS";
/// Says what carries the packets of a service that is started.
const PORT: &str = "TRUNKLINE_PORT";
/// Where the system looks for libraries first.
const LIBRARIES: &str = "LD_LIBRARY_PATH";
/// The program of this process.
const THIS: &str = "/proc/self/exe";

/// Most devices of a program: as many as the library sees (verbs/src/node.rs).
const MAX_DEVICES: usize = 16;

/// Options of `trunkline run`.
#[derive(Args, Debug)]
#[command(
    after_help = "The program attaches to the service at --socket; else to this user's own at \
    --address; else to that at TRUNKLINE_SOCKET; else to this user's own at TRUNKLINE_ADDRESS, or \
    at the default address. The variables take lists with commas, for a device each. A service \
    of the user's own is started where none runs in this \
    network namespace, with its log (--log) beside its socket, and ends after its last program. \
    Where there is no --port, TRUNKLINE_PORT names the kind of its port. \
    The library is that of --library; else of TRUNKLINE_LIBRARY; else the one beside this \
    command, in its installation, or built by `cargo xtask verbs`. The exit code is the \
    program's, 127 if it is not found, and 126 if it cannot be run."
)]
pub(crate) struct RunArgs {
    /// Address of the user's own service [default: the one with which packets leave by the default
    /// route, else 127.0.0.1]. Each one that is given is a device of the program: trunk0, trunk1.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Socket of a service that runs; one that begins with @ is a name without a file. Each one
    /// that is given is a device.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["address", "linger"])]
    socket: Vec<PathBuf>,
    /// What carries the packets of a service that this starts; one that runs keeps what it has
    /// [default: TRUNKLINE_PORT, else udp].
    #[arg(long, value_parser = kinds(), value_name = "KIND", conflicts_with = "socket")]
    port: Option<PortKind>,
    /// File of the library, which is called libibverbs.so.1.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    #[arg(long, value_name = "SECS", default_value = "3")]
    #[arg(value_parser = LINGER.seconds(), allow_negative_numbers = true)]
    #[arg(help = LINGER.help("How long a service that this starts outlives its programs", ""))]
    linger: Duration,
    /// Whether the program finds its devices under /sys and /dev.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    sysfs: Sysfs,
    /// The service is there: what is left is to prepare files, and to become the program.
    #[arg(long, hide = true)]
    at_service: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Where the program finds its service.
#[derive(Debug, Eq, PartialEq)]
enum Place {
    /// One that somebody has started.
    Given(PathBuf),
    /// The user's own.
    Own(IpAddr),
}

impl RunArgs {
    /// How a service is started, where none runs.
    fn own(&self, level: Option<log::Level>, port: Option<PortKind>) -> service::Start {
        service::Start {
            linger: self.linger,
            level,
            port,
        }
    }

    /// What carries the packets of a service that is started, where the variable for that is `set`
    /// so.
    fn port(&self, set: Option<OsString>) -> Result<Option<PortKind>> {
        match (&self.port, set) {
            (None, Some(text)) => {
                let kind = text.to_string_lossy().parse();
                kind.map(Some)
                    .map_err(|why: UnknownPort| wrong(format!("{PORT}: {why}")))
            }
            (given, _) => Ok(given.clone()),
        }
    }

    /// Whether a service is held, so that the program comes next.
    pub(crate) fn is_at_service(&self) -> bool {
        self.at_service
    }
}

/// Prepares files, where the service is held, and becomes the program. It returns only where that
/// fails. There must be one thread only, as a user namespace is for whole processes.
///
/// # Errors
/// Files are wanted and cannot be had, or the program cannot be started.
pub(crate) fn run_at_service(args: &RunArgs) -> Result<()> {
    args.sysfs
        .prepare(&environment::get(SOCKET).unwrap_or_default())?;
    let (program, arguments) = program(args)?;
    Err(become_it(program, Command::new(program).args(arguments)))
}

/// Holds a service and becomes the program, or who prepares files for it first. It returns only
/// where that fails.
///
/// # Errors
/// There is no library or no service, or the program cannot be started.
pub(crate) fn run(args: &RunArgs, level: Option<log::Level>, interrupt: &Interrupt) -> Result<()> {
    let library = library::find(args.library.as_deref())?;
    let libraries = search_path(&library, environment::get(LIBRARIES).as_deref())?;
    let set = [SOCKET, ADDRESS].map(environment::get);
    let places = places(args, set)?;
    check_devices(&places)?;
    let how = how(args, level, &places)?;
    let mut sockets = Vec::new();
    let mut holds = Vec::new();
    for place in places {
        let (at, hold) = match place {
            Place::Given(path) => given(&path)?,
            // Ctrl-C ends the command that starts a service, too: that is no failure of the
            // service.
            Place::Own(address) => service::hold(address, &how)
                .or_else(|error| interrupt.check().map_err(Into::into).and(Err(error)))?,
        };
        interrupt.check()?;
        // The program holds the service from here on, until it has attached and beyond.
        fcntl_setfd(hold.as_fd(), FdFlags::empty())?;
        holds.push(hold);
        sockets.push(at);
    }
    let sockets = list(&sockets)?;
    let (program, arguments) = program(args)?;
    let mut command = match args.sysfs.to_possible_value() {
        Some(when) if args.sysfs.is_wanted() => {
            let mut command = Command::new(THIS);
            command.args(["run", "--at-service", "--sysfs", when.get_name(), "--"]);
            command.arg(program);
            command
        }
        _ => Command::new(program),
    };
    command.args(arguments).env(LIBRARIES, libraries);
    Err(become_it(program, command.env(SOCKET, sockets)))
}

/// How services are started, of those that are not there yet.
///
/// # Errors
/// The variable for the port names none, or their ports exclude each other.
fn how(args: &RunArgs, level: Option<log::Level>, places: &[Place]) -> Result<service::Start> {
    let own = places.iter().filter_map(|place| match place {
        Place::Own(address) => Some(*address),
        Place::Given(_) => None,
    });
    let own: Vec<_> = own.collect();
    if own.is_empty() {
        return Ok(args.own(level, None));
    }
    let port = args.port(environment::get(PORT))?;
    if let Some(port) = &port {
        let together = port.check_together(&service::missing(own)?);
        together.map_err(|conflict| wrong(format!("--port: {conflict}")))?;
    }
    Ok(args.own(level, port))
}

/// The program that is given, and its arguments.
fn program(args: &RunArgs) -> Result<(&OsStr, &[OsString])> {
    let [program, arguments @ ..] = &args.program[..] else {
        return Err(wrong("no program is given"));
    };
    Ok((program, arguments))
}

/// Which services are meant, where the variables for sockets and addresses have these values.
fn places(args: &RunArgs, set: [Option<OsString>; 2]) -> Result<Vec<Place>> {
    // A list that names nothing counts as not set, as a variable that is empty does.
    let [sockets, addresses] = set.map(|list| list.filter(|list| several(list).next().is_some()));
    if !args.socket.is_empty() {
        return Ok(args.socket.iter().cloned().map(Place::Given).collect());
    }
    if !args.address.is_empty() {
        let own = |address: &IpAddr| Place::Own(address.to_canonical());
        return Ok(args.address.iter().map(own).collect());
    }
    if let Some(sockets) = sockets {
        let each = several(&sockets);
        return Ok(each.map(|at| Place::Given(at.into())).collect());
    }
    let Some(addresses) = addresses else {
        let address = service::default_address();
        if address.is_loopback() {
            super::print_line(&format!(
                "trunkline: no default route: {address}, which only this host reaches (--address)"
            ));
        }
        return Ok(vec![Place::Own(address)]);
    };
    let own = |at: &OsStr| {
        let text = at.to_string_lossy();
        let parsed = text.parse::<IpAddr>();
        let parsed = parsed.map(|address| Place::Own(address.to_canonical()));
        parsed.map_err(|_| wrong(format!("{ADDRESS}: '{text}' is no IP address")))
    };
    several(&addresses).map(own).collect()
}

/// Checks that no service is meant twice, as the program would have two devices that are one, and
/// that none is meant which the program would not see.
fn check_devices(places: &[Place]) -> Result<()> {
    let count = places.len();
    if count > MAX_DEVICES {
        let why = format!("{count} devices: a program has at most {MAX_DEVICES}");
        return Err(wrong(why));
    }
    for (number, place) in places.iter().enumerate() {
        if !places[..number].contains(place) {
            continue;
        }
        return Err(wrong(match place {
            Place::Given(socket) => format!("socket {}: it is given twice", socket.display()),
            Place::Own(address) => format!("address {address}: it is given twice"),
        }));
    }
    Ok(())
}

/// Sockets as the library reads them.
fn list(sockets: &[PathBuf]) -> Result<OsString> {
    for socket in sockets {
        ensure!(
            !socket.as_os_str().as_bytes().contains(&b','),
            "{} cannot be in {SOCKET}: a comma ends a name there",
            socket.display()
        );
    }
    let each: Vec<_> = sockets.iter().map(|socket| socket.as_os_str()).collect();
    Ok(each.join(OsStr::new(",")))
}

/// Holds the service at a socket.
fn given(path: &Path) -> Result<(PathBuf, Hold)> {
    let shown = path.display();
    let path = socket::absolute(path).with_context(|| format!("'{shown}' is no socket"))?;
    let hold = Hold::take(&path)?;
    let hold =
        hold.with_context(|| format!("no service at {shown}: start one (trunkline serve)"))?;
    Ok((path, hold))
}

/// The folders that the system is to look for libraries in: that of `library` first.
fn search_path(library: &Path, before: Option<&OsStr>) -> Result<OsString> {
    let folder = library.parent().unwrap_or(Path::new("/"));
    ensure!(
        !folder
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|byte| b":;".contains(byte)),
        "{} cannot be in {LIBRARIES}: a colon or semicolon ends a folder there",
        folder.display()
    );
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before {
        path.push(":");
        path.push(before);
    }
    Ok(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn args(words: &[&str]) -> RunArgs {
        let all = [&["run"], words].concat();
        Line::try_parse_from(all).unwrap().args
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        let line = [
            "--linger",
            "1",
            "ib_write_bw",
            "-d",
            "trunk0",
            "--address",
            "x",
        ];
        assert_eq!(args(&line).program, line[2..]);
        assert_eq!(
            args(&["--", "-odd", "--socket"]).program,
            ["-odd", "--socket"]
        );
        assert!(Line::try_parse_from(["run", "--frobnicate", "true"]).is_err());
        assert!(Line::try_parse_from(["run"]).is_err());
    }

    #[test]
    fn the_command_line_goes_before_the_environment_and_sockets_before_addresses() {
        let set = |text: &str| Some(OsString::from(text));
        let (socket, address) = (set("@there"), set("127.0.0.9"));
        let of = |words: &[&str], set| places(&args(&[words, &["true"]].concat()), set).unwrap();
        let both = [socket, address.clone()];
        let given = |at: &str| Place::Given(at.into());
        let own = |at: &str| Place::Own(at.parse().unwrap());
        let two = [given("@here"), given("/x:y")];
        let words = ["--socket", "@here", "--socket", "/x:y"];
        assert_eq!(of(&words, both.clone()), two);
        let words = ["--address", "::1", "--address", "127.0.0.1"];
        assert_eq!(of(&words, both.clone()), [own("::1"), own("127.0.0.1")]);
        assert_eq!(of(&[], both), [given("@there")]);
        assert_eq!(of(&[], [set("@here,/x:y"), None]), two);
        let nine = [own("127.0.0.9")];
        assert_eq!(of(&[], [None, address.clone()]), nine);
        assert_eq!(of(&[], [set(","), address]), nine);
        let addresses = set(",::1,127.0.0.1,");
        assert_eq!(of(&[], [None, addresses]), [own("::1"), own("127.0.0.1")]);
        let default = Place::Own(service::default_address());
        assert_eq!(of(&[], [None, None]), [default]);
        assert_eq!(of(&[], [None, set(",")]), of(&[], [None, None]));
        assert!(places(&args(&["true"]), [None, set("127.0.0.1,here")]).is_err());
    }

    #[test]
    fn no_service_is_given_twice() {
        for (words, twice) in [
            (["--address", "::1", "--address", "127.0.0.1"], false),
            (
                ["--address", "127.0.0.1", "--address", "::ffff:127.0.0.1"],
                true,
            ),
            (["--socket", "@here", "--socket", "@there"], false),
            (["--socket", "@here", "--socket", "@here"], true),
        ] {
            let line = args(&[&words[..], &["true"]].concat());
            let apart = check_devices(&places(&line, [None, None]).unwrap());
            assert_eq!(apart.is_err(), twice, "{words:?}");
        }
    }

    #[test]
    fn the_port_of_the_command_line_goes_before_that_of_the_environment() {
        let set = |text: &str| Some(OsString::from(text));
        let of = |words: &[&str], set| args(&[words, &["true"]].concat()).port(set);
        assert_eq!(of(&[], None).unwrap(), None);
        assert_eq!(of(&[], set("packet")).unwrap(), Some(PortKind::Packet));
        let given = of(&["--port", "xdp"], set("packet")).unwrap();
        assert_eq!(given, Some(PortKind::Xdp));
        let why = of(&[], set("pigeon")).unwrap_err().to_string();
        let says = "TRUNKLINE_PORT: no port is called \"pigeon\": there are udp, packet";
        assert!(why.starts_with(says), "{why}");
    }

    #[test]
    fn a_device_more_than_programs_see_is_refused() {
        let of = |count: usize| (0..count).map(|at| Place::Given(format!("@{at}").into()));
        let check = |count| check_devices(&of(count).collect::<Vec<_>>());
        assert!(check(MAX_DEVICES).is_ok());
        let why = check(MAX_DEVICES + 1).unwrap_err().to_string();
        assert!(
            why.contains("17 devices") && why.contains("at most 16"),
            "{why}"
        );
        let library = include_str!("../../verbs/src/node.rs");
        let most = format!("const MAX_DEVICES: usize = {MAX_DEVICES};");
        assert!(library.contains(&most), "the library sees as many");
    }

    #[test]
    fn sockets_are_told_as_the_library_reads_them() {
        let told = |sockets: &[&str]| list(&sockets.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(told(&["/a"]).unwrap(), "/a");
        assert_eq!(told(&["/a", "@b"]).unwrap(), "/a,@b");
        assert!(told(&["/a", "/b,c"]).is_err());
    }

    #[test]
    fn the_library_is_looked_for_first() {
        let library = Path::new("/a b/libibverbs.so.1");
        assert_eq!(search_path(library, None).unwrap(), "/a b");
        let before = Some(OsStr::new("/c"));
        assert_eq!(search_path(library, before).unwrap(), "/a b:/c");
        assert!(search_path(Path::new("/a:b/libibverbs.so.1"), None).is_err());
    }
}
