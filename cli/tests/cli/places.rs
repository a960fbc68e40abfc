//! Services that start in bad places: no folder, no right, no room, no memory, no descriptors. Each
//! says in one line what is wrong and what helps, and ends.

use crate::common::address;
use crate::directory::Directory;
use crate::library::library;
use crate::running::User;
use crate::serving::{finish, piped};
use crate::{complaint, text, trunkline};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use trunkline::Node;

/// A user who owns nothing.
const NOBODY: u32 = 65534;

/// `trunkline serve` at that socket, with these words behind.
fn serve(socket: &str, words: &[&str]) -> Command {
    let address = address().to_string();
    let mut command = trunkline(&["serve", "--address", &address, "--socket", socket]);
    command.args(words);
    command
}

/// The only line of a start that fails with exit code 1, in time.
#[track_caller]
fn fails(command: Command) -> String {
    complaint(&finish(piped(command)), 1)
}

#[track_caller]
fn names(says: &str, parts: &[&str]) {
    for part in parts {
        assert!(says.contains(part), "{part}: {says}");
    }
}

#[test]
fn a_folder_that_is_missing_is_to_be_made() {
    let folder = Directory::new();
    let socket = folder.file("none/socket");
    for words in [&[][..], &["--detach"]] {
        let says = fails(serve(&socket, words));
        names(
            &says,
            &[&socket, "No such file or directory", "make its folder"],
        );
    }
}

/// This command and its library, where any user can run them.
struct ForAll(Directory);

impl ForAll {
    fn new() -> Self {
        let folder = Directory::new();
        set_mode(&folder.0, 0o755);
        let binary = env!("CARGO_BIN_EXE_trunkline");
        for from in [Path::new(binary), &library().join("libibverbs.so.1")] {
            let to = folder.0.join(from.file_name().unwrap());
            std::fs::copy(from, &to).unwrap();
            set_mode(&to, 0o755);
        }
        Self(folder)
    }

