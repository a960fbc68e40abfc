//! What the network saw, held against what programs were told and what was done to them.

use crate::endpoint::Posted;
use crate::failure::{Failure, Verdict};
use crate::world::{Group, Phase, World};
use trunkline::Status;

impl World {
    /// What left for the network, held against what must not leave, or not yet.
    pub(crate) fn check_packets(&self) -> Verdict {
        let mut net = self.network.net();
        if let Some(what) = net.refusals.too_soon() {
            return Err(Failure::wrong(what));
        }
        let Some((flow, what)) = net.turns.take_unfair() else {
            return Ok(());
        };
        net.turns.agrees(flow);
        drop(net);
        // Of a QP that something was done to, nothing need leave.
        let alive = |group: &Group| group.doom.is_none() && group.phase == Phase::Up;
        let mut groups = self.groups.iter().filter(|group| alive(group));
        let channels = |member: &usize| self.endpoints[*member].outgoing.iter();
        let is_its = |channel: &usize| self.flow(*channel) == flow;
        match groups.any(|group| group.members.iter().flat_map(channels).any(is_its)) {
            true => Err(Failure::wrong(what)),
            false => Ok(()),
        }
    }

    /// Whether a message of a group was refused, as its receiver was not ready, more often than its
    /// sender may try again.
    pub(crate) fn was_refused_too_often(&self, group: usize) -> bool {
        let members = self.groups[group].members.iter();
        members.copied().any(|member| {
            let mut channels = self.endpoints[member].outgoing.iter();
            channels.any(|channel| self.tries_are_over(member, *channel))
        })
    }

    /// Whether that is so of a message from an endpoint over one of its channels.
    fn tries_are_over(&self, endpoint: usize, channel: usize) -> bool {
        let group = &self.groups[self.endpoints[endpoint].group];
        let members = group.members.iter().zip(&group.shapes);
        let mut retries = members.filter(|(member, _)| **member == endpoint);
        let retries = retries.next().map_or(7, |(_, shape)| shape.rnr_retry);
        let flow = self.flow(channel);
        let refused = self
            .network
            .net()
            .refusals
            .most(flow, group.built_at, self.now);
        retries < 7 && (refused > retries.into() || self.is_ibta(endpoint))
    }

    /// Whether a QP has a connection of its own: the network knows nothing of its refusals.
    fn is_ibta(&self, endpoint: usize) -> bool {
        let ibta = |qp: &trunkline::Qp| qp.describe().contains("Ibta(");
        self.endpoints[endpoint].qp.as_ref().is_some_and(ibta)
    }

    /// A message fails for want of a receive only after as many tries as its sender has, which it
    /// has to itself.
    pub(crate) fn check_tries(&self, endpoint: usize, posted: &Posted, status: Status) -> Verdict {
        if status != Status::RnrRetryExceeded || self.tries_are_over(endpoint, posted.channel) {
            return Ok(());
        }
        Err(Failure::wrong(format!(
            "e{endpoint} #{} ended as {status:?}, though no message to e{} was refused so often",
            posted.seq, self.channels[posted.channel].to
        )))
    }
}
