//! Management datagrams of a worker: whom they concern, and how they leave.

use crate::observe::capture::Capture;
use crate::observe::probes;
use crate::observe::status::recorder::Recorder;
use crate::rdma_cm::CmDriver;
use crate::worker::messages::Messages;
use std::net::IpAddr;
use trunkline_cm::{Concerns, NodeCm, Outgoing, gsi};
use trunkline_conn::egress::Transmitted;
use trunkline_conn::ingress::Arrival;
use trunkline_conn::secret::Stream;
use trunkline_conn::time::Instant;
use trunkline_dataplane::Port;
use trunkline_wire::{IpFields, MAD_LEN, Path, Psn, ROCE_PORT, Worker};

/// Sends what connection managers have to say.
pub(super) struct ManagementSender<'a> {
    pub(super) manager: &'a mut NodeCm<Stream>,
    pub(super) cm: &'a mut CmDriver,
    pub(super) recorder: &'a Recorder,
    pub(super) capture: Option<&'a Capture>,
    pub(super) address: IpAddr,
    pub(super) psn: &'a mut Psn,
    pub(super) unsent: &'a mut Option<Outgoing>,
    pub(super) sent: bool,
}

impl ManagementSender<'_> {
    /// Sends one message, if there is one and the port has room for it.
    pub(super) fn send(&mut self, port: &mut (dyn Port + Send)) -> Transmitted {
        // Who is asked what it is hears so before our answer, and its QPs are known in time.
        let next = self.unsent.take();
        let next = next.or_else(|| self.manager.poll_transmit());
        let next = next.or_else(|| self.cm.manager.poll_transmit());
        let Some(message) = next else {
            return Transmitted::Nothing;
        };
        let path = Path {
            src: self.address,
            dst: message.route.remote,
            src_port: port.source_ports().first().copied().unwrap_or(ROCE_PORT),
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let Some(slot) = port.reserve(&path, gsi::LEN) else {
            *self.unsent = Some(message);
            return Transmitted::NoRoom;
        };
        let out = slot
            .datagram
            .first_chunk_mut()
            .expect("exactly that much was reserved");
        gsi::build(&path, slot.identification, *self.psn, &message.mad, out);
        if let Some(capture) = self.capture {
            capture.sent(&path, slot.identification, out);
        }
        *self.psn = self.psn.advance(1);
        port.commit();
        self.recorder.message_sent();
        probes::cm_sent(message.route.remote, &message.mad);
        self.sent = true;
        Transmitted::Packet
    }
}

/// A management datagram, if it is whole. Foreign peers use identifications that a UDP socket does
/// not see: where the predicted one is wrong, the right one is solved for.
pub(super) fn check_management<'a>(
    arrival: &Arrival,
    datagram: &'a [u8],
) -> Option<&'a [u8; MAD_LEN]> {
    gsi::parse_checked(&arrival.path, arrival.identification, datagram).ok()
}

/// Hands a management datagram to the workers that it is for; gives whom it concerns here, if it is
/// for this one too.
pub(super) fn deliver(
    messages: &mut Messages,
    path: &Path,
    mad: &[u8; MAD_LEN],
) -> Option<Concerns> {
    let (concerns, at) = Concerns::and_worker(mad, messages.workers());
    let to = at.worker(messages.workers()).unwrap_or_else(|| {
        for other in messages.workers().iter().map(Worker::index) {
            if other != messages.own() {
                messages.pass_on_management(other, path, mad, concerns);
            }
        }
        messages.own()
    });
    if to == messages.own() {
        return Some(concerns);
    }
    messages.pass_on_management(to, path, mad, concerns);
    None
}

/// Whom a management datagram concerns at a node that shares connections, or does not: to the
/// manager of ordinary hosts the service of Trunkline nodes is one that nobody offers.
pub(super) const fn concerns_here(sharing: bool, concerns: Concerns) -> Concerns {
    if sharing { concerns } else { Concerns::Ibta }
}

pub(super) fn manage(
    now: Instant,
    (manager, cm): (&mut NodeCm<Stream>, &mut CmDriver),
    path: &Path,
    mad: &[u8; MAD_LEN],
    concerns: Concerns,
) {
    if concerns != Concerns::Ibta {
        manager.handle_mad(now, path, mad);
    }
    if concerns != Concerns::Nodes {
        cm.manager.handle_mad(now, path, mad);
    }
}
