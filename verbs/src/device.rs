//! The list of devices, and what is asked of a device before it is opened.

use crate::abi;
use crate::answer::{Errno, INVALID, pointer};
use crate::node::{self, MAX_DEVICES};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// What devices are called, in a list and in a file system; their numbers follow.
const NAME: &str = "trunk";
const DEV_NAME: &str = "uverbs";
const DEV_PATH: &str = "/sys/class/infiniband_verbs/uverbs";
const IBDEV_PATH: &str = "/sys/class/infiniband/trunk";

/// A device. Libraries for other hardware look for a pointer of their own behind the structure of
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

/// A name with a number behind it, and the zero that ends it.
fn text<const N: usize>(name: &str, number: usize) -> [c_char; N] {
    let text = format!("{name}{number}");
    assert!(text.len() < N, "the names above fit");
    let mut room = [0; N];
    for (place, byte) in room.iter_mut().zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    room
}

/// All devices that there can be. They are never freed, so any pointer to one stays valid.
fn all() -> &'static [Device; MAX_DEVICES] {
    static ALL: OnceLock<[Device; MAX_DEVICES]> = OnceLock::new();
    ALL.get_or_init(|| {
        std::array::from_fn(|number| Device {
            abi: UnsafeCell::new(abi::Device {
                _ops: [None; 2],
                node_type: abi::NODE_CA,
                transport_type: abi::TRANSPORT_IB,
                name: text(NAME, number),
                dev_name: text(DEV_NAME, number),
                dev_path: text(DEV_PATH, number),
                ibdev_path: text(IBDEV_PATH, number),
            }),
            behind: [0; 32],
        })
    })
}

/// The pointer that programs have of the device of that number.
pub(crate) fn numbered(number: usize) -> *mut abi::Device {
    let device = &all()[number];
    debug_assert_eq!(device.behind, [0; 32], "nobody writes there");
    device.abi.get()
}

/// The number of a device.
///
/// # Errors
/// EINVAL: it is none.
pub(crate) fn number(device: *mut abi::Device) -> Result<usize, Errno> {
    let found = all().iter().position(|one| one.abi.get() == device);
    found.ok_or(INVALID)
}

/// `ibv_get_device_list(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    pointer(|| {
        let found = node::count()?;
        // SAFETY: pointers are asked for, one more than there are devices, which are NULL.
        let list = unsafe { libc::calloc(found + 1, size_of::<*mut abi::Device>()) };
        let list = list.cast::<*mut abi::Device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: there is room for as many, and all are NULL.
        let devices = unsafe { std::slice::from_raw_parts_mut(list, found) };
        for (number, device) in devices.iter_mut().enumerate() {
            *device = numbered(number);
        }
        if !count.is_null() {
            // SAFETY: the program gives a place for the number, or NULL.
            unsafe { count.write(found as c_int) };
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
unsafe extern "C" fn ibv_get_device_guid(device: *mut abi::Device) -> u64 {
    let guid = number(device).and_then(node::guid);
    guid.map_or(0, u64::to_be)
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
