//! When a service ends for want of programs, what keeps it, and whose place it does not take.

use super::hostile::raw::Raw;
use crate::common::{PATIENCE, address, service};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trunkline::service::{Hold, Limits, Service};
use trunkline::{Drive, Error, Node};
use trunkline_host::control::attributes::Reason;
use trunkline_host::control::requests::{self, AllocPd, Magic};
use trunkline_host::control::{Answer, VERSION};

/// As long as a service that is idle goes on in these tests.
const MOMENT: Duration = Duration::from_millis(50);

fn new_service() -> (Service, String) {
    service(Node::builder().address(address()))
}

/// Waits until the service has ended for want of programs.
fn wait_for_end(service: &Service) {
    let end = Instant::now() + PATIENCE;
    while !service.is_over() {
        assert!(Instant::now() < end, "nobody uses it, and it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_service_ends_when_the_last_program_and_the_last_hold_are_gone() {
    let (service, path) = new_service();
    service.end_when_idle(MOMENT);
    let hold = Hold::take(&path).unwrap().expect("it serves");
    assert_eq!(hold.pid(), Some(std::process::id()));
    std::thread::sleep(4 * MOMENT);
    assert!(!service.is_over(), "it is held");
    assert_eq!(service.clients(), [], "who holds it is no program");
    let program = Node::attach(&path).unwrap();
    drop(hold);
    std::thread::sleep(4 * MOMENT);
    assert!(!service.is_over(), "a program is attached");
    drop(program);
    wait_for_end(&service);
    assert!(!service.has_failed());
    assert!(Hold::take(&path).unwrap().is_none());
    assert!(Node::attach(&path).is_err());
    assert_eq!(service.node().health().down, None, "the node goes on");
}

#[test]
fn a_service_that_is_to_stay_does() {
    let (service, path) = new_service();
    drop(Hold::take(&path).unwrap().expect("it serves"));
    std::thread::sleep(4 * MOMENT);
    assert!(!service.is_over());
    Node::attach(&path).unwrap();
}

#[test]
fn who_holds_a_service_may_ask_for_nothing() {
    let (service, path) = new_service();
    let mut raw = Raw::connect(&path);
    let hold = requests::Hold {
        magic: Magic,
        version: VERSION,
    };
    let held = raw.ask(hold);
    assert!(matches!(held, Answer::Done(_)), "{held:?}");
    raw.say(AllocPd {});
    let (reason, why) = raw.end();
    assert_eq!(reason, Reason::BadMessage, "{why}");
    assert_eq!(service.violations(), 1);
}

#[test]
fn who_is_of_another_version_does_not_hold_a_service() {
    let (_service, path) = new_service();
    let mut raw = Raw::connect(&path);
    let version = VERSION + 1;
    raw.say(requests::Hold {
        magic: Magic,
        version,
    });
    assert_eq!(raw.end().0, Reason::Version);
}

/// A folder of a test, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("trunkline-holds-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is in a folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start_at(path: &Path) -> Result<Service, Error> {
    let node = Node::builder().address(address()).drive(Drive::Threaded);
    Service::start(node.build().unwrap(), path, &Limits::default())
}

/// A socket of that kind at a path, at which somebody listens if that kind can.
fn socket_at(path: &Path, kind: SocketType) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    if kind != SocketType::DGRAM {
        rustix::net::listen(&socket, 1).unwrap();
    }
    socket
}

#[test]
fn a_file_that_is_no_socket_is_left_as_it_is() {
    let folder = Folder::new("file");
    let (file, link) = (folder.0.join("file"), folder.0.join("link"));
    std::fs::write(&file, "precious").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link, &folder.0] {
        let refused = start_at(path).unwrap_err().to_string();
        assert!(refused.contains("no socket: it is left"), "{refused}");
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "precious");
    assert_eq!(folder.0.read_dir().unwrap().count(), 2, "no lock is left");
}

#[test]
fn a_socket_of_somebody_else_is_left_as_it_is_and_one_that_died_is_not() {
    let folder = Folder::new("others");
    for kind in [SocketType::STREAM, SocketType::SEQPACKET, SocketType::DGRAM] {
        let path = folder.0.join(format!("{kind:?}"));
        let other = socket_at(&path, kind);
        let refused = start_at(&path).unwrap_err().to_string();
        assert!(refused.contains("is taken"), "{kind:?}: {refused}");
        assert!(path.exists());
        drop(other);
        let service = start_at(&path).unwrap();
        drop(service);
        assert!(!path.exists(), "its file goes with it");
    }
}

#[test]
fn a_service_removes_no_file_that_took_the_place_of_its_socket() {
    let folder = Folder::new("replaced");
    let path = folder.0.join("socket");
    let service = start_at(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    drop(service);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_service_that_does_not_answer_is_given_up() {
    let folder = Folder::new("silent");
    let path = folder.0.join("socket");
    let _silent = socket_at(&path, SocketType::SEQPACKET);
    let begin = Instant::now();
    let holding = std::thread::spawn({
        let path = path.clone();
        move || Hold::take(&path).unwrap_err().to_string()
    });
    let why = Node::attach(&path).unwrap_err().to_string();
    assert!(why.contains("does not answer within 10 s"), "{why}");
    let why = holding.join().unwrap();
    assert!(why.contains("does not answer within 10 s"), "{why}");
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_secs(9), "{waited:?}");
    assert!(waited < PATIENCE, "{waited:?}");
}

#[test]
fn a_path_that_is_too_long_for_a_socket_says_what_is_not() {
    let path = format!("/tmp/{}", "x".repeat(200));
    let why = Node::attach(&path).unwrap_err().to_string();
    assert!(
        why.contains("has 205 bytes") && why.contains("at most 107"),
        "{why}"
    );
}
