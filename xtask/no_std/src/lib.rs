//! A static library without `std`. That it builds is all it is for.
#![no_std]

extern crate trunkline_cm as _;
extern crate trunkline_conn as _;
extern crate trunkline_wire as _;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr::null_mut;

/// `alloc` may be linked, so an allocator must be there; nobody calls it.
struct Nothing;

// SAFETY: null is always allowed as an answer, and what was never given out is never given back.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Nothing = Nothing;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
