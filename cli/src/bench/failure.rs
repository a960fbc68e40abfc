//! Why a request failed, in words for people.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use trunkline::{
    Completion, Errno, Event, PortKind, QpEvent, Qpn, Status, VendorError, WorkOpcode,
};
use trunkline_dataplane::{KernelRoutes, RouteError, Routes};
use trunkline_wire::ROCE_PORT;

/// A request, or a receive, that did not end well.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("QP {qpn}: {opcode:?} ended with {status:?}")]
pub(crate) struct Failed {
    qpn: Qpn,
    opcode: WorkOpcode,
    status: Status,
    vendor_err: VendorError,
}

impl Failed {
    /// The one of these completions that says most: the first that failed for a reason of its own,
    /// else the first that its QP took along.
    pub(crate) fn first(all: &[Completion]) -> Option<Self> {
        let mut failed = all
            .iter()
            .filter(|done| done.status != Status::Success)
            .map(Self::of);
        let first = failed.next()?;
        Some(if first.is_flushed() {
            failed.find(|other| !other.is_flushed()).unwrap_or(first)
        } else {
            first
        })
    }

    const fn of(done: &Completion) -> Self {
        Self {
            qpn: done.qpn,
            opcode: done.opcode,
            status: done.status,
            vendor_err: done.vendor_err,
        }
    }

    /// Whether its QP had failed before: that says nothing of why.
    pub(crate) fn is_flushed(&self) -> bool {
        self.status == Status::Flushed
    }

    /// Why, for requests between these nodes; `failure` is what is known of the QP.
    pub(crate) fn why(&self, ends: &Ends, failure: Option<QpFailure>) -> String {
        let there = ends.there;
        match (self.status, self.vendor_err) {
            (Status::RetryExceeded, VendorError::None) => ends.silence(),
            (Status::RetryExceeded, VendorError::NoNode) => format!("no node runs on {there}"),
            (Status::RetryExceeded, VendorError::NotSharing) => {
                format!("the host at {there} shares no connections")
            }
            (Status::RetryExceeded, VendorError::QpGone) => format!("the QP on {there} is gone"),
            (Status::Flushed, _) => match failure {
                Some(QpFailure::Lost) => ends.silence(),
                Some(QpFailure::Misbehaved(event)) => {
                    format!(
                        "QP {} is in error since {there} misbehaved: {event:?}",
                        self.qpn
                    )
                }
                None => format!("QP {} went to error", self.qpn),
            },
            _ => self.to_string(),
        }
    }
}

/// An event that tells why QPs of a node failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QpFailure {
    /// A connection is gone.
    Lost,
    /// The peer did what it may not.
    Misbehaved(QpEvent),
}

