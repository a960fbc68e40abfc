//! Completion queues.

use crate::abi;
use crate::answer::{Errno, INVALID, code, pointer};
use crate::channel::{Channel, Listed, Nobody};
use crate::completion::Told;
use crate::context::Context;
use crate::cq_ex;
use crate::datagrams::Datagrams;
use crate::object::{Object, Uses};
use crate::registry::{Element, Listener, Name};
use crate::spin::SpinLock;
use crate::unacked::Unacked;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::Arc;
use trunkline::Completion;

/// Completions that one look at the node's queue takes at most.
const BATCH: usize = 32;

/// A completion queue. All are extended ones, whether the program knows that or not.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) abi: UnsafeCell<abi::CqEx>,
    pub(crate) cq: trunkline::Cq,
    /// Its place in its channel, if it has one.
    pub(crate) listed: Option<Listed>,
    /// Asynchronous events that the program got.
    pub(crate) unacked: Arc<Unacked>,
    pub(crate) uses: Uses,
    pub(crate) context: Arc<Context>,
    pub(crate) datagrams: Datagrams,
    /// Who reads completions one by one has it: see `cq_ex`.
    pub(crate) reader: SpinLock<Told>,
}

// SAFETY: the structure of the header is at its front, and the shorter one at the front of that.
unsafe impl Object for Cq {
    type Abi = abi::CqEx;
}

impl Cq {
    /// Hands up to `entries` completions to `give`, oldest first.
    ///
    /// # Errors
    /// The CQ is in error, and all that completed before was given.
    pub(crate) fn poll(&self, entries: usize, mut give: impl FnMut(Told)) -> Result<(), Errno> {
        let mut batch = [Completion::BLANK; BATCH];
        let mut left = entries;
        while left > 0 {
            let wanted = BATCH.min(left);
            let count = match self.cq.poll(&mut batch[..wanted]) {
                Ok(count) => count,
                // The next call tells.
                Err(_) if left < entries => break,
                Err(error) => return Err(trunkline::Error::from(error).into()),
            };
            self.datagrams.tell(&batch[..count], &mut give);
            left -= count;
            if count < wanted {
                break;
            }
        }
        Ok(())
    }
}

/// What a CQ is made with.
pub(crate) struct Wanted {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut abi::CompChannel,
    pub(crate) comp_vector: u32,
    /// The program promises that one thread at a time reads completions one by one.
    pub(crate) single_threaded: bool,
}

/// # Safety
/// The context and the channel are those of the program.
pub(crate) unsafe fn create(
    context: *mut abi::Context,
    wanted: &Wanted,
) -> Result<*mut abi::CqEx, Errno> {
    if wanted.comp_vector != 0 {
        return Err(INVALID);
    }
    // SAFETY: the program gives an opened device.
    let whole = unsafe { Context::of(context) }?;
    let channel = if wanted.channel.is_null() {
        None
    } else {
        // SAFETY: the program gives a channel.
        Some(unsafe { Channel::of(wanted.channel) }?)
    };
    let node = &whole.open.node;
    let cq = match channel {
        Some(_) => node.create_cq(wanted.cqe)?,
        None => node.create_cq_notifying(wanted.cqe, Arc::new(Nobody))?,
    };
    let id = cq.id();
    // SAFETY: its fields are integers, pointers and functions or none, and all may be zero.
    let mut public: abi::CqEx = unsafe { zeroed() };
    public.context = context;
    public.channel = wanted.channel;
    public.cq_context = wanted.cq_context;
    public.handle = id.index();
    public.cqe = depth(&cq);
    cq_ex::fill(&mut public);
    let unacked = Arc::new(Unacked::default());
    let made = Cq {
        abi: UnsafeCell::new(public),
        cq,
        listed: channel.map(Listed::new),
        unacked: Arc::clone(&unacked),
        uses: Uses::default(),
        context: Arc::clone(&whole),
        datagrams: Datagrams::new(node.gid().address().into()),
        reader: SpinLock::new(Told::BLANK, wanted.single_threaded),
    };
    let made = made.give();
    // SAFETY: nobody else has it yet.
    unsafe { begin(made) }?;
    let listener = Listener {
        events: Arc::clone(&whole.events),
        element: Element::Cq(made as usize),
        unacked,
    };
    whole.open.registry.add(Name::Cq(id), listener);
    Ok(made)
}

/// Begins to tell the events of a CQ.
///
/// # Errors
/// They cannot be told, and the CQ is gone.
///
/// # Safety
/// It was given just now, and nobody else has it.
unsafe fn begin(made: *mut abi::CqEx) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let whole = unsafe { Cq::of(made) }?;
    let Some(listed) = &whole.listed else {
        return Ok(());
    };
    let begun = listed.begin(&whole.cq, made as usize);
    if begun.is_err() {
        // SAFETY: as the caller promises, and what was borrowed of it is not used any more.
        drop(unsafe { Cq::take(made) });
    }
    begun
}

/// `cqe` of a CQ that holds so many.
fn depth(cq: &trunkline::Cq) -> c_int {
    cq.depth().try_into().unwrap_or(c_int::MAX)
}

/// `ibv_create_cq(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
) -> *mut abi::Cq {
    let made = pointer(|| {
        let wanted = Wanted {
            cqe: cqe.try_into().map_err(|_| INVALID)?,
            cq_context,
            channel,
            comp_vector: comp_vector.cast_unsigned(),
            single_threaded: false,
        };
        // SAFETY: both are the program's.
        unsafe { create(context, &wanted) }
    });
    made.cast()
}

/// `ibv_resize_cq(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut abi::Cq, cqe: c_int) -> c_int {
    code(|| {
        // SAFETY: the program gives a CQ.
        let whole = unsafe { Cq::of(cq.cast()) }?;
        whole.cq.resize(cqe.try_into().map_err(|_| INVALID)?)?;
        // SAFETY: the structure is the program's, and two threads that resize a CQ at once agree on
        // who is second, as the page leaves to them.
        unsafe { (*whole.abi.get()).cqe = depth(&whole.cq) };
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`: waits until the program has acknowledged all events of it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut abi::Cq) -> c_int {
    code(|| {
        // SAFETY: the program gives a CQ.
        let whole = unsafe { Cq::of(cq.cast()) }?;
        whole.uses.check_none()?;
        whole.context.open.registry.remove(Name::Cq(whole.cq.id()));
        if let Some(listed) = &whole.listed
            && whole.context.open.check_own().is_ok()
        {
            listed.end();
        }
        // SAFETY: no QP has it, and the program gives it back.
        drop(unsafe { Cq::take(cq.cast()) });
        Ok(())
    })
}

/// `ibv_req_notify_cq(3)`
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    code(|| {
        // SAFETY: the program gives a CQ.
        let cq = unsafe { Cq::of(cq.cast()) }?;
        cq.cq.arm(solicited_only != 0);
        Ok(())
    })
}

/// `ibv_poll_cq(3)`
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut abi::Cq,
    entries: c_int,
    wcs: *mut abi::Wc,
) -> c_int {
    crate::answer::number(|| {
        // SAFETY: the program gives a CQ.
        let whole = unsafe { Cq::of(cq.cast()) }?;
        let entries = usize::try_from(entries).map_err(|_| INVALID)?;
        let mut count = 0;
        whole.poll(entries, |told| {
            // SAFETY: the program gives room for so many, and no more are taken.
            let room = unsafe { wcs.add(count) };
            // SAFETY: the same.
            unsafe { room.write(told.wc()) };
            count += 1;
        })?;
        if count == 0 {
            whole.context.open.help();
        }
        c_int::try_from(count).map_err(|_| INVALID)
    })
}
