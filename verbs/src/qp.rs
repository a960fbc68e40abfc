//! Queue pairs: their making and their end.

use crate::abi;
use crate::abi::{qp_init, qp_type};
use crate::answer::{Errno, INVALID, UNSUPPORTED, code, pointer};
use crate::context::Context;
use crate::cq::Cq;
use crate::object::{Object, Use};
use crate::pd::Pd;
use crate::qp_modify::Asked;
use crate::registry::{Element, Listener, Name};
use crate::spin::SpinLock;
use crate::srq::Srq;
use crate::unacked::Unacked;
use crate::wr::{self, Builder};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::{Arc, Mutex};
use trunkline::{QpOptions, QpType};

/// A queue pair. All have the room of extended ones, whether the program knows that or not.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) abi: UnsafeCell<abi::QpEx>,
    pub(crate) qp: trunkline::Qp,
    pub(crate) kind: QpType,
    /// What the program asked for so far, for calls that name only some attributes.
    pub(crate) asked: Mutex<Asked>,
    /// Requests that are being put together.
    pub(crate) builder: SpinLock<Builder>,
    /// It was made for requests that are put together.
    has_builder: bool,
    /// Asynchronous events that the program got.
    pub(crate) unacked: Arc<Unacked>,
    pub(crate) context: Arc<Context>,
    _uses: Vec<Use>,
}

// SAFETY: the structure of the header is at its front, and the shorter one at the front of that.
unsafe impl Object for Qp {
    type Abi = abi::QpEx;
}

impl Qp {
    /// CQs of its send requests and of its receives, which are there as long as it is.
    pub(crate) fn cqs(&self) -> Result<[&Cq; 2], Errno> {
        let public = self.abi.get();
        // SAFETY: the structure is the program's, and these fields of it never change.
        let base = unsafe { &(*public).qp_base };
        // SAFETY: a QP keeps its CQs.
        let send_cq = unsafe { Cq::of(base.send_cq.cast()) }?;
        // SAFETY: the same.
        let recv_cq = unsafe { Cq::of(base.recv_cq.cast()) }?;
        Ok([send_cq, recv_cq])
    }
}

/// The types of QPs that there are.
///
/// # Errors
/// EOPNOTSUPP
fn kind(value: u32) -> Result<QpType, Errno> {
    match value {
        qp_type::RC => Ok(QpType::Rc),
        qp_type::UC => Ok(QpType::Uc),
        qp_type::UD => Ok(QpType::Ud),
        _ => Err(UNSUPPORTED),
    }
}

/// Makes a QP, and leaves the sizes that it got in `init`.
///
/// # Safety
/// Domain, CQs and SRQ are those of the program.
unsafe fn create(
    pd: *mut abi::Pd,
    init: &mut abi::QpInitAttr,
    has_builder: bool,
) -> Result<*mut abi::Qp, Errno> {
    let kind = kind(init.qp_type)?;
    // SAFETY: the program gives a domain.
    let domain = unsafe { Pd::of(pd) }?;
    // SAFETY: the program gives CQs.
    let send_cq = unsafe { Cq::of(init.send_cq.cast()) }?;
    // SAFETY: as before.
    let recv_cq = unsafe { Cq::of(init.recv_cq.cast()) }?;
    let srq = if init.srq.is_null() {
        None
    } else {
        // SAFETY: the program gives an SRQ.
        Some(unsafe { Srq::of(init.srq) }?)
    };
    let options = QpOptions {
        kind,
        srq: srq.map(|srq| srq.srq.clone()),
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_send_sge: init.cap.max_send_sge,
        max_recv_sge: init.cap.max_recv_sge,
        max_inline: init.cap.max_inline_data,
        signal_all: init.sq_sig_all != 0,
        ..QpOptions::default()
    };
    let qp = domain.pd.create_qp(&send_cq.cq, &recv_cq.cq, &options)?;
    init.cap = cap(&qp.query()?.2);
    let mut uses = vec![domain.uses.hold(), send_cq.uses.hold(), recv_cq.uses.hold()];
    uses.extend(srq.map(|srq| srq.uses.hold()));
    let qpn = qp.qpn();
    // SAFETY: its fields are integers, pointers and functions or none, and all may be zero.
    let mut public: abi::QpEx = unsafe { zeroed() };
    let base = &mut public.qp_base;
    base.context = domain.context.as_abi();
    base.qp_context = init.qp_context;
    base.pd = pd;
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.qp_num, base.handle, base.qp_type) = (qpn.get(), qpn.get(), init.qp_type);
    if has_builder {
        wr::fill(&mut public);
    }
    if kind == QpType::Ud {
        recv_cq.datagrams.add(qpn);
    }
    let unacked = Arc::new(Unacked::default());
    let made = Qp {
        abi: UnsafeCell::new(public),
        qp,
        kind,
        asked: Mutex::default(),
        builder: SpinLock::new(Builder::default(), false),
        has_builder,
        unacked: Arc::clone(&unacked),
        context: Arc::clone(&domain.context),
        _uses: uses,
    };
    let made = made.give();
    let listener = Listener {
        events: Arc::clone(&domain.context.events),
        element: Element::Qp(made as usize),
        unacked,
    };
    domain.context.open.registry.add(Name::Qp(qpn), listener);
    Ok(made.cast())
}

