//! What a port says of datagrams that were sent, taken to whom it concerns.

use crate::core::Core;
use trunkline_conn::time::Instant;
use trunkline_dataplane::PortEvent;

impl Core {
    /// Takes up what the port has to say.
    pub(crate) fn heed_port(&mut self, now: Instant) {
        while let Some(event) = self.port.poll_event() {
            if let PortEvent::TooLong { dst, length } = event {
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                self.engine.refused_as_too_long(now, dst.into(), length);
            }
        }
    }
}
