//! Threads that DPDK knows: for those its pools keep some frames at hand.

use trunkline_dpdk_sys as sys;

/// This thread's number among those that DPDK knows.
struct Known(bool);

impl Drop for Known {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: it is registered, and the environment stays.
            unsafe { sys::trunkline_thread_unregister() };
        }
    }
}

thread_local! {
    // SAFETY: only devices ask, and there is none before the environment is set up.
    static KNOWN: Known = Known(unsafe { sys::trunkline_thread_register() } == 0);
}

/// Makes this thread known to DPDK. Where it knows as many as it can all works, but slower.
#[inline]
pub fn enter() {
    let _ = KNOWN.try_with(|_| ());
}
