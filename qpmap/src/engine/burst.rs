//! Datagrams that come one right after another.
//!
//! Packets of one message differ in number, offset and times only. So what was looked up and judged
//! for one holds for those behind it, if nothing else happened in between (header prediction, as
//! for TCP: Jacobson, 1990). A packet that is anything but the one expected goes the long way, as
//! if it had not been looked at.

use super::build::{BASE, ICRC};
use super::packet::{Message, Packet};
use super::{Engine, Platform};
use crate::slab::NONE;
use trunkline_conn::delivery::Received;
use trunkline_conn::ingress::Arrival;
use trunkline_conn::mem::{Memory, Order, PdId, RegionMemory, Responder};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Local, MAX_MESSAGE};
use trunkline_wire::{Bth, Crc, Reth, SrcExtView, icrc};

/// The engine while datagrams come in: nothing else can happen to it as long as this lives, but by
/// [`engine`](Self::engine).
#[derive(Debug)]
pub struct Burst<'a, P: Platform> {
    engine: &'a mut Engine<P>,
    now: Instant,
    stream: Option<Stream>,
}

impl<P: Platform> Engine<P> {
    /// Begins to take in datagrams that came at `now`.
    pub const fn burst(&mut self, now: Instant) -> Burst<'_, P> {
        self.begin_burst(now, false)
    }

    /// The same of datagrams that came out at another worker's port. The peer hears of it, for a
    /// while.
    pub const fn burst_handed_over(&mut self, now: Instant) -> Burst<'_, P> {
        self.begin_burst(now, true)
    }

    const fn begin_burst(&mut self, now: Instant, handed_over: bool) -> Burst<'_, P> {
        self.completions.begin(now);
        self.rx.begin(handed_over);
        Burst {
            engine: self,
            now,
            stream: None,
        }
    }

    /// Takes in one datagram: a burst of one. See [`Burst::handle_datagram`].
    pub fn handle_datagram(&mut self, now: Instant, arrival: &Arrival, datagram: &[u8]) {
        self.burst(now).handle_datagram(arrival, datagram);
    }
}

impl<P: Platform> Burst<'_, P> {
    /// Takes in one datagram (BTH up to and including the ICRC). Whatever is wrong with it is
    /// counted; nothing else moves then. Datagrams to QP 1 are for the connection manager, not for
    /// here.
    pub fn handle_datagram(&mut self, arrival: &Arrival, datagram: &[u8]) {
        if let Some(stream) = &self.stream
            && self.engine.goes_on(self.now, stream, arrival, datagram)
        {
            return;
        }
        self.stream = None;
        if let Some((conn, message, packet)) = self.engine.take_in(self.now, arrival, datagram) {
            self.stream = self.engine.stream_behind(conn, message, arrival, &packet);
        }
    }

    /// The engine, for something else.
    pub const fn engine(&mut self) -> &mut Engine<P> {
        self.stream = None;
        self.engine
    }
}

/// Most bytes of headers that a packet of a stream has, and what follows them in whole words.
const HEADERS: usize = (BASE + Reth::LEN).next_multiple_of(8);

/// The same in words, to be compared quickly.
type RingMemory = [u64; HEADERS / 8];

/// What a packet was that did not complete its message, so that the next one can be told to be of
/// the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// Its headers, as far as those of the next one have to be the same, and where that is.
    same: RingMemory,
    mask: RingMemory,
    /// How many bytes are headers.
    headers: usize,
    /// Bytes of each datagram.
    datagram: usize,
    /// Where the sum over a packet's headers begins, if its identification is this.
    start: Crc,
    identification: u16,
    conn: u32,
    place: Place,
}

/// Where payload goes.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Of a SEND: to the receive request that its assembly holds.
    Receive { pd: PdId, assembly: u32 },
    /// Of a WRITE: where it says.
    Region {
        by: Responder,
        assembly: u32,
        reth: Reth,
    },
    /// Of a response: to the memory of the READ that asked for it.
    Read { pd: PdId, request: u32 },
}

/// In which bits packets of one message may differ: number, offset, timestamp. Not in what they
/// acknowledge: that is news.
const FREE: [u8; BASE] = {
    let mut free = [0; BASE];
    let mut at = 0;
    while at < BASE {
        let number = (at >= 9 && at < Bth::LEN) || (at >= 27 && at < 32);
        let offset_and_time = at >= 36 && at < 44;
        if number || offset_and_time {
            free[at] = 0xff;
        }
        at += 1;
    }
    free
};

fn words(bytes: &[u8; HEADERS]) -> RingMemory {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|at| u64::from_ne_bytes(words[at]))
}

impl Stream {
    /// Whether a datagram is a packet like the last one.
    #[inline(always)]
    fn is_like(&self, datagram: &[u8]) -> bool {
        let Some(headers) = datagram.first_chunk() else {
            return false;
        };
        let headers = words(headers);
        let differing = |at: usize| headers[at] & self.mask[at] ^ self.same[at];
        let differing = (0..headers.len()).fold(0, |all, at| all | differing(at));
        datagram.len() == self.datagram && differing == 0
    }
}

