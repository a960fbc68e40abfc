//! Opened devices, and their asynchronous events.

use crate::abi;
use crate::answer::{Errno, INVALID, code, nothing, pointer};
use crate::event_queue::{EventQueue, wait_readable};
use crate::node::OpenNode;
use crate::object::Object;
use crate::registry::AsyncEvent;
use crate::unacked::Unacked;
use crate::{cq, cq_ex, device, mw, post, qp, query, srq};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::ptr;
use std::sync::Arc;

/// An opened device. Objects keep it alive: a program may close it before they are gone.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<abi::VerbsContext>,
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) open: Arc<OpenNode>,
}

// SAFETY: this library writes the tables once, before anybody has them.
unsafe impl Sync for Context {}
// SAFETY: what they point to belongs to no thread.
unsafe impl Send for Context {}

/// Where in it the structure lies that programs know.
const PUBLIC: usize = offset_of!(abi::VerbsContext, context);

impl Context {
    /// Opens the device; the program has it until [`close`](Self::close).
    pub(crate) fn open(device: *mut abi::Device) -> Result<*mut abi::Context, Errno> {
        let open = OpenNode::get(device::number(device)?)?;
        let events = Arc::new(EventQueue::new()?);
        open.registry.add_context(&events);
        let context = Arc::new(Self {
            verbs: UnsafeCell::new(tables(device, events.fd())),
            events,
            open,
        });
        Ok(Self::public(&Arc::into_raw(context)))
    }

    /// The pointer that programs have of `context`.
    fn public(context: &*const Self) -> *mut abi::Context {
        context.cast_mut().wrapping_byte_add(PUBLIC).cast()
    }

    /// The pointer that programs have of it.
    pub(crate) fn as_abi(self: &Arc<Self>) -> *mut abi::Context {
        Self::public(&Arc::as_ptr(self))
    }

    fn whole(context: *mut abi::Context) -> Result<*const Self, Errno> {
        if context.is_null() {
            return Err(INVALID);
        }
        Ok(context.wrapping_byte_sub(PUBLIC).cast_const().cast())
    }

    /// The context behind a pointer of the program, kept alive by whoever has it.
    ///
    /// # Safety
    /// `context` is NULL, or an opened device.
    pub(crate) unsafe fn of(context: *mut abi::Context) -> Result<Arc<Self>, Errno> {
        let whole = Self::whole(context)?;
        // SAFETY: it came out of an `Arc`, one of whose counts the program has.
        unsafe { Arc::increment_strong_count(whole) };
        // SAFETY: this takes over the count that was added just now.
        Ok(unsafe { Arc::from_raw(whole) })
    }

    /// Takes back what [`open`](Self::open) gave.
    ///
    /// # Safety
    /// As [`of`](Self::of), and the program does not use it any more.
    unsafe fn close(context: *mut abi::Context) -> Result<(), Errno> {
        let whole = Self::whole(context)?;
        // SAFETY: this is the count that the program had.
        drop(unsafe { Arc::from_raw(whole) });
        Ok(())
    }
}

/// The tables through which inline functions call; what is NULL there answers EOPNOTSUPP.
fn tables(device: *mut abi::Device, async_fd: c_int) -> abi::VerbsContext {
    // SAFETY: its fields are integers, pointers and functions or none, and all may be zero.
    let mut verbs: abi::VerbsContext = unsafe { zeroed() };
    verbs.sz = size_of::<abi::VerbsContext>();
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    let context = &mut verbs.context;
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.device = device;
    context.cmd_fd = -1;
    context.async_fd = async_fd;
    context.num_comp_vectors = 1;
    // What says that a `verbs_context` is around it.
    context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    verbs
}

/// `ibv_open_device(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut abi::Context {
    pointer(|| Context::open(device))
}

/// `ibv_close_device(3)`: what was made with the context and not destroyed stays until the program
/// ends, as the page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: the program gives back what `ibv_open_device` gave.
    code(|| unsafe { Context::close(context) })
}

/// `ibv_get_async_event(3)`
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    loop {
        let mut fd = -1;
        let got = code(|| {
            // SAFETY: the program gives an opened device.
            let context = unsafe { Context::of(context) }?;
            context.open.check_own()?;
            fd = context.events.fd();
            // SAFETY: the program gives room for one event.
            unsafe { next_event(&context, event) }
        });
        match got {
            0 => return 0,
            libc::EAGAIN => {}
            _ => return -1,
        }
        if let Err(errno) = wait_readable(fd) {
            errno.set();
            return -1;
        }
    }
}

/// Takes the next event.
///
/// # Errors
/// EAGAIN: there is none.
///
/// # Safety
/// There is room for one at `room`.
unsafe fn next_event(context: &Context, room: *mut abi::AsyncEvent) -> Result<(), Errno> {
    let count = |event: &AsyncEvent| {
        if let Some(unacked) = &event.unacked {
            unacked.add();
        }
    };
    let event = context.events.pop(count).ok_or(Errno(libc::EAGAIN))?;
    let event = abi::AsyncEvent {
        element: event.element.to_abi(),
        event_type: event.kind,
    };
    // SAFETY: as the caller promises.
    unsafe { room.write(event) };
    Ok(())
}

/// `ibv_ack_async_event(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut abi::AsyncEvent) {
    nothing(|| {
        // SAFETY: the program gives an event that it got.
        let event = unsafe { event.as_ref() }.ok_or(INVALID)?;
        // SAFETY: its element is what its type says, and is not destroyed before this.
        if let Some(unacked) = unsafe { unacked(event) }? {
            unacked.acknowledge(1);
        }
        Ok(())
    });
}

/// Who counts the event; `None`: it is of a port or of the device, which nobody destroys.
///
/// # Safety
/// The element is what the type says, and is there.
unsafe fn unacked(event: &abi::AsyncEvent) -> Result<Option<&Unacked>, Errno> {
    use crate::abi::event as kind;
    // SAFETY: all members but the number of a port are pointers.
    let element = unsafe { event.element.qp };
    Ok(Some(match event.event_type {
        kind::CQ_ERR => {
            // SAFETY: the element is a CQ.
            &unsafe { cq::Cq::of(element.cast()) }?.unacked
        }
        kind::SRQ_ERR | kind::SRQ_LIMIT_REACHED => {
            // SAFETY: the element is an SRQ.
            &unsafe { srq::Srq::of(element.cast()) }?.unacked
        }
        kind::DEVICE_FATAL | kind::PORT_ACTIVE | kind::PORT_ERR => return Ok(None),
        _ => {
            // SAFETY: the element is a QP.
            &unsafe { qp::Qp::of(element.cast()) }?.unacked
        }
    }))
}
