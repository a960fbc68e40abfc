//! How QPs are connected and get what they need to work: routes, receives, keys to give away.

use crate::endpoint::{Cookie, Stage, post_receive};
use crate::failure::{Failure, Verdict};
use crate::options::{US, pick};
use crate::place::Ends;
use crate::setup::refused;
use crate::world::{Action, Denied, Doom, World};
use std::sync::Arc;
use trunkline::{
    Access, Attributes, Connection, ConnectionOptions, ConnectionState, Error, Node, Qp, QpModify,
    QpType, RecvWr,
};

/// Bytes of a spare.
const SPARE: usize = 64;

impl World {
    /// Connects an endpoint to its peers.
    pub(crate) fn connect(&mut self, endpoint: usize) -> Verdict {
        if self.endpoints[endpoint].stage != Stage::Made {
            return Ok(());
        }
        let group = self.endpoints[endpoint].group;
        let at = self.groups[group]
            .members
            .iter()
            .position(|member| *member == endpoint);
        let Some(at) = at else { return Ok(()) };
        let shape = self.groups[group].shapes[at];
        let shapes = self.groups[group].shapes.iter().enumerate();
        let theirs = shapes.filter(|(member, _)| *member != at);
        let theirs = theirs.map(|(_, shape)| shape.rd_atomic).max().unwrap_or(1);
        let attributes = Attributes {
            max_rd_atomic: shape.rd_atomic,
            // Exactly what the peers may have outstanding.
            max_dest_rd_atomic: theirs,
            min_rnr_timer: shape.rnr_timer,
            rnr_retry: shape.rnr_retry,
            ..Attributes::default()
        };
        self.act("connect", endpoint, group);
        let made = match self.groups[group].kind {
            QpType::Src => self.open_routes(endpoint, &attributes)?,
            _ => {
                let peer = self.channels[self.endpoints[endpoint].outgoing[0]].to;
                let address = self.endpoints[peer].qp.as_ref().map(Qp::address);
                let (Some(qp), Some(address)) = (&self.endpoints[endpoint].qp, address) else {
                    // The peer's node stopped before.
                    return Ok(());
                };
                qp.connect_with(address, Denied::rights(shape.denied), &attributes)
                    .map_err(refused("connect"))?;
                true
            }
        };
        if !made {
            self.after(200 * US, Action::Connect(endpoint));
            return Ok(());
        }
        self.endpoints[endpoint].stage = Stage::Live;
        self.places[shape.node].stirred = true;
        self.top_up(endpoint)?;
        self.refresh_spares(endpoint)?;
        let delay = self.random.below(100 * US);
        self.after(delay, Action::Post(endpoint));
        Ok(())
    }

    /// Opens the routes of an app-managed QP. `false`: a connection is still being opened.
    fn open_routes(&mut self, endpoint: usize, attributes: &Attributes) -> Result<bool, Failure> {
        let mut peers = Vec::new();
        for channel in self.endpoints[endpoint].outgoing.clone() {
            let to = self.channels[channel].to;
            let Some(connection) = self.own_connection(endpoint, to)? else {
                return Ok(false);
            };
            peers.push((channel, self.endpoints[to].qpn, connection));
        }
        let qp = self.endpoints[endpoint]
            .qp
            .clone()
            .expect("an endpoint that connects has a QP");
        let steps = [
            QpModify::Init {
                access: Access::ALL,
            },
            QpModify::Rtr(*attributes),
            QpModify::Rts(*attributes),
        ];
        for step in &steps {
            qp.modify(step).map_err(refused("modify_qp"))?;
        }
        for (channel, remote, connection) in peers {
            match qp.route(&connection, remote) {
                Ok(route) => self.channels[channel].route = route,
                Err(error) => {
                    let group = self.endpoints[endpoint].group;
                    // Its worker got no processor, so that the node heard only now of the end of
                    // a connection that seemed open a moment ago.
                    if let Error::NoConnection { .. } = error {
                        self.doom(group, Doom::Any("a connection closed before it was used"));
                    }
                    if self.groups[group].doom.is_none() {
                        return Err(refused("route")(error));
                    }
                    // It has no route to post to.
                    let outgoing = &mut self.endpoints[endpoint].outgoing;
                    outgoing.retain(|other| *other != channel);
                }
            }
        }
        Ok(true)
    }