impl<P: Platform> Engine<P> {
    /// What to expect behind a packet that was placed. Nothing where some other packet is waited
    /// for, or this one did more than to bring its data.
    #[inline(never)]
    fn stream_behind(
        &self,
        conn: u32,
        message: Message,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) -> Option<Stream> {
        let datagram = packet.datagram;
        let (headers, _) = packet.first_sum();
        let bytes: &[u8; HEADERS] = datagram.first_chunk()?;
        if !packet.ext.header_crc() || packet.ext.echo() != 0 || headers > HEADERS {
            return None;
        }
        let mut fixed = [0; HEADERS];
        fixed[..headers].fill(0xff);
        for (bits, free) in fixed.iter_mut().zip(FREE) {
            *bits &= !free;
        }
        let place = match message {
            Message::Request { flow } => {
                let record = &self.flows[flow];
                let (pd, assembly) = (self.qps[record.qp].pd, record.assembly);
                if record.staged != NONE || assembly == NONE {
                    return None;
                }
                match packet.reth() {
                    Some(reth) => {
                        let by = self.responder(record.qp);
                        Place::Region { by, assembly, reth }
                    }
                    None => Place::Receive { pd, assembly },
                }
            }
            Message::Response { flow, request } => Place::Read {
                pd: self.qps[self.flows[flow].qp].pd,
                request,
            },
        };
        let (mask, identification) = (words(&fixed), arrival.identification.guess());
        let length = datagram.len();
        let start = self.rx.arrived().seed().start(length, identification);
        let bytes = words(bytes);
        Some(Stream {
            same: std::array::from_fn(|at| bytes[at] & mask[at]),
            mask,
            headers,
            datagram: length,
            start: start.masking(datagram),
            identification,
            conn,
            place,
        })
    }

    /// Takes in the next packet of a stream. `false`: it is not, or not wholly what was expected,
    /// and nothing has moved.
    #[inline(always)]
    fn goes_on(
        &mut self,
        now: Instant,
        stream: &Stream,
        arrival: &Arrival,
        datagram: &[u8],
    ) -> bool {
        if !stream.is_like(datagram) || *self.rx.arrived().path() != arrival.path {
            return false;
        }
        let (Ok((bth, rest)), Some((sealed, trailer))) =
            (Bth::read(datagram), datagram.split_last_chunk::<ICRC>())
        else {
            return false;
        };
        let Ok((ext, _)) = SrcExtView::split(rest) else {
            return false;
        };
        let number = ext.psn64(bth.psn);
        let (headers, rest) = sealed.split_at(stream.headers);
        let Some((header_crc, payload)) = rest.split_first_chunk::<ICRC>() else {
            return false;
        };
        let identification = arrival.identification.guess();
        let mut crc = if identification == stream.identification {
            stream.start
        } else {
            let start = self
                .rx
                .arrived()
                .seed()
                .start(datagram.len(), identification);
            start.masking(headers)
        };
        P::RegionMemory::sum(headers, &mut crc);
        let next = self.links[stream.conn].delivery.is_next(number);
        if !next || icrc::trailer(crc) != *header_crc {
            return false;
        }
        if !self.place_next(stream.place, ext.offset(), payload, *trailer) {
            return false;
        }
        let received = Received {
            timestamp: Self::sent_at(ext, arrival.waited_ns),
            ce: arrival.ce,
            ack_req: bth.ack_req,
        };
        self.counters.received.add(1);
        self.counters.streamed.add(1);
        let (record, windows) = self.links.with_windows(stream.conn);
        record.delivery.accept(now, number, &received, windows);
        true
    }

    /// Places what does not complete its message.
    #[inline(always)]
    fn place_next(
        &mut self,
        place: Place,
        offset: u32,
        payload: &[u8],
        trailer: [u8; ICRC],
    ) -> bool {
        let length = payload.len() as u32;
        let end = u64::from(offset) + u64::from(length);
        let mut sum = icrc::SUMMED_ITSELF;
        let crc = Some(&mut sum);
        let placed = match place {
            Place::Region { by, reth, .. } => {
                let addr = reth.va.wrapping_add(u64::from(offset));
                let fits = end <= u64::from(reth.length);
                let order = Order::of_write(false);
                fits.then(|| self.regions.write(by, reth.rkey, addr, payload, order, crc))
            }
            Place::Receive { pd, assembly } => {
                let fits = |most: u64| end <= most.min(u64::from(MAX_MESSAGE));
                let receive = self.inbound[assembly].receive.as_ref();
                receive
                    .filter(|receive| fits(receive.capacity()))
                    .map(|receive| {
                        self.regions
                            .scatter(pd, &receive.sges, offset, payload, crc)
                    })
            }
            Place::Read { pd, request } => {
                let pending = &self.requests[request];
                let whole = pending.request.length;
                let fits = end <= u64::from(whole) && pending.returned.bytes() + length < whole;
                match &pending.request.local {
                    Local::Sges(sges) if fits => {
                        Some(self.regions.scatter(pd, sges, offset, payload, crc))
                    }
                    _ => None,
                }
            }
        };
        if placed != Some(Ok(())) || icrc::trailer(sum) != trailer {
            return false;
        }
        match place {
            Place::Region { assembly, .. } | Place::Receive { assembly, .. } => {
                self.inbound.add_piece(assembly, offset, length);
            }
            Place::Read { request, .. } => self.requests.add_response(request, offset, length),
        }
        true
    }
}
