//! Memory that is registered and does not come: files that become shorter meanwhile, where a
//! program that touches what is behind their end gets SIGBUS, and its service does not; and pages
//! that a userfaultfd of the program has to bring.

use super::peers::{Neighbour, Peer};
use super::roles::ROOM;
use super::{alone, within};
use crate::common::{PATIENCE, address, service_of, wait_for};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Trusted};
use trunkline::{Access, AttachOptions, Cq, Mr, Node, Promotion, Qp, RecvWr, SendWr, Status};

const HALF: usize = ROOM / 2;

/// A file without a name that is mapped whole, and stays so whatever its length is.
struct Mapped {
    file: File,
    start: NonNull<u8>,
}

impl Mapped {
    fn new(sharing: i32) -> Self {
        let file = File::from(memfd_create(c"truncated", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(ROOM as u64).unwrap();
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        let fd = if sharing & libc::MAP_ANONYMOUS == 0 {
            fd
        } else {
            -1
        };
        // SAFETY: it is new memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), ROOM, protection, sharing, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let start = NonNull::new(at.cast()).unwrap();
        Self { file, start }
    }

    fn register(&self, end: &Peer) -> Mr {
        // SAFETY: nobody but the service looks at it; that has to bear that it is not there.
        let mr = unsafe { end.pd.register_foreign(self.start, ROOM, Access::ALL) }.unwrap();
        assert_eq!(mr.shared_len(), 0, "it is not promoted");
        mr
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped when this was made.
        unsafe { libc::munmap(self.start.as_ptr().cast(), ROOM) };
    }
}

/// Who needs the memory, and for what.
#[derive(Clone, Copy, Debug)]
enum Use {
    PeerWrites,
    PeerReads,
    PeerSends,
    ProgramSends,
}

type Ends = [(Qp, Cq); 2];

/// A QP of the peer and one of the program.
fn connect(peer: &Peer, end: &Peer) -> Ends {
    let ends = [peer.qp(), end.qp()];
    ends[0].0.connect(ends[1].0.address()).unwrap();
    ends[1].0.connect(ends[0].0.address()).unwrap();
    ends
}

impl Use {
    /// Has bytes of the region carried, and gives the CQ at which that completes.
    fn post<'a>(self, ends: &'a Ends, peer: &Peer, mr: &Mr, length: usize) -> &'a Cq {
        let [(of_peer, peer_cq), (of_end, end_cq)] = ends;
        let (theirs, own) = ([peer.mr.sge(0, length)], [mr.sge(0, length)]);
        let (from, cq, request) = match self {
            Self::PeerWrites => (of_peer, peer_cq, SendWr::write(mr.remote(0)).sges(&theirs)),
            Self::PeerReads => (of_peer, peer_cq, SendWr::read(mr.remote(0)).sges(&theirs)),
            Self::PeerSends => {
                of_end.post_recv(&[RecvWr::new().sges(&own)]).unwrap();
                (of_peer, peer_cq, SendWr::send().sges(&theirs))
            }
            Self::ProgramSends => {
                of_peer.post_recv(&[RecvWr::new().sges(&theirs)]).unwrap();
                (of_end, end_cq, SendWr::send().sges(&own))
            }
        };
        from.post_send(&[request.signaled()]).unwrap();
        cq
    }

    /// What who asked for it hears.
    const fn error(self) -> Status {
        match self {
            Self::PeerWrites | Self::PeerReads => Status::RemoteAccess,
            Self::PeerSends => Status::RemoteOperation,
            Self::ProgramSends => Status::LocalProtection,
        }
    }
}