    /// A connection for two QPs that the program opened itself, or opens now: `None` while it is
    /// not open.
    fn own_connection(
        &mut self,
        from: usize,
        to: usize,
    ) -> Result<Option<Arc<Connection>>, Failure> {
        let (from, to) = (&self.endpoints[from], &self.endpoints[to]);
        let (Some(local), Some(remote)) = (&from.qp, &to.qp) else {
            return Ok(None);
        };
        let Some(workers) = self.node(to.node).map(Node::workers) else {
            return Ok(None);
        };
        let ends = Ends {
            worker: local.worker(),
            node: to.node,
            life: self.places[to.node].starts,
            peer_worker: (remote.worker(), workers),
        };
        let (local, remote) = (local.qpn(), remote.qpn());
        let address = self.addresses[to.node];
        let place = &mut self.places[from.node];
        let dead = |connection: &Connection| {
            matches!(
                connection.state(),
                ConnectionState::Failed(_) | ConnectionState::Closed
            )
        };
        place.own.retain(|(_, connection)| !dead(connection));
        let found = place.own.iter().find(|(other, _)| *other == ends);
        if let Some((_, connection)) = found {
            return Ok(connection.is_open().then(|| Arc::clone(connection)));
        }
        let Some(node) = &place.node else {
            return Ok(None);
        };
        let ports = self.options.port.source_ports.len();
        let options = ConnectionOptions {
            source_ports: pick(&mut self.random, &[1, 4]).min(ports as u8),
            weight: pick(&mut self.random, &[1, 1, 3]),
            local: Some(local),
            remote: Some(remote),
            ..ConnectionOptions::default()
        };
        let opened = node
            .open_connection(address, &options)
            .map_err(refused("open_connection"))?;
        place.own.push((ends, Arc::new(opened)));
        place.stirred = true;
        Ok(None)
    }

    /// Posts receives until all slots of an endpoint are.
    pub(crate) fn top_up(&mut self, endpoint: usize) -> Verdict {
        let state = &mut self.endpoints[endpoint];
        state.top_up_due = false;
        if state.stage != Stage::Live {
            return Ok(());
        }
        let (Some(receives), Some(qp), Some(area)) = (&mut state.receives, &state.qp, &state.area)
        else {
            return Ok(());
        };
        let Some(mr) = area.mr() else { return Ok(()) };
        while let Some((slot, sges)) = receives.take(mr) {
            let cookie = Cookie::Receive(endpoint, slot);
            post_receive(qp, cookie, &sges).map_err(refused("post_recv"))?;
        }
        self.places[state.node].stirred = true;
        Ok(())
    }

    /// Posts receives until all slots of a process's SRQ are.
    pub(crate) fn top_up_shared(&mut self, node: usize, process: usize) -> Verdict {
        let Some(state) = self.places[node].processes.get_mut(process) else {
            return Ok(());
        };
        state.top_up_due = false;
        let Some((srq, area, receives)) = &mut state.srq else {
            return Ok(());
        };
        while let Some((slot, sges)) = receives.take(area.region()) {
            let request = RecvWr {
                wr_id: Cookie::Shared(slot).word(),
                sges: &sges,
            };
            srq.post_recv(&[request])
                .map_err(refused("post_srq_recv"))?;
        }
        Ok(())
    }

    /// Registers small regions for peers to invalidate.
    pub(crate) fn refresh_spares(&mut self, endpoint: usize) -> Verdict {
        let state = &mut self.endpoints[endpoint];
        let Some(process) = self.places[state.node].processes.get(state.process) else {
            return Ok(());
        };
        for spare in &mut state.spares {
            if spare.0.is_none() {
                let mr = process
                    .pd
                    .register(SPARE, Access::ALL | Access::REMOTE_INVALIDATE)
                    .map_err(refused("registration"))?;
                *spare = (Some(mr), false);
            }
        }
        Ok(())
    }
}
