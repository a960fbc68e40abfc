//! Requests that are put together call by call (`ibv_wr_post(3)`).
//!
//! They are gathered from `ibv_wr_start` to `ibv_wr_complete`, and posted there. Meanwhile the QP
//! is locked, so that those of two threads do not mix.

use crate::abi;
use crate::ah::Ah;
use crate::answer::{Errno, INVALID, UNSUPPORTED, code};
use crate::mw;
use crate::object::Object;
use crate::post::{BATCH, remote, sges};
use crate::qp::Qp;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;
use trunkline::{OwnOp, QpType, Qpn, Rkey, SendFlags, SendOp, SendWr, Sge};

/// The requests between `ibv_wr_start` and `ibv_wr_complete`. Its memory is used again.
#[derive(Default)]
pub(crate) struct Builder {
    requests: Vec<Request>,
    /// Elements and inline bytes of all of them.
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// Why they cannot be posted.
    refused: Option<Errno>,
}

struct Request {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    data: Data,
}

enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Builder {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.refused = None;
    }

    /// Says what the data of the last request is.
    fn set(&mut self, data: Data) {
        match self.requests.last_mut() {
            Some(request) => request.data = data,
            None => self.refused = Some(INVALID),
        }
    }

    fn request(&self, request: &Request) -> SendWr<'_> {
        let posted = SendWr::new(request.op)
            .wr_id(request.wr_id)
            .flags(request.flags);
        match &request.data {
            Data::Sges(range) => posted.sges(&self.sges[range.clone()]),
            Data::Inline(range) => posted.inline(&self.bytes[range.clone()]),
        }
    }

    /// Posts all of them.
    ///
    /// # Errors
    /// One of them cannot be. Where it was found out as it was put together none was posted.
    fn post(&self, qp: &trunkline::Qp) -> Result<(), Errno> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        for some in self.requests.chunks(BATCH) {
            let mut batch = [SendWr::send(); BATCH];
            for (place, request) in batch.iter_mut().zip(some) {
                *place = self.request(request);
            }
            qp.post_send(&batch[..some.len()])?;
        }
        Ok(())
    }
}

/// Bits of `enum ibv_qp_create_send_ops_flags` for what a QP of this type does.
pub(crate) const fn operations(kind: QpType) -> u64 {
    const WRITES: u64 = 0b11;
    const SENDS: u64 = 0b11 << 2;
    const OWN: u64 = 0b11 << 7;
    const SEND_WITH_INV: u64 = 1 << 9;
    match kind {
        QpType::Rc => abi::SEND_OPS,
        QpType::Uc => WRITES | SENDS | OWN | SEND_WITH_INV,
        _ => SENDS,
    }
}

/// Puts the functions into the structure; those for what is not offered stay NULL, as no program
/// may call what it did not ask for.
pub(crate) fn fill(qp: &mut abi::QpEx) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
}

/// The QP behind a pointer that a function of its own structure got.
///
/// # Safety
/// It is a QP of the program.
unsafe fn whole<'a>(qp: *mut abi::QpEx) -> &'a Qp {
    // SAFETY: it is a QP of the program.
    let whole = unsafe { Qp::of(qp) };
    whole.expect("the program took this function from the QP")
}

/// What is put together.
///
/// # Safety
/// The program has started to put requests of the QP together, so it has the lock.
unsafe fn builder<'a>(qp: *mut abi::QpEx) -> &'a mut Builder {
    // SAFETY: it is a QP of the program.
    let qp = unsafe { whole(qp) };
    // SAFETY: the program has the lock, and each function takes the builder once.
    unsafe { qp.builder.get() }
}

/// Begins one more request, with cookie and flags that the program has put into the structure.
///
/// # Safety
/// As [`builder`].
unsafe fn begin(qp: *mut abi::QpEx, op: Result<SendOp, Errno>) {
    // SAFETY: as the caller promises.
    let builder = unsafe { builder(qp) };
    let op = match op {
        Ok(op) => op,
        Err(errno) => {
            builder.refused = Some(errno);
            SendOp::Send
        }
    };
    // SAFETY: the program writes this under the same lock.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: the same.
    let flags = unsafe { (*qp).wr_flags };
    builder.requests.push(Request {
        wr_id,
        flags: SendFlags(flags & !abi::SEND_INLINE),
        op,
        data: Data::Sges(0..0),
    });
}

unsafe extern "C" fn start(qp: *mut abi::QpEx) {
    // SAFETY: the program gives a QP.
    unsafe { whole(qp) }.builder.lock();
    // SAFETY: it was locked just now.
    unsafe { builder(qp) }.clear();
}

unsafe extern "C" fn complete(qp: *mut abi::QpEx) -> c_int {
    // SAFETY: the program gives a QP.
    let whole = unsafe { whole(qp) };
    // SAFETY: the program has started, so it has the lock.
    let posted = code(|| unsafe { whole.builder.get() }.post(&whole.qp));
    whole.builder.unlock();
    posted
}

