//! The messages of a handshake as IB communication management writes them.

use crate::binds::Bounds;
use crate::event::Route;
use crate::hello::{ConnectRequest, Hello, HelloError, HelloReply, Offer};
use crate::identity::Identity;
use crate::refusal::{Refusal, RefusalCode};
use crate::{TRUNKLINE_SERVICE, table::Ids};
use trunkline_wire::cm::{
    Answered, CmMad, CommId, Drep, Dreq, Message, PathRecord, Rej, RejReason, Rep, Req, Rtu,
    TransportService,
};
use trunkline_wire::{Gid, MAD_LEN, Psn};

/// LID where there are none: RoCE.
pub(crate) const NO_LID: u16 = 0xffff;
const PKEY: u16 = 0xffff;
/// 4.096 us * 2^14: 67 ms. Only told, not used: the hello's own rules hold.
const RESPONSE_TIMEOUT: u8 = 14;
const HOP_LIMIT: u8 = 64;
const RETRY_COUNT: u8 = 7;

pub(crate) type Mad = [u8; MAD_LEN];

pub(crate) fn mad(transaction_id: u64, message: impl Into<Message>) -> Mad {
    CmMad {
        transaction_id,
        message: message.into(),
    }
    .to_bytes()
}

/// Largest IBTA path MTU whose packets are no larger than `packet_size`, coded; 1 is 256 bytes.
const fn coded_mtu(packet_size: u32) -> u8 {
    match packet_size {
        0..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        _ => 5,
    }
}

pub(crate) fn req(local: CommId, route: Route, us: Identity, request: &ConnectRequest) -> Req {
    let hello = Hello {
        end: request.offer.end(us),
        purpose: request.purpose,
        toward: request.toward,
        traffic_class: request.traffic_class,
        binds: request.binds,
    };
    Req {
        local,
        service_id: TRUNKLINE_SERVICE,
        ca_guid: us.guid,
        qpn: request.offer.connection,
        remote_response_timeout: RESPONSE_TIMEOUT,
        local_response_timeout: RESPONSE_TIMEOUT,
        service: TransportService::Rc,
        starting_psn: Psn::from_wire(request.offer.first_packet as u32),
        retry_count: RETRY_COUNT,
        rnr_retry_count: RETRY_COUNT,
        pkey: PKEY,
        path_mtu: coded_mtu(request.offer.packet_size),
        max_cm_retries: request.retry.tries.min(15),
        primary: PathRecord {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: Gid::from(route.local),
            remote_gid: Gid::from(route.remote),
            traffic_class: request.traffic_class,
            hop_limit: HOP_LIMIT,
            subnet_local: true,
            local_ack_timeout: RESPONSE_TIMEOUT,
            ..PathRecord::default()
        },
        private_data: hello.emit(),
        ..Req::default()
    }
}

/// Reads the hello of a REQ and checks that the REQ agrees with it.
pub(crate) fn hello(req: &Req) -> Result<Hello, HelloError> {
    let hello = Hello::parse(&req.private_data)?;
    agree(req.local, req.ca_guid, req.starting_psn, hello.end)?;
    Ok(hello)
}

pub(crate) fn rep(ids: Ids, us: Identity, offer: &Offer, bounds: Bounds) -> Rep {
    let end = offer.end(us);
    Rep {
        local: ids.local,
        remote: ids.remote,
        qpn: offer.connection,
        starting_psn: Psn::from_wire(offer.first_packet as u32),
        failover: FAILOVER_UNSUPPORTED,
        rnr_retry_count: RETRY_COUNT,
        ca_guid: us.guid,
        private_data: HelloReply { end, bounds }.emit(),
        ..Rep::default()
    }
}

const FAILOVER_UNSUPPORTED: u8 = 1;

/// Reads the hello of a REP and checks that the REP agrees with it.
pub(crate) fn hello_reply(rep: &Rep) -> Result<HelloReply, HelloError> {
    let reply = HelloReply::parse(&rep.private_data)?;
    agree(rep.local, rep.ca_guid, rep.starting_psn, reply.end)?;
    Ok(reply)
}

fn agree(local: CommId, guid: u64, psn: Psn, end: crate::End) -> Result<(), HelloError> {
    let invalid = |field, value| Err(HelloError::Invalid { field, value });
    if local == CommId(0) {
        return invalid("communication ID", 0);
    }
    if guid != end.identity.guid {
        return invalid("CA GUID", guid);
    }
    if psn != Psn::from_wire(end.first_packet as u32) {
        return invalid("starting PSN", psn.get().into());
    }
    Ok(())
}

pub(crate) fn rtu(ids: Ids) -> Rtu {
    Rtu {
        local: ids.local,
        remote: ids.remote,
        ..Rtu::default()
    }
}

/// A REJ as a host sends it that knows nothing of Trunkline.
pub(crate) fn plain_rej(ids: Ids, refused: Answered, reason: RejReason) -> Rej {
    Rej::new(ids.local, ids.remote, refused, reason)
}

pub(crate) fn rej(ids: Ids, refused: Answered, us: Identity, code: RefusalCode) -> Rej {
    let refusal = Refusal { code, identity: us };
    Rej {
        private_data: refusal.emit(),
        ..plain_rej(ids, refused, code.reason())
    }
}

pub(crate) fn dreq(ids: Ids, remote_qpn: trunkline_wire::Qpn) -> Dreq {
    Dreq {
        local: ids.local,
        remote: ids.remote,
        remote_qpn,
        ..Dreq::default()
    }
}

pub(crate) fn drep(local: CommId, remote: CommId) -> Drep {
    Drep {
        local,
        remote,
        ..Drep::default()
    }
}