    /// The command, as a user who owns nothing.
    fn as_nobody(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.file("trunkline"));
        command.args(words).stdin(Stdio::null());
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        command.env("TRUNKLINE_LIBRARY", self.0.file("libibverbs.so.1"));
        command
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_folder_of_somebody_else_is_named_with_what_helps() {
    let (all, address) = (ForAll::new(), address().to_string());
    let folder = Directory::new();
    set_mode(&folder.0, 0o755);
    let socket = folder.file("socket");
    for more in [&[][..], &["--detach"]] {
        let words = ["serve", "--address", &address, "--socket", &socket];
        let says = fails(all.as_nobody(&[&words[..], more].concat()));
        let helps = "in a folder that this user may write to";
        names(&says, &[&socket, "Permission denied", helps]);
    }
    // The user's own, and it cannot be written to.
    chown(&folder.0, Some(NOBODY), Some(NOBODY)).unwrap();
    set_mode(&folder.0, 0o500);
    let run = || {
        let mut run = all.as_nobody(&["run", "--address", &address, "true"]);
        run.env("XDG_RUNTIME_DIR", &folder.0);
        fails(run)
    };
    let own = folder.file("trunkline-65534");
    names(&run(), &[&own, "Permission denied", "set XDG_RUNTIME_DIR"]);
    std::fs::create_dir(&own).unwrap();
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    set_mode(Path::new(&own), 0o500);
    names(&run(), &[&own, "Permission denied", "set XDG_RUNTIME_DIR"]);
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_dead_socket_of_somebody_else_is_not_said_to_be_served() {
    let (all, address) = (ForAll::new(), address().to_string());
    let folder = Directory::new();
    set_mode(&folder.0, 0o1777);
    let socket = folder.file("socket");
    drop(UnixListener::bind(&socket).unwrap());
    let says = fails(all.as_nobody(&["serve", "--address", &address, "--socket", &socket]));
    names(
        &says,
        &[&socket, "Permission denied", "this user may write to"],
    );
    assert!(!says.contains("taken"), "{says}");
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_port_that_this_user_may_not_open_says_what_it_takes() {
    let (all, address) = (ForAll::new(), address().to_string());
    for (port, takes) in [("packet", "CAP_NET_RAW"), ("xdp", "CAP_NET_ADMIN")] {
        let words = [
            "serve",
            "--address",
            &address,
            "--socket",
            "@none",
            "--port",
            port,
        ];
        let says = fails(all.as_nobody(&words));
        names(&says, &[&address, takes, "run as root"]);
    }
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_socket_that_is_not_for_this_user_says_who_decides_that() {
    let (all, user) = (ForAll::new(), User::new());
    set_mode(&user.folder.0, 0o755);
    let socket = user.folder.file("socket");
    let mut service = trunkline(&["serve", "--address", &user.address.to_string()]);
    service.args(["--socket", &socket, "--detach"]);
    let started = user.known_to(&mut service).output().unwrap();
    assert!(started.status.success(), "{}", text(&started.stderr));
    set_mode(Path::new(&socket), 0);
    let says = fails(all.as_nobody(&["run", "--socket", &socket, "true"]));
    let helps = "its owner lets others in by the mode of the socket";
    let whose = "user 65534 may not attach";
    names(&says, &[&socket, "Permission denied", whose, helps]);
    // Who may attach is none the worse for it.
    set_mode(Path::new(&socket), 0o700);
    assert_eq!(Node::attach(&socket).unwrap().health().down, None);
}

/// What a shell says that has a full disk at `$FULL`, with nothing on it but a folder for services.
fn on_a_full_disk(script: &str) -> Output {
    let folder = Directory::new();
    // A file system with room for one page, and for its root, a folder and a file.
    let prepare = "mount -t tmpfs -o size=4k,nr_inodes=3,mode=755 none $FULL &&
        mkdir -m 700 $FULL/trunkline-0 && head -c 4096 /dev/zero > $FULL/all &&
        ! touch $FULL/more";
    let script = format!("{{ {prepare}; }} 2> /dev/null || exit 99\n{script}");
    let mut shell = Command::new("unshare");
    shell.args([
        "--mount",
        "sh",
        "-c",
        &script,
        env!("CARGO_BIN_EXE_trunkline"),
    ]);
    let shell = shell.env("FULL", &folder.0).stdin(Stdio::null());
    shell.env("TRUNKLINE_LIBRARY", library().join("libibverbs.so.1"));
    let (address, words) = (
        address().to_string(),
        ["TRUNKLINE_SOCKET", "TRUNKLINE_ADDRESS"],
    );
    for name in words {
        shell.env_remove(name);
    }
    shell
        .env("ADDRESS", address)
        .env("XDG_RUNTIME_DIR", &folder.0);
    shell.output().unwrap()
}

#[test]
#[ignore = "needs root and mount namespaces"]
fn a_full_disk_is_named_with_what_helps() {
    for (script, helps) in [
        ("serve --socket $FULL/socket", "choose another place"),
        (
            "serve --detach --socket $FULL/socket",
            "choose another place",
        ),
        ("run", "set XDG_RUNTIME_DIR"),
    ] {
        let behind = if script == "run" { "true" } else { "" };
        let script = format!("exec timeout 30 \"$0\" {script} --address $ADDRESS {behind}");
        let says = complaint(&on_a_full_disk(&script), 1);
        names(&says, &["No space left on device", "make room", helps]);
    }
}

/// A command that a shell starts with less of something.
fn limited(limit: &str, words: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    let script = format!("ulimit -c 0; {limit}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_trunkline")]);
    shell.args(words).stdin(Stdio::null());
    shell
}

/// Waits until a service serves, and ends it; otherwise its end.
fn served(command: Command) -> Option<Output> {
    let mut child = piped(command);
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let serves = line.starts_with("serving ");
    if serves {
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    }
    let output = finish(child);
    (!serves).then_some(output)
}

#[test]
fn a_service_without_memory_to_start_says_so() {
    let folder = Directory::new();
    let (address, socket) = (address().to_string(), folder.file("socket"));
    let words = ["serve", "--address", &address, "--socket", &socket];
    let mut told = 0;
    for mib in (4..=64).rev() {
        let limit = format!("ulimit -v {}", mib << 10);
        let Some(output) = served(limited(&limit, &words)) else {
            continue;
        };
        if !text(&output.stderr).starts_with("trunkline: ") {
            // Its libraries are not loaded: it has not begun.
            break;
        }
        let says = complaint(&output, 1);
        assert!(says.contains("ulimit -v"), "{mib} MiB: {says}");
        told += 1;
    }
    assert!(told > 0, "it begins or does not");
}

#[test]
fn a_service_without_descriptors_to_start_says_so() {
    let user = User::new();
    let (address, socket) = (user.address.to_string(), user.folder.file("socket"));
    let words = ["serve", "--address", &address, "--socket", &socket];
    let mut told = 0;
    for limit in (4..40).rev() {
        let Some(output) = served(limited(&format!("ulimit -n {limit}"), &words)) else {
            assert_eq!(told, 0, "fewer are enough");
            continue;
        };
        let says = complaint(&output, 1);
        names(&says, &["Too many open files", "ulimit -n"]);
        told += 1;
    }
    assert!(told > 0, "some are needed");
    for limit in [6, 8, 10] {
        let words = ["run", "--address", &address, "--linger", "0", "true"];
        let mut run = limited(&format!("ulimit -n {limit}"), &words);
        user.known_to(&mut run);
        names(&fails(run), &["Too many open files", "ulimit -n"]);
    }
}
