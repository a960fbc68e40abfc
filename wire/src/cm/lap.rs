//! LAP, load alternate path (IBTA Vol 1, 12.8.1), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |  reserved                                           |  8..12
//! |  remote QPN 24           |  timeout 5, reserved 3   |  12..16
//! |  reserved                                           |  16..20
//! |  alternate local LID     |  alternate remote LID    |  20..24
//! |  alternate local GID 16  |  alternate remote GID 16 |  24..56
//! |  flow label 20, reserved 4, traffic class 8         |  56..60
//! |  hop limit | reserved 2, rate 6 | SL 4 L . | ACK 5  |  60..64
//! |                 private data 168                    |  64..232
//! ```
//!
//! L subnet local, ACK the local ACK timeout.

use super::field::{bit, fit, word};
use super::{CommId, PathRecord, PrivateData};
use crate::bytes::{get, header, put, u16_at, u24_at, u32_at};
use crate::{Gid, Qpn};

/// Load alternate path.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lap {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Receiver's QP.
    pub remote_qpn: Qpn,
    /// Exponent of the time in which the receiver should answer, 5 bits.
    pub remote_response_timeout: u8,
    /// The path.
    pub alternate: PathRecord,
    /// Users' bytes.
    pub private_data: PrivateData<168>,
}

header!(LapView of Lap, 232 bytes, "LAP", total);

impl Lap {
    /// The specification's name.
    pub const NAME: &str = "LAP";

    /// Reads what the view shows.
    pub const fn parse(view: LapView<'_>) -> Self {
        let bytes = view.0;
        Self {
            local: CommId(u32_at(bytes, 0)),
            remote: CommId(u32_at(bytes, 4)),
            remote_qpn: Qpn::from_wire(u24_at(bytes, 12)),
            remote_response_timeout: bytes[15] >> 3,
            alternate: PathRecord {
                local_lid: u16_at(bytes, 20),
                remote_lid: u16_at(bytes, 22),
                local_gid: Gid(get(bytes, 24)),
                remote_gid: Gid(get(bytes, 40)),
                flow_label: u32_at(bytes, 56) >> 12,
                packet_rate: bytes[61] & 0x3f,
                traffic_class: bytes[59],
                hop_limit: bytes[60],
                service_level: bytes[62] >> 4,
                subnet_local: bit(bytes[62], 3),
                local_ack_timeout: bytes[63] >> 3,
            },
            private_data: PrivateData(get(bytes, 64)),
        }
    }

    /// Writes the message.
    ///
    /// # Panics
    /// A field takes more bits than it has.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let path = &self.alternate;
        assert!(path.flow_label >> 20 == 0, "a flow label has 20 bits");
        *out = [0; Self::LEN];
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 4, self.remote.0.to_be_bytes());
        let timeout = fit(self.remote_response_timeout, 5) << 3;
        put(out, 12, word(self.remote_qpn.get(), timeout));
        put(out, 20, path.local_lid.to_be_bytes());
        put(out, 22, path.remote_lid.to_be_bytes());
        put(out, 24, path.local_gid.0);
        put(out, 40, path.remote_gid.0);
        put(
            out,
            56,
            (path.flow_label << 12 | u32::from(path.traffic_class)).to_be_bytes(),
        );
        put(out, 60, [path.hop_limit, fit(path.packet_rate, 6)]);
        out[62] = fit(path.service_level, 4) << 4 | u8::from(path.subnet_local) << 3;
        out[63] = fit(path.local_ack_timeout, 5) << 3;
        put(out, 64, self.private_data.0);
    }
}
