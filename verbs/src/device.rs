//! The list of devices, which has one or none, and what is asked of a device before it is opened.

use crate::abi;
use crate::answer::{Errno, INVALID, pointer};
use crate::node;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// What it is called, in a list and in a file system.
const NAME: &CStr = c"trunk0";
const DEV_NAME: &CStr = c"uverbs0";
const DEV_PATH: &CStr = c"/sys/class/infiniband_verbs/uverbs0";
const IBDEV_PATH: &CStr = c"/sys/class/infiniband/trunk0";

/// The device. Libraries for other hardware look for a pointer of their own behind the structure of
/// the header, and find NULL.
#[repr(C)]
struct Device {
    abi: UnsafeCell<abi::Device>,
    behind: [usize; 32],
}

// SAFETY: nobody writes to it after it was made.
unsafe impl Sync for Device {}
// SAFETY: it belongs to no thread.
unsafe impl Send for Device {}

/// Copies a text into an array that is large enough for it and the zero behind it.
fn text<const N: usize>(text: &CStr) -> [c_char; N] {
    let bytes = text.to_bytes_with_nul();
    assert!(bytes.len() <= N, "the names above fit");
    let mut room = [0; N];
    for (place, byte) in room.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    room
}

/// The one device that there is. It is never freed, so any pointer to it stays valid.
pub(crate) fn the_one() -> *mut abi::Device {
    static ONE: OnceLock<Device> = OnceLock::new();
    let device = ONE.get_or_init(|| Device {
        abi: UnsafeCell::new(abi::Device {
            _ops: [None; 2],
            node_type: abi::NODE_CA,
            transport_type: abi::TRANSPORT_IB,
            name: text(NAME),
            dev_name: text(DEV_NAME),
            dev_path: text(DEV_PATH),
            ibdev_path: text(IBDEV_PATH),
        }),
        behind: [0; 32],
    });
    debug_assert_eq!(device.behind, [0; 32], "nobody writes there");
    device.abi.get()
}

/// `ibv_get_device_list(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    pointer(|| {
        let is_there = node::is_there()?;
        // SAFETY: two pointers are asked for, which are NULL.
        let list = unsafe { libc::calloc(2, size_of::<*mut abi::Device>()) };
        let list = list.cast::<*mut abi::Device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        if is_there {
            // SAFETY: there is room for two.
            unsafe { list.write(the_one()) };
        }
        if !count.is_null() {
            // SAFETY: the program gives a place for the number, or NULL.
            unsafe { count.write(is_there.into()) };
        }
        Ok(list)
    })
}

/// `ibv_free_device_list(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: `ibv_get_device_list` allocated it so.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut abi::Device) -> *const c_char {
    if device.is_null() {
        INVALID.set();
        return ptr::null();
    }
    // SAFETY: the program gives a device of the list.
    unsafe { &raw const (*device).name }.cast()
}

/// `ibv_get_device_guid(3)`, in network byte order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(_device: *mut abi::Device) -> u64 {
    match node::guid() {
        Ok(Some(guid)) => guid.to_be(),
        _ => 0,
    }
}

/// `ibv_get_device_index(3)`: the kernel numbers its devices, and this is none of them.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(_device: *mut abi::Device) -> c_int {
    -1
}

/// `ibv_fork_init(3)`: a child has copies of the program's pages, and none of the node.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`: `IBV_FORK_UNNEEDED`. No hardware holds physical pages.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// Marks a range that children are not to get: not needed here.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Takes the mark away again.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
