//! `trunkline serve --detach` and `--end-when-idle`, and the place of a service's socket.

use crate::running::User;
use crate::{FULL, complaint, text, trunkline};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use trunkline::Node;

fn command(user: &User, socket: &str, words: &[&str]) -> Command {
    let address = user.address.to_string();
    let options = ["serve", "--address", &address, "--socket", socket];
    let mut command = trunkline(&[&options[..], words].concat());
    user.known_to(&mut command).current_dir(&user.folder.0);
    command
}

fn serve(user: &User, socket: &str, words: &[&str]) -> Output {
    command(user, socket, words).output().unwrap()
}

#[test]
fn a_detached_service_serves_when_the_command_has_ended() {
    let user = User::new();
    let socket = user.folder.file("socket");
    // A path that is relative is so to the folder of the command.
    let output = serve(&user, "socket", &["--detach"]);
    let expected = format!("serving {} at {socket}\n", user.address);
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    let service = user.service();
    let program = Node::attach(&socket).unwrap();
    let says = complaint(&serve(&user, &socket, &["--detach"]), 1);
    let taken = format!("{socket} is taken: process {service} serves there");
    assert!(says.ends_with(&taken), "{says}");
    kill_process(service, Signal::TERM).unwrap();
    user.wait_for_end();
    assert!(!Path::new(&socket).exists());
    drop(program);
    let output = serve(&user, &socket, &["--detach"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Whether a process has said something.
fn has_spoken(child: &Child) -> bool {
    let mut spoken = [PollFd::new(child.stdout.as_ref().unwrap(), PollFlags::IN)];
    let now = Timespec::default();
    poll(&mut spoken, Some(&now)).unwrap() > 0
}

/// At whatever moment of its start that is, before it has said that programs can attach.
#[test]
fn whoever_ends_the_command_that_starts_a_service_ends_the_service() {
    let user = User::new();
    let socket = user.folder.file("socket");
    for ms in (0..60).step_by(3) {
        let mut command = command(&user, &socket, &["--detach"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        if has_spoken(&child) {
            assert!(ms > 0 && child.wait().unwrap().success());
            break;
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ended = child.wait().unwrap();
        assert!(!ended.success(), "{ms} ms after it began");
        assert_eq!(user.services(), [0; 0], "{ms} ms after it began");
    }
}

#[test]
fn a_service_without_programs_ends_when_it_is_to() {
    let user = User::new();
    let socket = user.folder.file("socket");
    let output = serve(&user, &socket, &["--detach", "--end-when-idle", "0.2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let program = Node::attach(&socket).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(user.services().len(), 1, "a program is attached");
    drop(program);
    user.wait_for_end();
    assert!(!Path::new(&socket).exists());
}

#[test]
fn why_a_detached_service_did_not_start_is_told() {
    let user = User::new();
    let (file, log) = (user.folder.file("file"), user.folder.file("file.log"));
    std::fs::write(&file, "precious").unwrap();
    for words in [&["--detach"][..], &[]] {
        let says = complaint(&serve(&user, &file, words), 1);
        assert!(
            says.starts_with(&format!("cannot serve at {file}: ")),
            "{says}"
        );
        assert!(says.ends_with("no socket: it is left as it is"), "{says}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(std::fs::read_to_string(&log).unwrap().contains("no socket"));
    let long = user.folder.file(&"x".repeat(120));
    let says = complaint(&serve(&user, &long, &["--detach"]), 1);
    assert!(says.contains("the path of a socket at most 107"), "{says}");
}

/// Nothing can be written to any file here: who tries it is killed by SIGXFSZ.
#[test]
fn a_log_that_could_not_be_written_is_not_what_a_complaint_leaves_it_to() {
    let user = User::new();
    let (file, log) = (user.folder.file("file"), user.folder.file("file.log"));
    std::fs::write(&file, "precious").unwrap();
    let address = user.address.to_string();
    let mut shell = Command::new("sh");
    let script = "ulimit -c 0; ulimit -f 0; exec \"$0\" \"$@\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_trunkline")]);
    shell.args([
        "serve",
        "--address",
        &address,
        "--socket",
        &file,
        "--detach",
    ]);
    let says = complaint(&user.known_to(&mut shell).output().unwrap(), 1);
    assert!(
        says.contains(&format!("its log {log} does not say why")),
        "{says}"
    );
}

#[test]
fn a_service_of_which_nothing_can_be_told_ends() {
    let user = User::new();
    let socket = user.folder.file("socket");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = command(&user, &socket, &["--detach"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(complaint(&output, 1), FULL);
    assert_eq!(user.services(), [0; 0]);
}

#[test]
fn a_log_that_is_a_pipe_is_named() {
    let user = User::new();
    let (socket, log) = (user.folder.file("socket"), user.folder.file("socket.log"));
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let says = complaint(&serve(&user, &socket, &["--detach"]), 1);
    assert!(
        says.starts_with(&format!("{log} cannot be a log: ")),
        "{says}"
    );
}
