//! What Trunkline calls of DPDK: a shim in C (`c/shim.c`), declared for Rust.
//!
//! Much of DPDK is inline functions and bit fields, which only a C compiler can read. The shim's
//! calls take whole bursts, so that one call more does not count.
//!
//! What can fail gives 0 or more, or a negative errno, which [`trunkline_error`] has a text for.

pub mod dma;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// Most frames of a call.
pub const BURST: usize = 64;
/// Most bytes of the name of a driver, its zero included.
pub const NAME: usize = 32;

/// Frames are allocated from one (`struct rte_mempool`).
#[derive(Debug)]
#[repr(C)]
pub struct Pool {
    private: [u8; 0],
}

/// A queue of frames between two ports (`struct rte_ring`).
#[derive(Debug)]
#[repr(C)]
pub struct Ring {
    private: [u8; 0],
}

/// A frame in memory of DPDK (`struct trunkline_frame`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Frame {
    /// Its mbuf.
    pub mbuf: *mut c_void,
    /// Its first byte.
    pub data: *mut u8,
    /// Bytes that it has.
    pub length: u32,
    /// Of one to send: bytes that there is room for. Of one that came: 1 if its end is missing
    /// from `data`, else 0.
    pub room_or_cut: u32,
}

impl Frame {
    /// No frame.
    pub const NONE: Self = Self {
        mbuf: std::ptr::null_mut(),
        data: std::ptr::null_mut(),
        length: 0,
        room_or_cut: 0,
    };
}

/// What there is to know of a port (`struct trunkline_info`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Info {
    /// Hash functions that spread what comes over queues (`RTE_ETH_RSS_*`).
    pub rss: u64,
    /// Index of the interface of the kernel that it is on; 0: none.
    pub if_index: u32,
    /// Bytes of the longest frame that it can be configured for.
    pub max_frame: u32,
    /// Smallest MTU that it takes.
    pub min_mtu: u16,
    /// Largest MTU that it takes.
    pub max_mtu: u16,
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Most send queues.
    pub max_tx_queues: u16,
    /// Its MTU.
    pub mtu: u16,
    /// Its address of the link.
    pub mac: [u8; 6],
    /// The name of its driver, up to a zero.
    pub driver: [u8; NAME],
}

/// How the link of a port is (`struct trunkline_link`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Link {
    /// In Mb/s; 0: it is not known.
    pub rate: u32,
    /// 1: it works, 0: it does not.
    pub is_up: u32,
}

// As c/shim.c has them.
const _: () = assert!(size_of::<Frame>() == 24 && offset_of!(Frame, length) == 16);
const _: () = assert!(size_of::<Info>() == 64 && offset_of!(Info, mac) == 26);
const _: () = assert!(offset_of!(Info, driver) == 32 && size_of::<Link>() == 8);

