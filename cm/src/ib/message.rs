//! The messages as the Linux kernel's connection manager writes them, field for field where a peer
//! might look.

use super::event::{Answer, QpTerms, RequestTerms, SidrAnswer, SidrRequest};
use crate::event::Route;
use crate::message::NO_LID;
use trunkline_wire::cm::{
    Answered, ApStatus, Apr, CommId, Dreq, Lap, Mra, PathRecord, PrivateData, Rej, RejReason, Rep,
    Req, Rtu, SidrRep, SidrReq,
};
use trunkline_wire::{Gid, Qpn};

/// Time that either side grants the other to answer a message: 4.3 s.
const RESPONSE_TIMEOUT: u8 = 20;
const MAX_CM_RETRIES: u8 = 15;

/// The numbers of the two ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) local: CommId,
    pub(super) remote: CommId,
}

pub(super) fn req(local: CommId, route: Route, guid: u64, terms: &RequestTerms) -> Req {
    let (qp, path) = (&terms.qp, &terms.path);
    Req {
        local,
        service_id: terms.service_id,
        ca_guid: guid,
        qpn: qp.qpn,
        responder_resources: qp.responder_resources,
        initiator_depth: qp.initiator_depth,
        remote_response_timeout: RESPONSE_TIMEOUT,
        service: terms.service,
        flow_control: qp.flow_control,
        starting_psn: qp.starting_psn,
        local_response_timeout: RESPONSE_TIMEOUT,
        retry_count: terms.retry_count,
        pkey: path.pkey,
        path_mtu: path.mtu,
        rnr_retry_count: qp.rnr_retry_count,
        max_cm_retries: MAX_CM_RETRIES,
        srq: qp.srq,
        primary: PathRecord {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: Gid::from(route.local),
            remote_gid: Gid::from(route.remote),
            flow_label: path.flow_label,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            local_ack_timeout: path.ack_timeout,
            ..PathRecord::default()
        },
        private_data: terms.private_data,
        ..Req::default()
    }
}

pub(super) fn rep(ids: Ids, guid: u64, answer: &Answer) -> Rep {
    let QpTerms {
        qpn,
        starting_psn,
        responder_resources,
        initiator_depth,
        rnr_retry_count,
        srq,
        flow_control,
    } = answer.qp;
    Rep {
        local: ids.local,
        remote: ids.remote,
        qpn,
        starting_psn,
        responder_resources,
        initiator_depth,
        target_ack_delay: answer.ack_delay,
        flow_control,
        rnr_retry_count,
        srq,
        ca_guid: guid,
        private_data: answer.private_data,
        ..Rep::default()
    }
}

pub(super) fn rtu(ids: Ids, private_data: PrivateData<224>) -> Rtu {
    Rtu {
        local: ids.local,
        remote: ids.remote,
        private_data,
    }
}

pub(super) fn mra(ids: Ids, received: Answered, service_timeout: u8) -> Mra {
    Mra {
        local: ids.local,
        remote: ids.remote,
        received,
        service_timeout,
        private_data: PrivateData::default(),
    }
}

pub(super) fn rej(ids: Ids, refused: Answered, reason: RejReason) -> Rej {
    Rej::new(ids.local, ids.remote, refused, reason)
}

/// The peer was given up. It may not know our number, but it knows by whom it was asked: the GUID
/// stands in the additional information.
pub(super) fn timeout_rej(ids: Ids, guid: u64) -> Rej {
    let mut rej = rej(ids, Answered::Other, RejReason::Timeout);
    let guid = guid.to_be_bytes();
    rej.info_length = guid.len() as u8;
    rej.info[..guid.len()].copy_from_slice(&guid);
    rej
}

pub(super) fn dreq(ids: Ids, remote_qpn: Qpn, private_data: PrivateData<220>) -> Dreq {
    Dreq {
        local: ids.local,
        remote: ids.remote,
        remote_qpn,
        private_data,
    }
}

/// The answer to a proposal for an alternate path.
pub(super) fn apr(lap: &Lap, status: ApStatus) -> Apr {
    Apr {
        local: lap.remote,
        remote: lap.local,
        info_length: 0,
        status,
        info: [0; 72],
        private_data: PrivateData::default(),
    }
}

pub(super) fn sidr_req(request: CommId, question: &SidrRequest) -> SidrReq {
    SidrReq {
        request,
        pkey: question.pkey,
        service_id: question.service_id,
        private_data: question.private_data,
    }
}

pub(super) fn sidr_rep(
    request: CommId,
    service_id: trunkline_wire::ServiceId,
    answer: &SidrAnswer,
) -> SidrRep {
    SidrRep {
        request,
        status: answer.status,
        info_length: 0,
        vendor: 0,
        qpn: answer.qpn,
        service_id,
        qkey: answer.qkey,
        info: [0; 72],
        private_data: answer.private_data,
    }
}
