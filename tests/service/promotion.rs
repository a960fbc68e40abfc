//! Memory of programs that becomes shared with the service while it is registered.
#![allow(
    unsafe_code,
    reason = "memory of the program's own, children, and users"
)]

use crate::common::{End, PATIENCE, Pair, address, pattern, service, service_of};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::os::unix::process::CommandExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service, Trusted};
use trunkline::{
    Access, AtomicCap, AtomicOp, AttachOptions, Down, Drive, Error, Mr, Node, Pd, Promotion,
    QpOptions, Reregister, SendOp, Status,
};

const PAGE: usize = 4096;
const READ_WRITE: Access = Access::LOCAL_WRITE
    .with(Access::REMOTE_WRITE)
    .with(Access::REMOTE_READ);
/// Names the service that a test which runs as another user attaches to.
const SOCKET: &str = "TRUNKLINE_TEST_SOCKET";

/// Memory of the program, whole pages.
struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is reached as atomics.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> Self {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, rights, flags) }.unwrap();
        let base = NonNull::new(base.cast()).unwrap();
        Self { base, len }
    }

    fn register(&self, pd: &Pd, offset: usize, len: usize, access: Access) -> Mr {
        let base = NonNull::new(self.base.as_ptr().wrapping_add(offset)).unwrap();
        // SAFETY: the regions of these tests end before the memory does, and it is only reached as
        // atomics meanwhile.
        unsafe { pd.register_foreign(base, len, access) }.unwrap()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        let word = self.base.as_ptr().wrapping_add(offset).cast();
        // SAFETY: an aligned word of the memory, which is reached as an atomic.
        unsafe { AtomicU64::from_ptr(word) }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let byte = |at| {
            let word = self.word(at / 8 * 8).load(Ordering::Relaxed);
            word.to_ne_bytes()[at % 8]
        };
        (offset..offset + len).map(byte).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped when it was made.
        unsafe { munmap(self.base.as_ptr().cast(), self.len) }.unwrap();
    }
}

fn attached(path: &str, promotion: Promotion) -> Node {
    Node::attach_with(path, &AttachOptions { promotion }).unwrap()
}

/// Whether this machine lets the process promote memory; where not that is said.
fn may_promote(pd: &Pd) -> bool {
    let memory = Memory::new(PAGE);
    let promotes = memory.register(pd, 0, PAGE, Access::ALL).shared_len() == PAGE;
    if !promotes {
        eprintln!("not run: no userfaultfd is to be had, or the kernel is older than 5.19");
    }
    promotes
}

/// Programs of two services.
fn pair() -> ([Service; 2], Pair) {
    pair_where(Trusted::Own)
}

/// Of services that trust these.
fn pair_where(trusted: Trusted) -> ([Service; 2], Pair) {
    let mut limits = Limits::default();
    limits.trusted = trusted;
    let [near, far] = [0, 1].map(|_| service_of(Node::builder().address(address()), &limits));
    let [a, b] = [&near, &far].map(|(_, path)| End::of(attached(path, Promotion::Auto)));
    ([near.0, far.0], Pair { a, b })
}

#[test]
fn peers_read_and_write_all_of_a_region_whose_whole_pages_are_promoted() {
    read_and_write_all(Trusted::Own);
}

/// What is not promoted goes by a thread of the memory's own.
#[test]
fn so_they_do_where_the_users_of_programs_are_not_trusted() {
    read_and_write_all(Trusted::Nobody);
}

