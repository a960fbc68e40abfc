//! Ctrl-C ends every command within a second, whatever it is doing.

use crate::common::{Pair, address};
use crate::running::User;
use crate::trunkline;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a command may take to end, and what a busy machine may add.
const WITHIN: Duration = Duration::from_secs(1);
const BUSY: Duration = Duration::from_secs(1);

/// A command that runs, and what it says of its progress.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    /// Waits until it says that `step` begins.
    fn until(&mut self, step: &str) {
        loop {
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended before {step}");
            if line.starts_with(step) {
                return;
            }
        }
    }

    /// It ends in time, as one that was interrupted does; what it said.
    #[track_caller]
    fn end(mut self, doing: &str) -> String {
        let began = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        while self.child.try_wait().unwrap().is_none() {
            let took = began.elapsed();
            assert!(took < WITHIN + BUSY, "{doing}: it does not end");
            sleep(Duration::from_millis(2));
        }
        let code = self.child.wait().unwrap().code();
        assert_eq!(code, Some(130), "{doing}");
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        said
    }

    /// The same, and it complains of nothing.
    #[track_caller]
    fn interrupt(self, doing: &str) {
        let said = self.end(doing);
        assert!(!said.contains("trunkline: "), "{doing}: {said}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn demo(qps: &str) -> Command {
    let (client, server) = (address().to_string(), address().to_string());
    trunkline(&[
        "demo", "--qps", qps, "--client", &client, "--server", &server,
    ])
}

#[test]
fn a_demo_ends_in_each_of_its_steps() {
    for (step, qps) in [
        ("opening", "1000000"),
        ("RPCs of 32", "40000"),
        ("RPCs of 4096", "4000"),
        ("WRITEs", "4000"),
        ("READs", "4000"),
        ("atomics", "4000"),
        ("closing", "20000"),
    ] {
        let mut running = Running::start(demo(qps));
        running.until(step);
        if step == "opening" {
            // With very many QPs to let go of.
            sleep(Duration::from_millis(1500));
        }
        running.interrupt(step);
    }
}

#[test]
fn a_bench_ends_at_either_end_and_before_it_has_a_peer() {
    let listen = address().to_string();
    let server = || trunkline(&["bench", "lat", "--listen", &listen, "--tcp-port", "0"]);
    let mut alone = Running::start(server());
    alone.until("");
    alone.interrupt("a server without a client");

    let mut server = Running::start(server());
    let mut line = String::new();
    server.stderr.read_line(&mut line).unwrap();
    let port = line.trim().rsplit(' ').next().unwrap();
    let bind = address().to_string();
    let client = |mode: &str| {
        let to = ["--connect", &listen, "--tcp-port", port, "--bind", &bind];
        let words = [&["bench", mode, "--duration", "600"], &to[..]].concat();
        Running::start(trunkline(&words))
    };
    for mode in ["lat", "bw", "rate"] {
        let client = client(mode);
        sleep(Duration::from_millis(500));
        client.interrupt(mode);
    }
    let client = client("bw");
    sleep(Duration::from_millis(500));
    // It has told that the clients before went away.
    server.end("a server with a client");
    drop(client);
}

#[test]
fn a_bench_ends_while_nobody_answers() {
    // A listener that says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let bind = address().to_string();
    let to = [
        "--connect",
        "127.0.0.1",
        "--tcp-port",
        &port,
        "--bind",
        &bind,
    ];
    let words = [&["bench", "lat"], &to[..]].concat();
    let client = Running::start(trunkline(&words));
    sleep(Duration::from_millis(300));
    client.interrupt("a client of a silent server");
}

/// A shell without job control starts what is to run in the background so.
#[test]
fn ctrl_c_that_was_ignored_from_the_start_is_ignored() {
    let program = env!("CARGO_BIN_EXE_trunkline");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$0\" \"$@\"", program]);
    shell.args(["bench", "lat", "--listen", &address().to_string()]);
    shell.args(["--tcp-port", "0"]);
    let mut server = Running::start(shell);
    server.until("listening");
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::INT).unwrap();
    sleep(WITHIN);
    let ended = server.child.try_wait().unwrap();
    assert!(ended.is_none(), "{ended:?}");
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(143));
}

