//! Asynchronous events: which program each is for.

use crate::error::Error;
use crate::verbs::event::Event;
use crate::worker::event_queue::EventQueue;
use crate::worker::sleep::readable;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_host::Handle;
use trunkline_host::control::answers::EventTaken;
use trunkline_host::control::attributes::EventKind;
use trunkline_qpmap::{CqId, SrqId};
use trunkline_wire::Qpn;

/// Events that wait for one program; more are lost.
const MOST: usize = 4096;
/// Events of the port that wait for one program: the last two say how it is.
const MOST_OF_PORT: usize = 2;

/// The events of one program.
#[derive(Debug)]
pub(super) struct ClientEvents {
    queue: EventQueue<EventTaken>,
    /// Readable while events wait: the program can wait for it, and do nothing else.
    waited: Arc<OwnedFd>,
}

impl ClientEvents {
    pub(super) fn new() -> Result<Self, Error> {
        let queue = EventQueue::new("eventfd of a program", MOST)?;
        let waited = Arc::new(readable([queue.fd.as_fd()])?);
        Ok(Self { queue, waited })
    }

    pub(super) const fn waited(&self) -> &Arc<OwnedFd> {
        &self.waited
    }

    /// Both descriptors, which the program may keep from being closed.
    pub(super) fn into_fds(self) -> impl Iterator<Item = OwnedFd> {
        let waited = Arc::into_inner(self.waited);
        waited.into_iter().chain([self.queue.into_fd()])
    }

    pub(super) fn take(&self) -> EventTaken {
        let none = EventTaken {
            kind: None,
            object: None,
        };
        self.queue.pop().unwrap_or(none)
    }

    pub(super) fn tell(&self, kind: EventKind, object: Option<Handle>) {
        let event = EventTaken {
            kind: Some(kind),
            object,
        };
        match kind {
            EventKind::PortError | EventKind::PortActive => {
                let of_port = |event: &EventTaken| {
                    let kinds = [EventKind::PortError, EventKind::PortActive];
                    event.kind.is_some_and(|kind| kinds.contains(&kind))
                };
                self.queue.push_last_of(event, MOST_OF_PORT, of_port);
            }
            _ => self.queue.push(event),
        }
    }
}

/// Whose an object is: the program, and its name for it.
pub(super) type Owner = (u64, Handle);

/// Whose the objects are that events and errors name.
#[derive(Debug, Default)]
pub(super) struct Owners {
    pub(super) qps: HashMap<Qpn, Owner>,
    pub(super) cqs: BTreeMap<CqId, Owner>,
    pub(super) srqs: HashMap<SrqId, Owner>,
}

/// Whom an event is for.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Addressee {
    One(Owner, EventKind),
    All(EventKind),
    /// An object of the service's own program, or one that is gone.
    Nobody,
}

impl Owners {
    pub(super) fn addressee(&self, event: &Event) -> Addressee {
        let (owner, kind) = match event {
            Event::Qp { qpn, event } => (self.qps.get(qpn), kind_of(*event)),
            Event::PeerQpGone { qpn } => (self.qps.get(qpn), EventKind::PeerQpGone),
            Event::CqError { cq } => (self.cqs.get(cq), EventKind::CqError),
            Event::SrqLimitReached { srq } => (self.srqs.get(srq), EventKind::SrqLimitReached),
            Event::SrqError { srq } => (self.srqs.get(srq), EventKind::SrqError),
            Event::PortError { .. } => return Addressee::All(EventKind::PortError),
            Event::PortActive { .. } => return Addressee::All(EventKind::PortActive),
            Event::DeviceFatal => return Addressee::All(EventKind::DeviceFatal),
            Event::ConnectionUp { .. }
            | Event::ConnectionFailed { .. }
            | Event::ConnectionDown { .. }
            | Event::Moved { .. } => return Addressee::Nobody,
        };
        owner.map_or(Addressee::Nobody, |owner| Addressee::One(*owner, kind))
    }

    /// What its program calls the CQ with this index.
    pub(super) fn cq_named(&self, index: u32) -> Option<Handle> {
        let with_index = CqId::named(index, 0)..=CqId::named(index, u32::MAX);
        let (_, (_, handle)) = self.cqs.range(with_index).next()?;
        Some(*handle)
    }
}

const fn kind_of(event: QpEvent) -> EventKind {
    match event {
        QpEvent::CommunicationEstablished => EventKind::CommunicationEstablished,
        QpEvent::SendQueueDrained => EventKind::SendQueueDrained,
        QpEvent::RequestError => EventKind::RequestError,
        QpEvent::AccessError => EventKind::AccessError,
        QpEvent::Fatal => EventKind::QpFatal,
        QpEvent::LastWqeReached => EventKind::LastWqeReached,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn a_cq_is_found_by_its_index_whatever_its_serial() {
        let mut owners = Owners::default();
        let handle = |index| Handle {
            index,
            serial: NonZeroU32::MIN,
        };
        for (own, (index, serial)) in (20..).zip([(4, u32::MAX), (5, 0), (7, u32::MAX), (8, 0)]) {
            let owner = (1, handle(own));
            owners.cqs.insert(CqId::named(index, serial), owner);
        }
        let found = [3, 4, 5, 6, 7, 8, 9].map(|index| owners.cq_named(index));
        let own = [None, Some(20), Some(21), None, Some(22), Some(23), None];
        assert_eq!(found, own.map(|index| index.map(handle)));
    }
}
