//! Completions that a program reads one by one (`ibv_create_cq_ex(3)`).

use crate::abi;
use crate::answer::{INVALID, UNSUPPORTED, pointer};
use crate::completion::{self, Told};
use crate::cq::{Cq, Wanted, create};
use crate::object::Object;
use std::ffi::{c_int, c_uint};

/// `ibv_create_cq_ex(3)`
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut abi::Context,
    attr: *mut abi::CqInitAttrEx,
) -> *mut abi::CqEx {
    pointer(|| {
        // SAFETY: the program gives attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        // Tags, times of the wall clock and the like; a parent domain; a CQ that overruns silently.
        if attr.wc_flags & !abi::WC_EX_FLAGS != 0
            || attr.comp_mask & !abi::CQ_INIT_ATTR_MASK_FLAGS != 0
        {
            return Err(UNSUPPORTED);
        }
        let has_flags = attr.comp_mask & abi::CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if has_flags { attr.flags } else { 0 };
        if flags & !abi::CREATE_CQ_SINGLE_THREADED != 0 {
            return Err(UNSUPPORTED);
        }
        let wanted = Wanted {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            single_threaded: flags & abi::CREATE_CQ_SINGLE_THREADED != 0,
        };
        // SAFETY: context and channel are the program's.
        unsafe { create(context, &wanted) }
    })
}

/// Puts the functions into the structure; those for what is not offered stay NULL, as no program
/// may call what it did not ask for.
pub(crate) fn fill(cq: &mut abi::CqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
}

/// The CQ behind a pointer that a function of its own structure got.
///
/// # Safety
/// It is a CQ of the program.
unsafe fn whole<'a>(cq: *mut abi::CqEx) -> &'a Cq {
    // SAFETY: it is a CQ of the program.
    let whole = unsafe { Cq::of(cq) };
    whole.expect("the program took this function from the CQ")
}

/// Takes the next completion; ENOENT where there is none.
///
/// # Safety
/// The calling thread has the lock of the reader.
unsafe fn advance(cq: &Cq) -> c_int {
    let mut taken = None;
    match cq.poll(1, |told| taken = Some(told)).map(|()| taken) {
        Ok(Some(told)) => {
            let public = cq.abi.get();
            // SAFETY: the caller has the lock, under which alone these two are written and read.
            unsafe { (*public).status = told.completion.status as u32 };
            // SAFETY: the same.
            unsafe { (*public).wr_id = told.completion.wr_id };
            // SAFETY: the same, and nobody has another reference.
            *unsafe { cq.reader.get() } = told;
            0
        }
        Ok(None) => {
            cq.context.open.help();
            libc::ENOENT
        }
        Err(_) => libc::EIO,
    }
}

/// `ibv_start_poll(3)`
unsafe extern "C" fn start_poll(cq: *mut abi::CqEx, attr: *mut abi::PollCqAttr) -> c_int {
    // SAFETY: the program gives a CQ.
    let cq = unsafe { whole(cq) };
    // SAFETY: the program gives attributes or NULL.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    cq.reader.lock();
    // SAFETY: it was locked just now.
    let answer = unsafe { advance(cq) };
    if answer != 0 {
        cq.reader.unlock();
    }
    answer
}

/// `ibv_next_poll(3)`
unsafe extern "C" fn next_poll(cq: *mut abi::CqEx) -> c_int {
    // SAFETY: the program gives a CQ.
    let cq = unsafe { whole(cq) };
    // SAFETY: the program has begun to poll it, so it has the lock.
    unsafe { advance(cq) }
}

/// `ibv_end_poll(3)`
unsafe extern "C" fn end_poll(cq: *mut abi::CqEx) {
    // SAFETY: the program gives a CQ.
    unsafe { whole(cq) }.reader.unlock();
}

/// The completion that is being read.
///
/// # Safety
/// The program has begun to poll the CQ.
unsafe fn current<'a>(cq: *mut abi::CqEx) -> &'a Told {
    // SAFETY: the program gives a CQ.
    let cq = unsafe { whole(cq) };
    // SAFETY: whoever has begun to poll has the lock.
    unsafe { cq.reader.get() }
}

/// Functions that read one thing of the current completion.
macro_rules! readers {
    ($($name:ident: $of:ty = $read:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut abi::CqEx) -> $of {
            // SAFETY: the program has begun to poll the CQ.
            let told = unsafe { current(cq) };
            let read: fn(&Told) -> $of = $read;
            read(told)
        }
    )*};
}

readers! {
    read_opcode: u32 = |told| told.completion.opcode as u32;
    read_vendor_err: u32 = |told| completion::vendor_err(&told.completion);
    read_byte_len: u32 = |told| told.completion.byte_len;
    read_imm_data: u32 = |told| completion::imm_data(&told.completion);
    read_qp_num: u32 = |told| told.completion.qpn.get();
    read_src_qp: u32 = |told| told.completion.src_qp.get();
    read_wc_flags: c_uint = Told::flags;
    read_slid: u32 = |_| 0;
    read_sl: u8 = Told::sl;
    read_dlid_path_bits: u8 = |_| 0;
    read_completion_ts: u64 = |told| told.completion.ticks.into();
}