#[test]
fn watching_ends() {
    let pair = Pair::new();
    let node = pair.a.node.gid().address().to_string();
    for interval in ["0.05", "3600"] {
        let words = ["cm", "watch", &node, "--interval", interval];
        let watching = Running::start(trunkline(&words));
        sleep(Duration::from_millis(300));
        watching.interrupt(interval);
    }
}

/// A terminal sends Ctrl-C to all processes of a job: that which starts the service hears it, too.
#[test]
fn ctrl_c_at_whatever_moment_of_a_start_is_no_failure_of_the_service() {
    let user = User::new();
    for moment in 0..40 {
        let mut command = user.command("0", &["sleep", "60"]);
        command.process_group(0).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        sleep(Duration::from_micros(250) * moment);
        kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
        let (mut said, mut stderr) = (String::new(), child.stderr.take().unwrap());
        stderr.read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        let signal = Some(Signal::INT.as_raw());
        assert!(
            status.code() == Some(130) || status.signal() == signal,
            "{moment}: {status}: {said}"
        );
        assert_eq!(said, "", "{moment}: {status}");
    }
}

/// The processes that another one has started.
fn children(of: u32) -> Vec<u32> {
    let parent = format!("PPid:\t{of}\n");
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status"));
    pids.filter(|pid| status(pid).is_ok_and(|status| status.contains(&parent)))
        .collect()
}

/// A measurement of ports that has said so, and the two processes which it has started.
fn measuring(step: &str) -> (Running, Vec<u32>) {
    let words = ["ports", "--measure", "--seconds", "2", "--port", "udp"];
    let mut running = Running::start(trunkline(&words));
    running.until(step);
    sleep(Duration::from_millis(300));
    let started = children(running.child.id());
    assert_eq!(started.len(), 2, "{step}");
    (running, started)
}

fn is_there(pid: u32) -> bool {
    std::fs::exists(format!("/proc/{pid}")).unwrap()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn measuring_ports_ends_and_what_it_started_with_it() {
    for step in ["udp: rate", "udp: bw", "udp, without the transport: rate"] {
        let (running, started) = measuring(step);
        running.interrupt(step);
        let left = started.into_iter().find(|pid| is_there(*pid));
        assert_eq!(left, None, "{step}");
    }
    let (mut running, started) = measuring("udp: rate");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let began = Instant::now();
    while started.iter().any(|pid| is_there(*pid)) {
        assert!(began.elapsed() < WITHIN + BUSY, "they outlive it");
        sleep(Duration::from_millis(2));
    }
}

/// A capture without an end: packets of nothing.
fn write_capture(mut out: impl Write) {
    let mut bytes = Vec::new();
    // The file: magic, version 2.4, longest packet, Ethernet.
    for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 0xffff, 1] {
        bytes.extend(word.to_le_bytes());
    }
    // A packet: time, its bytes here and on the wire.
    let mut packet: Vec<u8> = [0_u32, 0, 60, 60].map(u32::to_le_bytes).concat();
    packet.resize(16 + 60, 0);
    while out.write_all(&bytes).is_ok() {
        bytes.clone_from(&packet);
    }
}

#[test]
fn decoding_ends_while_there_is_no_input_and_while_there_is_much() {
    let start = || {
        let mut command = trunkline(&["decode", "-"]);
        command.stdin(Stdio::piped());
        let mut running = Running::start(command);
        let input = running.child.stdin.take().unwrap();
        (running, input)
    };
    let (waiting, input) = start();
    sleep(Duration::from_millis(300));
    waiting.interrupt("no input");
    drop(input);
    let (busy, input) = start();
    let writer = std::thread::spawn(move || write_capture(input));
    sleep(Duration::from_millis(300));
    busy.interrupt("much input");
    writer.join().unwrap();
}
