//! Steps and attributes of QPs as messages have them, for both sides.

use trunkline_conn::mem::Access;
use trunkline_host::control::attributes::{QpAttributes, QpStep};
use trunkline_qpmap::{Attributes, Changes, QpModify};

/// A change as a message has it.
pub(crate) fn step_of(change: &QpModify) -> (QpStep, QpAttributes) {
    let none = QpAttributes::default();
    match change {
        QpModify::Reset => (QpStep::Reset, none),
        QpModify::Init { access } => {
            let access = Some(*access);
            (QpStep::Init, QpAttributes { access, ..none })
        }
        QpModify::Rtr(attributes) => (QpStep::Rtr, all(attributes)),
        QpModify::Rts(attributes) => (QpStep::Rts, all(attributes)),
        QpModify::Drain => (QpStep::Drain, none),
        QpModify::Resume(changes) => (QpStep::Resume, some(changes)),
        QpModify::Change(changes) => (QpStep::Change, some(changes)),
        QpModify::Error => (QpStep::Error, none),
    }
}

/// The change that a message asks for. What a step does not take is not looked at.
pub(crate) fn change_of(step: QpStep, attributes: &QpAttributes) -> QpModify {
    match step {
        QpStep::Reset => QpModify::Reset,
        QpStep::Init => QpModify::Init {
            access: attributes.access.unwrap_or(Access::LOCAL_READ),
        },
        QpStep::Rtr => QpModify::Rtr(attributes_of(attributes)),
        QpStep::Rts => QpModify::Rts(attributes_of(attributes)),
        QpStep::Drain => QpModify::Drain,
        QpStep::Resume => QpModify::Resume(changes_of(attributes)),
        QpStep::Change => QpModify::Change(changes_of(attributes)),
        QpStep::Error => QpModify::Error,
    }
}

/// All attributes, as a message has them.
pub(crate) fn all(attributes: &Attributes) -> QpAttributes {
    QpAttributes {
        access: attributes.access,
        qkey: Some(attributes.qkey),
        remote: Some(attributes.remote),
        traffic_class: Some(attributes.traffic_class),
        flow_label: Some(attributes.flow_label),
        hop_limit: Some(attributes.hop_limit),
        service_level: Some(attributes.service_level),
        path_mtu: Some(attributes.path_mtu),
        timeout: Some(attributes.timeout),
        retry_count: Some(attributes.retry_count),
        rnr_retry: Some(attributes.rnr_retry),
        rq_psn: Some(attributes.rq_psn),
        sq_psn: Some(attributes.sq_psn),
        max_rd_atomic: Some(attributes.max_rd_atomic),
        max_dest_rd_atomic: Some(attributes.max_dest_rd_atomic),
        min_rnr_timer: Some(attributes.min_rnr_timer),
        dest_qpn: Some(attributes.dest_qpn),
    }
}

/// Those of a message; what it lacks is what a QP has by default.
pub(crate) fn attributes_of(message: &QpAttributes) -> Attributes {
    let default = Attributes::default();
    Attributes {
        remote: message.remote.unwrap_or(default.remote),
        dest_qpn: message.dest_qpn.unwrap_or(default.dest_qpn),
        access: message.access,
        rq_psn: message.rq_psn.unwrap_or(default.rq_psn),
        sq_psn: message.sq_psn.unwrap_or(default.sq_psn),
        path_mtu: message.path_mtu.unwrap_or(default.path_mtu),
        timeout: message.timeout.unwrap_or(default.timeout),
        retry_count: message.retry_count.unwrap_or(default.retry_count),
        rnr_retry: message.rnr_retry.unwrap_or(default.rnr_retry),
        min_rnr_timer: message.min_rnr_timer.unwrap_or(default.min_rnr_timer),
        max_rd_atomic: message.max_rd_atomic.unwrap_or(default.max_rd_atomic),
        max_dest_rd_atomic: message
            .max_dest_rd_atomic
            .unwrap_or(default.max_dest_rd_atomic),
        traffic_class: message.traffic_class.unwrap_or(default.traffic_class),
        flow_label: message.flow_label.unwrap_or(default.flow_label),
        hop_limit: message.hop_limit.unwrap_or(default.hop_limit),
        service_level: message.service_level.unwrap_or(default.service_level),
        qkey: message.qkey.unwrap_or(default.qkey),
    }
}

fn some(changes: &Changes) -> QpAttributes {
    QpAttributes {
        access: changes.access,
        qkey: changes.qkey,
        min_rnr_timer: changes.min_rnr_timer,
        timeout: changes.timeout,
        retry_count: changes.retry_count,
        rnr_retry: changes.rnr_retry,
        max_rd_atomic: changes.max_rd_atomic,
        max_dest_rd_atomic: changes.max_dest_rd_atomic,
        ..QpAttributes::default()
    }
}

const fn changes_of(message: &QpAttributes) -> Changes {
    Changes {
        access: message.access,
        qkey: message.qkey,
        min_rnr_timer: message.min_rnr_timer,
        timeout: message.timeout,
        retry_count: message.retry_count,
        rnr_retry: message.rnr_retry,
        max_rd_atomic: message.max_rd_atomic,
        max_dest_rd_atomic: message.max_dest_rd_atomic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::{Gid, Psn, Qpn};

    #[test]
    fn a_change_comes_back_as_it_was() {
        let attributes = Attributes {
            remote: Gid([7; 16]),
            dest_qpn: Qpn::from_wire(70),
            access: Some(Access::ALL),
            rq_psn: Psn::from_wire(1),
            sq_psn: Psn::from_wire(2),
            path_mtu: 4096,
            timeout: 3,
            retry_count: 4,
            rnr_retry: 5,
            min_rnr_timer: 6,
            max_rd_atomic: 7,
            max_dest_rd_atomic: 8,
            traffic_class: 9,
            flow_label: 10,
            hop_limit: 11,
            service_level: 1,
            qkey: 13,
        };
        let changes = Changes {
            access: Some(Access::REMOTE_READ),
            qkey: Some(1),
            min_rnr_timer: Some(2),
            timeout: Some(3),
            retry_count: Some(4),
            rnr_retry: Some(5),
            max_rd_atomic: Some(6),
            max_dest_rd_atomic: Some(7),
        };
        for change in [
            QpModify::Reset,
            QpModify::Init {
                access: Access::REMOTE_WRITE,
            },
            QpModify::Rtr(attributes),
            QpModify::Rts(attributes),
            QpModify::Drain,
            QpModify::Resume(changes),
            QpModify::Change(changes),
            QpModify::Change(Changes::default()),
            QpModify::Error,
        ] {
            let (step, message) = step_of(&change);
            assert_eq!(
                format!("{:?}", change_of(step, &message)),
                format!("{change:?}")
            );
        }
    }
}
