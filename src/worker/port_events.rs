//! What a port says of datagrams that were sent, taken to whom it concerns.

use crate::worker::core::Core;
use crate::worker::messages::WorkerMessage;
use std::net::IpAddr;
use trunkline_cm::{Concerns, Quote};
use trunkline_conn::time::Instant;
use trunkline_dataplane::PortEvent;

impl Core {
    /// Takes up what the port has to say.
    pub(crate) fn heed(&mut self, event: PortEvent) {
        let now = self.clock.now();
        match event {
            PortEvent::TooLong { dst, length } => {
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                self.engine.refused_as_too_long(now, dst.into(), length);
            }
            PortEvent::Refused { dst, quote } => {
                if let Some(quote) = Quote::parse(quote.bytes()) {
                    self.pass_refusal(now, dst, quote);
                }
            }
            PortEvent::Unsent { dst, error } => self.pools.refused_to_send(now, dst, error),
            _ => {}
        }
    }

    /// The kernel gives errors to the socket of any worker: whose ask it is stands in the quote.
    fn pass_refusal(&mut self, now: Instant, peer: IpAddr, quote: Quote) {
        if let Some(messages) = &mut self.messages {
            let to = quote.worker(messages.workers());
            if to != messages.own() {
                messages.try_send(to, WorkerMessage::Refused(peer, quote));
                return;
            }
        }
        self.refused(now, peer, &quote);
    }

    /// A peer's host says that nobody listens there.
    pub(crate) fn refused(&mut self, now: Instant, peer: IpAddr, quote: &Quote) {
        match quote.concerns() {
            Concerns::Nodes => self.manager.handle_refused(now, peer, quote),
            _ => self.cm.manager.handle_refused(now, peer, quote),
        }
        self.pump(now);
    }
}
