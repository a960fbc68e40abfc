//! Engines of DPDK that copy memory (dmadev), by a shim in C (`c/dma.c`).

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// Most copies that a device has at once, which is also the most of a poll.
pub const DEPTH: usize = 255;

/// What there is to know of a device (`struct trunkline_dma_info`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct DmaInfo {
    /// Most copies that it takes before they are polled.
    pub depth: u16,
    /// 1: it takes the addresses of this process as they are.
    pub takes_any_address: u8,
    /// 1: it copies from memory to memory.
    pub copies: u8,
    /// 1: it tells of copies that failed.
    pub tells_errors: u8,
}

// As c/dma.c has them.
const _: () = assert!(size_of::<DmaInfo>() == 6 && offset_of!(DmaInfo, copies) == 3);

unsafe extern "C" {
    /// Adds the device that `devargs` say.
    ///
    /// # Safety
    /// `devargs` is a text that ends with a zero; the environment is set up.
    pub fn trunkline_dma_add(devargs: *const c_char) -> c_int;

    /// The number of the device of that name.
    ///
    /// # Safety
    /// `name` is a text that ends with a zero; the environment is set up.
    pub fn trunkline_dma_find(name: *const c_char) -> c_int;

    /// What there is to know of a device.
    ///
    /// # Safety
    /// The environment is set up, and `info` has room for one.
    pub fn trunkline_dma_info(device: i16, info: *mut DmaInfo) -> c_int;

    /// Configures a device for [`DEPTH`] copies, and starts it.
    ///
    /// # Safety
    /// The environment is set up, and nobody uses the device.
    pub fn trunkline_dma_start(device: i16) -> c_int;

    /// Stops and closes a device, which is gone then. `added` is its name if it is a virtual device
    /// that was added, else null.
    ///
    /// # Safety
    /// Nobody uses it, nor will, and it has no copy that is not over. `added` is null or a text
    /// that ends with a zero.
    pub fn trunkline_dma_close(device: i16, added: *const c_char) -> c_int;

    /// Hands a copy to a device, which may begin it at the next kick. Gives a number of 0 or more;
    /// -ENOSPC: it has no room.
    ///
    /// # Safety
    /// The device is started, and no other thread uses it. Until the copy is polled `from` is
    /// readable and `to` writable for `length` bytes, they do not overlap, and no reference to
    /// the bytes at `to` is used.
    pub fn trunkline_dma_copy(
        device: i16,
        from: *const c_void,
        to: *mut c_void,
        length: u32,
    ) -> c_int;

    /// Has a device begin the copies that it was handed.
    ///
    /// # Safety
    /// The device is started, and no other thread uses it.
    pub fn trunkline_dma_kick(device: i16) -> c_int;

    /// Takes the copies that are over, in the order in which they were handed in; gives how many.
    /// `failed` says of each whether it failed (1) or not (0).
    ///
    /// # Safety
    /// The device is started, no other thread uses it, and `failed` has room for [`DEPTH`].
    pub fn trunkline_dma_poll(device: i16, failed: *mut u8) -> u16;
}
