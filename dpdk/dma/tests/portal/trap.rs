//! MOVDIR64B to a portal, on any CPU.
//!
//! The portal is a page that cannot be written, so that the instruction is a signal: of an illegal
//! instruction where the CPU has none such, else of the bus. The handler does what a device does:
//! it takes the 64 bytes into a queue. None is lost, as would happen in a page of memory that is
//! written again before it was read.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};

/// MOVDIR64B from where rdx points to where rax does.
const MOVDIR64B: [u8; 5] = [0x66, 0x0f, 0x38, 0xf8, 0x02];
/// Descriptors that the queue has room for.
const ROOM: usize = 64;

/// What a program submits: 64 bytes.
pub(crate) type Descriptor = [u64; 8];

struct Queue {
    places: [UnsafeCell<Descriptor>; ROOM],
    /// How many were put in, and taken out.
    put: AtomicUsize,
    taken: AtomicUsize,
}

// SAFETY: one thread puts in, one takes out; a place is whose turn it is by the two counts.
unsafe impl Sync for Queue {}

static QUEUE: Queue = Queue {
    places: [const { UnsafeCell::new([0; 8]) }; ROOM],
    put: AtomicUsize::new(0),
    taken: AtomicUsize::new(0),
};

impl Queue {
    fn put(&self, descriptor: Descriptor) {
        let put = self.put.load(Ordering::Relaxed);
        while put - self.taken.load(Ordering::Acquire) >= ROOM {
            spin_loop();
        }
        // SAFETY: it was taken out, or never had one, and nobody else puts in.
        unsafe { self.places[put % ROOM].get().write(descriptor) };
        self.put.store(put + 1, Ordering::Release);
    }
}

/// The next descriptor that was submitted. One thread may ask.
pub(crate) fn take() -> Option<Descriptor> {
    let taken = QUEUE.taken.load(Ordering::Relaxed);
    if taken == QUEUE.put.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: it was put in, and nobody else takes out.
    let descriptor = unsafe { QUEUE.places[taken % ROOM].get().read() };
    QUEUE.taken.store(taken + 1, Ordering::Release);
    Some(descriptor)
}

/// From now on portals of this process take descriptors into the queue, from one thread.
pub(crate) fn install() {
    // SAFETY: all zeros are an action without a mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_signal;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    for signal in [libc::SIGILL, libc::SIGBUS] {
        // SAFETY: the handler does nothing that a signal may not.
        let code = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        assert_eq!(code, 0);
    }
}

extern "C" fn on_signal(signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel gives a context, which is the handler's while it runs.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let instruction = std::ptr::with_exposed_provenance::<[u8; 5]>(at);
    // SAFETY: the instruction that was to run is readable for as long as it is, and no instruction
    // of the driver is the last of its page.
    if unsafe { instruction.read() } != MOVDIR64B {
        // SAFETY: concerns this signal alone: it comes again and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    let source = registers[libc::REG_RDX as usize] as usize;
    let source = std::ptr::with_exposed_provenance::<Descriptor>(source);
    // SAFETY: what the instruction would have read.
    QUEUE.put(unsafe { source.read_unaligned() });
    registers[libc::REG_RIP as usize] += MOVDIR64B.len() as i64;
}
