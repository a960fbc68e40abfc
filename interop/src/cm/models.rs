//! The other ways to use RDMA-CM: calls that wait, and QPs that the program keeps to itself.

use super::end::{End, params};
use super::programs::{LIMIT, MESSAGE, MESSAGES, OTHER_PORT, RC, SLOT, receives, sends};
use crate::pair::Place;
use crate::station::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline::rdma_cm::sync::{ConnectError, Endpoint, Listener};
use trunkline::rdma_cm::{CmEventKind, CmId, Kind, Params, PortSpace, QpAttributes, RejReason};
use trunkline::{Access, Attributes, Qp, QpModify, QpOptions, QpType, SendOp};

fn serve(place: Place) -> crate::guest::Running {
    let address = place.guest.address;
    let line = format!("ucmatose -b {address} -C {MESSAGES} -S {MESSAGE}");
    place.guest.start(&line, LIMIT)
}

fn ask(place: Place) -> crate::guest::Running {
    let address = place.address;
    let line = format!("ucmatose -s {address} -C {MESSAGES} -S {MESSAGE}");
    place.guest.start(&line, LIMIT)
}

/// Whether the guest's program does not listen yet.
fn early(reason: RejReason) -> bool {
    reason == RejReason::InvalidServiceId
}

fn later() {
    std::thread::sleep(Duration::from_millis(100));
}

/// The client of ucmatose by calls that wait. The server sends as soon as it may, and sends again
/// until there are receives.
pub(super) fn wait_for_guest(place: Place) -> Result<()> {
    let server = serve(place);
    let end = End::new(place)?;
    let options = QpOptions::default();
    let resources = end.resources(&options);
    let to = SocketAddr::new(place.guest.address, OTHER_PORT);
    let give_up = Instant::now() + PATIENCE;
    let connected = loop {
        match Endpoint::connect(end.node(), &resources, to, &params(), PATIENCE) {
            Err(ConnectError::Rejected { reason, .. })
                if early(reason) && Instant::now() < give_up =>
            {
                later();
            }
            other => break other?,
        }
    };
    receives(&end, connected.qp(), SLOT)?;
    end.all_done(MESSAGES)?;
    sends(&end, connected.qp(), SendOp::Send)?;
    end.all_done(MESSAGES)?;
    connected.wait_for_end(PATIENCE)?;
    server.finish().map(drop)
}

/// The server of ucmatose by calls that wait.
pub(super) fn waited_for_by_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let options = QpOptions::default();
    let listener = Listener::bind(end.node(), (place.address, OTHER_PORT).into(), 0)?;
    let client = ask(place);
    let request = listener.get_request(end.node(), PATIENCE)?;
    let accepted = request.accept(&end.resources(&options), &params(), PATIENCE)?;
    sends(&end, accepted.qp(), SendOp::Send)?;
    end.all_done(MESSAGES)?;
    receives(&end, accepted.qp(), SLOT)?;
    end.all_done(MESSAGES)?;
    accepted.disconnect(PATIENCE)?;
    client.finish().map(drop)
}

/// A QP that no ID knows, in INIT.
fn own_qp(end: &End) -> Result<Qp> {
    let options = QpOptions {
        kind: QpType::Rc,
        ..QpOptions::default()
    };
    let qp = end.bare_qp(&options)?;
    let access = Access::ALL;
    qp.modify(&QpModify::Init { access })?;
    Ok(qp)
}

fn ready(qp: &Qp, id: &CmId) -> Result<()> {
    let found: QpAttributes = id.qp_attributes().context("both ends have spoken")?;
    let attributes = Attributes {
        remote: found.route.remote.into(),
        dest_qpn: found.remote_qpn,
        rq_psn: found.receive_psn,
        sq_psn: found.send_psn,
        path_mtu: 128 << found.path.mtu,
        timeout: found.path.ack_timeout,
        retry_count: found.retry_count,
        rnr_retry: found.rnr_retry_count,
        max_rd_atomic: found.initiator_depth,
        max_dest_rd_atomic: found.responder_resources,
        ..Attributes::default()
    };
    qp.modify(&QpModify::Rtr(attributes))?;
    Ok(qp.modify(&QpModify::Rts(attributes))?)
}

fn with(qp: &Qp) -> Params<'static> {
    Params {
        qpn: qp.qpn(),
        ..params()
    }
}

/// The client of ucmatose with a QP of the program's own: it is asked to make it ready.
pub(super) fn own_qp_to_guest(place: Place) -> Result<()> {
    let server = serve(place);
    let end = End::new(place)?;
    let give_up = Instant::now() + PATIENCE;
    let (id, qp) = loop {
        let id = end.resolved(RC.0, RC.1, OTHER_PORT)?;
        let qp = own_qp(&end)?;
        id.connect(&with(&qp))?;
        match end.event()?.kind {
            CmEventKind::ConnectResponse { .. } => break (id, qp),
            CmEventKind::Rejected { reason, .. } if early(reason) && Instant::now() < give_up => {
                later();
            }
            other => bail!("{other:?}"),
        }
    };
    receives(&end, &qp, SLOT)?;
    ready(&qp, &id)?;
    id.accept(&with(&qp))?;
    end.established()?;
    end.all_done(MESSAGES)?;
    sends(&end, &qp, SendOp::Send)?;
    end.all_done(MESSAGES)?;
    end.disconnected()?;
    server.finish().map(drop)
}

/// The server of ucmatose with a QP of the program's own.
pub(super) fn own_qp_for_guest(place: Place) -> Result<()> {
    let end = End::new(place)?;
    let _listener = end.listen(PortSpace::Tcp, Kind::Rc, OTHER_PORT)?;
    let client = ask(place);
    let event = end.event()?;
    let request = matches!(event.kind, CmEventKind::ConnectRequest { .. });
    ensure!(request, "{:?}", event.kind);
    let qp = own_qp(&end)?;
    receives(&end, &qp, SLOT)?;
    event.id.accept(&with(&qp))?;
    ready(&qp, &event.id)?;
    end.established()?;
    sends(&end, &qp, SendOp::Send)?;
    end.all_done(2 * MESSAGES)?;
    event.id.disconnect()?;
    end.disconnected()?;
    client.finish().map(drop)
}