unsafe extern "C" fn abort(qp: *mut abi::QpEx) {
    // SAFETY: the program gives a QP.
    unsafe { whole(qp) }.builder.unlock();
}

/// Functions that begin a request.
macro_rules! operations {
    ($($name:ident($($argument:ident: $of:ty),*) => $op:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut abi::QpEx, $($argument: $of),*) {
            // SAFETY: the program has started to put requests together.
            unsafe { begin(qp, $op) };
        }
    )*};
}

operations! {
    rdma_read(rkey: u32, addr: u64) => Ok(SendOp::Read(remote(addr, rkey)));
    rdma_write(rkey: u32, addr: u64) => Ok(SendOp::Write(remote(addr, rkey)));
    rdma_write_imm(rkey: u32, addr: u64, imm: u32) =>
        Ok(SendOp::WriteImm(remote(addr, rkey), u32::from_be(imm)));
    atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        Ok(SendWr::compare_swap(remote(addr, rkey), compare, swap).op);
    atomic_fetch_add(rkey: u32, addr: u64, add: u64) =>
        Ok(SendWr::fetch_add(remote(addr, rkey), add).op);
    send() => Ok(SendOp::Send);
    send_imm(imm: u32) => Ok(SendOp::SendImm(u32::from_be(imm)));
    send_inv(rkey: u32) => Ok(SendOp::SendInvalidate(Rkey(rkey)));
    local_inv(rkey: u32) => Ok(SendOp::Own(OwnOp::Invalidate(Rkey(rkey))));
}

unsafe extern "C" fn bind_mw(
    qp: *mut abi::QpEx,
    _mw: *mut abi::Mw,
    rkey: u32,
    info: *const abi::MwBindInfo,
) {
    // SAFETY: the program gives a bind.
    let info = unsafe { info.as_ref() }.ok_or(INVALID);
    // SAFETY: it names a region of the program.
    let bind = info.and_then(|info| unsafe { mw::bind(rkey, info) });
    // SAFETY: the program has started to put requests together.
    unsafe { begin(qp, bind.map(|bind| SendOp::Own(OwnOp::BindMw(bind)))) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut abi::QpEx, ah: *mut abi::Ah, qpn: u32, qkey: u32) {
    // SAFETY: the program gives a handle.
    let to = unsafe { Ah::of(ah) };
    let to = to.and_then(|to| Ok((to, Qpn::new(qpn).ok_or(INVALID)?)));
    // SAFETY: the program has started to put requests together.
    let builder = unsafe { builder(qp) };
    let op = match (to, builder.requests.last()) {
        (Ok((to, qpn)), Some(request)) => match request.op {
            SendOp::Send => Ok(to.ah.send(qpn, qkey)),
            SendOp::SendImm(imm) => Ok(to.ah.send_imm(qpn, qkey, imm)),
            _ => Err(UNSUPPORTED),
        },
        _ => Err(INVALID),
    };
    match (op, builder.requests.last_mut()) {
        (Ok(op), Some(request)) => request.op = op,
        (Ok(_), None) => {}
        (Err(errno), _) => builder.refused = Some(errno),
    }
}

/// Appends bytes to those of the last request.
///
/// # Safety
/// The program has so many there.
unsafe fn append(builder: &mut Builder, addr: *const c_void, length: usize) {
    if length > 0 {
        // SAFETY: as the caller promises.
        let bytes = unsafe { slice::from_raw_parts(addr.cast(), length) };
        builder.bytes.extend_from_slice(bytes);
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut abi::QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: the program has started to put requests together.
    let builder = unsafe { builder(qp) };
    let begin = builder.bytes.len();
    // SAFETY: the program has the bytes.
    unsafe { append(builder, addr, length) };
    builder.set(Data::Inline(begin..builder.bytes.len()));
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut abi::QpEx,
    count: usize,
    list: *const abi::DataBuf,
) {
    // SAFETY: the program has started to put requests together.
    let builder = unsafe { builder(qp) };
    let begin = builder.bytes.len();
    for n in 0..count {
        // SAFETY: the program gives so many.
        let buffer = unsafe { list.add(n) };
        // SAFETY: this is one of them.
        let buffer = unsafe { &*buffer };
        // SAFETY: the program has the bytes.
        unsafe { append(builder, buffer.addr, buffer.length) };
    }
    builder.set(Data::Inline(begin..builder.bytes.len()));
}

unsafe extern "C" fn set_sge(qp: *mut abi::QpEx, lkey: u32, addr: u64, length: u32) {
    let sge = abi::Sge { addr, length, lkey };
    // SAFETY: there is one, and the program has started to put requests together.
    unsafe { set_sge_list(qp, 1, &raw const sge) };
}

unsafe extern "C" fn set_sge_list(qp: *mut abi::QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: the program has started to put requests together.
    let builder = unsafe { builder(qp) };
    let begin = builder.sges.len();
    // SAFETY: the program gives so many.
    builder.sges.extend_from_slice(unsafe { sges(list, count) });
    builder.set(Data::Sges(begin..builder.sges.len()));
}
