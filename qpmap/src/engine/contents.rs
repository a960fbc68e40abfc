//! What packets in flight say, from what is known of their requests, responses and control
//! messages.

use super::build::{MessageId, PacketTemplate, Payload, SentKind, SentPacket};
use super::control::Blobs;
use super::ending::Ending;
use super::flows::Flows;
use super::qp::Flags;
use super::qps::Qps;
use super::requests::{Pending, Requests};
use super::responses::{Outcome, Response, Responses};
use trunkline_wire::Opcode;

/// The [`Contents`] of an engine: a method would borrow all of that.
macro_rules! contents {
    ($engine:ident) => {
        $crate::engine::contents::Contents {
            flows: &$engine.flows,
            qps: &$engine.qps,
            requests: &$engine.requests,
            responses: &$engine.responses,
            blobs: &$engine.control.blobs,
        }
    };
}

pub(super) use contents;

/// Where that is known.
#[derive(Debug)]
pub(super) struct Contents<'a, W> {
    pub(super) flows: &'a Flows,
    pub(super) qps: &'a Qps<W>,
    pub(super) requests: &'a Requests,
    pub(super) responses: &'a Responses,
    pub(super) blobs: &'a Blobs,
}

impl<W> Clone for Contents<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Contents<'_, W> {}

impl<'a, W> Contents<'a, W> {
    /// The packet or record that carries `item`; `None`: nobody waits for that any more.
    #[inline(always)]
    pub(super) fn template(self, item: &SentPacket) -> Option<PacketTemplate<'a>> {
        let mut template = match item.kind {
            SentKind::Request => self.request(item)?,
            SentKind::Response => self.response(item)?,
            SentKind::Answers => {
                let blob = self.blobs.get(item.slot, item.serial)?;
                return Some(PacketTemplate::bare(Opcode::SRC_ANSWERS, blob));
            }
            SentKind::Control => {
                let blob = self.blobs.get(item.slot, item.serial)?;
                return Some(PacketTemplate::bare(Opcode::SRC_CONTROL, blob));
            }
            SentKind::Ping | SentKind::Packed => return None,
        };
        template.cut(item.offset, item.length);
        Some(template)
    }

    #[inline(always)]
    fn request(self, item: &SentPacket) -> Option<PacketTemplate<'a>> {
        let same = |at: &&Pending| at.serial == item.serial && at.replay_epoch == item.replay_epoch;
        let pending = self.requests.get(item.slot).filter(same)?;
        // In another replay epoch it is sent anew.
        let flow = self.flows.get(item.flow)?;
        if flow.replay_epoch != item.replay_epoch {
            return None;
        }
        let qp = &self.qps[flow.qp];
        Some(PacketTemplate::request(flow, qp.queues.qpn, qp.pd, pending))
    }

    fn response(self, item: &SentPacket) -> Option<PacketTemplate<'a>> {
        let response = self.responses.get(item.slot, item.serial)?;
        self.may_still_answer(item.flow, response)
            .then(|| self.template_of_response(item.flow, response))
    }

    /// Whether a response is still to be sent, by a flow that may have ended.
    fn may_still_answer(self, flow: u32, response: &Response) -> bool {
        let record = &self.flows[flow];
        let ended = match record.ending {
            Ending::No => false,
            ending => ending.is_last() || !record.flags.has(Flags::REFUSED),
        };
        !(ended && response.reads_memory())
    }

    /// All of a response.
    pub(super) fn template_of_response(
        self,
        flow: u32,
        response: &Response,
    ) -> PacketTemplate<'static> {
        let record = &self.flows[flow];
        let (opcode, payload) = match response.outcome {
            Outcome::Read { key, addr, .. } => {
                let by = self.qps.responder(record.qp);
                (Opcode::SRC_READ_RESP, Payload::Read(by, key, addr))
            }
            Outcome::Value(value) => (Opcode::SRC_ATOMIC_RESP, Payload::Value(value.to_be_bytes())),
        };
        let number = self.qps.number_at(record.qp);
        let id = MessageId::of(record, number, response.msn, response.replay_epoch);
        PacketTemplate::new(opcode, id, response.length(), payload)
    }
}