impl QpFailure {
    /// Returns what an event tells of why requests fail.
    pub(crate) const fn of(event: &Event) -> Option<Self> {
        match event {
            Event::ConnectionDown { .. } => Some(Self::Lost),
            Event::Qp { event, .. } => match event {
                QpEvent::RequestError | QpEvent::AccessError => Some(Self::Misbehaved(*event)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Between whom a measurement is, as this end sees it.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) here: IpAddr,
    pub(crate) there: IpAddr,
    /// What carries packets here.
    pub(crate) port: PortKind,
}

impl Ends {
    /// Why nothing comes from there, as far as this host knows.
    pub(crate) fn silence(&self) -> String {
        let (here, there) = (self.here, self.there);
        match next_hop(here, there) {
            Err(error @ (RouteError::NoRoute { .. } | RouteError::Down { .. })) => {
                error.to_string()
            }
            Err(RouteError::System { source, .. })
                if source.kind() == ErrorKind::AddrNotAvailable =>
            {
                format!("no interface that is up has {here}")
            }
            // There is a way, or nothing is known.
            _ => match (
                refusal(here, there),
                self.port.check_within_host([here, there]),
            ) {
                (Some(error), _) => format!(
                    "this machine refuses to send to {there}: {error} ({})",
                    error.advice()
                ),
                (None, Err(apart)) => format!("{there} does not answer: {apart}"),
                (None, Ok(())) => format!("{there} does not answer"),
            },
        }
    }
}

/// Why this machine does not let a datagram out that goes from `here` to a node at `there`: it
/// sends an empty one, which no node takes for a packet.
fn refusal(here: IpAddr, there: IpAddr) -> Option<Errno> {
    // Sockets want the interface of such an address, too, and the one of the node knows it.
    if matches!(there, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return None;
    }
    let socket = UdpSocket::bind((here, 0)).ok()?;
    let error = socket.send_to(&[], (there, ROCE_PORT)).err()?;
    error.raw_os_error().map(Errno::new)
}

/// That the link which packets from `here`, or from anywhere, would take to `there` is down.
pub(crate) fn link_down(here: Option<IpAddr>, there: IpAddr) -> Option<RouteError> {
    let here = here.unwrap_or(match there {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    });
    let error = next_hop(here, there).err()?;
    matches!(error, RouteError::Down { .. }).then_some(error)
}

/// Whether there is a way that packets can take.
fn next_hop(here: IpAddr, there: IpAddr) -> Result<(), RouteError> {
    let mut routes = KernelRoutes::open(here)?;
    let hop = routes.next_hop(SocketAddr::new(there, 0))?;
    match routes.down(&hop) {
        None => Ok(()),
        Some(interface) => Err(RouteError::Down {
            interface,
            peer: there,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(status: Status, vendor_err: VendorError) -> Completion {
        Completion {
            status,
            vendor_err,
            ..Completion::BLANK
        }
    }

    /// From `here` to 127.0.0.2.
    fn ends(here: [u8; 4], port: PortKind) -> Ends {
        Ends {
            here: here.into(),
            there: [127, 0, 0, 2].into(),
            port,
        }
    }

    fn why(all: &[Completion], failure: Option<QpFailure>) -> String {
        let failed = Failed::first(all).expect("one failed");
        failed.why(&ends([127, 0, 0, 1], PortKind::Udp), failure)
    }

    #[test]
    fn what_was_flushed_says_less_than_what_failed() {
        let success = done(Status::Success, VendorError::None);
        let flushed = done(Status::Flushed, VendorError::None);
        let silent = done(Status::RetryExceeded, VendorError::None);
        let gone = done(Status::RetryExceeded, VendorError::QpGone);
        let refused = done(Status::RemoteAccess, VendorError::None);
        assert_eq!(Failed::first(&[success]), None);
        assert_eq!(
            why(&[success, flushed, silent], None),
            "127.0.0.2 does not answer"
        );
        assert_eq!(
            why(&[gone, flushed, silent], None),
            "the QP on 127.0.0.2 is gone"
        );
        assert_eq!(
            why(&[flushed, refused], None),
            "QP 0x000000: Send ended with RemoteAccess"
        );
        assert_eq!(why(&[flushed], None), "QP 0x000000 went to error");
        assert_eq!(
            why(&[flushed], Some(QpFailure::Lost)),
            "127.0.0.2 does not answer"
        );
    }

    #[test]
    fn a_machine_that_refuses_to_send_says_so_itself() {
        let here = [127, 0, 0, 1].into();
        // No datagram leaves a machine from a loopback address.
        assert!(refusal(here, [192, 0, 2, 1].into()).is_some());
        assert_eq!(refusal(here, [127, 0, 0, 2].into()), None);
    }

    #[test]
    fn a_host_without_a_way_says_so_itself() {
        let nobody = ends([192, 0, 2, 1], PortKind::Udp);
        assert_eq!(nobody.silence(), "no interface that is up has 192.0.2.1");
    }

    #[test]
    fn a_host_whose_frames_do_not_get_to_itself_says_so() {
        let of = |port| ends([127, 0, 0, 1], port).silence();
        assert_eq!(of(PortKind::Udp), "127.0.0.2 does not answer");
        assert_eq!(of(PortKind::Packet), "127.0.0.2 does not answer");
        let said = of(PortKind::Xdp);
        let says = "127.0.0.2 does not answer: nodes on raw frames (xdp) do not reach other";
        assert!(said.starts_with(says), "{said}");
    }
}
