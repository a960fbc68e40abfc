//! The table of GIDs, which has one: the address of the node.

use crate::abi;
use crate::answer::{Errno, INVALID, UNSUPPORTED, code, number};
use crate::context::Context;
use crate::query::{PORT, check_port};
use std::ffi::c_int;

/// The one in the table.
fn gid(context: &Context, port: u32, index: u32) -> Result<[u8; 16], Errno> {
    check_port(port)?;
    if index != 0 {
        return Err(INVALID);
    }
    Ok(context.open.node.gid().0)
}

/// `ibv_query_gid(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    room: *mut [u8; 16],
) -> c_int {
    number(|| {
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        let gid = gid(&context, port.into(), index.cast_unsigned())?;
        // SAFETY: the program gives room for a GID.
        *unsafe { room.as_mut() }.ok_or(INVALID)? = gid;
        Ok(0)
    })
}

/// An entry of the table. The interface is not told, as a node does not say which one it is on.
fn entry(gid: [u8; 16]) -> abi::GidEntry {
    abi::GidEntry {
        gid: abi::AlignedGid(gid),
        gid_index: 0,
        port_num: PORT.into(),
        gid_type: abi::GID_TYPE_ROCE_V2,
        ndev_ifindex: 0,
    }
}

/// `ibv_query_gid_ex(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::Context,
    port: u32,
    index: u32,
    room: *mut abi::GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        check_entries(flags, size)?;
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        let gid = gid(&context, port, index)?;
        // SAFETY: the program gives room for an entry.
        *unsafe { room.as_mut() }.ok_or(INVALID)? = entry(gid);
        Ok(())
    })
}

/// Entries of another size would be of another version of the header than there is.
fn check_entries(flags: u32, size: usize) -> Result<(), Errno> {
    if size != size_of::<abi::GidEntry>() {
        return Err(INVALID);
    }
    if flags != 0 {
        return Err(UNSUPPORTED);
    }
    Ok(())
}

/// `ibv_query_gid_table(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut abi::Context,
    entries: *mut abi::GidEntry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut count = 0;
    let errno = code(|| {
        check_entries(flags, size)?;
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        if max_entries > 0 {
            // SAFETY: the program gives room for so many.
            *unsafe { entries.as_mut() }.ok_or(INVALID)? = entry(context.open.node.gid().0);
            count = 1;
        }
        Ok(())
    });
    // Unlike its siblings this one has the error in its answer, negated.
    if errno == 0 { count } else { -(errno as isize) }
}

/// The type of a GID as a file under /sys says it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut abi::Context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    number(|| {
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        gid(&context, port.into(), index)?;
        // SAFETY: the program gives room for the type.
        *unsafe { kind.as_mut() }.ok_or(INVALID)? = abi::GID_TYPE_SYSFS_ROCE_V2;
        Ok(0)
    })
}