fn truncate(how: Use, sharing: i32, promotion: Promotion, trusted: Trusted) {
    let _alone = alone();
    let mut limits = Limits::default();
    limits.trusted = trusted;
    let (service, path) = service_of(Node::builder().address(address()).workers(2), &limits);
    let peer = Peer::new();
    let options = AttachOptions { promotion };
    let end = Peer::of(Node::attach_with(&path, &options).unwrap());
    let neighbour = Neighbour::start(&path, &peer);
    let mapped = Mapped::new(sharing);
    let mr = mapped.register(&end);
    let (under_way, half) = (connect(&peer, &end), connect(&peer, &end));
    let done = wait_for(how.post(&under_way, &peer, &mr, ROOM));
    assert_eq!(done.status, Status::Success);
    // What is there still is used as before.
    mapped.file.set_len(HALF as u64).unwrap();
    let done = wait_for(how.post(&half, &peer, &mr, HALF));
    assert_eq!(done.status, Status::Success, "{how:?}");
    mapped.file.set_len(ROOM as u64).unwrap();
    // Some are done before it is gone.
    for _ in 0..8 {
        how.post(&under_way, &peer, &mr, ROOM);
    }
    mapped.file.set_len(0).unwrap();
    let cq = how.post(&under_way, &peer, &mr, ROOM);
    let statuses: Vec<_> = (0..9).map(|_| wait_for(cq).status).collect();
    let first = statuses.iter().find(|status| **status != Status::Success);
    println!("{how:?}, {trusted:?}: {statuses:?}");
    assert_eq!(first, Some(&how.error()), "{how:?}: {statuses:?}");
    // A QP of the same program needs none of it.
    let of_other = Use::PeerWrites.post(&half, &peer, &end.mr, 64);
    let done = wait_for(of_other);
    assert_eq!(done.status, Status::Success);
    // The region is one still, and has bytes once the file has.
    mapped.file.set_len(ROOM as u64).unwrap();
    let again = connect(&peer, &end);
    let done = wait_for(how.post(&again, &peer, &mr, ROOM));
    assert_eq!(done.status, Status::Success, "{how:?}");
    let told = service.node().counters().nak_sent > 0;
    assert_eq!(told, !matches!(how, Use::ProgramSends), "{how:?}");
    let _beside = neighbour.stop();
    assert!(service.node().health().down.is_none());
    assert_eq!(service.violations(), 0);
    within(Duration::from_secs(1), "both are here", || {
        service.clients().len() == 2
    });
}

const ALL: [Use; 4] = [
    Use::PeerWrites,
    Use::PeerReads,
    Use::PeerSends,
    Use::ProgramSends,
];

#[test]
fn a_file_that_is_truncated_while_it_is_used_ends_that_qp_alone() {
    for how in ALL {
        truncate(how, libc::MAP_SHARED, Promotion::Auto, Trusted::Own);
    }
}

#[test]
fn so_it_does_where_a_thread_of_the_program_s_own_reaches_it() {
    for how in ALL {
        truncate(how, libc::MAP_SHARED, Promotion::Auto, Trusted::Nobody);
    }
}

/// Nor are private copies of a file promoted, as there is none of a page that nobody wrote to.
#[test]
fn so_it_does_whatever_the_program_would_have_promoted() {
    for sharing in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        truncate(Use::PeerReads, sharing, Promotion::Always, Trusted::Own);
    }
}

/// Has a new userfaultfd bring all pages of some memory; nothing: there is none to be had.
fn faults_of(start: NonNull<u8>) -> Option<OwnedFd> {
    // SAFETY: a system call that makes a descriptor.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if made < 0 {
        let error = std::io::Error::last_os_error();
        eprintln!("not run: userfaultfd(2): {error}");
        return None;
    }
    // SAFETY: it was made just now, and nobody else has it.
    let faults = unsafe { OwnedFd::from_raw_fd(made.try_into().unwrap()) };
    let mut api = [0xAA_u64, 0, 0];
    // SAFETY: UFFDIO_API reads and writes three words.
    let asked = unsafe { libc::ioctl(faults.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()) };
    let mut range = [start.as_ptr().addr() as u64, ROOM as u64, 1, 0];
    // SAFETY: UFFDIO_REGISTER reads and writes four words.
    let watched = unsafe { libc::ioctl(faults.as_raw_fd(), 0xC020_AA00, range.as_mut_ptr()) };
    assert_eq!((asked, watched), (0, 0));
    Some(faults)
}

#[test]
fn a_page_that_the_programs_own_userfaultfd_has_to_bring_fails_at_once() {
    let _alone = alone();
    for trusted in [Trusted::Own, Trusted::Nobody] {
        let mut limits = Limits::default();
        limits.trusted = trusted;
        let (service, path) = service_of(Node::builder().address(address()), &limits);
        let peer = Peer::new();
        let promotion = Promotion::Never;
        let end = Peer::of(Node::attach_with(&path, &AttachOptions { promotion }).unwrap());
        let neighbour = Neighbour::start(&path, &peer);
        let mapped = Mapped::new(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let Some(faults) = faults_of(mapped.start) else {
            return;
        };
        let mr = mapped.register(&end);
        for how in ALL {
            let ends = connect(&peer, &end);
            let began = Instant::now();
            let done = wait_for(how.post(&ends, &peer, &mr, ROOM));
            assert_eq!(done.status, how.error(), "{how:?}");
            assert!(began.elapsed() < PATIENCE / 3, "nobody waits for it");
        }
        // The program brings no pages by itself any more.
        drop(faults);
        for how in ALL {
            let done = wait_for(how.post(&connect(&peer, &end), &peer, &mr, ROOM));
            assert_eq!(done.status, Status::Success, "{how:?}");
        }
        let _beside = neighbour.stop();
        assert_eq!(service.violations(), 0);
    }
}
