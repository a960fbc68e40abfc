//! What the device and its port are like.

use crate::abi;
use crate::abi::{device_cap, port_cap};
use crate::answer::{Errno, INVALID, code};
use crate::context::Context;
use std::ffi::{c_char, c_int};
use std::mem::{offset_of, zeroed};
use std::ptr;
use trunkline::{Attributes, DeviceAttributes, PortAttributes, PortState, TICK_BITS, TICK_HZ};

/// READs and atomics of a peer at a time that the device says each QP takes: what devices commonly
/// do. Programs hand this number to their peer, whose device refuses one beyond its own. A program
/// that asks for more gets it.
const TOLD_RD_ATOM: u8 = 16;

/// The only port.
pub(crate) const PORT: u8 = 1;
/// Bytes of `struct ibv_port_attr` in programs that reach it by its symbol.
const OLD_PORT_ATTR: usize = offset_of!(abi::PortAttr, port_cap_flags2);
const _: () = assert!(OLD_PORT_ATTR == 48);

/// Checks the number of a port.
///
/// # Errors
/// EINVAL: there is one, with number 1.
pub(crate) fn check_port(port: u32) -> Result<(), Errno> {
    if port != u32::from(PORT) {
        return Err(INVALID);
    }
    Ok(())
}

/// A maximum as verbs say it.
fn most(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

fn device_attr(device: &DeviceAttributes) -> abi::DeviceAttr {
    // SAFETY: its fields are integers, which may be zero. Zero is right for what there is none of.
    let mut attr: abi::DeviceAttr = unsafe { zeroed() };
    let version = device.fw_ver.bytes().take(attr.fw_ver.len() - 1);
    for (place, byte) in attr.fw_ver.iter_mut().zip(version) {
        *place = byte as c_char;
    }
    attr.node_guid = device.node_guid.to_be_bytes();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = device.max_mr_size;
    attr.page_size_cap = device.page_size_cap;
    attr.max_qp = most(device.max_qp);
    attr.max_qp_wr = most(device.max_qp_wr);
    attr.device_cap_flags = device_cap::CURR_QP_STATE_MOD
        | device_cap::PORT_ACTIVE_EVENT
        | device_cap::SYS_IMAGE_GUID
        | device_cap::RC_RNR_NAK_GEN
        | device_cap::SRQ_RESIZE
        | device_cap::MEM_WINDOW
        | device_cap::MEM_MGT_EXTENSIONS
        | device_cap::MEM_WINDOW_TYPE_2B;
    attr.max_sge = most(device.max_sge);
    attr.max_sge_rd = attr.max_sge;
    attr.max_cq = most(device.max_cq);
    attr.max_cqe = most(device.max_cqe);
    attr.max_mr = most(device.max_mr);
    attr.max_mw = attr.max_mr;
    attr.max_pd = most(device.max_pd);
    attr.max_qp_rd_atom = device.max_qp_rd_atom.min(TOLD_RD_ATOM).into();
    attr.max_qp_init_rd_atom = device.max_qp_init_rd_atom.into();
    attr.max_res_rd_atom = most(device.max_res_rd_atom);
    attr.atomic_cap = device.atomic_cap as u32;
    attr.max_ah = c_int::MAX;
    attr.max_srq = most(device.max_srq);
    attr.max_srq_wr = most(device.max_srq_wr);
    attr.max_srq_sge = most(device.max_srq_sge);
    attr.max_pkeys = device.max_pkeys;
    attr.phys_port_cnt = device.phys_port_cnt;
    attr
}

/// `enum ibv_mtu` of a path MTU in bytes.
pub(crate) fn mtu(bytes: u16) -> u32 {
    let all = Attributes::PATH_MTUS;
    let below = all.iter().take_while(|mtu| **mtu < bytes).count();
    below.min(all.len() - 1) as u32 + 1
}

fn port_attr(port: &PortAttributes) -> abi::PortAttr {
    let is_up = port.state == PortState::Active;
    // SAFETY: its fields are integers, which may be zero. Zero is right for what a subnet manager
    // would have given: there is none.
    let mut attr: abi::PortAttr = unsafe { zeroed() };
    attr.state = port.state as u32;
    attr.max_mtu = mtu(port.max_mtu);
    attr.active_mtu = mtu(port.active_mtu);
    attr.gid_tbl_len = port.gid_tbl_len.into();
    attr.port_cap_flags = port_cap::CM_SUP | port_cap::IP_BASED_GIDS;
    attr.max_msg_sz = port.max_msg_sz;
    attr.pkey_tbl_len = port.pkey_tbl_len;
    attr.max_vl_num = 1;
    attr.active_width = port.active_width;
    attr.active_speed = port.active_speed;
    attr.phys_state = match is_up {
        true => abi::PHYS_LINK_UP,
        false => abi::PHYS_DISABLED,
    };
    attr.link_layer = port.link_layer as u8;
    attr.flags = abi::QPF_GRH_REQUIRED;
    attr
}

/// Copies as much of an answer as the program has room for.
///
/// # Safety
/// There are `length` bytes at `room`.
unsafe fn fill<T>(room: *mut T, answer: &T, length: usize) -> Result<(), Errno> {
    if room.is_null() {
        return Err(INVALID);
    }
    let length = length.min(size_of::<T>());
    // SAFETY: both have so many bytes, and the answer is this library's own.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(answer).cast::<u8>(), room.cast(), length) };
    Ok(())
}

/// `ibv_query_device(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut abi::Context,
    attr: *mut abi::DeviceAttr,
) -> c_int {
    code(|| {
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        let answer = device_attr(&context.open.node.device_attributes()?);
        // SAFETY: the program gives room for the structure.
        unsafe { fill(attr, &answer, size_of_val(&answer)) }
    })
}

