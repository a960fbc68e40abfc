//! `trunkline run`, as whoever starts a program meets it.

use crate::common::address;
use crate::directory::Directory;
use crate::library::{is_there, library};
use crate::serving::{PATIENCE, wait};
use crate::{complaint, text, trunkline};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A user with a folder for services of its own, and an address for them.
pub(crate) struct User {
    pub(crate) folder: Directory,
    pub(crate) address: IpAddr,
}

impl User {
    pub(crate) fn new() -> Self {
        let folder = Directory::new();
        let address = address();
        Self { folder, address }
    }

    /// The environment of this user.
    pub(crate) fn known_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for name in ["TRUNKLINE_SOCKET", "TRUNKLINE_ADDRESS", "TRUNKLINE_PORT"] {
            command.env_remove(name);
        }
        command
            .env("XDG_RUNTIME_DIR", &self.folder.0)
            .env("TRUNKLINE_LIBRARY", library().join("libibverbs.so.1"))
    }

    /// `trunkline run` with a service at the user's address that lives on for so many seconds.
    pub(crate) fn command(&self, linger: &str, words: &[&str]) -> Command {
        let address = self.address.to_string();
        let options = ["run", "--address", &address, "--linger", linger];
        let mut command = trunkline(&[&options[..], words].concat());
        self.known_to(&mut command);
        command
    }

    pub(crate) fn run(&self, linger: &str, words: &[&str]) -> Output {
        self.command(linger, words).output().unwrap()
    }

    /// The same, started by a script of the shell, in which `$RUN` stands for it.
    pub(crate) fn run_by(&self, script: &str) -> Output {
        let run = format!(
            "{} run --address {} --linger 60",
            env!("CARGO_BIN_EXE_trunkline"),
            self.address
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script.replace("$RUN", &run)]);
        self.known_to(&mut shell).stdin(Stdio::null());
        shell.output().unwrap()
    }

    /// Processes of services of this user.
    pub(crate) fn services(&self) -> Vec<u32> {
        let folder = self.folder.0.to_str().unwrap();
        let is_ours = |pid: &u32| {
            let [line, set] = ["cmdline", "environ"].map(|of| {
                let text = std::fs::read(format!("/proc/{pid}/{of}")).unwrap_or_default();
                String::from_utf8_lossy(&text).into_owned()
            });
            line.contains("--detached") && set.contains(folder)
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let names = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
        names.filter(is_ours).collect()
    }

    /// The only service of this user.
    #[track_caller]
    pub(crate) fn service(&self) -> Pid {
        let services = self.services();
        let [pid] = services[..] else {
            panic!("{services:?}");
        };
        Pid::from_raw(pid.try_into().unwrap()).unwrap()
    }

    /// Waits until no service of this user runs.
    #[track_caller]
    pub(crate) fn wait_for_end(&self) {
        let end = Instant::now() + PATIENCE;
        while !self.services().is_empty() {
            assert!(Instant::now() < end, "its service does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        for pid in self.services() {
            let pid = pid.try_into().ok().and_then(Pid::from_raw);
            // It may have ended.
            pid.map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

/// A program that says where its service is, and runs until its input ends.
fn resting(user: &User) -> Child {
    let script = "echo $TRUNKLINE_SOCKET; read end; true";
    let mut command = user.command("0.2", &["sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// The first line that it prints.
fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn programs_that_start_together_share_one_service_which_ends_after_the_last() {
    let user = User::new();
    let mut all: Vec<Child> = (0..8).map(|_| resting(&user)).collect();
    let sockets: Vec<String> = all.iter_mut().map(line).collect();
    let socket = PathBuf::from(&sockets[0]);
    assert!(socket.starts_with(&user.folder.0), "{sockets:?}");
    assert!(
        sockets.iter().all(|other| *other == sockets[0]),
        "{sockets:?}"
    );
    let service = user.service();
    let mut last = all.pop().unwrap();
    for mut program in all {
        drop(program.stdin.take());
        assert_eq!(wait(&mut program), Some(0));
    }
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(user.service(), service, "the last one lives");
    drop(last.stdin.take());
    assert_eq!(wait(&mut last), Some(0));
    user.wait_for_end();
    assert!(!socket.exists());
}

#[test]
fn an_address_has_one_service_however_it_is_written() {
    let mut user = User::new();
    let script = ["sh", "-c", "echo $TRUNKLINE_SOCKET"];
    let output = user.run("60", &script);
    let IpAddr::V4(address) = user.address else {
        panic!("{} is no IPv4 address", user.address);
    };
    user.address = address.to_ipv6_mapped().into();
    let mapped = user.run("60", &script);
    assert_eq!(
        text(&mapped.stdout),
        text(&output.stdout),
        "{}",
        text(&mapped.stderr)
    );
}

#[test]
fn each_address_is_a_device_with_a_service_of_its_own() {
    let user = User::new();
    let addresses = [user.address, address()].map(|at| at.to_string());
    let [one, two] = &addresses;
    let mut command = user.command("0.2", &["--address", two, "sh", "-c", "ibv_devinfo -v"]);
    let output = command.output().unwrap();
    assert_eq!(user.services().len(), 2, "{}", text(&output.stderr));
    if is_there("ibv_devinfo") {
        let told = text(&output.stdout);
        for (device, address) in [("trunk0", one), ("trunk1", two)] {
            let (_, about) = told.split_once(device).unwrap();
            let gid = format!("::ffff:{address}, RoCE v2");
            assert!(about.contains(&gid), "{device}: {told}");
        }
    }
    user.wait_for_end();
    // The same by the variable, for those that run.
    let list = addresses.join(",");
    let script = [
        "run",
        "--linger",
        "0.2",
        "sh",
        "-c",
        "echo $TRUNKLINE_SOCKET",
    ];
    let mut command = trunkline(&script);
    let output = user.known_to(&mut command).env("TRUNKLINE_ADDRESS", list);
    let told = text(&output.output().unwrap().stdout);
    let sockets: Vec<_> = told.trim_end().split(',').collect();
    for (socket, address) in sockets.iter().zip(&addresses) {
        assert!(socket.ends_with(&format!("-{address}.socket")), "{told}");
    }
    assert_eq!(sockets.len(), 2, "{told}");
    user.wait_for_end();
}

#[test]
fn a_service_waits_for_a_program_that_attaches_late() {
    let user = User::new();
    let script = "sleep 1; test -S $TRUNKLINE_SOCKET && sleep 1 && test -S $TRUNKLINE_SOCKET";
    let output = user.run("0", &["sh", "-c", script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    user.wait_for_end();
    // What a program leaves behind holds it as well.
    let script = "(sleep 1; test -S $TRUNKLINE_SOCKET && echo held) & exit 0";
    let output = user.run("0", &["sh", "-c", script]);
    assert_eq!(text(&output.stdout), "held\n");
    user.wait_for_end();
}

#[test]
fn a_service_that_was_killed_is_followed_by_another() {
    let user = User::new();
    assert!(user.run("60", &["true"]).status.success());
    let first = user.service();
    assert!(user.run("60", &["true"]).status.success());
    assert_eq!(user.service(), first, "it lives on");
    kill_process(first, Signal::KILL).unwrap();
    user.wait_for_end();
    let output = user.run("60", &["true"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_ne!(user.service(), first);
}

#[test]
fn the_end_of_a_program_is_its_own() {
    let user = User::new();
    let code = |words: &[&str]| user.run("0.2", words).status.code();
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["--", "true"]), Some(0));
    let killed = user.run("0.2", &["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.signal(), Some(9), "128 + 9 to a shell");
    let file = user.folder.file("file");
    std::fs::write(&file, "no program").unwrap();
    for (program, code) in [("no-such-program", 127), (&file, 126)] {
        let says = complaint(&user.run("0.2", &[program]), code);
        let begins = format!("cannot start {program}: ");
        assert!(says.starts_with(&begins), "{says}");
    }
    let script = user.folder.file("script");
    for (text, missing) in [
        ("#! /no/such/shell -e\n", "/no/such/shell is missing"),
        ("#!/bin/sh\n", ""),
    ] {
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let output = user.run("0.2", &[&script]);
        if missing.is_empty() {
            assert!(output.status.success());
            continue;
        }
        let says = complaint(&output, 126);
        assert!(says.contains(&script) && says.contains(missing), "{says}");
        assert!(says.contains("first line"), "{says}");
    }
}

#[test]
fn a_service_takes_nothing_of_whoever_started_it() {
    let user = User::new();
    let file = user.folder.file("open");
    let script =
        format!("trap '' CHLD TERM; umask 0777; exec 7>{file}; exec $RUN sh -c 'umask; exit 3'");
    std::fs::write(&file, "").unwrap();
    let output = user.run_by(&script);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "0777\n", "that of the program stays");
    let service = user.service();
    let of = |what: &str| PathBuf::from(format!("/proc/{}/{what}", service.as_raw_nonzero()));
    // After the name in parentheses: state, parent, group, session (proc_pid_stat(5)).
    let stat = std::fs::read_to_string(of("stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let session = fields.split(' ').nth(3).unwrap();
    assert_eq!(session, service.to_string(), "it leads one of its own");
    let open = std::fs::read_dir(of("fd")).unwrap().flatten();
    let open: Vec<_> = open
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .collect();
    assert!(!open.contains(&PathBuf::from(&file)), "{open:?}");
    assert_eq!(std::fs::read_link(of("cwd")).unwrap(), Path::new("/"));
    let status = std::fs::read_to_string(of("status")).unwrap();
    let ignored = status
        .lines()
        .find(|line| line.starts_with("SigIgn:"))
        .unwrap();
    let ignored = u64::from_str_radix(ignored["SigIgn:".len()..].trim(), 16).unwrap();
    for signal in [Signal::CHILD, Signal::TERM] {
        assert_eq!(ignored >> (signal.as_raw() - 1) & 1, 0, "{signal:?}");
    }
    let limits = std::fs::read_to_string(of("limits")).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let words: Vec<_> = files.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{files}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn each_network_namespace_has_a_service_of_its_own() {
    let user = User::new();
    for count in 1..=3 {
        let output = user.run_by("unshare --net sh -c 'ip link set lo up && exec $RUN true'");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(user.services().len(), count);
    }
    for _ in 0..2 {
        assert!(user.run_by("exec $RUN true").status.success());
        assert_eq!(
            user.services().len(),
            4,
            "one here, for all that start here"
        );
    }
}

#[test]
fn a_service_that_is_stopped_is_given_up() {
    let user = User::new();
    assert!(user.run("60", &["true"]).status.success());
    kill_process(user.service(), Signal::STOP).unwrap();
    let begin = Instant::now();
    let says = complaint(&user.run("60", &["true"]), 1);
    assert!(says.contains("does not answer within 10 s"), "{says}");
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn the_variables_of_the_environment_are_heeded_and_empty_ones_are_not() {
    let user = User::new();
    let run = |set: &[(&str, &str)], words: &[&str]| {
        let mut command = trunkline(&[&["run"], words].concat());
        user.known_to(&mut command).envs(set.iter().copied());
        command.output().unwrap()
    };
    let address = user.address.to_string();
    let script = ["sh", "-c", "echo $TRUNKLINE_SOCKET"];
    let set = [("TRUNKLINE_SOCKET", ""), ("TRUNKLINE_ADDRESS", &*address)];
    let output = run(&set, &script);
    let socket = text(&output.stdout);
    assert!(socket.contains(&format!("-{address}.socket")), "{socket}");
    let set = [
        ("TRUNKLINE_SOCKET", socket.trim()),
        ("TRUNKLINE_ADDRESS", "x"),
    ];
    assert_eq!(text(&run(&set, &script).stdout), socket);
    let says = complaint(&run(&[("TRUNKLINE_ADDRESS", "x")], &["true"]), 2);
    assert!(
        says.starts_with("TRUNKLINE_ADDRESS: 'x' is no IP address"),
        "{says}"
    );
    // What carries packets is nobody's business where no service is to be started.
    let pigeon = ("TRUNKLINE_PORT", "pigeon");
    let set = [("TRUNKLINE_SOCKET", socket.trim()), pigeon];
    assert_eq!(text(&run(&set, &script).stdout), socket);
    let says = complaint(&run(&[pigeon], &["--address", &address, "true"]), 2);
    assert!(
        says.starts_with("TRUNKLINE_PORT: no port is called \"pigeon\""),
        "{says}"
    );
    let says = complaint(&run(&[], &["--socket", "/nowhere/at", "true"]), 1);
    assert_eq!(
        says,
        "no service at /nowhere/at: start one (trunkline serve)"
    );
    let says = complaint(&run(&[("TRUNKLINE_LIBRARY", "/dev/null")], &["true"]), 1);
    assert!(says.contains("is not called libibverbs.so.1"), "{says}");
}

#[test]
fn a_folder_that_is_too_long_for_a_socket_is_named_with_its_variable() {
    let user = User::new();
    let folder = user.folder.file(&"x".repeat(90));
    std::fs::create_dir(&folder).unwrap();
    let mut command = user.command("0.2", &["true"]);
    let says = complaint(
        &command.env("XDG_RUNTIME_DIR", &folder).output().unwrap(),
        1,
    );
    assert!(
        says.starts_with(&folder) && says.contains("XDG_RUNTIME_DIR"),
        "{says}"
    );
}

#[test]
fn who_has_the_address_is_named_with_the_way_to_attach_there() {
    let user = User::new();
    let socket = user.folder.file("other");
    let address = user.address.to_string();
    let words = [
        "serve",
        "--address",
        &address,
        "--socket",
        &socket,
        "--detach",
    ];
    let mut serve = trunkline(&words);
    let output = user.known_to(&mut serve).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let says = complaint(&user.run("0.2", &["true"]), 1);
    assert!(
        says.contains(&format!("is taken by process {}", user.service())),
        "{says}"
    );
    assert!(says.ends_with(&format!("--socket {socket}")), "{says}");
    let mut run = trunkline(&["run", "--socket", &socket, "true"]);
    assert!(user.known_to(&mut run).status().unwrap().success());
}

#[test]
fn unmodified_programs_find_the_device_and_each_other() {
    let user = User::new();
    if !is_there("ibv_devinfo") || !is_there("ibv_rc_pingpong") {
        return;
    }
    let script = "ibv_devices && sleep 0.5 && ibv_devinfo -v";
    let output = user.run("0", &["sh", "-c", script]);
    let told = text(&output.stdout);
    let gid = format!("::ffff:{}, RoCE v2", user.address);
    assert!(told.contains("trunk0") && told.contains(&gid), "{told}");
    let port = (20_000 + std::process::id() % 10_000).to_string();
    let words = [
        "ibv_rc_pingpong",
        "-d",
        "trunk0",
        "-g",
        "0",
        "-n",
        "100",
        "-p",
        &port,
    ];
    let mut server = user.command("0.2", &words);
    let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
    let client = || user.run("0.2", &[&words[..], &["127.0.0.1"]].concat());
    let end = Instant::now() + PATIENCE;
    // The server listens once it has made its QP.
    let mut ended = client();
    while !ended.status.success() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
        ended = client();
    }
    let said = text(&ended.stdout);
    assert!(
        said.contains("100 iters in"),
        "{said}{}",
        text(&ended.stderr)
    );
    assert_eq!(wait(&mut server), Some(0));
}

#[test]
fn services_that_cannot_share_an_interface_are_refused_before_one_is_started() {
    let (user, second) = (User::new(), address().to_string());
    let first = user.address.to_string();
    let both = ["--address", &second, "true"];
    let says = format!(
        "--port: xdp takes an interface for one node, and lo has both {first} and {second}: give \
         addresses of two interfaces, or another kind of port; try 'trunkline run --help'"
    );
    let refused = user.run("0", &[&["--port", "xdp"], &both[..]].concat());
    assert_eq!(complaint(&refused, 2), says);
    let mut command = user.command("0", &both);
    let refused = command.env("TRUNKLINE_PORT", "xdp").output().unwrap();
    assert_eq!(complaint(&refused, 2), says);
    assert!(user.services().is_empty());
    // Services that run keep the ports that they have.
    for port in ["udp", "xdp"] {
        let output = user.run("60", &[&["--port", port], &both[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}
