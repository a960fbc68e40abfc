//! Protection domains.

use crate::abi;
use crate::answer::{code, pointer};
use crate::context::Context;
use crate::object::{Object, Uses};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    abi: UnsafeCell<abi::Pd>,
    pub(crate) pd: trunkline::Pd,
    pub(crate) uses: Uses,
    pub(crate) context: Arc<Context>,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Pd {
    type Abi = abi::Pd;
}

/// `ibv_alloc_pd(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    pointer(|| {
        // SAFETY: the program gives an opened device.
        let whole = unsafe { Context::of(context) }?;
        whole.open.check_up()?;
        let pd = Pd {
            abi: UnsafeCell::new(abi::Pd { context, handle: 0 }),
            pd: whole.open.node.alloc_pd(),
            uses: Uses::default(),
            context: whole,
        };
        Ok(pd.give())
    })
}

/// `ibv_dealloc_pd(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut abi::Pd) -> c_int {
    code(|| {
        // SAFETY: the program gives a domain.
        unsafe { Pd::of(pd) }?.uses.check_none()?;
        // SAFETY: nothing is in it, and the program gives it back.
        drop(unsafe { Pd::take(pd) });
        Ok(())
    })
}
