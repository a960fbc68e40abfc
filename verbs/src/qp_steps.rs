//! Which attributes each step of a QP needs and allows: the table of `ibv_modify_qp(3)`, which is
//! that of the InfiniBand specification (volume 1, "Modify QP").

use crate::abi::qp_mask::*;
use crate::answer::{Errno, INVALID};
use trunkline::{QpState, QpType};

/// Attributes of a step by type of QP: RC, UC, UD.
type ByType = [u32; 3];

struct Step {
    from: QpState,
    to: QpState,
    required: ByType,
    optional: ByType,
}

/// What every QP with a peer may change as it runs.
const MIGRATION: u32 = ALT_PATH | PATH_MIG_STATE;
const CONNECTED: u32 = CUR_STATE | ACCESS_FLAGS | MIGRATION;

const STEPS: [Step; 9] = [
    Step {
        from: QpState::Reset,
        to: QpState::Init,
        required: [
            PKEY_INDEX | PORT | ACCESS_FLAGS,
            PKEY_INDEX | PORT | ACCESS_FLAGS,
            PKEY_INDEX | PORT | QKEY,
        ],
        optional: [0; 3],
    },
    Step {
        from: QpState::Init,
        to: QpState::Init,
        required: [0; 3],
        optional: [
            PKEY_INDEX | PORT | ACCESS_FLAGS,
            PKEY_INDEX | PORT | ACCESS_FLAGS,
            PKEY_INDEX | PORT | QKEY,
        ],
    },
    Step {
        from: QpState::Init,
        to: QpState::Rtr,
        required: [
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            AV | PATH_MTU | DEST_QPN | RQ_PSN,
            0,
        ],
        optional: [
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
            PKEY_INDEX | QKEY,
        ],
    },
    Step {
        from: QpState::Rtr,
        to: QpState::Rts,
        required: [
            SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
            SQ_PSN,
            SQ_PSN,
        ],
        optional: [CONNECTED | MIN_RNR_TIMER, CONNECTED, CUR_STATE | QKEY],
    },
    Step {
        from: QpState::Rts,
        to: QpState::Rts,
        required: [0; 3],
        optional: [CONNECTED | MIN_RNR_TIMER, CONNECTED, CUR_STATE | QKEY],
    },
    Step {
        from: QpState::Rts,
        to: QpState::Sqd,
        required: [0; 3],
        optional: [EN_SQD_ASYNC_NOTIFY; 3],
    },
    Step {
        from: QpState::Sqd,
        to: QpState::Sqd,
        required: [0; 3],
        optional: [
            PKEY_INDEX
                | PORT
                | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | MIN_RNR_TIMER
                | ACCESS_FLAGS
                | MIGRATION,
            PKEY_INDEX | AV | ACCESS_FLAGS | MIGRATION,
            PKEY_INDEX | QKEY,
        ],
    },
    Step {
        from: QpState::Sqd,
        to: QpState::Rts,
        required: [0; 3],
        optional: [CONNECTED | MIN_RNR_TIMER, CONNECTED, CUR_STATE | QKEY],
    },
    Step {
        from: QpState::Sqe,
        to: QpState::Rts,
        required: [0; 3],
        optional: [0, CUR_STATE | ACCESS_FLAGS, CUR_STATE | QKEY],
    },
];

/// Checks which attributes a call names for a step.
///
/// # Errors
/// EINVAL: there is no such step; it needs others, or does not allow one of them.
pub(crate) fn check(kind: QpType, from: QpState, to: QpState, mask: u32) -> Result<(), Errno> {
    let (required, optional) = match to {
        QpState::Reset | QpState::Error if from.may_become(to) => (STATE, 0),
        _ => {
            let column = match kind {
                QpType::Rc => 0,
                QpType::Uc => 1,
                _ => 2,
            };
            let step = STEPS.iter().find(|step| (step.from, step.to) == (from, to));
            let step = step.ok_or(INVALID)?;
            (step.required[column], step.optional[column])
        }
    };
    if mask & required != required || mask & !(required | optional | STATE) != 0 {
        return Err(INVALID);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

    fn allowed(kind: QpType, from: QpState, to: QpState, mask: u32) -> bool {
        check(kind, from, to, mask).is_ok()
    }

    #[test]
    fn steps_are_those_of_the_state_diagram() {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let step = STEPS.iter().find(|step| (step.from, step.to) == (from, to));
                let required = step.map_or([0; 3], |step| step.required);
                for (kind, required) in KINDS.into_iter().zip(required) {
                    let is_step = allowed(kind, from, to, STATE | required);
                    assert_eq!(is_step, from.may_become(to), "{kind}: {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn each_required_attribute_is_missed_and_no_other_is_taken() {
        for step in &STEPS {
            for (n, kind) in KINDS.into_iter().enumerate() {
                let (required, optional) = (step.required[n], step.optional[n]);
                let all = STATE | required | optional;
                assert!(allowed(kind, step.from, step.to, all));
                for bit in (0..u32::BITS).map(|bit| 1 << bit) {
                    let less = allowed(kind, step.from, step.to, all & !bit);
                    assert_eq!(less, required & bit == 0, "without {bit:#x}");
                    let more = allowed(kind, step.from, step.to, all | bit);
                    assert_eq!(more, all & bit != 0, "with {bit:#x}");
                }
            }
        }
    }

    #[test]
    fn a_connection_needs_what_the_manual_page_lists() {
        let (init, rtr) = (QpState::Init, QpState::Rtr);
        let uc = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
        let rc = uc | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        assert!(allowed(QpType::Rc, init, rtr, rc) && allowed(QpType::Uc, init, rtr, uc));
        assert!(!allowed(QpType::Rc, init, rtr, uc) && !allowed(QpType::Uc, init, rtr, rc));
        assert!(allowed(QpType::Ud, init, rtr, STATE));
        let reset = QpState::Reset;
        let qkey = STATE | PKEY_INDEX | PORT | QKEY;
        assert!(allowed(QpType::Ud, reset, init, qkey) && !allowed(QpType::Rc, reset, init, qkey));
        assert!(!allowed(QpType::Rc, rtr, reset, STATE | CUR_STATE));
    }
}