fn read_and_write_all(trusted: Trusted) {
    let (services, pair) = pair_where(trusted);
    if !may_promote(&pair.b.pd) {
        return;
    }
    let (qa, _qb) = pair.qps();
    let memory = Memory::new(40 * PAGE);
    let (offset, len) = (100, 30 * PAGE);
    let own = memory.register(&pair.b.pd, offset, len, READ_WRITE);
    assert_eq!(own.shared_len(), 29 * PAGE);
    let bytes_of_b = || {
        let status = &services[1].clients()[0];
        (status.promoted_bytes, status.foreign_bytes)
    };
    // The service tells of it when it has answered.
    let tells = |bytes| {
        let end = Instant::now() + PATIENCE;
        while bytes_of_b() != bytes && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(bytes_of_b(), bytes);
    };
    tells((29 * PAGE as u64, PAGE as u64));
    // The last byte of the first fragment, whole pages, the first of the last fragment, and all.
    for (number, (at, length)) in [(0, len), (PAGE - 101, 2), (PAGE, PAGE), (len - 200, 150)]
        .into_iter()
        .enumerate()
    {
        let data = pattern(number as u64, length);
        pair.a.mr.write(0, &data).unwrap();
        pair.a
            .post(&qa, 1, SendOp::Write(own.remote(at)), 0, length);
        let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
        assert_eq!(done.status, Status::Success);
        assert!(
            memory.bytes(offset + at, length) == data,
            "{length} at {at}"
        );
        let read = SendOp::Read(own.remote(at));
        pair.a.post(&qa, 2, read, 2 << 20, length);
        let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
        assert_eq!(done.status, Status::Success);
        assert!(pair.a.bytes(2 << 20, length) == data, "{length} at {at}");
    }
    let before = memory.bytes(0, 40 * PAGE);
    drop(own);
    assert!(memory.bytes(0, 40 * PAGE) == before);
    assert!(
        memory.bytes(0, 100).iter().all(|byte| *byte == 0),
        "nothing beside it"
    );
    tells((0, 0));
    assert_eq!(services[1].clients()[0].mrs, 1);
}

#[test]
fn an_atomic_of_a_peer_is_one_towards_the_programs_instructions_on_promoted_pages() {
    const EACH: u64 = 2000;
    let (_services, pair) = pair();
    if !may_promote(&pair.b.pd) {
        return;
    }
    let (qa, _qb) = pair.qps();
    let memory = Memory::new(4 * PAGE);
    let own = memory.register(&pair.b.pd, 0, 4 * PAGE, Access::ALL);
    let (stop, added) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                memory.word(2 * PAGE + 8).fetch_add(1, Ordering::Relaxed);
                added.fetch_add(1, Ordering::Relaxed);
            }
        });
        for wr_id in 0..EACH {
            let add = SendOp::Atomic(own.remote(2 * PAGE + 8), AtomicOp::FetchAdd { add: 1 });
            pair.a.post(&qa, wr_id, add, 0, 8);
            let done = pair.a.send_cq.wait(PATIENCE).unwrap();
            assert_eq!(done.map(|done| done.status), Some(Status::Success));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let added = added.load(Ordering::Relaxed);
    assert!(added > EACH, "the program added meanwhile");
    assert_eq!(
        memory.word(2 * PAGE + 8).load(Ordering::Relaxed),
        added + EACH
    );
}

#[test]
fn no_device_of_a_service_claims_atomics_towards_all_instructions() {
    let (_service, path) = service(Node::builder().address(address()));
    // Pages that a region has in part are never promoted, whatever the program chooses.
    let memory = Memory::new(PAGE);
    for promotion in [Promotion::Never, Promotion::Auto, Promotion::Always] {
        let node = attached(&path, promotion);
        let part = memory.register(&node.alloc_pd(), 8, PAGE - 8, Access::ALL);
        assert_eq!(part.shared_len(), 0, "{promotion:?}");
        let device = node.device_attributes().unwrap();
        assert_eq!(device.atomic_cap, AtomicCap::Hca, "{promotion:?}");
        assert_eq!(device.atomic_cap as u8, 1, "IBV_ATOMIC_HCA");
    }
}

#[test]
fn the_program_chooses_what_is_promoted() {
    let (_service, path) = service(Node::builder().address(address()));
    let memory = Memory::new(8 << 20);
    let shared = |promotion, len, access| {
        let pd = attached(&path, promotion).alloc_pd();
        memory.register(&pd, 0, len, access).shared_len()
    };
    if !may_promote(&attached(&path, Promotion::Auto).alloc_pd()) {
        return;
    }
    assert_eq!(shared(Promotion::Never, 4 << 20, Access::ALL), 0);
    assert_eq!(shared(Promotion::Auto, 4 << 20, READ_WRITE), 4 << 20);
    assert_eq!(shared(Promotion::Auto, 8 << 20, READ_WRITE), 0);
    assert_eq!(shared(Promotion::Auto, 8 << 20, Access::ALL), 8 << 20);
    assert_eq!(shared(Promotion::Always, 8 << 20, READ_WRITE), 8 << 20);
    let inside = Node::builder().address(address()).drive(Drive::Inline);
    let pd = inside.build().unwrap().alloc_pd();
    assert_eq!(memory.register(&pd, 0, PAGE, READ_WRITE).shared_len(), PAGE);
}