/// The sizes that a QP has.
pub(crate) fn cap(options: &QpOptions) -> abi::QpCap {
    abi::QpCap {
        max_send_wr: options.max_send_wr,
        max_recv_wr: options.max_recv_wr,
        max_send_sge: options.max_send_sge,
        max_recv_sge: options.max_recv_sge,
        max_inline_data: options.max_inline,
    }
}

/// `ibv_create_qp(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> *mut abi::Qp {
    pointer(|| {
        // SAFETY: the program gives attributes, and gets the sizes back there.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        // SAFETY: what they name is the program's.
        unsafe { create(pd, init, false) }
    })
}

/// `ibv_create_qp_ex(3)`
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut abi::Context,
    init: *mut abi::QpInitAttrEx,
) -> *mut abi::Qp {
    pointer(|| {
        // SAFETY: the program gives attributes.
        let attr = unsafe { init.as_ref() }.ok_or(INVALID)?;
        let has = |bit| attr.comp_mask & bit != 0;
        if !has(qp_init::PD) {
            return Err(INVALID);
        }
        let known = qp_init::PD | qp_init::CREATE_FLAGS | qp_init::SEND_OPS_FLAGS;
        if attr.comp_mask & !known != 0 || (has(qp_init::CREATE_FLAGS) && attr.create_flags != 0) {
            return Err(UNSUPPORTED);
        }
        let has_builder = has(qp_init::SEND_OPS_FLAGS);
        if has_builder && attr.send_ops_flags & !wr::operations(kind(attr.qp_type)?) != 0 {
            return Err(UNSUPPORTED);
        }
        let pd = attr.pd;
        // SAFETY: the fields of the shorter structure are at the front of the longer one. No other
        // reference to it is used from here on.
        let init = unsafe { &mut *init.cast::<abi::QpInitAttr>() };
        // SAFETY: what they name is the program's.
        unsafe { create(pd, init, has_builder) }
    })
}

/// `ibv_qp_to_qp_ex(3)`: NULL for a QP that was not made with operations to put together.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut abi::Qp) -> *mut abi::QpEx {
    // SAFETY: the program gives a QP.
    match unsafe { Qp::of(qp.cast()) } {
        Ok(whole) if whole.has_builder => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// `ibv_destroy_qp(3)`: waits until the program has acknowledged all events of it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut abi::Qp) -> c_int {
    code(|| {
        // SAFETY: the program gives a QP.
        let whole = unsafe { Qp::of(qp.cast()) }?;
        let qpn = whole.qp.qpn();
        whole.context.open.registry.remove(Name::Qp(qpn));
        let cqs = whole.cqs()?;
        // SAFETY: the program gives it back.
        drop(unsafe { Qp::take(qp.cast()) });
        cqs.iter().for_each(|cq| cq.datagrams.remove(qpn));
        Ok(())
    })
}
