//! REQ, request for communication (IBTA Vol 1, 12.6.5), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  reserved              |  0..8
//! |                  service ID                       |  8..16
//! |                 local CA GUID                     |  16..24
//! |  reserved                |  local Q_Key           |  24..32
//! |  local QPN 24            |  responder resources 8 |  32..36
//! |  local EECN 24           |  initiator depth 8     |  36..40
//! |  remote EECN 24          |  RTO 5, type 2, flow 1 |  40..44
//! |  starting PSN 24         |  LTO 5, retries 3      |  44..48
//! |  P_Key 16                |  MTU 4, RDC 1, RNR 3   |  48..51
//! |  CM retries 4, SRQ 1, extended type 3             |  51
//! |  primary path 44                                  |  52..96
//! |  alternate path 44                                |  96..140
//! |  private data 92                                  |  140..232
//! ```
//!
//! RTO and LTO: remote and local CM response timeout.

use super::field::{bit, fit, word};
use super::{CommId, PathRecord, PrivateData};
use crate::bytes::{get, header, put, u16_at, u24_at, u32_at, u64_at};
use crate::rdma_cm::ServiceId;
use crate::{Psn, Qpn};

/// Transport service that a REQ asks for (two bits).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum TransportService {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Named by the extended type.
    Extended,
}

/// Request for communication.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Req {
    /// Sender's number for the connection.
    pub local: CommId,
    /// What it wants to be connected to.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Datagram services only.
    pub qkey: u32,
    /// Sender's QP.
    pub qpn: Qpn,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have under way at once.
    pub initiator_depth: u8,
    /// Reliable datagrams only: end-to-end context of the sender, 24 bits.
    pub eecn: u32,
    /// Reliable datagrams only: end-to-end context of the receiver, 24 bits.
    pub remote_eecn: u32,
    /// Exponent of the time in which the receiver should answer, 5 bits.
    pub remote_response_timeout: u8,
    /// Kind of connection.
    pub service: TransportService,
    /// The sender counts receives in its ACKs.
    pub flow_control: bool,
    /// PSN of the first packet that the sender expects to receive.
    pub starting_psn: Psn,
    /// Exponent of the time in which the sender answers, 5 bits.
    pub local_response_timeout: u8,
    /// Times the QP should send again, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Coded path MTU, 4 bits: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Reliable datagrams only: the channel exists already.
    pub rdc_exists: bool,
    /// Times the QP should send again after an RNR NAK, 3 bits; 7: for ever.
    pub rnr_retry_count: u8,
    /// Times the sender sends a message of communication management again, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP takes its receives from an SRQ.
    pub srq: bool,
    /// Kind of connection when `service` says so, 3 bits.
    pub extended_type: u8,
    /// Path of the connection.
    pub primary: PathRecord,
    /// Path to move to; zeros: none.
    pub alternate: PathRecord,
    /// Users' bytes; RDMA-CM puts its header first.
    pub private_data: PrivateData<92>,
}

header!(ReqView of Req, 232 bytes, "REQ", total);

impl ReqView<'_> {
    /// Sender's number for the connection.
    pub const fn local(self) -> CommId {
        CommId(u32_at(self.0, 0))
    }

    /// What it wants to be connected to.
    pub const fn service_id(self) -> ServiceId {
        ServiceId(u64_at(self.0, 8))
    }
}

impl Req {
    /// The specification's name.
    pub const NAME: &str = "REQ";

    /// Reads what the view shows.
    pub const fn parse(view: ReqView<'_>) -> Self {
        let bytes = view.0;
        let service = match bytes[43] >> 1 & 3 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            _ => TransportService::Extended,
        };
        Self {
            local: view.local(),
            service_id: view.service_id(),
            ca_guid: u64_at(bytes, 16),
            qkey: u32_at(bytes, 28),
            qpn: Qpn::from_wire(u24_at(bytes, 32)),
            responder_resources: bytes[35],
            eecn: u24_at(bytes, 36),
            initiator_depth: bytes[39],
            remote_eecn: u24_at(bytes, 40),
            remote_response_timeout: bytes[43] >> 3,
            service,
            flow_control: bit(bytes[43], 0),
            starting_psn: Psn::from_wire(u24_at(bytes, 44)),
            local_response_timeout: bytes[47] >> 3,
            retry_count: bytes[47] & 7,
            pkey: u16_at(bytes, 48),
            path_mtu: bytes[50] >> 4,
            rdc_exists: bit(bytes[50], 3),
            rnr_retry_count: bytes[50] & 7,
            max_cm_retries: bytes[51] >> 4,
            srq: bit(bytes[51], 3),
            extended_type: bytes[51] & 7,
            primary: PathRecord::parse(&get(bytes, 52)),
            alternate: PathRecord::parse(&get(bytes, 96)),
            private_data: PrivateData(get(bytes, 140)),
        }
    }

    /// Writes the message.
    ///
    /// # Panics
    /// A field takes more bits than it has.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = [0; Self::LEN];
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 8, self.service_id.0.to_be_bytes());
        put(out, 16, self.ca_guid.to_be_bytes());
        put(out, 28, self.qkey.to_be_bytes());
        put(out, 32, word(self.qpn.get(), self.responder_resources));
        put(out, 36, word(self.eecn, self.initiator_depth));
        let kind = fit(self.remote_response_timeout, 5) << 3
            | (self.service as u8) << 1
            | u8::from(self.flow_control);
        put(out, 40, word(self.remote_eecn, kind));
        let retries = fit(self.local_response_timeout, 5) << 3 | fit(self.retry_count, 3);
        put(out, 44, word(self.starting_psn.get(), retries));
        put(out, 48, self.pkey.to_be_bytes());
        out[50] = fit(self.path_mtu, 4) << 4
            | u8::from(self.rdc_exists) << 3
            | fit(self.rnr_retry_count, 3);
        out[51] =
            fit(self.max_cm_retries, 4) << 4 | u8::from(self.srq) << 3 | fit(self.extended_type, 3);
        put(out, 52, self.primary.to_bytes());
        put(out, 96, self.alternate.to_bytes());
        put(out, 140, self.private_data.0);
    }
}
