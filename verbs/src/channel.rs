//! Completion channels: events of CQs, behind one descriptor for as many of them as the program
//! wants.

use crate::abi;
use crate::answer::{Errno, INVALID, code, nothing, pointer};
use crate::context::Context;
use crate::cq::Cq;
use crate::cq_events::{CqEvents, Token, next};
use crate::object::{Object, Use, Uses};
use crate::unacked::Unacked;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use trunkline::Notify;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    abi: UnsafeCell<abi::CompChannel>,
    events: Arc<CqEvents<trunkline::Cq>>,
    pub(crate) uses: Uses,
    context: Arc<Context>,
}

// SAFETY: the structure of the header is at its front.
unsafe impl Object for Channel {
    type Abi = abi::CompChannel;
}

/// A CQ's place in its channel.
pub(crate) struct Listed {
    events: Arc<CqEvents<trunkline::Cq>>,
    token: Token,
    /// Completion events that the program got.
    unacked: Arc<Unacked>,
    _channel: Use,
}

impl Listed {
    pub(crate) fn new(channel: &Channel) -> Self {
        Self {
            events: Arc::clone(&channel.events),
            token: channel.events.token(),
            unacked: Arc::default(),
            _channel: channel.uses.hold(),
        }
    }

    /// The program has the CQ as `public` from now on, and gets its events.
    ///
    /// # Errors
    /// The operating system has no room for it.
    pub(crate) fn begin(&self, cq: &trunkline::Cq, public: usize) -> Result<(), Errno> {
        self.events
            .watch(self.token, cq.clone(), public, &self.unacked)
    }

    /// Drops events that the program did not get, and waits until it acknowledges those that it
    /// got.
    pub(crate) fn end(&self) {
        self.events.forget(self.token);
        self.unacked.wait_for_none();
    }
}

/// Hears of the completions of a CQ that was made without a channel: its events are lost, as the
/// page has it.
pub(crate) struct Nobody;

impl Notify for Nobody {
    fn notify(&self) {}
}

/// `ibv_create_comp_channel(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    pointer(|| {
        // SAFETY: the program gives an opened device.
        let whole = unsafe { Context::of(context) }?;
        let events = Arc::new(CqEvents::new()?);
        let channel = Channel {
            abi: UnsafeCell::new(abi::CompChannel {
                context,
                fd: events.fd(),
                refcnt: 0,
            }),
            events,
            uses: Uses::default(),
            context: whole,
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
        let mut events = None;
        let begun = code(|| {
            // SAFETY: the program gives a channel.
            let channel = unsafe { Channel::of(channel) }?;
            channel.context.open.check_own()?;
            events = Some(&*channel.events);
            Ok(())
        });
        let (0, Some(events)) = (begun, events) else {
            return -1;
        };
        let token = match next(events.fd(), &events.looks) {
            Ok(token) => token,
            Err(errno) => {
                errno.set();
                return -1;
            }
        };
        let told = code(|| {
            // SAFETY: the program gives a channel.
            let channel = unsafe { Channel::of(channel) }?;
            if channel.context.open.is_left() {
                // Threads may wait that are more than CQs: none of them is to wait for ever.
                channel.events.insist(token);
            }
            let whose = channel.events.take(token).ok_or(Errno(libc::EAGAIN))?;
            // SAFETY: the program gives room for both.
            unsafe { tell(whose as *mut abi::Cq, cq, cq_context) }
        });
        match told {
            0 => return 0,
            libc::EAGAIN => {}
            _ => return -1,
        }
    }
}

/// Tells whose an event is.
///
/// # Safety
/// `whose` is a CQ, and there is room for both, or NULL.
unsafe fn tell(
    whose: *mut abi::Cq,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> Result<(), Errno> {
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
        if let Some(listed) = &cq.listed {
            listed.unacked.acknowledge(events.into());
        }
        Ok(())
    });
}
