//! Attributes that change while a QP is in use (`ibv_modify_qp(3)`: the optional ones of INIT to
//! INIT, RTS to RTS, SQD to SQD, SQD to RTS and SQE to RTS).

use super::qp::{Attributes, Wire};
use super::verbs::check_attributes;
use super::{Engine, Platform};
use crate::error::VerbsError;
use crate::state::{QpState, QpType};
use trunkline_conn::mem::Access;

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// Rights of the peer (RC, UC): in INIT, RTS, SQD and SQE.
    pub access: Option<Access>,
    /// Q_Key (UD): in the same.
    pub qkey: Option<u32>,
    /// Code of the pause asked for when not ready (RC): in RTS and SQD.
    pub min_rnr_timer: Option<u8>,
    /// ACK timeout exponent (RC): in SQD, once its send queue is drained, and so are the others.
    pub timeout: Option<u8>,
    /// Retries after a timeout.
    pub retry_count: Option<u8>,
    /// Retries after receiver-not-ready.
    pub rnr_retry: Option<u8>,
    /// READs and atomics we may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
}

impl Changes {
    /// Each attribute that is to change and may not, where a QP of `kind` goes from `from` to `to`.
    fn forbidden(&self, kind: QpType, from: QpState, to: QpState) -> Option<&'static str> {
        let rc = kind.is_reliable();
        let stays_drained = rc && (from, to) == (QpState::Sqd, QpState::Sqd);
        let table = [
            ("qp_access_flags", self.access.is_some(), kind != QpType::Ud),
            ("qkey", self.qkey.is_some(), kind == QpType::Ud),
            (
                "min_rnr_timer",
                self.min_rnr_timer.is_some(),
                rc && from != QpState::Init,
            ),
            ("timeout", self.timeout.is_some(), stays_drained),
            ("retry_cnt", self.retry_count.is_some(), stays_drained),
            ("rnr_retry", self.rnr_retry.is_some(), stays_drained),
            ("max_rd_atomic", self.max_rd_atomic.is_some(), stays_drained),
            (
                "max_dest_rd_atomic",
                self.max_dest_rd_atomic.is_some(),
                stays_drained,
            ),
        ];
        let bad = table.into_iter().find(|(_, asked, may)| *asked && !may);
        bad.map(|(what, ..)| what)
    }

    /// Whether any changes that requests under way depend on.
    const fn needs_quiet(&self) -> bool {
        self.timeout.is_some()
            || self.retry_count.is_some()
            || self.rnr_retry.is_some()
            || self.max_rd_atomic.is_some()
            || self.max_dest_rd_atomic.is_some()
    }

    fn merged(&self, old: &Attributes) -> Attributes {
        Attributes {
            access: self.access.or(old.access),
            qkey: self.qkey.unwrap_or(old.qkey),
            min_rnr_timer: self.min_rnr_timer.unwrap_or(old.min_rnr_timer),
            timeout: self.timeout.unwrap_or(old.timeout),
            retry_count: self.retry_count.unwrap_or(old.retry_count),
            rnr_retry: self.rnr_retry.unwrap_or(old.rnr_retry),
            max_rd_atomic: self.max_rd_atomic.unwrap_or(old.max_rd_atomic),
            max_dest_rd_atomic: self.max_dest_rd_atomic.unwrap_or(old.max_dest_rd_atomic),
            ..*old
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Changes attributes of a QP that goes from `from` to `to`: all of them, or none.
    ///
    /// # Errors
    /// [`VerbsError::FixedAttribute`], a value out of range, or a send queue that is not drained
    /// yet.
    pub(super) fn change_attributes(
        &mut self,
        qp: u32,
        (from, to): (QpState, QpState),
        changes: &Changes,
    ) -> Result<(), VerbsError> {
        let kind = self.cold(qp).kind;
        if let Some(what) = changes.forbidden(kind, from, to) {
            return Err(VerbsError::FixedAttribute { what, state: from });
        }
        if changes.needs_quiet() && !self.is_quiet(qp) {
            return Err(VerbsError::Busy {
                what: "send queue",
                users: 1,
            });
        }
        let attributes = changes.merged(&self.cold(qp).attributes);
        if from != QpState::Init {
            check_attributes(&attributes)?;
        }
        self.cold_mut(qp).attributes = attributes;
        if let Wire::Ibta(ibta) = self.qps[qp].wire {
            self.change_ibta(qp, ibta);
        }
        Ok(())
    }

    /// Whether nothing that was begun is under way.
    pub(super) fn is_quiet(&self, qp: u32) -> bool {
        let record = &self.qps[qp];
        let ibta = match record.wire {
            Wire::Ibta(ibta) => self.ibta_pending(ibta),
            _ => 0,
        };
        record.order.is_empty() && ibta == 0
    }
}
