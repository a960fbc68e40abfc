//! A path as REQ describes it (IBTA Vol 1, 12.6.5), big-endian, 44 bytes.
//!
//! ```text
//! |       local LID       |      remote LID      |  0..4
//! |               local GID (16)                 |  4..20
//! |               remote GID (16)                |  20..36
//! | flow label 20 | reserved 6 | packet rate 6   |  36..40
//! | traffic class | hop limit | SL 4 L . | ACK 5 |  40..44
//! ```
//!
//! L subnet local, ACK the local ACK timeout.

use super::field::{bit, fit};
use crate::Gid;
use crate::bytes::{get, put, u16_at, u32_at};

/// A path as communication management describes it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PathRecord {
    /// InfiniBand only; 0xffff over RoCE.
    pub local_lid: u16,
    /// InfiniBand only; 0xffff over RoCE.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Coded rate, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Both ports are in one subnet.
    pub subnet_local: bool,
    /// Exponent of the ACK timeout that the remote side should use, 5 bits: 4.096 us times 2 to
    /// it.
    pub local_ack_timeout: u8,
}

impl PathRecord {
    pub(super) const LEN: usize = 44;

    pub(super) const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = u32_at(bytes, 36);
        Self {
            local_lid: u16_at(bytes, 0),
            remote_lid: u16_at(bytes, 2),
            local_gid: Gid(get(bytes, 4)),
            remote_gid: Gid(get(bytes, 20)),
            flow_label: word >> 12,
            packet_rate: word as u8 & 0x3f,
            traffic_class: bytes[40],
            hop_limit: bytes[41],
            service_level: bytes[42] >> 4,
            subnet_local: bit(bytes[42], 3),
            local_ack_timeout: bytes[43] >> 3,
        }
    }

    /// # Panics
    /// A field takes more bits than it has.
    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        assert!(self.flow_label >> 20 == 0, "a flow label has 20 bits");
        let mut out = [0; Self::LEN];
        let word = self.flow_label << 12 | u32::from(fit(self.packet_rate, 6));
        put(&mut out, 0, self.local_lid.to_be_bytes());
        put(&mut out, 2, self.remote_lid.to_be_bytes());
        put(&mut out, 4, self.local_gid.0);
        put(&mut out, 20, self.remote_gid.0);
        put(&mut out, 36, word.to_be_bytes());
        put(&mut out, 40, [self.traffic_class, self.hop_limit]);
        out[42] = fit(self.service_level, 4) << 4 | u8::from(self.subnet_local) << 3;
        out[43] = fit(self.local_ack_timeout, 5) << 3;
        out
    }
}
