//! REP, reply to a request for communication (IBTA Vol 1, 12.6.8), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |  local Q_Key             |  local QPN 24, reserved  |  8..16
//! |  local EECN 24, reserved |  starting PSN 24, res.   |  16..24
//! |  responder resources 8   |  initiator depth 8       |  24..26
//! |  ACK delay 5, failover 2, flow 1                    |  26
//! |  RNR retries 3, SRQ 1, reserved 4                   |  27
//! |                 local CA GUID                       |  28..36
//! |                 private data 196                    |  36..232
//! ```

use super::field::{bit, fit, word};
use super::{CommId, PrivateData};
use crate::bytes::{get, header, put, u24_at, u32_at, u64_at};
use crate::{Psn, Qpn};

/// Reply to a request for communication.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rep {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Datagram services only.
    pub qkey: u32,
    /// Sender's QP.
    pub qpn: Qpn,
    /// Reliable datagrams only: end-to-end context of the sender, 24 bits.
    pub eecn: u32,
    /// PSN of the first packet that the sender expects to receive.
    pub starting_psn: Psn,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have under way at once.
    pub initiator_depth: u8,
    /// Exponent of the longest time before the sender acknowledges a packet, 5 bits.
    pub target_ack_delay: u8,
    /// What became of the alternate path, 2 bits: 0 accepted, 1 not supported, 2 refused.
    pub failover: u8,
    /// The sender counts receives in its ACKs.
    pub flow_control: bool,
    /// Times the QP should send again after an RNR NAK, 3 bits; 7: for ever.
    pub rnr_retry_count: u8,
    /// The sender's QP takes its receives from an SRQ.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Users' bytes.
    pub private_data: PrivateData<196>,
}

header!(RepView of Rep, 232 bytes, "REP", total);

impl RepView<'_> {
    /// Sender's number for the connection.
    pub const fn local(self) -> CommId {
        CommId(u32_at(self.0, 0))
    }

    /// Receiver's number for the connection.
    pub const fn remote(self) -> CommId {
        CommId(u32_at(self.0, 4))
    }
}

impl Rep {
    /// The specification's name.
    pub const NAME: &str = "REP";

    /// Reads what the view shows.
    pub const fn parse(view: RepView<'_>) -> Self {
        let bytes = view.0;
        Self {
            local: view.local(),
            remote: view.remote(),
            qkey: u32_at(bytes, 8),
            qpn: Qpn::from_wire(u24_at(bytes, 12)),
            eecn: u24_at(bytes, 16),
            starting_psn: Psn::from_wire(u24_at(bytes, 20)),
            responder_resources: bytes[24],
            initiator_depth: bytes[25],
            target_ack_delay: bytes[26] >> 3,
            failover: bytes[26] >> 1 & 3,
            flow_control: bit(bytes[26], 0),
            rnr_retry_count: bytes[27] >> 5,
            srq: bit(bytes[27], 4),
            ca_guid: u64_at(bytes, 28),
            private_data: PrivateData(get(bytes, 36)),
        }
    }

    /// Writes the message.
    ///
    /// # Panics
    /// A field takes more bits than it has.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 4, self.remote.0.to_be_bytes());
        put(out, 8, self.qkey.to_be_bytes());
        put(out, 12, word(self.qpn.get(), 0));
        put(out, 16, word(self.eecn, 0));
        put(out, 20, word(self.starting_psn.get(), 0));
        put(out, 24, [self.responder_resources, self.initiator_depth]);
        out[26] = fit(self.target_ack_delay, 5) << 3
            | fit(self.failover, 2) << 1
            | u8::from(self.flow_control);
        out[27] = fit(self.rnr_retry_count, 3) << 5 | u8::from(self.srq) << 4;
        put(out, 28, self.ca_guid.to_be_bytes());
        put(out, 36, self.private_data.0);
    }
}
