//! What happened in a run: a digest of all of it, and the last of it to read.

use crate::output;
use std::collections::VecDeque;
use std::fmt;
use trunkline_wire::cm::{CmMad, Message};
use trunkline_wire::{Answer, Control, Opcode, Record, Records};

/// How many events are kept to be read.
const KEPT: usize = 256;

/// What became of a packet on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It arrives.
    Carried,
    /// It arrives marked: congestion.
    Marked,
    /// It arrives late, after others that were sent later.
    Delayed,
    /// It arrives with a bit flipped.
    Corrupted,
    /// It arrives twice.
    Doubled,
    /// It arrives changed, with a checksum that says it is not: a broken build under test.
    Forged,
    /// It is lost at random.
    Lost,
    /// The queue of the link is full.
    Overflowed,
    /// The pair of nodes is cut off from each other, or nobody is there.
    Unreachable,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A packet left a node.
    Packet {
        /// Index of the sender.
        from: u8,
        /// Index of the receiver.
        to: u8,
        /// BTH opcode.
        opcode: u8,
        /// Low 24 bits of its number.
        psn: u32,
        /// Bytes from BTH to ICRC.
        length: u32,
        /// Stands for its content.
        content: u64,
        /// What became of it.
        fate: Fate,
    },
    /// A program posted a send request.
    Posted {
        /// Endpoint.
        endpoint: u32,
        /// Number of the request.
        wr_id: u64,
        /// What it was.
        what: &'static str,
        /// Bytes.
        length: u32,
    },
    /// A program took a completion.
    Completed {
        /// Endpoint.
        endpoint: u32,
        /// Number of the request.
        wr_id: u64,
        /// `enum ibv_wc_status`
        status: u8,
        /// `enum ibv_wc_opcode`
        opcode: u8,
        /// Bytes.
        length: u32,
    },
    /// The script did something.
    Act {
        /// What.
        what: &'static str,
        /// To whom.
        a: u32,
        /// And to whom or what else.
        b: u32,
    },
}

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    digest: u64,
    events: u64,
    last: VecDeque<(u64, Event)>,
    print: bool,
}

impl Trace {
    /// An empty trace; `print` writes every event to standard error as it happens.
    pub fn new(print: bool) -> Self {
        Self {
            digest: 0xcbf2_9ce4_8422_2325,
            events: 0,
            last: VecDeque::with_capacity(KEPT),
            print,
        }
    }

    fn feed(&mut self, word: u64) {
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Records an event at `now` ns.
    pub fn record(&mut self, now: u64, event: Event) {
        self.events += 1;
        self.feed(now);
        match event {
            Event::Packet {
                from,
                to,
                opcode,
                psn,
                length,
                content,
                fate,
            } => {
                let ends = u64::from_be_bytes([0, 0, 0, 0, from, to, opcode, fate as u8]);
                self.feed(ends);
                self.feed(u64::from(psn) << 32 | u64::from(length));
                self.feed(content);
            }
            Event::Posted {
                endpoint,
                wr_id,
                what,
                length,
            } => {
                self.feed(u64::from(endpoint) << 32 | u64::from(length));
                self.feed(wr_id);
                self.feed(what.len() as u64);
            }
            Event::Completed {
                endpoint,
                wr_id,
                status,
                opcode,
                length,
            } => {
                self.feed(u64::from(endpoint) << 32 | u64::from(length));
                self.feed(wr_id);
                self.feed(u64::from(status) << 8 | u64::from(opcode));
            }
            Event::Act { what, a, b } => {
                self.feed(u64::from(a) << 32 | u64::from(b));
                what.bytes().for_each(|byte| self.feed(byte.into()));
            }
        }
        if self.print {
            output::tell(Line(now, event));
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((now, event));
    }

    /// Whether events are printed as they happen.
    pub const fn prints(&self) -> bool {
        self.print
    }

    /// Prints what answers and BINDs say, and of handshakes who says what.
    pub fn print_control(&self, opcode: u8, content: &[u8]) {
        match Opcode(opcode) {
            Opcode::UD_SEND_ONLY => {
                if let Ok(mad) = CmMad::parse(content) {
                    output::tell(format_args!("{:>19}{}", "", handshake(&mad)));
                }
            }
            Opcode::SRC_ANSWERS => {
                for entry in Answer::entries(content).into_iter().flatten() {
                    output::tell(format_args!("{:>19}{entry:?}", ""));
                }
            }
            Opcode::SRC_CONTROL => {
                for entry in Control::entries(content).into_iter().flatten() {
                    output::tell(format_args!("{:>19}{entry:?}", ""));
                }
            }
            Opcode::SRC_PACKED => {
                for record in Records::of(content).flatten() {
                    if let Ok(header) = Record::parse(record.header) {
                        output::tell(format_args!("{:>19}{header:?}", ""));
                    }
                    self.print_control(record.header.opcode().0, record.payload);
                }
            }
            _ => {}
        }
    }

    /// A number that two runs share only if everything in them happened alike.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Events so far.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The last `count` events, oldest first, as lines.
    pub fn tail(&self, count: usize) -> Vec<String> {
        let skip = self.last.len().saturating_sub(count);
        self.last
            .iter()
            .skip(skip)
            .map(|(now, event)| Line(*now, *event).to_string())
            .collect()
    }
}

/// A message of a handshake in short: its kind, its exchange, and both numbers.
fn handshake(mad: &CmMad) -> String {
    let (kind, local, remote) = match &mad.message {
        Message::Req(req) => ("REQ", Some(req.local), None),
        Message::Rep(rep) => ("REP", Some(rep.local), Some(rep.remote)),
        Message::Rtu(rtu) => ("RTU", Some(rtu.local), Some(rtu.remote)),
        Message::Rej(rej) => {
            let why = rej.reason;
            return format!("REJ {:?} > {:?} {why:?}", rej.local, rej.remote);
        }
        Message::Dreq(dreq) => ("DREQ", Some(dreq.local), Some(dreq.remote)),
        Message::Drep(drep) => ("DREP", Some(drep.local), Some(drep.remote)),
        _ => ("other", None, None),
    };
    format!("{kind} {:#x}: {local:?} > {remote:?}", mad.transaction_id)
}

struct Line(u64, Event);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14.3} us  ", self.0 as f64 / 1e3)?;
        match self.1 {
            Event::Packet {
                from,
                to,
                opcode,
                psn,
                length,
                fate,
                ..
            } => {
                let name = Opcode(opcode);
                write!(f, "n{from} > n{to}  {name:?} psn {psn} length {length}")?;
                if fate != Fate::Carried {
                    write!(f, "  {fate:?}")?;
                }
                Ok(())
            }
            Event::Posted {
                endpoint,
                wr_id,
                what,
                length,
            } => {
                write!(f, "e{endpoint} posts {what} #{wr_id:#x}, {length} bytes")
            }
            Event::Completed {
                endpoint,
                wr_id,
                status,
                opcode,
                length,
            } => write!(
                f,
                "e{endpoint} completes #{wr_id:#x} status {status} opcode {opcode}, {length} bytes"
            ),
            Event::Act { what, a, b } => write!(f, "-- {what} {a} {b}"),
        }
    }
}
