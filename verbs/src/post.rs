//! Posting lists of requests.

use crate::abi;
use crate::abi::wr;
use crate::ah::Ah;
use crate::answer::{Errno, INVALID, UNSUPPORTED, code};
use crate::mw;
use crate::object::Object;
use crate::qp::Qp;
use crate::srq::Srq;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::{ptr, slice};
use trunkline::{Error, OwnOp, QpType, Qpn, RecvWr, Remote, Rkey, SendFlags, SendOp, SendWr, Sge};

/// Requests that are handed to the library at once.
pub(crate) const BATCH: usize = 8;
/// Most inline bytes that a QP may be made for.
const MAX_INLINE: usize = 256;

// Elements are read where the program has them.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<abi::Sge>());
    assert!(align_of::<Sge>() == align_of::<abi::Sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(abi::Sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(abi::Sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(abi::Sge, lkey));
    assert!(size_of::<trunkline::Lkey>() == size_of::<u32>());
};

/// The elements of a list.
///
/// # Safety
/// There are so many at `list`, and they stay there for `'a`.
pub(crate) unsafe fn sges<'a>(list: *const abi::Sge, count: usize) -> &'a [Sge] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises, and both types lie in memory in the same way: see above.
    unsafe { slice::from_raw_parts(list.cast(), count) }
}

/// The bytes of a request that is sent inline. Those of one element stay where they are, and those
/// of several are gathered in `room`.
///
/// # Errors
/// EINVAL: more than any QP takes.
///
/// # Safety
/// The elements name memory of the program that stays there for `'a`.
unsafe fn inline<'a>(
    sges: &[Sge],
    room: &mut &'a mut [MaybeUninit<u8>],
) -> Result<&'a [u8], Errno> {
    let bytes = |sge: &Sge| match sge.length {
        // It need not have an address.
        0 => &[][..],
        // SAFETY: as the caller promises.
        length => unsafe { slice::from_raw_parts(sge.addr as *const u8, length as usize) },
    };
    if let [sge] = sges {
        return Ok(bytes(sge));
    }
    let length = sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    if length > MAX_INLINE as u64 {
        return Err(INVALID);
    }
    let (own, rest) = std::mem::take(room).split_at_mut(length as usize);
    *room = rest;
    let mut end = 0;
    for sge in sges {
        let begin = end;
        end += sge.length as usize;
        own[begin..end].write_copy_of_slice(bytes(sge));
    }
    // SAFETY: the elements together have filled all of it.
    Ok(unsafe { own.assume_init_ref() })
}

/// What a request asks for, in the words of the library.
///
/// # Errors
/// EOPNOTSUPP: no QP here does that. EINVAL: this one does not.
///
/// # Safety
/// What it names is the program's.
unsafe fn operation(request: &abi::SendWr, kind: QpType) -> Result<SendOp, Errno> {
    let imm = u32::from_be(request.imm_data);
    if kind == QpType::Ud {
        // SAFETY: the requests of such a QP name their receivers.
        let ud = unsafe { request.wr.ud };
        // SAFETY: by a handle of the program.
        let to = &unsafe { Ah::of(ud.ah) }?.ah;
        let qpn = Qpn::new(ud.remote_qpn).ok_or(INVALID)?;
        return match request.opcode {
            wr::SEND => Ok(to.send(qpn, ud.remote_qkey)),
            wr::SEND_WITH_IMM => Ok(to.send_imm(qpn, ud.remote_qkey, imm)),
            _ => Err(INVALID),
        };
    }
    // SAFETY: any bits are integers; they mean something where the opcode says so.
    let rdma = unsafe { request.wr.rdma };
    // SAFETY: the same.
    let atomic = unsafe { request.wr.atomic };
    let remote = remote(rdma.remote_addr, rdma.rkey);
    let at = self::remote(atomic.remote_addr, atomic.rkey);
    Ok(match request.opcode {
        wr::RDMA_WRITE => SendOp::Write(remote),
        wr::RDMA_WRITE_WITH_IMM => SendOp::WriteImm(remote, imm),
        wr::SEND => SendOp::Send,
        wr::SEND_WITH_IMM => SendOp::SendImm(imm),
        wr::RDMA_READ => SendOp::Read(remote),
        wr::ATOMIC_CMP_AND_SWP => SendWr::compare_swap(at, atomic.compare_add, atomic.swap).op,
        wr::ATOMIC_FETCH_AND_ADD => SendWr::fetch_add(at, atomic.compare_add).op,
        // The key is not one of the wire's, so its bytes are not swapped.
        wr::LOCAL_INV => SendOp::Own(OwnOp::Invalidate(Rkey(request.imm_data))),
        wr::SEND_WITH_INV => SendOp::SendInvalidate(Rkey(request.imm_data)),
        wr::BIND_MW => {
            let wanted = &request.bind_mw;
            // SAFETY: it names a region of the program.
            SendOp::Own(OwnOp::BindMw(unsafe {
                mw::bind(wanted.rkey, &wanted.bind_info)
            }?))
        }
        _ => return Err(UNSUPPORTED),
    })
}

pub(crate) const fn remote(addr: u64, rkey: u32) -> Remote {
    Remote {
        addr,
        rkey: Rkey(rkey),
    }
}

