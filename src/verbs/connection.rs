//! Connections that programs manage themselves.

use crate::error::{Error, NoConnection};
use crate::node::shared::Shared;
use crate::pools::ConnectionState;
use crate::worker::core::Core;
use crate::worker::handle::WorkerHandle;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_qpmap::{Allowed, ConnId, ConnectionStats, VerbsError};
use trunkline_wire::Qpn;

/// What a program wants of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionOptions {
    /// Congestion control; `None` takes the node's.
    pub control: Option<CongestionControl>,
    /// DSCP of its packets, in the upper six bits. The two lowest, ECN, belong to the node,
    /// whatever they are here.
    pub traffic_class: u8,
    /// Share of the port beside other connections, 1 to 255.
    pub weight: u8,
    /// A QP of this node that is to be bound to it; one of the first worker's if not set. Only
    /// where the node has several workers does it matter.
    pub local: Option<Qpn>,
    /// A QP of the peer's that such a QP is connected to; the same holds.
    pub remote: Option<Qpn>,
    /// UDP source ports to spread its packets over, 1 to 8; the node must have been built with as
    /// many.
    pub source_ports: u8,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            control: None,
            traffic_class: 0,
            weight: 1,
            local: None,
            remote: None,
            source_ports: 1,
        }
    }
}

/// Most UDP source ports of a connection.
const MOST_SOURCE_PORTS: usize = 8;

impl ConnectionOptions {
    /// Whether everything is in its range, at a node that has `ports` UDP source ports.
    fn check(&self, ports: usize) -> Result<(), VerbsError> {
        let settings = [
            ("weight", self.weight, Allowed::Range(1, u8::MAX.into())),
            (
                "source_ports",
                self.source_ports,
                Allowed::Range(1, ports.min(MOST_SOURCE_PORTS) as u32),
            ),
        ];
        settings
            .into_iter()
            .try_for_each(|(what, value, allowed)| allowed.check(what, value))
    }
}

/// A shared connection. Dropping the handle of one that the program opened closes it; QPs on it
/// move to the pool.
pub struct Connection {
    node: Arc<Shared>,
    /// Index of the worker that it belongs to.
    worker: u8,
    peer: IpAddr,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Opened by the program.
    Private(u64),
    /// Of the pool.
    Pool(ConnId),
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("worker", &self.worker)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn open(
        node: &Arc<Shared>,
        peer: IpAddr,
        options: &ConnectionOptions,
    ) -> Result<Self, Error> {
        node.life.check()?;
        node.inside("connections that the program opens")?;
        let local = options.local.map_or(0, Qpn::get);
        let worker = node.workers.owner(local);
        options.check(node.handle(worker).core()?.engine.source_ports())?;
        let opened = node.handle(worker).act(|core, now| {
            core.check_peer(now, peer.into())?;
            Ok::<_, VerbsError>(core.open_private(now, peer, options))
        })??;
        let handle = opened.ok_or(Error::NoConnection {
            peer,
            why: NoConnection::TooMany,
        })?;
        Ok(Self {
            node: Arc::clone(node),
            worker,
            peer,
            kind: Kind::Private(handle),
        })
    }

    pub(crate) fn of_peer(node: &Arc<Shared>, peer: IpAddr) -> Vec<Self> {
        let mut found = Vec::new();
        for (worker, handle) in (0..).zip(node.handles()) {
            let Ok(core) = handle.core() else {
                continue;
            };
            let ids = core.engine.connections_to(peer.into());
            drop(core);
            found.extend(ids.into_iter().map(|id| Self {
                node: Arc::clone(node),
                worker,
                peer,
                kind: Kind::Pool(id),
            }));
        }
        found
    }

    fn handle(&self) -> &WorkerHandle {
        self.node.handle(self.worker)
    }

    /// Index of the worker of this node that it belongs to, from 0.
    pub const fn worker(&self) -> u8 {
        self.worker
    }

    /// Address of the peer.
    pub const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Where it stands.
    pub fn state(&self) -> ConnectionState {
        let Ok(core) = self.handle().core() else {
            return ConnectionState::Closed;
        };
        match self.kind {
            Kind::Private(handle) => core.pools.private_state(&core.engine, handle),
            Kind::Pool(id) if core.engine.is_open(id) => ConnectionState::Open(id),
            Kind::Pool(_) => ConnectionState::Closed,
        }
    }

    /// Its handle in the engine.
    ///
    /// # Errors
    /// [`Error::NoConnection`] while it is not open.
    pub(crate) fn id(&self) -> Result<ConnId, Error> {
        let why = match self.state() {
            ConnectionState::Open(id) => return Ok(id),
            ConnectionState::Opening => NoConnection::Opening,
            ConnectionState::Failed(why) => why,
            ConnectionState::Closed => NoConnection::Closed,
        };
        Err(Error::NoConnection {
            peer: self.peer,
            why,
        })
    }

    /// Its handle in the engine, for a QP of `worker` of `node`.
    ///
    /// # Errors
    /// [`Error::NoConnection`] while it is not open, or where it is another worker's;
    /// [`VerbsError::InvalidArgument`] where it is another node's.
    pub(crate) fn id_at(&self, node: &Arc<Shared>, worker: u8) -> Result<ConnId, Error> {
        self.node.check_same(node, "connection")?;
        if worker != self.worker {
            return Err(Error::NoConnection {
                peer: self.peer,
                why: NoConnection::OtherWorker,
            });
        }
        self.id()
    }

    /// Whether QPs may be bound to it.
    pub fn is_open(&self) -> bool {
        matches!(self.state(), ConnectionState::Open(_))
    }

    /// Its statistics. What it counts is cumulative: since the connection was opened or, where it
    /// had carried nothing but keep-alives for minutes before they were first asked for, since
    /// then.
    ///
    /// # Errors
    /// [`Error::NoConnection`] while it is not open.
    pub fn stats(&self) -> Result<ConnectionStats, Error> {
        let id = self.id()?;
        let gone = Error::NoConnection {
            peer: self.peer,
            why: NoConnection::Closed,
        };
        let mut core = self.handle().core()?;
        core.engine.keep_counts(id);
        core.engine.connection_stats(id).ok_or(gone)
    }

    /// Closes it; QPs on it move to another connection to the same peer.
    pub fn close(&self) {
        if let Ok(id) = self.id()
            && let Ok(mut core) = self.handle().core()
        {
            core.engine.close_connection(id);
            drop(core);
            self.handle().wake();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Kind::Private(handle) = self.kind {
            let Ok(mut core) = self.handle().core() else {
                return;
            };
            let Core { pools, engine, .. } = &mut *core;
            if let Some(id) = pools.forget_private(engine, handle) {
                engine.close_connection(id);
            }
            drop(core);
            self.handle().wake();
        }
    }
}