/// `ibv_query_device_ex(3)`: of all that it tells of there is the time of completions.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const abi::QueryDeviceExInput,
    attr: *mut abi::DeviceAttrEx,
    attr_size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program gives an input or NULL.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(INVALID);
        }
        if attr_size < size_of::<abi::DeviceAttr>() {
            return Err(INVALID);
        }
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        let device = context.open.node.device_attributes()?;
        // SAFETY: its fields are integers, which may be zero.
        let mut answer: abi::DeviceAttrEx = unsafe { zeroed() };
        answer.orig_attr = device_attr(&device);
        answer.device_cap_flags_ex = answer.orig_attr.device_cap_flags.into();
        answer.phys_port_cnt_ex = device.phys_port_cnt.into();
        answer.completion_timestamp_mask = (1 << TICK_BITS) - 1;
        // In kHz.
        answer.hca_core_clock = u64::from(TICK_HZ) / 1000;
        // SAFETY: the program says how much room it has.
        unsafe { fill(attr, &answer, attr_size) }
    })
}

/// `ibv_query_port(3)` of new programs.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port: u8,
    attr: *mut abi::PortAttr,
    length: usize,
) -> c_int {
    code(|| {
        check_port(port.into())?;
        // SAFETY: the program gives an opened device.
        let context = unsafe { Context::of(context) }?;
        let answer = port_attr(&context.open.node.port_attributes()?);
        // SAFETY: the program says how much room it has.
        unsafe { fill(attr, &answer, length) }
    })
}

/// `ibv_query_port(3)` of old programs.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut abi::Context,
    port: u8,
    attr: *mut abi::PortAttr,
) -> c_int {
    // SAFETY: the program gives an opened device, and room for the structure as it knows it.
    unsafe { query_port(context, port, attr, OLD_PORT_ATTR) }
}

/// The partition of every port.
const DEFAULT_PKEY: u16 = 0xffff;

/// `ibv_query_pkey(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut abi::Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    crate::answer::number(|| {
        check_port(port.into())?;
        if index != 0 {
            return Err(INVALID);
        }
        // SAFETY: the program gives room for the key.
        unsafe { fill(pkey, &DEFAULT_PKEY, size_of::<u16>()) }?;
        Ok(0)
    })
}

/// `ibv_get_pkey_index(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(_context: *mut abi::Context, port: u8, pkey: u16) -> c_int {
    crate::answer::number(|| {
        check_port(port.into())?;
        match pkey {
            DEFAULT_PKEY => Ok(0),
            _ => Err(INVALID),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_are_told_by_the_values_of_the_header() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu), [1, 2, 3, 4, 5]);
    }
}