#[test]
fn what_has_no_room_in_the_quota_is_registered_as_it_is() {
    let mut limits = Limits::default();
    limits.segment_bytes = 1 << 20;
    let node = Node::builder().address(address()).drive(Drive::Threaded);
    let path = format!("@trunkline-promotion/{}", std::process::id());
    let service = Service::start(node.build().unwrap(), &path, &limits).unwrap();
    let pd = attached(&path, Promotion::Always).alloc_pd();
    if !may_promote(&pd) {
        return;
    }
    let memory = Memory::new(4 << 20);
    let large = memory.register(&pd, 0, 2 << 20, READ_WRITE);
    assert_eq!(large.shared_len(), 0);
    let small = memory.register(&pd, 2 << 20, 512 << 10, READ_WRITE);
    assert_eq!(small.shared_len(), 512 << 10);
    drop((large, small));
    // Bytes that nobody has any more can be had again, over and over.
    for _ in 0..20 {
        let again = memory.register(&pd, 0, 900 << 10, READ_WRITE);
        assert_eq!(again.shared_len(), 900 << 10);
    }
    assert_eq!(service.violations(), 0);
}

#[test]
fn a_region_that_gets_other_memory_lets_go_of_the_old_one() {
    let (_services, pair) = pair();
    if !may_promote(&pair.b.pd) {
        return;
    }
    let (qa, _qb) = pair.qps();
    let memory = Memory::new(16 * PAGE);
    let mut own = memory.register(&pair.b.pd, 0, 4 * PAGE, READ_WRITE);
    let base = NonNull::new(memory.base.as_ptr().wrapping_add(8 * PAGE)).unwrap();
    // SAFETY: as for a new region.
    let change = unsafe { Reregister::new().foreign(base, 8 * PAGE) };
    own.reregister(change).unwrap();
    assert_eq!(own.shared_len(), 8 * PAGE);
    let first = memory.register(&pair.b.pd, 0, 4 * PAGE, READ_WRITE);
    assert_eq!(first.shared_len(), 4 * PAGE, "it is nobody's any more");
    pair.a.mr.write(0, b"new").unwrap();
    pair.a
        .post(&qa, 1, SendOp::Write(own.remote(5 * PAGE)), 0, 3);
    let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
    assert_eq!(done.status, Status::Success);
    assert_eq!(memory.bytes(13 * PAGE, 3), b"new");
    own.reregister(Reregister::new().access(Access::REMOTE_READ | Access::LOCAL_WRITE))
        .unwrap();
    assert_eq!(own.shared_len(), 8 * PAGE);
}

#[test]
fn memory_outlives_the_service_that_shares_it() {
    let (service, path) = service(Node::builder().address(address()));
    let pd = attached(&path, Promotion::Always).alloc_pd();
    if !may_promote(&pd) {
        return;
    }
    let memory = Memory::new(8 * PAGE);
    memory.word(PAGE).store(7, Ordering::Relaxed);
    let own = memory.register(&pd, 0, 8 * PAGE, READ_WRITE);
    drop(service);
    memory.word(2 * PAGE).store(8, Ordering::Relaxed);
    drop(own);
    let words = [PAGE, 2 * PAGE].map(|at| memory.word(at).load(Ordering::Relaxed));
    assert_eq!(words, [7, 8]);
}