unsafe extern "C" {
    /// The version of DPDK, as "DPDK 22.11.11".
    pub safe fn trunkline_version() -> *const c_char;

    /// The text of a positive errno. It is valid until the next call of this thread.
    pub safe fn trunkline_error(code: c_int) -> *const c_char;

    /// From now on keeps what DPDK logs, instead of writing it to standard error.
    pub safe fn trunkline_keep_log() -> c_int;

    /// Takes out what was logged, the end of it if there is more than room; gives its bytes.
    ///
    /// # Safety
    /// `to` has room for `room` bytes.
    pub fn trunkline_log(to: *mut c_char, room: usize) -> usize;

    /// Sets up the environment of DPDK, once per process (`rte_eal_init`). It may end the process.
    ///
    /// # Safety
    /// `argv` are `argc` texts and a null pointer, all of which may be written to, and live as long
    /// as the process.
    pub fn trunkline_init(argc: c_int, argv: *mut *mut c_char) -> c_int;

    /// Gives back what the environment has. Nothing may be called after it.
    ///
    /// # Safety
    /// The environment is set up, and nobody uses it.
    pub fn trunkline_cleanup() -> c_int;

    /// The folder that the environment made for its files.
    ///
    /// # Safety
    /// The environment is set up.
    pub fn trunkline_runtime_dir() -> *const c_char;

    /// Gives this thread a number, by which pools keep frames for it. -EEXIST: it has one.
    ///
    /// # Safety
    /// The environment is set up.
    pub fn trunkline_thread_register() -> c_int;

    /// Gives the number of this thread back.
    ///
    /// # Safety
    /// The thread is registered, and the environment set up.
    pub fn trunkline_thread_unregister();

    /// Adds the device that `devargs` say, which is called `name`; gives its port.
    ///
    /// # Safety
    /// Both are texts that end with a zero, `port` has room for one; the environment is set up.
    pub fn trunkline_add(devargs: *const c_char, name: *const c_char, port: *mut u16) -> c_int;

    /// Makes a port that receives from some rings and sends to as many.
    ///
    /// # Safety
    /// `rx` and `tx` are `count` rings each, which live until the port is removed.
    pub fn trunkline_join_rings(
        name: *const c_char,
        rx: *mut *mut Ring,
        tx: *mut *mut Ring,
        count: c_uint,
        port: *mut u16,
    ) -> c_int;

    /// What there is to know of a port.
    ///
    /// # Safety
    /// The environment is set up, and `info` has room for one.
    pub fn trunkline_info(port: u16, info: *mut Info) -> c_int;

    /// Says how many queues a port has each way, and its MTU.
    ///
    /// # Safety
    /// The environment is set up, and nobody uses the port.
    pub fn trunkline_configure(port: u16, queues: u16, mtu: u32) -> c_int;

    /// Sets up a queue each way, with room for about so many frames.
    ///
    /// # Safety
    /// The port is configured, and `pool` lives until it is removed.
    pub fn trunkline_add_queue(port: u16, queue: u16, frames: u16, pool: *mut Pool) -> c_int;

    /// Frames go and come from now on.
    ///
    /// # Safety
    /// All queues of the port are set up.
    pub fn trunkline_start(port: u16) -> c_int;

    /// Stops a port, if it was started, and starts it again.
    ///
    /// # Safety
    /// All its queues are set up, and nobody uses them meanwhile.
    pub fn trunkline_restart(port: u16) -> c_int;

    /// Stops and closes a port, and removes its device.
    ///
    /// # Safety
    /// Nobody uses the port, nor will.
    pub fn trunkline_remove(port: u16) -> c_int;

    /// Gives a port another address of the link.
    ///
    /// # Safety
    /// The environment is set up, and `mac` are six bytes.
    pub fn trunkline_set_mac(port: u16, mac: *const u8) -> c_int;

    /// Takes in what goes to groups, as questions of Neighbor Discovery do.
    ///
    /// # Safety
    /// The environment is set up.
    pub fn trunkline_hear_multicast(port: u16) -> c_int;

    /// How the link of a port is.
    ///
    /// # Safety
    /// The environment is set up, and `link` has room for one.
    pub fn trunkline_link(port: u16, link: *mut Link) -> c_int;

    /// Frames that came to a port and found no room.
    ///
    /// # Safety
    /// The environment is set up, and `missed` has room for one.
    pub fn trunkline_missed(port: u16, missed: *mut u64) -> c_int;

    /// A pool of so many frames with room for so many bytes; null and an error if there is no
    /// memory for it.
    ///
    /// # Safety
    /// `name` is a text that ends with a zero, `error` has room for one; the environment is set up.
    pub fn trunkline_pool(
        name: *const c_char,
        frames: c_uint,
        room: u16,
        error: *mut c_int,
    ) -> *mut Pool;

    /// Frees a pool with all its frames.
    ///
    /// # Safety
    /// Nobody uses it or one of its frames any more.
    pub fn trunkline_pool_free(pool: *mut Pool);

    /// How many frames of a pool nobody has.
    ///
    /// # Safety
    /// The pool lives.
    pub fn trunkline_pool_free_frames(pool: *const Pool) -> c_uint;

    /// A ring for so many frames, for one thread at each end; null and an error if there is no
    /// memory for it.
    ///
    /// # Safety
    /// `name` is a text that ends with a zero, `error` has room for one; the environment is set up.
    pub fn trunkline_ring(name: *const c_char, frames: c_uint, error: *mut c_int) -> *mut Ring;

    /// Frees a ring.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub fn trunkline_ring_free(ring: *mut Ring);

    /// Takes up to `count` frames out of a queue, [`BURST`] at most; gives how many.
    ///
    /// # Safety
    /// The port is started, no other thread receives from this queue, and `frames` has room for
    /// `count`.
    pub fn trunkline_receive(port: u16, queue: u16, frames: *mut Frame, count: u16) -> u16;

    /// Allocates `count` frames, [`BURST`] at most: all, or none.
    ///
    /// # Safety
    /// The pool lives, and `frames` has room for `count`.
    pub fn trunkline_allocate(pool: *mut Pool, frames: *mut Frame, count: u16) -> c_int;

    /// Sends up to `count` frames, [`BURST`] at most; gives how many the driver took, which are no
    /// longer the caller's.
    ///
    /// # Safety
    /// The port is started, no other thread sends to this queue, and `frames` are `count` frames of
    /// the caller whose length is at most their room.
    pub fn trunkline_send(port: u16, queue: u16, frames: *const Frame, count: u16) -> u16;

    /// Frees `count` frames, [`BURST`] at most.
    ///
    /// # Safety
    /// They are the caller's, and nobody uses them any more.
    pub fn trunkline_free(frames: *const Frame, count: u16);
}
