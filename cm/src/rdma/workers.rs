//! What IDs have to do with other workers of their node, each of which has a manager of its own.
//!
//! A port is kept by one worker: it knows who has the port, and hands it out where none is asked
//! for. Whoever wants one of another worker's has the owner of the managers carry the wish there.
//! A listener is known to all workers, since what peers ask for is spread over them. Each decides
//! on its own how many requests may wait; the IDs of requests belong to the worker that took them.

use super::convert::{ANY, canonical, service};
use super::event::{Error, Kind, PortSpace};
use super::id::{Record, State, wanted};
use super::{Config, Id, Random, RdmaCm};
use crate::ib::Met;
use core::net::SocketAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::Workers;

/// Index of the worker that keeps a port, out of `workers`: who else wants it has to ask there.
pub const fn keeper(port: u16, workers: Workers) -> u8 {
    workers.owner(port as u32)
}

/// An ID's wish for a port.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    id: Id,
    space: PortSpace,
    address: SocketAddr,
    shares: (bool, bool),
}

/// What an ID has of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Claim {
    space: PortSpace,
    /// The port.
    pub port: u16,
    /// Whether the ID listens there.
    pub listens: bool,
}

/// A listener, as all workers know it.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    pub(super) id: Id,
    pub(super) space: PortSpace,
    kind: Kind,
    /// Its address and port.
    pub local: SocketAddr,
    backlog: u32,
    pub(super) reuse: bool,
    pub(super) v6_only: bool,
}

impl<R: Random> RdmaCm<R> {
    /// Whether an ID is this worker's, not only known to it.
    pub(super) const fn is_own(&self, id: Id) -> bool {
        self.config.ib.worker.owns(id.0 as u32)
    }

    /// First of three steps to [`bind`](Self::bind) an ID to a port that another worker keeps.
    ///
    /// # Errors
    /// The ID has one.
    pub fn wish(&mut self, id: Id, address: SocketAddr) -> Result<Wish, Error> {
        let record = self.record(id)?;
        if !matches!(record.state, State::Idle) || record.bound {
            return Err(record.refusal(id, wanted::UNBOUND));
        }
        let address = canonical(address);
        let (space, shares) = (record.space, (record.reuse, record.v6_only));
        Ok(Wish {
            id,
            space,
            address,
            shares,
        })
    }

    /// Second step, at the manager of the worker that keeps the port.
    ///
    /// # Errors
    /// The address is in use.
    pub fn grant(&mut self, wish: &Wish) -> Result<SocketAddr, Error> {
        let random = self.ib.random();
        let Wish {
            id, space, address, ..
        } = *wish;
        self.ports.bind(id, space, address, wish.shares, random)
    }

    /// Third step, at the first manager again.
    ///
    /// # Panics
    /// The ID is gone, or is not as it was at the first step.
    pub fn granted(&mut self, wish: &Wish) {
        let record = self.ids.get_mut(&wish.id).expect("who wishes is there");
        assert!(!record.bound, "who wishes for a port has none");
        (record.local, record.bound) = (Some(wish.address), true);
    }

    /// What an ID has of a port: what its end gives back at other workers, too.
    pub fn claim_of(&self, id: Id) -> Option<Claim> {
        let record = self.ids.get(&id)?;
        let local = record.local.filter(|_| record.bound)?;
        Some(Claim {
            space: record.space,
            port: local.port(),
            listens: matches!(record.state, State::Listening { .. }),
        })
    }

    /// An ID of another worker is gone, which had a port that this worker keeps and did not listen.
    pub fn give_back(&mut self, id: Id, claim: &Claim) {
        self.ports.release(id, claim.space, claim.port);
    }

    /// First of three steps to [`listen`](Self::listen) where a node has several workers.
    ///
    /// # Errors
    /// No port is free, or the ID is used otherwise.
    pub fn listener(&mut self, id: Id, backlog: u32) -> Result<Listener, Error> {
        let record = self.record(id)?;
        if !matches!(record.state, State::Idle) {
            return Err(record.refusal(id, wanted::IDLE));
        }
        let local = match record.local {
            Some(local) => local,
            None => self.claim(id, ANY)?,
        };
        let record = self.record(id)?;
        Ok(Listener {
            id,
            space: record.space,
            kind: record.kind,
            local,
            backlog: match backlog {
                0 => Config::BACKLOG,
                asked => asked.min(Config::BACKLOG),
            },
            reuse: record.reuse,
            v6_only: record.v6_only,
        })
    }

    /// Second step, at the manager of the worker that keeps the port.
    ///
    /// # Errors
    /// Another ID listens there.
    pub fn claim_listening(&mut self, listener: &Listener) -> Result<(), Error> {
        let Listener {
            id, space, local, ..
        } = *listener;
        self.ports.claim_listening(id, space, local)
    }

    /// Third step, at the managers of all workers: requests are taken from now on. It ends with
    /// [`destroy`](Self::destroy) at each.
    pub fn listen_too(&mut self, listener: &Listener) {
        let (id, backlog) = (listener.id, listener.backlog);
        let state = State::Listening {
            waiting: 0,
            backlog,
        };
        self.ports.listen(listener);
        self.ib
            .listen(service(listener.space, listener.local.port()));
        if self.is_own(id) {
            self.set_state(id, state);
            return;
        }
        let mut record = Record::new(listener.space, listener.kind, self.config.path, state);
        (record.local, record.bound) = (Some(listener.local), true);
        self.ids.insert(id, record);
    }

    /// What the managers of other workers are to be told: see
    /// [`ib::IbCm::poll_met`](crate::ib::IbCm::poll_met).
    #[must_use]
    pub fn poll_met(&mut self) -> Option<Met> {
        self.ib.poll_met()
    }

    /// See [`ib::IbCm::handle_met`](crate::ib::IbCm::handle_met).
    pub fn handle_met(&mut self, now: Instant, met: &Met) {
        self.ib.handle_met(now, met);
        self.handle_events(now);
    }
}
