//! Memory windows.

use crate::abi;
use crate::abi::access;
use crate::answer::{Errno, INVALID, code, pointer};
use crate::object::{Object, Use};
use crate::pd::Pd;
use crate::qp::Qp;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use trunkline::{Access, BindMw, BindOptions, Lkey, MwType, Rkey, SendFlags};

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    abi: UnsafeCell<abi::Mw>,
    mw: Mutex<trunkline::Mw>,
    _pd: Use,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Mw {
    type Abi = abi::Mw;
}

/// `ibv_alloc_mw(3)`
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut abi::Pd, kind: u32) -> *mut abi::Mw {
    pointer(|| {
        // SAFETY: the program gives a domain.
        let whole = unsafe { Pd::of(pd) }?;
        let mw = whole.pd.alloc_mw(match kind {
            1 => MwType::Type1,
            2 => MwType::Type2,
            _ => return Err(INVALID),
        })?;
        let mw = Mw {
            abi: UnsafeCell::new(abi::Mw {
                context: whole.context.as_abi(),
                pd,
                rkey: mw.rkey().0,
                handle: 0,
                r#type: kind,
            }),
            mw: Mutex::new(mw),
            _pd: whole.uses.hold(),
        };
        Ok(mw.give())
    })
}

/// `ibv_dealloc_mw(3)`
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut abi::Mw) -> c_int {
    code(|| {
        // SAFETY: the program gives a window.
        unsafe { Mw::of(mw) }?;
        // SAFETY: the program gives it back.
        drop(unsafe { Mw::take(mw) });
        Ok(())
    })
}

/// A bind in the words of the library. A window to no bytes of no region is one that is unbound.
///
/// # Safety
/// The region is one of the program, or NULL.
pub(crate) unsafe fn bind(rkey: u32, info: &abi::MwBindInfo) -> Result<BindMw, Errno> {
    // SAFETY: as the caller promises.
    let mr = unsafe { info.mr.as_ref() };
    let flags = info.mw_access_flags;
    if (mr.is_none() && info.length > 0) || flags & !access::KNOWN != 0 {
        return Err(INVALID);
    }
    Ok(BindMw {
        rkey: Rkey(rkey),
        lkey: Lkey(mr.map_or(0, |mr| mr.lkey)),
        addr: info.addr,
        length: info.length,
        access: Access::from_bits(flags),
    })
}

/// `ibv_bind_mw(3)`
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut abi::Qp,
    mw: *mut abi::Mw,
    wanted: *mut abi::MwBind,
) -> c_int {
    code(|| {
        // SAFETY: the program gives a QP.
        let qp = unsafe { Qp::of(qp.cast()) }?;
        // SAFETY: the program gives a window.
        let whole = unsafe { Mw::of(mw) }?;
        // SAFETY: the program gives a bind.
        let wanted = unsafe { wanted.as_ref() }.ok_or(INVALID)?;
        // SAFETY: its region is one of the program.
        let bind = unsafe { bind(0, &wanted.bind_info) }?;
        let how = BindOptions {
            wr_id: wanted.wr_id,
            flags: SendFlags(wanted.send_flags),
        };
        let mut inner = whole.mw.lock().unwrap_or_else(PoisonError::into_inner);
        let rkey = qp.qp.bind_mw(&mut inner, &bind, how)?;
        // SAFETY: the structure is the program's, and changed under the lock alone.
        unsafe { (*whole.abi.get()).rkey = rkey.0 };
        Ok(())
    })
}
