//! QPs with an IBTA connection of their own (RC towards foreign peers, UC) and datagram QPs (UD).

use super::qp::Wire;
use super::transmit::Served;
use super::{CqSlot, Engine, Event, Platform, Ready, SrqSlot, Timer};
use crate::regions::Regions;
use crate::slab::Slab;
use trunkline_conn::egress::Egress;
use trunkline_conn::ingress::Arrival;
use trunkline_conn::time::Instant;

/// A plain connection and the QP it works for.
#[derive(Debug)]
pub(crate) struct Plain {
    qp: u32,
}

impl<P: Platform> Engine<P> {
    pub(crate) fn open_plain(&mut self, _now: Instant, qp: u32) {
        let plain = self.plains.insert(Plain { qp });
        self.qps[qp].wire = Wire::Plain(plain);
    }
    pub(crate) fn close_plain(&mut self, plain: u32) {
        self.plains.remove(plain);
    }
    pub(crate) fn abort_plain(&mut self, _plain: u32) {}
    pub(crate) fn feed_plain(&mut self, _now: Instant, _qp: u32, _plain: u32) {}
    pub(crate) fn serve_plain(&mut self, _now: Instant, _plain: u32, _e: &mut (impl Egress + ?Sized)) -> Served { Served::Done }
    pub(crate) fn plain_timeout(&mut self, _now: Instant, _plain: u32, _serial: u32) {}
    pub(crate) fn handle_plain(&mut self, _now: Instant, _a: &Arrival, _d: &[u8]) {}
}
