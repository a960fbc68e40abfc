//! Verbs that are not offered, each with the answer that its manual page gives for that.

use crate::abi;
use crate::answer::{UNSUPPORTED, code, pointer};
use std::ffi::{c_int, c_void};

/// `ibv_attach_mcast(3)`: there is no multicast.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(
    _qp: *mut abi::Qp,
    _gid: *const [u8; 16],
    _lid: u16,
) -> c_int {
    code(|| Err(UNSUPPORTED))
}

/// `ibv_detach_mcast(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(
    _qp: *mut abi::Qp,
    _gid: *const [u8; 16],
    _lid: u16,
) -> c_int {
    code(|| Err(UNSUPPORTED))
}

/// `ibv_import_device(3)`: devices cannot be handed over by a descriptor.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut abi::Context {
    pointer(|| Err(UNSUPPORTED))
}

/// `ibv_import_pd(3)`: nor can protection domains.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(_context: *mut abi::Context, _handle: u32) -> *mut abi::Pd {
    pointer(|| Err(UNSUPPORTED))
}

/// `ibv_unimport_pd(3)`: there are none to give back.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(_pd: *mut abi::Pd) {}

/// `ibv_import_mr(3)`: nor can regions.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(_pd: *mut abi::Pd, _handle: u32) -> *mut abi::Mr {
    pointer(|| Err(UNSUPPORTED))
}

/// `ibv_unimport_mr(3)`: there are none to give back.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(_mr: *mut abi::Mr) {}

/// `ibv_import_dm(3)`: a device has no memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(_context: *mut abi::Context, _handle: u32) -> *mut c_void {
    pointer(|| Err(UNSUPPORTED))
}

/// `ibv_unimport_dm(3)`: there is none to give back.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

/// `ibv_reg_dmabuf_mr(3)`: memory of other devices cannot be registered.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut abi::Pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut abi::Mr {
    pointer(|| Err(UNSUPPORTED))
}

/// `ibv_set_ece(3)`: connections are not enhanced by agreement of two vendors' devices.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_qp: *mut abi::Qp, _ece: *mut abi::Ece) -> c_int {
    code(|| Err(UNSUPPORTED))
}

/// `ibv_query_ece(3)`: no options, as the page has it for such a device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut abi::Qp, ece: *mut abi::Ece) -> c_int {
    code(|| {
        // SAFETY: the program gives room for the structure.
        let ece = unsafe { ece.as_mut() }.ok_or(crate::answer::INVALID)?;
        *ece = abi::Ece {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        };
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: no promise that bytes of a message appear in their order.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut abi::Qp,
    _opcode: u32,
    _flags: u32,
) -> c_int {
    0
}

/// Says the MAC address behind a GID to drivers, which build frames: there are none here.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut abi::Context,
    _attr: *mut abi::AhAttr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    -code(|| Err(UNSUPPORTED))
}
