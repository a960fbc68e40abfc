//! Services that are not like those of the other tests: one in a process of its own, which is
//! killed, one at an IPv6 address, and one whose link goes down.

use crate::c;
use crate::library::library;
use crate::pair::{Addresses, At, Pair, Services, alone};
use std::io::{BufRead, BufReader};
use std::net::{Ipv6Addr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service};
use trunkline::{Error, Node, UdpOpenError};

/// Where the service of a process of its own is.
const ADDRESS: &str = "TRUNKLINE_TEST_ADDRESS";
/// How long another test may have the one IPv6 address of a loopback interface.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest that a process of its own lives.
const LIFE: Duration = Duration::from_secs(90);

/// Programs that talk by each kind of QP.
const PROGRAMS: [(&str, &str); 4] = [
    ("ibv_rc_pingpong", "-g 0 -n 200 -c -s 20000"),
    ("ibv_uc_pingpong", "-g 0 -n 200 -e"),
    ("ibv_ud_pingpong", "-g 0 -n 200 -c"),
    ("ib_write_bw", "-x 0 -F -n 100 -q 2"),
];

/// Where programs attach to the service at an address.
fn socket(address: &str) -> String {
    format!("@verbs/{address}")
}

fn serve(address: &str) -> Result<Service, Error> {
    let node = Node::builder().address(address.parse().unwrap()).build()?;
    Ok(Service::start(node, socket(address), &Limits::default()).unwrap())
}

/// A service in a process of its own, which is killed when this is dropped.
pub(crate) struct Served(Child);

impl Served {
    /// Gives its socket, too.
    pub(crate) fn start() -> (Self, String) {
        let address = Addresses::new().server;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "served::a_process", "--ignored", "--nocapture"]);
        command.env(ADDRESS, &address).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let serves = |line: &String| line.ends_with("serving");
        assert!(lines.map_while(Result::ok).any(|line| serves(&line)));
        (Self(child), socket(&address))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "other tests start it in a process of its own"]
fn a_process() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let _service = serve(&address).unwrap();
    println!("serving");
    sleep(LIFE);
}

/// The service at the loopback interface's IPv6 address, which another process may have for a
/// while; `None`: this machine has none.
fn of_ipv6() -> Option<Service> {
    let address = Ipv6Addr::LOCALHOST;
    if let Err(error) = UdpSocket::bind((address, 0)) {
        eprintln!("SKIPPED: this machine has no {address}: {error}");
        return None;
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match serve(&address.to_string()) {
            Err(Error::Open(UdpOpenError::InUse { .. })) if Instant::now() < until => {
                sleep(Duration::from_millis(50));
            }
            other => return Some(other.unwrap()),
        }
    }
}

#[test]
fn programs_of_a_service_at_an_ipv6_address_talk() {
    let Some(_service) = of_ipv6() else {
        return;
    };
    let socket = socket("::1");
    if let Some(told) = alone("ibv_devinfo -v", At::Socket(&socket)) {
        let gid = "GID[  0]:\t\t::1, RoCE v2";
        assert!(told.contains(gid), "no {gid:?} in\n{told}");
    }
    for (program, options) in PROGRAMS {
        if let Some(pair) = Pair::start_at_one(program, options, &socket) {
            let ended = pair.wait();
            assert!(ended.is_good(), "{program} {options}\n{ended}");
        }
    }
    c::run_at(&socket);
}

/// Runs something in a network namespace of its own.
fn in_a_namespace(runs: impl FnOnce() + Send + 'static) {
    // Outside, as the library may have to be built.
    library();
    let inside = || {
        // SAFETY: concerns this thread only, which began for that.
        let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert_eq!(entered, 0, "a network namespace takes privileges: {error}");
        runs();
    };
    std::thread::spawn(inside).join().unwrap();
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.unwrap().success(), "ip {words}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn programs_of_a_service_hear_that_its_link_goes_down_and_comes_up() {
    in_a_namespace(|| {
        ip("link add near type veth peer name far");
        ip("address add 10.9.0.1/24 dev near");
        ip("link set near up");
        ip("link set far up");
        let _service = serve("10.9.0.1").unwrap();
        for end in ["far", "near"] {
            c::run_with_the_link(&socket("10.9.0.1"), |word| {
                ip(&format!("link set {end} {word}"));
            });
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn programs_of_services_at_two_ipv6_addresses_talk() {
    in_a_namespace(|| {
        ip("link set lo up");
        let addresses = ["fd79::1", "fd79::2"];
        for address in addresses {
            ip(&format!("address add {address}/128 dev lo nodad"));
        }
        let services = Services::at(addresses.map(str::to_owned));
        for (program, options) in PROGRAMS {
            if let Some(pair) = Pair::start_served(program, options, &services) {
                let ended = pair.wait();
                assert!(ended.is_good(), "{program} {options}\n{ended}");
            }
        }
    });
}
