//! Asynchronous events, as the service tells them.

use super::Client;
use crate::node::link::PORT;
use crate::verbs::event::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{MutexGuard, PoisonError};
use trunkline_conn::host::QpEvent;
use trunkline_host::Handle;
use trunkline_host::control::answers::EventTaken;
use trunkline_host::control::attributes::EventKind;
use trunkline_host::control::requests::TakeEvent;
use trunkline_qpmap::{CqId, SrqId};
use trunkline_wire::Qpn;

/// What the events of QPs call them: their numbers, by handle.
pub(super) type Numbers = HashMap<Handle, Qpn>;

/// What events call a CQ.
pub(crate) const fn cq_id(cq: Handle) -> CqId {
    CqId::named(cq.index, cq.serial.get())
}

/// What events call an SRQ.
pub(crate) const fn srq_id(srq: Handle) -> SrqId {
    SrqId::named(srq.index, srq.serial.get())
}

/// Whether something can be read from a descriptor, now.
fn is_readable(fd: &impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

impl Client {
    /// Readable while events wait.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// The next event, if one waits. Those of QPs that are gone are passed over.
    pub(crate) fn poll_event(&self) -> Option<Event> {
        while is_readable(&self.events) {
            let taken: EventTaken = self.ask(TakeEvent {}).ok()?;
            if let Some(event) = self.event(taken.kind?, taken.object) {
                return Some(event);
            }
        }
        None
    }

    fn event(&self, kind: EventKind, object: Option<Handle>) -> Option<Event> {
        let event = match kind {
            EventKind::CommunicationEstablished => QpEvent::CommunicationEstablished,
            EventKind::SendQueueDrained => QpEvent::SendQueueDrained,
            EventKind::RequestError => QpEvent::RequestError,
            EventKind::AccessError => QpEvent::AccessError,
            EventKind::QpFatal => QpEvent::Fatal,
            EventKind::LastWqeReached => QpEvent::LastWqeReached,
            EventKind::PeerQpGone => {
                let qpn = *self.numbers().get(&object?)?;
                return Some(Event::PeerQpGone { qpn });
            }
            EventKind::CqError => return Some(Event::CqError { cq: cq_id(object?) }),
            EventKind::SrqLimitReached => {
                let srq = srq_id(object?);
                return Some(Event::SrqLimitReached { srq });
            }
            EventKind::SrqError => {
                return Some(Event::SrqError {
                    srq: srq_id(object?),
                });
            }
            EventKind::PortError => return Some(Event::PortError { port: PORT }),
            EventKind::PortActive => return Some(Event::PortActive { port: PORT }),
            EventKind::DeviceFatal => return Some(Event::DeviceFatal),
        };
        let qpn = *self.numbers().get(&object?)?;
        Some(Event::Qp { qpn, event })
    }

    pub(super) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // It is whole at any time.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
