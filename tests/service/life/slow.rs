//! Programs whose memory blocks, as that of a file on FUSE may: they are parted with, and programs
//! beside them go on.

use super::peers::{Asking, Neighbour, Peer};
use super::roles::ROOM;
use super::{Process, alone, hear, play, say, within};
use crate::common::{PATIENCE, address, service_of};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service, Trusted};
use trunkline::{Access, AttachOptions, Node, Promotion, QpAddress, QpOptions, Remote, Status};
use trunkline_testkit::SilentFile;

/// A user that nobody runs services as.
const STRANGER: u32 = 54_321;
/// Longer than anybody has patience, and far less than for ever.
const STALL: Duration = Duration::from_secs(1);
/// How long a program is given that is trusted to come back.
const LATE: Duration = Duration::from_millis(400);

/// What such a program does.
pub(super) fn program(how: &str, path: &str) {
    let (uid, file) = how.split_once(' ').unwrap();
    let file = File::options().read(true).write(true).open(file).unwrap();
    become_user(uid.parse().unwrap());
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, which stays until the process ends.
    let base = unsafe { mmap(std::ptr::null_mut(), ROOM, access, flags, &file, 0) };
    let base = NonNull::new(base.unwrap().cast()).unwrap();
    // A process with a userfaultfd does not end while somebody waits for a page of its memory.
    let promotion = Promotion::Never;
    let node = Node::attach_with(path, &AttachOptions { promotion }).unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(16).unwrap());
    // SAFETY: it is mapped as long as the process lives, and nobody here looks at it.
    let mr = unsafe { pd.register_foreign(base, ROOM, Access::ALL) }.unwrap();
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    say(&qp.address());
    let peer: QpAddress = hear();
    qp.connect(peer).unwrap();
    say(&mr.remote(0));
    node.wait_event(Duration::from_secs(60)).unwrap();
    say(&node.health().down.map(|down| down.to_string()));
}

/// Runs as that user from here on.
fn become_user(uid: u32) {
    if rustix::process::geteuid().as_raw() == uid {
        return;
    }
    // SAFETY: it has no conditions.
    assert_eq!(unsafe { libc::setuid(uid) }, 0);
    // A process that was another user's may not open its own memory.
    // SAFETY: it has no conditions.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
}

/// A program whose memory blocks, and a peer that writes there.
struct Slow {
    file: SilentFile,
    process: Process,
    asking: Asking,
    at: Instant,
}

impl Slow {
    /// `None`, and a line that says why: this process can have no memory that blocks.
    fn start(uid: u32, path: &str, peer: &Peer) -> Option<Self> {
        let file = match SilentFile::new(ROOM as u64) {
            Ok(file) => file,
            Err(error) => {
                eprintln!("not run: a file system in user space cannot be had: {error}");
                return None;
            }
        };
        let (pid, number) = (std::process::id(), file.file().as_raw_fd());
        let role = format!("slow {uid} /proc/{pid}/fd/{number}");
        let mut process = play(&role, path);
        let (qp, cq) = peer.qp();
        qp.connect(process.hear()).unwrap();
        process.tell(&qp.address());
        let remote: Remote = process.hear();
        let at = Instant::now();
        let asking = Asking::start(peer, (qp, cq), "foreign", remote);
        Some(Self {
            file,
            process,
            asking,
            at,
        })
    }

    /// Its peer hears that it is parted with, and it hears why. Gives how long it had.
    fn ends(self) -> Duration {
        let (heard, status) = self.asking.end();
        assert_ne!(status, Status::Success);
        // It may need memory of its own to say something.
        self.file.let_go();
        let mut process = self.process;
        let why: Option<String> = process.hear();
        let why = why.unwrap();
        assert!(why.contains("its memory blocked"), "{why}");
        process.finish();
        heard - self.at
    }