#[test]
fn a_child_of_the_program_writes_nothing_that_its_parent_has() {
    let (_service, path) = service(Node::builder().address(address()));
    let pd = attached(&path, Promotion::Always).alloc_pd();
    if !may_promote(&pd) {
        return;
    }
    let memory = Memory::new(8 * PAGE);
    memory.word(PAGE).store(7, Ordering::Relaxed);
    let own = memory.register(&pd, 0, 8 * PAGE, READ_WRITE);
    let lent = pd.register(PAGE, READ_WRITE).unwrap();
    // SAFETY: the child does what follows and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_same = memory.word(PAGE).load(Ordering::Relaxed) == 7;
        memory.word(PAGE).store(8, Ordering::Relaxed);
        let written = [&own, &lent].map(|mr| mr.write(0, &[9]));
        let [Ok(()), Err(Error::Down(Down::Forked))] = written else {
            // SAFETY: the child ends at once.
            unsafe { libc::_exit(2) };
        };
        // SAFETY: as above.
        unsafe { libc::_exit(if is_same { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: room for the status of a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(memory.word(PAGE).load(Ordering::Relaxed), 7);
    assert_eq!(memory.word(0).load(Ordering::Relaxed), 0);
    let mut byte = [1];
    lent.read(0, &mut byte).unwrap();
    assert_eq!(byte, [0]);
}

/// Peers reach them all the same.
#[test]
fn hugepages_are_never_promoted() {
    const HUGE: usize = 2 << 20;
    let (rights, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
    );
    // SAFETY: a new mapping at an address of the system's choice.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), HUGE, rights, flags) };
    let base = match base {
        Ok(base) => NonNull::new(base.cast()).unwrap(),
        Err(error) => return eprintln!("not run: no hugepage is free (vm.nr_hugepages): {error}"),
    };
    let memory = Memory { base, len: HUGE };
    let (_services, pair) = pair();
    if !may_promote(&pair.b.pd) {
        return;
    }
    let (qa, _qb) = pair.qps();
    for (offset, len) in [(0, HUGE), (PAGE, 4 * PAGE)] {
        let own = memory.register(&pair.b.pd, offset, len, Access::ALL);
        assert_eq!(own.shared_len(), 0, "{len} at {offset}");
        pair.a.mr.write(0, b"huge").unwrap();
        pair.a.post(&qa, 1, SendOp::Write(own.remote(0)), 0, 4);
        let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
        assert_eq!(done.status, Status::Success);
        assert_eq!(memory.bytes(offset, 4), b"huge");
    }
}

/// Runs as another user what follows.
#[test]
fn a_service_of_root_lets_other_users_promote_memory() {
    let is_root = rustix::process::geteuid().as_raw() == 0;
    if !is_root || trunkline_dataplane::promotion::open_device().is_err() {
        eprintln!("not run: only root opens /dev/userfaultfd, where there is one");
        return;
    }
    let (_service, path) = service(Node::builder().address(address()));
    let mut program = std::process::Command::new("/proc/self/exe");
    program.args(["--exact", "--nocapture", "promotion::as_another_user"]);
    program.args(["--ignored"]).env(SOCKET, &path);
    let done = program.uid(65534).gid(65534).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success() && said.contains("promoted as user 65534"),
        "{said}"
    );
}

#[test]
#[ignore = "a part of a test of root, which runs it as another user"]
fn as_another_user() {
    let Some(path) = std::env::var_os(SOCKET) else {
        eprintln!("not run: it is part of another test");
        return;
    };
    let memory = Memory::new(8 * PAGE);
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    if allowed.trim() == "0" {
        // A service of this user has nothing to hand out: its programs go on without.
        let (_own, path) = service(Node::builder().address(address()));
        let pd = attached(&path, Promotion::Always).alloc_pd();
        for _ in 0..2 {
            assert_eq!(
                memory.register(&pd, 0, 8 * PAGE, READ_WRITE).shared_len(),
                0
            );
        }
    }
    let end = End::of(Node::attach(std::path::Path::new(&path)).unwrap());
    memory.word(PAGE).store(7, Ordering::Relaxed);
    let own = memory.register(&end.pd, 0, 8 * PAGE, Access::ALL);
    assert_eq!(own.shared_len(), 8 * PAGE);
    // The service, which is another process, has the same pages.
    let qp = end.qp(&QpOptions::default());
    qp.connect(qp.address()).unwrap();
    let add = AtomicOp::FetchAdd { add: 5 };
    end.post(&qp, 1, SendOp::Atomic(own.remote(PAGE), add), 0, 8);
    let done = end.send_cq.wait(PATIENCE).unwrap().unwrap();
    assert_eq!((done.status, end.word(0)), (Status::Success, 7));
    assert_eq!(memory.word(PAGE).load(Ordering::Relaxed), 12);
    println!("promoted as user {}", rustix::process::geteuid().as_raw());
}
