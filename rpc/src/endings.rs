//! QPs of connections that have ended.
//!
//! One is kept until its last completion was taken up: what it had taken for half a message, and
//! what it has yet to give back of what it sends from, is among its completions, and buffers that
//! never come back would be lost to all others.

use crate::lock;
use hashbrown::HashMap;
use std::sync::Mutex;
use trunkline_tokio::rdma_cm::Connection;

/// By number of the QP.
#[derive(Debug, Default)]
pub(crate) struct Endings(pub(crate) Mutex<HashMap<u32, Ending>>);

#[derive(Debug)]
pub(crate) enum Ending {
    /// The last completion has yet to come.
    Waits(Box<Connection>),
    /// It has come, and the connection is about to end at this end too.
    Last,
}

impl Endings {
    /// Ends a connection, and keeps its QP as long as it has to be.
    pub(crate) fn retire(&self, qpn: u32, connection: Box<Connection>) {
        let mut endings = lock(&self.0);
        if endings.remove(&qpn).is_some() {
            drop(endings);
            return drop(connection);
        }
        // Its last completion finds it here.
        let waits = endings.entry(qpn).insert(Ending::Waits(connection));
        if let Ending::Waits(connection) = waits.get() {
            connection.end();
        }
    }

    /// The last completion of a QP was taken up. `is_known`: its connection has not retired yet, as
    /// far as the caller knows.
    pub(crate) fn last(&self, qpn: u32, is_known: bool) {
        let mut endings = lock(&self.0);
        let ended = endings.remove(&qpn);
        if ended.is_none() && is_known {
            endings.insert(qpn, Ending::Last);
        }
        drop(endings);
        drop(ended);
    }

    /// A connection came to nothing: no QP of it waits for anything.
    pub(crate) fn forget(&self, qpn: u32) {
        let forgotten = lock(&self.0).remove(&qpn);
        drop(forgotten);
    }

    /// No completion is taken up any more.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        drop(all);
    }
}