    /// It is late, and nobody minds.
    fn stays(self, service: &Service) {
        within(PATIENCE, "somebody waits", || self.file.waiting() > 0);
        std::thread::sleep(LATE);
        self.file.let_go();
        std::thread::sleep(LATE);
        assert_eq!(service.violations(), 0);
        let pid = Some(self.process.pid());
        assert!(service.clients().iter().any(|client| client.pid == pid));
        // Its requests go on, so the first error is that of its end.
        assert!(!self.asking.has_failed());
        drop(self.process);
        self.asking.end();
    }
}

/// A service of one worker that trusts these, with a peer, and the user of this process.
fn scene(trusted: Trusted, change: impl FnOnce(&mut Limits)) -> (Service, String, Peer, u32) {
    let mut limits = Limits::default();
    limits.trusted = trusted;
    change(&mut limits);
    let (service, path) = service_of(Node::builder().address(address()), &limits);
    let uid = rustix::process::geteuid().as_raw();
    (service, path, Peer::new(), uid)
}

#[test]
fn a_program_whose_memory_blocks_is_parted_with_and_programs_beside_it_go_on() {
    let _alone = alone();
    let (service, path, peer, uid) = scene(Trusted::Nobody, |_| {});
    let neighbour = Neighbour::start(&path, &peer);
    let Some(slow) = Slow::start(uid, &path, &peer) else {
        return;
    };
    let had = slow.ends();
    let (rounds, slowest, _beside) = neighbour.stop();
    println!("parted with after {had:?}; {rounds} messages beside, {slowest:?} the slowest");
    assert!(rounds > 0 && slowest < STALL, "{slowest:?}");
    assert_eq!(service.violations(), 1);
}

#[test]
fn the_next_programs_of_a_user_find_its_patience_used_up() {
    const PROGRAMS: usize = 5;
    let _alone = alone();
    let (service, path, peer, uid) = scene(Trusted::Nobody, |_| {});
    let Some(first) = Slow::start(uid, &path, &peer) else {
        return;
    };
    let first = first.ends();
    assert!(first >= Duration::from_millis(100), "{first:?}");
    let next = [(); PROGRAMS].map(|()| {
        let slow = Slow::start(uid, &path, &peer).unwrap();
        slow.ends()
    });
    let mut sorted = next;
    sorted.sort();
    // Each alone would have 100 ms.
    let median = sorted[PROGRAMS / 2];
    assert!(median < Duration::from_millis(100), "{next:?}");
    assert_eq!(service.violations(), 1 + PROGRAMS as u64);
}

#[test]
fn who_is_trusted_is_waited_for() {
    let _alone = alone();
    for trusted in [Trusted::Own, Trusted::All] {
        let (service, path, peer, uid) = scene(trusted, |_| {});
        let Some(slow) = Slow::start(uid, &path, &peer) else {
            return;
        };
        slow.stays(&service);
    }
}

#[test]
fn other_users_are_trusted_only_where_all_are() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not run: only root can start programs of other users");
    }
    let (service, path, peer, _) = scene(Trusted::All, |_| {});
    let Some(slow) = Slow::start(STRANGER, &path, &peer) else {
        return;
    };
    slow.stays(&service);
    let (service, path, peer, _) = scene(Trusted::Own, |_| {});
    Slow::start(STRANGER, &path, &peer).unwrap().ends();
    assert_eq!(service.violations(), 1);
}

#[test]
fn a_program_counts_as_one_of_its_user_until_the_kernel_lets_its_page_go() {
    let _alone = alone();
    let (service, path, peer, uid) = scene(Trusted::Nobody, |limits| limits.clients_per_user = 1);
    let Some(slow) = Slow::start(uid, &path, &peer) else {
        return;
    };
    let Slow {
        file,
        mut process,
        asking,
        ..
    } = slow;
    asking.end();
    process.kill();
    within(PATIENCE, "it is parted with", || {
        service.clients().is_empty()
    });
    let end = Instant::now() + LATE;
    while Instant::now() < end {
        let refused = Node::attach(&path).unwrap_err().to_string();
        assert!(refused.contains("which is the most"), "{refused}");
        std::thread::sleep(Duration::from_millis(5));
    }
    file.let_go();
    within(PATIENCE, "it counts no more", || {
        Node::attach(&path).is_ok()
    });
}
