//! Memory regions.

use crate::abi;
use crate::abi::{access, rereg};
use crate::answer::{Errno, INVALID, UNSUPPORTED, code, pointer};
use crate::maps;
use crate::object::{Object, Use};
use crate::pd::Pd;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use trunkline::{Access, Reregister};

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    abi: UnsafeCell<abi::Mr>,
    /// What may change while the program has it.
    inner: Mutex<Inner>,
}

struct Inner {
    /// Gone only within the call that deregisters it.
    mr: Option<trunkline::Mr>,
    pd: Use,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Mr {
    type Abi = abi::Mr;
}

/// What verbs ask for in the words of the library.
///
/// # Errors
/// EOPNOTSUPP for memory without its pages; EINVAL for flags that mean nothing.
fn rights(flags: c_uint) -> Result<Access, Errno> {
    if flags & access::ON_DEMAND != 0 {
        return Err(UNSUPPORTED);
    }
    if flags & !(access::KNOWN | access::OPTIONAL) != 0 {
        return Err(INVALID);
    }
    let known = access::KNOWN | Access::RELAXED_ORDERING.bits();
    Ok(Access::from_bits(flags & known))
}

/// Whether peers or the device may write to it.
fn is_written(access: Access) -> bool {
    access.contains(Access::LOCAL_WRITE)
}

/// Checks memory that a program wants to register.
///
/// # Errors
/// EINVAL: it has no address. EFAULT: the program itself may not do there what is asked for.
fn memory(addr: *mut c_void, length: usize, access: Access) -> Result<NonNull<u8>, Errno> {
    let memory = NonNull::new(addr.cast::<u8>()).ok_or(INVALID)?;
    maps::check(addr.addr(), length, is_written(access))?;
    Ok(memory)
}

unsafe fn register(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut abi::Mr, Errno> {
    // SAFETY: the program gives a domain.
    let whole = unsafe { Pd::of(pd) }?;
    let access = rights(flags)?;
    let memory = memory(addr, length, access)?;
    let iova = if access.contains(Access::ZERO_BASED) {
        0
    } else {
        iova
    };
    // SAFETY: the program has the memory, as was just seen, and keeps it until it deregisters it,
    // as the page asks; it knows that peers write there.
    let mr = unsafe { whole.pd.register_foreign_iova(memory, length, iova, access) }?;
    let mr = Mr {
        abi: UnsafeCell::new(abi::Mr {
            context: whole.context.as_abi(),
            pd,
            addr,
            length,
            handle: 0,
            lkey: mr.lkey().0,
            rkey: mr.rkey().0,
        }),
        inner: Mutex::new(Inner {
            mr: Some(mr),
            pd: whole.uses.hold(),
        }),
    };
    Ok(mr.give())
}

/// `ibv_reg_mr(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: as the page says.
    pointer(|| unsafe { register(pd, addr, length, addr as u64, access.cast_unsigned()) })
}

/// `ibv_reg_mr_iova(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: as the page says.
    pointer(|| unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

/// What both of those before become where their access flags are not constant.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::Mr {
    // SAFETY: as the page says.
    pointer(|| unsafe { register(pd, addr, length, iova, access) })
}

/// `ibv_rereg_mr(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut abi::Mr,
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let change = Change {
        flags,
        pd,
        addr,
        length,
        access: access.cast_unsigned(),
    };
    // SAFETY: as the page says.
    match code(|| unsafe { reregister(mr, &change) }) {
        0 => 0,
        // The node failed in the middle of it.
        libc::EIO => rereg::ERR_CMD,
        _ => rereg::ERR_INPUT,
    }
}

struct Change {
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
}

unsafe fn reregister(mr: *mut abi::Mr, change: &Change) -> Result<(), Errno> {
    const ALL: c_int = rereg::TRANSLATION | rereg::PD | rereg::ACCESS;
    let has = |flag| change.flags & flag != 0;
    if change.flags & !ALL != 0 || change.flags == 0 {
        return Err(INVALID);
    }
    // SAFETY: the program gives a region.
    let whole = unsafe { Mr::of(mr) }?;
    let mut inner = whole.inner.lock().unwrap_or_else(PoisonError::into_inner);
    let mut wanted = Reregister::new();
    let pd = if has(rereg::PD) {
        // SAFETY: the program gives a domain.
        Some(unsafe { Pd::of(change.pd) }?)
    } else {
        None
    };
    if let Some(pd) = pd {
        wanted = wanted.pd(&pd.pd);
    }
    if has(rereg::ACCESS) {
        wanted = wanted.access(rights(change.access)?);
    }
    if has(rereg::TRANSLATION) {
        let access = if has(rereg::ACCESS) {
            rights(change.access)?
        } else {
            Access::LOCAL_READ
        };
        let memory = memory(change.addr, change.length, access)?;
        // SAFETY: as for a new region.
        wanted = unsafe { wanted.foreign(memory, change.length) };
    }
    let region = inner.mr.as_mut().ok_or(INVALID)?;
    region.reregister(wanted)?;
    let (lkey, rkey) = (region.lkey().0, region.rkey().0);
    // SAFETY: the program has the region, and nobody else writes to its structure: of two threads
    // that change it at once one waits for the lock.
    let public = unsafe { &mut *whole.abi.get() };
    (public.lkey, public.rkey) = (lkey, rkey);
    if let Some(pd) = pd {
        (public.pd, inner.pd) = (change.pd, pd.uses.hold());
    }
    if has(rereg::TRANSLATION) {
        (public.addr, public.length) = (change.addr, change.length);
    }
    Ok(())
}

/// `ibv_dereg_mr(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut abi::Mr) -> c_int {
    code(|| {
        // SAFETY: the program gives a region.
        let whole = unsafe { Mr::of(mr) }?;
        let mut inner = whole.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let region = inner.mr.take().ok_or(INVALID)?;
        if let Err((region, error)) = region.deregister() {
            inner.mr = Some(region);
            return Err(error.into());
        }
        drop(inner);
        // SAFETY: the program gives it back.
        drop(unsafe { Mr::take(mr) });
        Ok(())
    })
}
