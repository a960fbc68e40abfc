//! Between the words of RDMA-CM and those of the messages.

use super::event::{Error, Params, PeerParams, PortSpace};
use super::id::Offered;
use super::{QpAttributes, id::Wanted};
use crate::event::Route;
use crate::ib;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use trunkline_wire::cm::PrivateData;
use trunkline_wire::{Addresses, Psn, RdmaCmHeader, ServiceId};

/// Every address, any port.
pub(super) const ANY: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// The same address without an IPv4 address inside an IPv6 one; a link-local one keeps its scope.
pub(super) const fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(IpAddr::V4(v4), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The service ID of a port.
pub(super) const fn service(space: PortSpace, port: u16) -> ServiceId {
    ServiceId::ip(space.protocol(), port)
}

/// Who asks whom.
pub(super) fn addresses(route: Route) -> Addresses {
    match (route.local, route.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => Addresses::V4(local, remote),
        (local, remote) => {
            let v6 = |address| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            Addresses::V6(v6(local), v6(remote))
        }
    }
}

/// Private data of a message that has room for `N` bytes.
pub(super) fn fit<const N: usize>(data: &[u8], limit: usize) -> Result<PrivateData<N>, Error> {
    let length = data.len();
    let too_long = Error::PrivateData { length, limit };
    if length > limit {
        return Err(too_long);
    }
    PrivateData::new(data).ok_or(too_long)
}

/// The header, and the consumer's bytes behind it.
pub(super) fn behind<const N: usize>(
    header: &RdmaCmHeader,
    data: &[u8],
    limit: usize,
) -> Result<PrivateData<N>, Error> {
    fit::<N>(data, limit)?;
    let mut all = PrivateData::default();
    all.0[..RdmaCmHeader::LEN].copy_from_slice(&header.to_bytes());
    all.0[RdmaCmHeader::LEN..][..data.len()].copy_from_slice(data);
    Ok(all)
}

/// What this end says of its QP.
pub(super) fn terms(params: &Params<'_>, starting_psn: Psn) -> ib::QpTerms {
    ib::QpTerms {
        qpn: params.qpn,
        starting_psn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        rnr_retry_count: params.rnr_retry_count.min(7),
        srq: params.srq,
        flow_control: params.flow_control,
    }
}

/// What the peer says of its QP, seen from here: what it serves this end may issue.
pub(super) const fn seen(peer: &ib::QpTerms, retry_count: u8) -> PeerParams {
    PeerParams {
        responder_resources: peer.initiator_depth,
        initiator_depth: peer.responder_resources,
        flow_control: peer.flow_control,
        retry_count,
        rnr_retry_count: peer.rnr_retry_count,
        srq: peer.srq,
        qpn: peer.qpn,
    }
}

/// The QP of the end that asked, now that it is answered. What the answering end takes of the
/// offer counts; more than was offered it does not get.
pub(super) fn connecting_qp(
    offered: &Offered,
    peer: &ib::QpTerms,
    path: ib::PathTerms,
) -> QpAttributes {
    QpAttributes {
        route: offered.route,
        remote_qpn: peer.qpn,
        send_psn: peer.starting_psn,
        receive_psn: offered.starting_psn,
        initiator_depth: offered.initiator_depth.min(peer.responder_resources),
        responder_resources: offered.responder_resources.min(peer.initiator_depth),
        retry_count: offered.retry_count,
        rnr_retry_count: peer.rnr_retry_count,
        path,
    }
}

/// The QP of the end that is asked, once it says `ours`.
pub(super) const fn accepting_qp(
    route: Route,
    wanted: &Wanted,
    ours: &ib::QpTerms,
) -> QpAttributes {
    QpAttributes {
        route,
        remote_qpn: wanted.qp.qpn,
        send_psn: wanted.qp.starting_psn,
        receive_psn: ours.starting_psn,
        initiator_depth: ours.initiator_depth,
        responder_resources: ours.responder_resources,
        retry_count: wanted.retry_count,
        rnr_retry_count: wanted.qp.rnr_retry_count,
        path: wanted.path,
    }
}
