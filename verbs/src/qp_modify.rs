//! Changes of a QP, and what is asked of one.

use crate::abi;
use crate::abi::{access, qp_mask};
use crate::ah;
use crate::answer::{Errno, INVALID, UNSUPPORTED, code};
use crate::object::Object;
use crate::qp::{Qp, cap};
use crate::qp_steps;
use crate::query;
use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::PoisonError;
use trunkline::{Access, Attributes, Changes, Gid, Psn, QpModify, QpState, QpType, Qpn};

/// What a program asked for so far. Calls name some attributes each, and the steps of the library
/// take all that belong to them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked {
    attributes: Attributes,
    /// Given back to who asks. Packets have the hop limit of the way that they take, as the kernel
    /// sees to for devices: programs put anything here.
    hop_limit: u8,
}

/// A call that changes a QP.
struct Call<'a> {
    attr: &'a abi::QpAttr,
    mask: u32,
    from: QpState,
    to: QpState,
}

/// `ibv_modify_qp(3)`
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut abi::Qp, attr: *mut abi::QpAttr, mask: c_int) -> c_int {
    code(|| {
        // SAFETY: the program gives a QP.
        let whole = unsafe { Qp::of(qp.cast()) }?;
        // SAFETY: the program gives attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        let to = modify(whole, attr, mask.cast_unsigned())?;
        // SAFETY: the structure is the program's, which changes a QP in one thread at a time.
        unsafe { (*whole.abi.get()).qp_base.state = to as u32 };
        Ok(())
    })
}

fn modify(qp: &Qp, attr: &abi::QpAttr, mask: u32) -> Result<QpState, Errno> {
    // All QPs of a node that is down are in error, from where few steps lead anywhere.
    qp.context.open.check_up()?;
    let mut asked = qp.asked.lock().unwrap_or_else(PoisonError::into_inner);
    let from = qp.qp.state();
    let to = match mask & qp_mask::STATE {
        0 => from,
        _ => state(attr.qp_state)?,
    };
    qp_steps::check(qp.kind, from, to, mask)?;
    let call = Call {
        attr,
        mask,
        from,
        to,
    };
    call.check_fixed()?;
    let mut wanted = call.merged(&asked)?;
    if qp.kind == QpType::Ud {
        // No call says how large datagrams may be: as large as the port carries.
        wanted.attributes.path_mtu = qp.context.open.node.port_attributes()?.active_mtu;
    }
    for change in call.steps(qp.kind, &wanted.attributes)?.iter().flatten() {
        if matches!(change, QpModify::Init { .. }) {
            // From there on there are posts, of which none may wait for a service.
            qp.qp.make_rings()?;
        }
        qp.qp.modify(change)?;
    }
    *asked = if to == QpState::Reset {
        Asked::default()
    } else {
        wanted
    };
    Ok(to)
}

fn state(value: u32) -> Result<QpState, Errno> {
    let value = u8::try_from(value).ok();
    value.and_then(QpState::from_value).ok_or(INVALID)
}