/// A send request in the words of the library.
///
/// # Safety
/// What it names is the program's, and stays as it is for `'a`.
unsafe fn send_wr<'a>(
    request: &abi::SendWr,
    kind: QpType,
    room: &mut &'a mut [MaybeUninit<u8>],
) -> Result<SendWr<'a>, Errno> {
    let count = usize::try_from(request.num_sge).map_err(|_| INVALID)?;
    // SAFETY: the program gives so many.
    let elements = unsafe { sges(request.sg_list, count) };
    // SAFETY: as the caller promises.
    let op = unsafe { operation(request, kind) }?;
    let flags = SendFlags(request.send_flags & !abi::SEND_INLINE);
    let posted = SendWr::new(op).wr_id(request.wr_id).flags(flags);
    Ok(if request.send_flags & abi::SEND_INLINE != 0 {
        // SAFETY: as the caller promises.
        posted.inline(unsafe { inline(elements, room) }?)
    } else if matches!(op, SendOp::Own(_)) {
        // Such requests have no elements, whatever the program has left there.
        posted
    } else {
        posted.sges(elements)
    })
}

/// Which request of a batch was refused, and why.
fn refused(error: Error) -> (usize, Errno) {
    let posted = match &error {
        Error::Post(error) => error.posted,
        _ => 0,
    };
    (posted, error.into())
}

/// Posts a list of send requests.
///
/// # Errors
/// The first request that was refused; all before it are posted.
///
/// # Safety
/// The list and all that it names is the program's, and stays as it is meanwhile.
unsafe fn post_sends(qp: &Qp, mut next: *mut abi::SendWr) -> Result<(), (*mut abi::SendWr, Errno)> {
    while !next.is_null() {
        let mut room = [MaybeUninit::uninit(); BATCH * MAX_INLINE];
        let mut room = &mut room[..];
        let mut batch = [SendWr::send(); BATCH];
        let mut given = [ptr::null_mut(); BATCH];
        let (mut count, mut bad) = (0, None);
        // SAFETY: the program gives a list.
        while let Some(request) = unsafe { next.as_ref() }.filter(|_| count < BATCH) {
            // SAFETY: as the caller promises.
            match unsafe { send_wr(request, qp.kind, &mut room) } {
                Ok(posted) => (batch[count], given[count]) = (posted, next),
                Err(errno) => {
                    bad = Some(errno);
                    break;
                }
            }
            count += 1;
            next = request.next;
        }
        if count > 0 {
            let posted = qp.qp.post_send(&batch[..count]).map_err(refused);
            posted.map_err(|(posted, errno)| (given[posted], errno))?;
        }
        if let Some(errno) = bad {
            return Err((next, errno));
        }
    }
    Ok(())
}

/// Leaves the request that was refused where the program looks for it.
///
/// # Safety
/// `bad` is a place for a pointer, or NULL.
unsafe fn answer<T>(posted: Result<(), (*mut T, Errno)>, bad: *mut *mut T) -> Result<(), Errno> {
    posted.map_err(|(request, errno)| {
        // SAFETY: as the caller promises.
        if let Some(bad) = unsafe { bad.as_mut() } {
            *bad = request;
        }
        errno
    })
}

/// `ibv_post_send(3)`
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    list: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    code(|| {
        // SAFETY: the program gives a QP.
        let posted = unsafe { Qp::of(qp.cast()) }.map_err(|errno| (list, errno));
        // SAFETY: the program gives a list.
        let posted = posted.and_then(|qp| unsafe { post_sends(qp, list) });
        // SAFETY: the program gives a place for the one that is refused.
        unsafe { answer(posted, bad) }
    })
}

/// Posts a list of receive requests by `post`.
///
/// # Errors
/// The first request that was refused; all before it are posted.
///
/// # Safety
/// The list and all that it names is the program's, and stays as it is meanwhile.
unsafe fn post_receives(
    mut next: *mut abi::RecvWr,
    post: impl Fn(&[RecvWr<'_>]) -> Result<(), Error>,
) -> Result<(), (*mut abi::RecvWr, Errno)> {
    while !next.is_null() {
        let mut batch = [RecvWr::new(); BATCH];
        let mut given = [ptr::null_mut(); BATCH];
        let (mut count, mut bad) = (0, false);
        // SAFETY: the program gives a list.
        while let Some(request) = unsafe { next.as_ref() }.filter(|_| count < BATCH) {
            let Ok(elements) = usize::try_from(request.num_sge) else {
                bad = true;
                break;
            };
            // SAFETY: the program gives so many.
            let elements = unsafe { sges(request.sg_list, elements) };
            batch[count] = RecvWr::new().wr_id(request.wr_id).sges(elements);
            given[count] = next;
            count += 1;
            next = request.next;
        }
        if count > 0 {
            let posted = post(&batch[..count]).map_err(refused);
            posted.map_err(|(posted, errno)| (given[posted], errno))?;
        }
        if bad {
            return Err((next, INVALID));
        }
    }
    Ok(())
}

/// `ibv_post_recv(3)`
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    list: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    code(|| {
        // SAFETY: the program gives a QP.
        let posted = unsafe { Qp::of(qp.cast()) }.map_err(|errno| (list, errno));
        let posted = posted.and_then(|qp| {
            // SAFETY: the program gives a list.
            unsafe { post_receives(list, |batch| qp.qp.post_recv(batch)) }
        });
        // SAFETY: the program gives a place for the one that is refused.
        unsafe { answer(posted, bad) }
    })
}

/// `ibv_post_srq_recv(3)`
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    list: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    code(|| {
        // SAFETY: the program gives an SRQ.
        let posted = unsafe { Srq::of(srq) }.map_err(|errno| (list, errno));
        let posted = posted.and_then(|srq| {
            // SAFETY: the program gives a list.
            unsafe { post_receives(list, |batch| srq.srq.post_recv(batch)) }
        });
        // SAFETY: the program gives a place for the one that is refused.
        unsafe { answer(posted, bad) }
    })
}
