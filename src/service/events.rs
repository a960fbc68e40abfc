//! Asynchronous events: which program each is for.

use crate::error::Error;
use crate::verbs::event::Event;
use crate::worker::event_queue::EventQueue;
use crate::worker::sleep::readable;
use std::collections::btree_map::Range;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_host::Handle;
use trunkline_host::control::answers::EventTaken;
use trunkline_host::control::attributes::EventKind;
use trunkline_qpmap::{CqId, SrqId, VerbsError};
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
    pub(super) srqs: BTreeMap<SrqId, Owner>,
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

    /// The error as its program hears it: by the program's names, not by those of the node.
    pub(super) fn renamed(&self, error: VerbsError) -> VerbsError {
        let renamed = match error {
            VerbsError::CqInError { cq } => {
                let same_index = CqId::named(cq, 0)..=CqId::named(cq, u32::MAX);
                name(self.cqs.range(same_index)).map(|cq| VerbsError::CqInError { cq })
            }
            VerbsError::SrqInError { srq } => {
                let same_index = SrqId::named(srq, 0)..=SrqId::named(srq, u32::MAX);
                name(self.srqs.range(same_index)).map(|srq| VerbsError::SrqInError { srq })
            }
            other => Some(other),
        };
        // Only of what a program has can it hear that it is in error.
        renamed.unwrap_or(VerbsError::InvalidArgument { what: "object" })
    }
}

/// What its program calls the first object.
fn name<Id>(mut objects: Range<'_, Id, Owner>) -> Option<u32> {
    objects.next().map(|(_, (_, handle))| handle.index)
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
    fn a_program_hears_its_own_names_of_what_is_in_error() {
        let mut owners = Owners::default();
        let serial = NonZeroU32::MIN;
        for (index, id) in (20..).zip([(4, u32::MAX), (5, 0), (5 << 8, 9), (6, 0)]) {
            let owner = (1, Handle { index, serial });
            owners.cqs.insert(CqId::named(id.0, id.1), owner);
            owners.srqs.insert(SrqId::named(id.0 + 1, id.1), owner);
        }
        let (cq, srq) = (5, 6);
        let renamed = owners.renamed(VerbsError::CqInError { cq });
        assert_eq!(renamed, VerbsError::CqInError { cq: 21 });
        let renamed = owners.renamed(VerbsError::SrqInError { srq });
        assert_eq!(renamed, VerbsError::SrqInError { srq: 21 });
        let gone = owners.renamed(VerbsError::CqInError { cq: 7 });
        assert_eq!(gone, VerbsError::InvalidArgument { what: "object" });
        let other = VerbsError::UnknownQp { qpn: 5 };
        assert_eq!(owners.renamed(other), other);
    }
}