impl Call<'_> {
    fn has(&self, bit: u32) -> bool {
        self.mask & bit != 0
    }

    /// The value of an attribute that the call names.
    fn named<T>(&self, bit: u32, value: T) -> Option<T> {
        self.has(bit).then_some(value)
    }

    /// Checks what can have one value only.
    ///
    /// # Errors
    /// EINVAL; EOPNOTSUPP for other paths than the first one.
    fn check_fixed(&self) -> Result<(), Errno> {
        if self.has(qp_mask::CUR_STATE) && state(self.attr.cur_qp_state)? != self.from {
            return Err(INVALID);
        }
        if self.has(qp_mask::PKEY_INDEX) && self.attr.pkey_index != 0 {
            return Err(INVALID);
        }
        if self.has(qp_mask::PORT) {
            query::check_port(self.attr.port_num.into())?;
        }
        let moves = self.from == QpState::Sqd && self.has(qp_mask::AV);
        if moves || self.has(qp_mask::ALT_PATH | qp_mask::PATH_MIG_STATE) {
            return Err(UNSUPPORTED);
        }
        Ok(())
    }

    fn access(&self) -> Result<Option<Access>, Errno> {
        let flags = self.attr.qp_access_flags;
        if self.has(qp_mask::ACCESS_FLAGS) && flags & !access::KNOWN != 0 {
            return Err(INVALID);
        }
        Ok(self.named(qp_mask::ACCESS_FLAGS, Access::from_bits(flags)))
    }

    /// What was asked for before, with what this call names in its place.
    fn merged(&self, before: &Asked) -> Result<Asked, Errno> {
        use qp_mask::*;
        let (attr, mut asked) = (self.attr, *before);
        let own = &mut asked.attributes;
        own.access = self.access()?;
        if self.has(AV) {
            let to = ah::attributes(&attr.ah_attr)?;
            own.remote = to.remote;
            own.traffic_class = to.traffic_class;
            own.flow_label = to.flow_label;
            own.service_level = to.service_level;
            asked.hop_limit = attr.ah_attr.grh.hop_limit;
        }
        if self.has(PATH_MTU) {
            let place = (attr.path_mtu as usize).wrapping_sub(1);
            own.path_mtu = *Attributes::PATH_MTUS.get(place).ok_or(INVALID)?;
        }
        if self.has(DEST_QPN) {
            own.dest_qpn = Qpn::new(attr.dest_qp_num).ok_or(INVALID)?;
        }
        let set = |bit, place: &mut u8, value| *place = self.named(bit, value).unwrap_or(*place);
        set(TIMEOUT, &mut own.timeout, attr.timeout);
        set(RETRY_CNT, &mut own.retry_count, attr.retry_cnt);
        set(RNR_RETRY, &mut own.rnr_retry, attr.rnr_retry);
        set(MIN_RNR_TIMER, &mut own.min_rnr_timer, attr.min_rnr_timer);
        set(MAX_QP_RD_ATOMIC, &mut own.max_rd_atomic, attr.max_rd_atomic);
        set(
            MAX_DEST_RD_ATOMIC,
            &mut own.max_dest_rd_atomic,
            attr.max_dest_rd_atomic,
        );
        own.rq_psn = self
            .named(RQ_PSN, Psn::from_wire(attr.rq_psn))
            .unwrap_or(own.rq_psn);
        own.sq_psn = self
            .named(SQ_PSN, Psn::from_wire(attr.sq_psn))
            .unwrap_or(own.sq_psn);
        own.qkey = self.named(QKEY, attr.qkey).unwrap_or(own.qkey);
        Ok(asked)
    }

    /// What the call names of the attributes that change as a QP runs.
    fn changes(&self) -> Result<Changes, Errno> {
        use qp_mask::*;
        let attr = self.attr;
        Ok(Changes {
            access: self.access()?,
            qkey: self.named(QKEY, attr.qkey),
            min_rnr_timer: self.named(MIN_RNR_TIMER, attr.min_rnr_timer),
            timeout: self.named(TIMEOUT, attr.timeout),
            retry_count: self.named(RETRY_CNT, attr.retry_cnt),
            rnr_retry: self.named(RNR_RETRY, attr.rnr_retry),
            max_rd_atomic: self.named(MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
            max_dest_rd_atomic: self.named(MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        })
    }

    /// The steps of the library: one, and where RTS comes with what is no attribute of a requester
    /// one more.
    fn steps(&self, kind: QpType, wanted: &Attributes) -> Result<[Option<QpModify>; 2], Errno> {
        let changes = self.changes()?;
        let first = match (self.from, self.to) {
            (_, QpState::Reset) => QpModify::Reset,
            (_, QpState::Error) => QpModify::Error,
            (QpState::Reset, _) => QpModify::Init {
                access: match kind {
                    QpType::Ud => Access::LOCAL_READ,
                    _ => wanted.access.ok_or(INVALID)?,
                },
            },
            (QpState::Init, QpState::Rtr) => QpModify::Rtr(*wanted),
            (QpState::Rtr, _) => QpModify::Rts(*wanted),
            (QpState::Rts, QpState::Sqd) => QpModify::Drain,
            (QpState::Sqd | QpState::Sqe, QpState::Rts) => QpModify::Resume(changes),
            _ => QpModify::Change(changes),
        };
        let late = Changes {
            qkey: changes.qkey,
            min_rnr_timer: changes.min_rnr_timer,
            ..Changes::default()
        };
        let is_late = self.from == QpState::Rtr && late != Changes::default();
        Ok([Some(first), is_late.then_some(QpModify::Change(late))])
    }
}

/// `ibv_query_qp(3)`: all attributes, whichever the mask names.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut abi::Qp,
    attr: *mut abi::QpAttr,
    _mask: c_int,
    init: *mut abi::QpInitAttr,
) -> c_int {
    code(|| {
        // SAFETY: the program gives a QP.
        let whole = unsafe { Qp::of(qp.cast()) }?;
        let (state, attributes, options) = whole.qp.query()?;
        let hop_limit = whole
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hop_limit;
        // SAFETY: the program gives room for attributes.
        let attr = unsafe { attr.as_mut() }.ok_or(INVALID)?;
        *attr = qp_attr(state, &attributes, hop_limit);
        attr.cap = cap(&options);
        // SAFETY: the program gives room for what the QP was made with.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let public = whole.abi.get();
        // SAFETY: the structure is the program's, and these fields of it never change.
        let base = unsafe { &(*public).qp_base };
        *init = abi::QpInitAttr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: cap(&options),
            qp_type: base.qp_type,
            sq_sig_all: options.signal_all.into(),
        };
        // SAFETY: the state is written by calls that change the QP, of which the program makes one
        // at a time, and this is such a call.
        unsafe { (*public).qp_base.state = state as u32 };
        Ok(())
    })
}

fn qp_attr(state: QpState, own: &Attributes, hop_limit: u8) -> abi::QpAttr {
    // SAFETY: its fields are integers, which may be zero.
    let mut attr: abi::QpAttr = unsafe { zeroed() };
    attr.qp_state = state as u32;
    attr.cur_qp_state = state as u32;
    attr.path_mtu = query::mtu(own.path_mtu);
    attr.qkey = own.qkey;
    attr.rq_psn = own.rq_psn.get();
    attr.sq_psn = own.sq_psn.get();
    attr.dest_qp_num = own.dest_qpn.get();
    attr.qp_access_flags = own.access.map_or(0, Access::bits);
    attr.max_rd_atomic = own.max_rd_atomic;
    attr.max_dest_rd_atomic = own.max_dest_rd_atomic;
    attr.min_rnr_timer = own.min_rnr_timer;
    attr.port_num = query::PORT;
    attr.timeout = own.timeout;
    attr.retry_cnt = own.retry_count;
    attr.rnr_retry = own.rnr_retry;
    if own.remote != Gid::default() {
        let to = &mut attr.ah_attr;
        to.is_global = 1;
        to.port_num = query::PORT;
        to.sl = own.service_level;
        to.grh.dgid = abi::AlignedGid(own.remote.0);
        to.grh.flow_label = own.flow_label;
        to.grh.hop_limit = hop_limit;
        to.grh.traffic_class = own.traffic_class;
    }
    attr
}
