//! Counterparts of the guest's programs that connect by RDMA-CM: `rping`, `ucmatose`, `cmtime` and
//! `udaddy`, and what connections have to bear otherwise.

mod calls;
mod end;
mod models;
mod programs;

use crate::pair::Place;
use crate::suite::Case;
use anyhow::Result;

type Run = fn(Place) -> Result<()>;

/// All of this folder.
pub(crate) fn cases() -> Vec<Case> {
    let list: [(&str, Run); 16] = [
        ("rping/guest-serves", programs::ping_guest),
        ("rping/guest-asks", programs::pinged_by_guest),
        ("ucmatose/guest-serves", programs::send_to_guest),
        ("ucmatose/guest-asks", programs::sent_by_guest),
        ("waiting/guest-serves", models::wait_for_guest),
        ("waiting/guest-asks", models::waited_for_by_guest),
        ("own-qp/guest-serves", models::own_qp_to_guest),
        ("own-qp/guest-asks", models::own_qp_for_guest),
        ("udaddy/guest-serves", programs::datagrams_to_guest),
        ("udaddy/guest-asks", programs::datagrams_of_guest),
        ("cmtime/guest-serves", programs::connect_often),
        ("cmtime/guest-asks", programs::connected_often),
        ("nobody-listens/to-guest", calls::nobody_in_guest),
        ("nobody-listens/from-guest", calls::nobody_here),
        ("rejected/from-guest", calls::reject_guest),
        ("private-data", calls::private_data),
    ];
    let case = |(name, run)| Case::new(format!("cm/{name}"), run);
    list.into_iter().map(case).collect()
}
