//! Shared receive queues.

use crate::abi;
use crate::abi::srq_mask;
use crate::answer::{INVALID, code, pointer};
use crate::context::Context;
use crate::object::{Object, Use, Uses};
use crate::pd::Pd;
use crate::registry::{Element, Listener, Name};
use crate::unacked::Unacked;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::Arc;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    abi: UnsafeCell<abi::Srq>,
    pub(crate) srq: trunkline::Srq,
    pub(crate) unacked: Arc<Unacked>,
    pub(crate) uses: Uses,
    _pd: Use,
    context: Arc<Context>,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Srq {
    type Abi = abi::Srq;
}

/// `ibv_create_srq(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut abi::Pd,
    init: *mut abi::SrqInitAttr,
) -> *mut abi::Srq {
    pointer(|| {
        // SAFETY: the program gives a domain.
        let whole = unsafe { Pd::of(pd) }?;
        // SAFETY: the program gives attributes, and gets the sizes back there.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let srq = whole.pd.create_srq(init.attr.max_wr, init.attr.max_sge)?;
        // No post may wait for a service.
        srq.make_ring()?;
        let sizes = srq.query()?;
        (init.attr.max_wr, init.attr.max_sge) = (sizes.max_wr, sizes.max_sge);
        let id = srq.id();
        // SAFETY: its fields are integers and pointers, which may be zero.
        let mut public: abi::Srq = unsafe { zeroed() };
        public.context = whole.context.as_abi();
        public.srq_context = init.srq_context;
        public.pd = pd;
        let unacked = Arc::new(Unacked::default());
        let made = Srq {
            abi: UnsafeCell::new(public),
            srq,
            unacked: Arc::clone(&unacked),
            uses: Uses::default(),
            _pd: whole.uses.hold(),
            context: Arc::clone(&whole.context),
        };
        let made = made.give();
        let listener = Listener {
            events: Arc::clone(&whole.context.events),
            element: Element::Srq(made as usize),
            unacked,
        };
        whole.context.open.registry.add(Name::Srq(id), listener);
        Ok(made)
    })
}

/// `ibv_modify_srq(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut abi::Srq,
    attr: *mut abi::SrqAttr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the program gives an SRQ.
        let srq = unsafe { Srq::of(srq) }?;
        // SAFETY: the program gives attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        if mask & !(srq_mask::MAX_WR | srq_mask::LIMIT) != 0 {
            return Err(INVALID);
        }
        if mask & srq_mask::MAX_WR != 0 {
            srq.srq.resize(attr.max_wr)?;
        }
        if mask & srq_mask::LIMIT != 0 {
            srq.srq.set_limit(attr.srq_limit)?;
        }
        Ok(())
    })
}

/// `ibv_query_srq(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut abi::Srq, attr: *mut abi::SrqAttr) -> c_int {
    code(|| {
        // SAFETY: the program gives an SRQ.
        let answer = unsafe { Srq::of(srq) }?.srq.query()?;
        // SAFETY: the program gives room for attributes.
        *unsafe { attr.as_mut() }.ok_or(INVALID)? = abi::SrqAttr {
            max_wr: answer.max_wr,
            max_sge: answer.max_sge,
            srq_limit: answer.limit,
        };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut abi::Srq) -> c_int {
    code(|| {
        // SAFETY: the program gives an SRQ.
        let whole = unsafe { Srq::of(srq) }?;
        whole.uses.check_none()?;
        whole
            .context
            .open
            .registry
            .remove(Name::Srq(whole.srq.id()));
        // SAFETY: no QP has it, and the program gives it back.
        drop(unsafe { Srq::take(srq) });
        Ok(())
    })
}
