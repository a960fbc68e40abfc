//! Who is told of a node's asynchronous events.

use crate::abi;
use crate::abi::event;
use crate::event_queue::EventQueue;
use crate::unacked::Unacked;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use trunkline::{CqId, Event, QpEvent, Qpn, SrqId};

/// An object that events may be about, as events name it and as its program does.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Name {
    Qp(Qpn),
    Cq(CqId),
    Srq(SrqId),
}

/// Who is told of the events of an object.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    /// The pointer that the program has.
    pub(crate) element: Element,
    pub(crate) unacked: Arc<Unacked>,
}

/// An object or port, as the program knows it. The addresses are only handed out, never followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Element {
    Qp(usize),
    Cq(usize),
    Srq(usize),
    Port(c_int),
}

/// An event that waits for its program.
pub(crate) struct AsyncEvent {
    pub(crate) element: Element,
    pub(crate) kind: u32,
    /// Counts the event when the program gets it; ports are never destroyed.
    pub(crate) unacked: Option<Arc<Unacked>>,
}

impl Element {
    pub(crate) fn to_abi(self) -> abi::Element {
        match self {
            Self::Qp(qp) => abi::Element { qp: qp as *mut _ },
            Self::Cq(cq) => abi::Element { cq: cq as *mut _ },
            Self::Srq(srq) => abi::Element { srq: srq as *mut _ },
            Self::Port(port_num) => abi::Element { port_num },
        }
    }
}

/// The objects of a node, and its contexts.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    objects: HashMap<Name, Listener>,
    /// Those of all contexts.
    contexts: Vec<Weak<EventQueue<AsyncEvent>>>,
}

impl Registry {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a context, which hears of the port and of the node.
    pub(crate) fn add_context(&self, events: &Arc<EventQueue<AsyncEvent>>) {
        let mut tables = self.tables();
        tables.contexts.retain(|events| events.strong_count() > 0);
        tables.contexts.push(Arc::downgrade(events));
    }

    /// Adds an object.
    pub(crate) fn add(&self, name: Name, listener: Listener) {
        self.tables().objects.insert(name, listener);
    }

    /// Removes an object and drops the events of it that wait. Those that its program got it has to
    /// acknowledge: this waits for that.
    pub(crate) fn remove(&self, name: Name) {
        let Some(listener) = self.tables().objects.remove(&name) else {
            return;
        };
        let element = listener.element;
        listener.events.remove(|event| event.element == element);
        listener.unacked.wait_for_none();
    }

    /// Nobody hears of anything any more.
    pub(crate) fn silence(&self) {
        *self.tables() = Tables::default();
    }

    /// Tells whom an event concerns. Those of connections concern no program of verbs.
    pub(crate) fn tell(&self, event: Event) {
        match event {
            Event::Qp { qpn, event } => self.tell_object(Name::Qp(qpn), of_qp(event)),
            Event::CqError { cq } => self.tell_object(Name::Cq(cq), event::CQ_ERR),
            Event::SrqLimitReached { srq } => {
                self.tell_object(Name::Srq(srq), event::SRQ_LIMIT_REACHED);
            }
            Event::SrqError { srq } => self.tell_object(Name::Srq(srq), event::SRQ_ERR),
            Event::PortError { port } => self.tell_all(port.into(), event::PORT_ERR),
            Event::PortActive { port } => self.tell_all(port.into(), event::PORT_ACTIVE),
            Event::DeviceFatal => self.tell_all(0, event::DEVICE_FATAL),
            _ => {}
        }
    }

    fn tell_object(&self, name: Name, kind: u32) {
        // The event is put down before the lock is given up: who removes the object finds it.
        let tables = self.tables();
        let Some(listener) = tables.objects.get(&name) else {
            return;
        };
        listener.events.push(AsyncEvent {
            element: listener.element,
            kind,
            unacked: Some(Arc::clone(&listener.unacked)),
        });
    }

    fn tell_all(&self, port: c_int, kind: u32) {
        for events in self.tables().contexts.iter().filter_map(Weak::upgrade) {
            events.push(AsyncEvent {
                element: Element::Port(port),
                kind,
                unacked: None,
            });
        }
    }
}

const fn of_qp(what: QpEvent) -> u32 {
    match what {
        QpEvent::CommunicationEstablished => event::COMM_EST,
        QpEvent::SendQueueDrained => event::SQ_DRAINED,
        QpEvent::RequestError => event::QP_REQ_ERR,
        QpEvent::AccessError => event::QP_ACCESS_ERR,
        QpEvent::Fatal => event::QP_FATAL,
        QpEvent::LastWqeReached => event::QP_LAST_WQE_REACHED,
    }
}
