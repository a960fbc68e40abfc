//! Connections within the node, between QPs of its own.

use super::mark::Mark;
use super::{ConnectionState, NO_QP, OpeningLoop, PoolContext, Pools};
use crate::error::NoConnection;
use crate::verbs::connection::ConnectionOptions;
use crate::worker::messages::{LoopRequest, WorkerMessage};
use trunkline_cm::{Offer, Purpose, WINDOW_UNIT};
use trunkline_qpmap::{ConnId, ConnectionParams, PeerIdentity};

impl Pools {
    /// QPs of this node that talk to each other: two connections that lead to one another, where
    /// the QPs belong to two workers one at each. Gives where this end stands, which a program with
    /// `handle` wants to know.
    pub(super) fn open_loop(
        &mut self,
        context: &mut PoolContext<'_>,
        options: &ConnectionOptions,
        handle: Option<u64>,
    ) -> Option<ConnectionState> {
        let near = self.offer(context.engine)?;
        let options = *options;
        let private = handle.is_some();
        let remote = options.remote.unwrap_or(NO_QP);
        let to = self.worker.of().owner(remote.get());
        if to == self.worker.index() {
            let far = self.offer(context.engine)?;
            let end = self.add_loop(context, (&near, &far), &options, private);
            self.add_loop(context, (&far, &near), &options, private);
            context
                .engine
                .set_mark(end, Mark::new(Purpose::Private, handle).0);
            return Some(ConnectionState::Open(end));
        }
        let opening = OpeningLoop {
            near,
            to,
            options,
            handle,
        };
        self.loops.push(opening);
        let request = LoopRequest {
            from: self.worker.index(),
            near,
            options,
            private,
        };
        self.messages
            .push_back((to, WorkerMessage::Loop(Box::new(request))));
        Some(ConnectionState::Opening)
    }

    /// One end of a connection within the node.
    fn add_loop(
        &self,
        context: &mut PoolContext<'_>,
        (near, far): (&Offer, &Offer),
        options: &ConnectionOptions,
        private: bool,
    ) -> ConnId {
        let own = context.manager.config().identity;
        let identity = PeerIdentity {
            guid: own.guid,
            epoch: own.epoch,
            address: self.address.into(),
            workers: self.worker.of(),
        };
        let params = ConnectionParams {
            local_id: near.connection,
            local_token: near.token,
            remote_id: far.connection,
            remote_token: far.token,
            first_tx: far.first_packet,
            first_rx: near.first_packet,
            datagram: near.packet_size,
            window: WINDOW_UNIT * u32::from(near.window),
            control: options.control,
            traffic_class: options.traffic_class,
            weight: options.weight.max(1),
            source_ports: options.source_ports,
            private,
            packs: near.packs && far.packs,
        };
        let added = context
            .engine
            .add_connection(context.now, identity, &params);
        added.expect("we are no other incarnation of ourselves")
    }

    /// Another worker asks for the other end of such a connection.
    pub(crate) fn looped_to(&mut self, context: &mut PoolContext<'_>, request: &LoopRequest) {
        let far = self.offer(context.engine);
        if let Some(far) = &far {
            self.add_loop(
                context,
                (far, &request.near),
                &request.options,
                request.private,
            );
        }
        let message = WorkerMessage::Looped(request.near, far);
        self.messages.push_back((request.from, message));
    }

    /// The other worker has made it.
    pub(crate) fn looped(
        &mut self,
        context: &mut PoolContext<'_>,
        near: &Offer,
        far: Option<&Offer>,
    ) {
        let mut loops = self.loops.iter();
        let Some(at) = loops.position(|other| other.near.connection == near.connection) else {
            return;
        };
        let opening = self.loops.swap_remove(at);
        let private = opening.handle.is_some();
        let state = match far {
            Some(far) => {
                let ends = (near, far);
                let conn = self.add_loop(context, ends, &opening.options, private);
                let mark = Mark::new(Purpose::Private, opening.handle);
                context.engine.set_mark(conn, mark.0);
                ConnectionState::Open(conn)
            }
            None => {
                context.engine.release_connection(near.connection);
                let remote = opening.options.remote.unwrap_or(NO_QP);
                if !private {
                    let why = NoConnection::TooMany.to_requests();
                    let own = self.address.into();
                    context.engine.peer_unreachable(own, remote, why);
                }
                ConnectionState::Failed(NoConnection::TooMany)
            }
        };
        match (opening.handle, state) {
            (Some(handle), _) if self.private.has(handle) => {
                self.tell(handle, self.address, state);
            }
            // The program has given it up meanwhile.
            (Some(_), ConnectionState::Open(conn)) => context.engine.close_connection(conn),
            _ => {}
        }
    }
}
