//! Completion channels: events of CQs, behind one descriptor for as many of them as the program
//! wants.

use crate::abi;
use crate::answer::{Errno, INVALID, code, nothing, pointer};
use crate::context::Context;
use crate::cq::Cq;
use crate::event_queue::{EventQueue, wait_readable};
use crate::object::{Object, Uses};
use crate::unacked::Unacked;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};
use trunkline::Notify;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    abi: UnsafeCell<abi::CompChannel>,
    pub(crate) events: Arc<EventQueue<CqEvent>>,
    pub(crate) uses: Uses,
    _context: Arc<Context>,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Channel {
    type Abi = abi::CompChannel;
}

/// An event of a CQ that waits for its program.
pub(crate) struct CqEvent {
    /// The pointer that the program has of the CQ.
    cq: usize,
    unacked: Arc<Unacked>,
}

/// What the node calls when a completion arrives on a CQ that is armed.
pub(crate) struct Notifier {
    /// `None`: the CQ was made without a channel, and its events are lost, as the page has it.
    channel: Option<Arc<EventQueue<CqEvent>>>,
    /// The pointer that the program has of the CQ, once it has one.
    cq: OnceLock<usize>,
    /// Completion events that the program got.
    pub(crate) unacked: Arc<Unacked>,
}

impl Notifier {
    pub(crate) fn new(channel: Option<&Channel>) -> Self {
        Self {
            channel: channel.map(|channel| Arc::clone(&channel.events)),
            cq: OnceLock::new(),
            unacked: Arc::default(),
        }
    }

    /// The program has the CQ as `cq` from now on.
    pub(crate) fn begin(&self, cq: usize) {
        let begun = self.cq.set(cq);
        assert!(begun.is_ok(), "a CQ is handed out once");
    }

    /// Drops events that the program did not get, and waits until it acknowledges those that it
    /// got.
    pub(crate) fn end(&self) {
        if let Some(channel) = &self.channel {
            channel.remove(|event| Arc::ptr_eq(&event.unacked, &self.unacked));
        }
        self.unacked.wait_for_none();
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        if let (Some(channel), Some(cq)) = (&self.channel, self.cq.get()) {
            channel.push(CqEvent {
                cq: *cq,
                unacked: Arc::clone(&self.unacked),
            });
        }
    }
}

/// `ibv_create_comp_channel(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    pointer(|| {
        // SAFETY: the program gives an opened device.
        let whole = unsafe { Context::of(context) }?;
        let events = Arc::new(EventQueue::new()?);
        let channel = Channel {
            abi: UnsafeCell::new(abi::CompChannel {
                context,
                fd: events.fd(),
                refcnt: 0,
            }),
            events,
            uses: Uses::default(),
            _context: whole,
        };
        Ok(channel.give())
    })
}

/// `ibv_destroy_comp_channel(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    code(|| {
        // SAFETY: the program gives a channel.
        unsafe { Channel::of(channel) }?.uses.check_none()?;
        // SAFETY: no CQ has it, and the program gives it back.
        drop(unsafe { Channel::take(channel) });
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        let mut fd = -1;
        let got = code(|| {
            // SAFETY: the program gives a channel.
            let channel = unsafe { Channel::of(channel) }?;
            fd = channel.events.fd();
            let event = channel.events.pop(|event| event.unacked.add());
            let event = event.ok_or(Errno(libc::EAGAIN))?;
            // SAFETY: the program gives room for both.
            unsafe { tell(&event, cq, cq_context) }
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

/// Tells whose event it is.
///
/// # Safety
/// There is room for both, or NULL.
unsafe fn tell(
    event: &CqEvent,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> Result<(), Errno> {
    let whose = event.cq as *mut abi::Cq;
    // SAFETY: as the caller promises.
    *unsafe { cq.as_mut() }.ok_or(INVALID)? = whose;
    // SAFETY: the CQ is not destroyed before the event is acknowledged.
    let context = unsafe { (*whose).cq_context };
    // SAFETY: as the caller promises.
    *unsafe { cq_context.as_mut() }.ok_or(INVALID)? = context;
    Ok(())
}

/// `ibv_ack_cq_events(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut abi::Cq, events: c_uint) {
    nothing(|| {
        // SAFETY: the program gives a CQ.
        let cq = unsafe { Cq::of(cq.cast()) }?;
        cq.notifier.unacked.acknowledge(events.into());
        Ok(())
    });
}
