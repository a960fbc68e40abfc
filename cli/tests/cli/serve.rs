//! `trunkline serve` and `trunkline stat`, with programs attached that this process plays.

use crate::common::address;
use crate::directory::Directory;
use crate::serving::{PATIENCE, finish, piped};
use crate::{complaint, run, text, trunkline};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Command};
use std::time::{Duration, Instant};
use trunkline::{Access, Cq, Mr, Node, Qp, QpOptions, RecvWr, SendWr, Status};

/// A service in a process of its own.
struct Service {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: IpAddr,
    socket: String,
}

/// The command of a service.
fn serve(address: IpAddr, socket: &str) -> Command {
    trunkline(&[
        "serve",
        "--address",
        &address.to_string(),
        "--socket",
        socket,
    ])
}

impl Service {
    /// Starts it and waits until programs can attach.
    fn start(socket: &str) -> Self {
        let address = address();
        let mut child = piped(serve(address, socket));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("serving {address} at {socket}\n"));
        Self {
            child,
            stdout,
            address,
            socket: socket.to_owned(),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What `trunkline stat` shows of it.
    fn stat(&self) -> Value {
        let output = run(&["stat", &self.address.to_string(), "--json", "--once"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that is attached to a service.
struct Program {
    node: Node,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl Program {
    fn attach(service: &Service) -> Self {
        let node = Node::attach(&service.socket).unwrap();
        let (pd, cq) = (node.alloc_pd(), node.create_cq(16).unwrap());
        let mr = pd.register(4096, Access::ALL).unwrap();
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        Self { node, cq, mr, qp }
    }

    fn done(&self) {
        let done = self.cq.wait(PATIENCE).unwrap().unwrap();
        assert_eq!(done.status, Status::Success);
    }
}

/// A message from one program to the other.
fn exchange(from: &Program, to: &Program) {
    from.qp.connect(to.qp.address()).unwrap();
    to.qp.connect(from.qp.address()).unwrap();
    from.mr.write(0, b"hello").unwrap();
    let (room, words) = ([to.mr.sge(0, 64)], [from.mr.sge(0, 5)]);
    to.qp.post_recv(&[RecvWr::new().sges(&room)]).unwrap();
    let send = SendWr::send().sges(&words).signaled();
    from.qp.post_send(&[send]).unwrap();
    from.done();
    to.done();
    let mut got = [0; 5];
    to.mr.read(0, &mut got).unwrap();
    assert_eq!(&got, b"hello");
}

#[test]
fn programs_of_two_services_talk_and_stat_shows_them() {
    let directory = Directory::new();
    let path = directory.file("socket");
    let abstract_name = format!("@trunkline-cli-test/{}", std::process::id());
    let (near, far) = (Service::start(&path), Service::start(&abstract_name));
    let (a, b) = (Program::attach(&near), Program::attach(&far));
    exchange(&a, &b);
    let seen = near.stat();
    assert_eq!(seen["pid"], Value::from(near.child.id()));
    assert_eq!(seen["port"], "udp");
    let service = &seen["service"];
    assert_eq!(service["client_count"], Value::from(1));
    assert_eq!(service["socket"], Value::from(path.as_str()));
    assert_eq!(service["violations"], Value::from(0));
    let client = &service["clients"][0];
    assert_eq!(client["pid"], Value::from(std::process::id()));
    for (what, count) in [("pds", 1), ("cqs", 1), ("qps", 1), ("mrs", 1), ("srqs", 0)] {
        assert_eq!(client[what], Value::from(count), "{what}");
    }
    assert!(client["segment_bytes"].as_u64().unwrap() >= 4096);
    assert_eq!(client["foreign_bytes"], Value::from(0));
    assert_eq!(
        seen["peers"][0]["address"],
        Value::from(far.address.to_string())
    );
    assert!(seen["peers"][0]["connections"].as_u64().unwrap() > 0);
    assert!(seen["counters"]["completed"].as_u64().unwrap() > 0);
    assert!(seen["per_second"]["packets_sent"].as_f64().unwrap() > 0.0);
    assert!(seen["cm"]["handshakes"]["established"].as_u64().unwrap() > 0);
    let table = text(&run(&["stat", &near.address.to_string(), "--once"]).stdout);
    for part in [
        &format!("service at {path}"),
        "1 programs with 1 QPs",
        "shared connections to 1 peers",
        "slowest steps",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let which = complaint(&run(&["stat", "--once"]), 1);
    let named = format!("{} (service at {path}, 1 programs)", near.address);
    assert!(which.contains(&named), "{which}");
}

#[test]
fn a_service_that_is_told_to_ends_and_its_programs_hear_it() {
    let directory = Directory::new();
    let path = directory.file("socket");
    for signal in [Signal::TERM, Signal::INT] {
        let mut service = Service::start(&path);
        let program = Program::attach(&service);
        assert_eq!(program.node.health().down, None);
        let began = Instant::now();
        service.signal(signal);
        assert_eq!(crate::serving::wait(&mut service.child), Some(0));
        assert!(began.elapsed() < Duration::from_secs(3));
        while program.node.health().down.is_none() {
            assert!(began.elapsed() < PATIENCE, "nobody tells the program");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut rest = String::new();
        assert_eq!(service.stdout.read_line(&mut rest).unwrap(), 0);
        // The file of its socket goes with it.
        assert!(!std::path::Path::new(&path).exists());
    }
}

#[test]
fn a_service_at_several_addresses_has_a_socket_for_each() {
    let directory = Directory::new();
    let sockets = ["one", "two"].map(|name| directory.file(name));
    let addresses = [address(), address()];
    let mut command = trunkline(&["serve"]);
    for (address, socket) in addresses.iter().zip(&sockets) {
        command.args(["--address", &address.to_string(), "--socket", socket]);
    }
    let mut child = piped(command);
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let place = |at: usize| format!("{} at {}", addresses[at], sockets[at]);
    assert_eq!(line, format!("serving {}, {}\n", place(0), place(1)));
    let nodes = sockets.each_ref().map(|at| Node::attach(at).unwrap());
    for (node, address) in nodes.iter().zip(addresses) {
        assert_eq!(node.gid(), address.into());
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(finish(child).status.code(), Some(0));
    for node in nodes {
        assert!(node.health().down.is_some());
    }
}

#[test]
fn who_has_the_address_or_the_socket_is_named() {
    let directory = Directory::new();
    let service = Service::start(&directory.file("socket"));
    let (pid, other) = (service.child.id(), directory.file("other"));
    let output = serve(service.address, &other).output().unwrap();
    let says = complaint(&output, 1);
    assert!(says.contains(&pid.to_string()), "{says}");
    assert!(
        says.ends_with("choose another address with --address"),
        "{says}"
    );
    let output = serve(address(), &service.socket).output().unwrap();
    let says = complaint(&output, 1);
    let taken = format!("is taken: process {pid} serves there");
    assert!(says.contains(&taken), "{says}");
}

#[test]
fn wrong_options_and_files_get_one_line() {
    let directory = Directory::new();
    for (words, says) in [
        (&["--workers", "65"][..], "65 is not in 1..=64"),
        (&["--weight", "7"], "it is no UID=WEIGHT"),
        (&["--user", "root"], "not a whole number"),
        (&["--segment-bytes", "1X"], "not a number of bytes"),
    ] {
        let says_it = complaint(&run(&[&["serve"], words].concat()), 2);
        assert!(says_it.contains(says), "{words:?}: {says_it}");
    }
    for (text, says) in [
        ("qsp = 7\n", "qsp"),
        ("qps = 0\n", "qps: 0 is not in 1..=262144"),
        ("workers = \n", "config.toml"),
        ("weight = [\"1000=65\"]\n", "65 is not in 1..=64"),
    ] {
        let file = directory.written(text);
        let says_it = complaint(&run(&["serve", "--config", &file]), 2);
        assert!(says_it.contains(says), "{text}: {says_it}");
    }
    let missing = directory.file("missing");
    let says_it = complaint(&run(&["serve", "--config", &missing]), 1);
    let says = format!("cannot read {missing}: No such file or directory (os error 2)");
    assert_eq!(says_it, says);
    let no_directory = directory.file("none/socket");
    let says_it = complaint(&serve(address(), &no_directory).output().unwrap(), 1);
    assert!(
        says_it.starts_with(&format!("cannot serve at {no_directory}: ")),
        "{says_it}"
    );
}

#[test]
fn a_file_and_the_manager_of_services_are_heeded() {
    let directory = Directory::new();
    let (address, socket) = (address(), directory.file("socket"));
    let text = format!("address = \"{address}\"\nsocket = \"{socket}\"\nprograms = 1\n");
    let (notify, file) = (directory.file("notify"), directory.written(&text));
    let told = UnixDatagram::bind(&notify).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = trunkline(&["serve", "--config", &file]);
    command.env("NOTIFY_SOCKET", &notify);
    let child = piped(command);
    let mut word = [0; 64];
    let length = told.recv(&mut word).unwrap();
    assert_eq!(&word[..length], b"READY=1");
    let _program = Node::attach(&socket).unwrap();
    let refused = Node::attach(&socket).unwrap_err().to_string();
    assert!(
        refused.contains("1 programs have places here, which is the most")
            && refused.contains("--programs "),
        "{refused}"
    );
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = finish(child);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        crate::text(&output.stdout),
        format!("serving {address} at {socket}\n")
    );
}

#[test]
fn a_node_that_does_not_run_has_no_figures() {
    let gone = address().to_string();
    let expected = format!("no node that can be watched has address {gone}");
    assert_eq!(complaint(&run(&["stat", &gone]), 1), expected);
}
