//! Target `rings`: the queues that a program and its node share, scribbled on by the program.

use crate::input::Input;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_conn::mem::{AtomicOp, Sge};
use trunkline_conn::work::{
    Completion, Extra, Local, MAX_INLINE, MAX_MESSAGE, MAX_SGE, Remote, SendFlags, SendOp, Status,
    VendorError, WorkOpcode,
};
use trunkline_qpmap::VerbsError;
use trunkline_qpmap::cq::Writer;
use trunkline_qpmap::queue::{RecvQueue, SendCursor, SendQueue, Size};
use trunkline_qpmap::ring::RingMemory;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_testkit::Rng;
use trunkline_wire::{Lkey, Qpn, Rkey};

const MAX_OPERATIONS: usize = 512;

/// Memory of a ring that the harness also holds, as a program would.
#[derive(Clone, Debug)]
struct Shared(Arc<[AtomicU64]>);

impl RingMemory for Shared {
    fn zeroed(count: usize) -> Self {
        let ring = Self((0..count).map(|_| AtomicU64::new(0)).collect());
        MADE.with_borrow_mut(|made| made.push(ring.clone()));
        ring
    }

    fn as_slice(&self) -> &[AtomicU64] {
        &self.0
    }
}

thread_local! {
    /// The rings made last.
    static MADE: RefCell<Vec<Shared>> = const { RefCell::new(Vec::new()) };
}

/// Posts, scribbles, fetches.
///
/// # Panics
/// When a request is fetched that no program could have posted, or, before anything was scribbled,
/// another than was posted.
pub fn rings(data: &[u8]) {
    scribbled(data);
}

/// The same. Gives how many words were scribbled.
///
/// # Panics
/// As above.
pub fn scribbled(data: &[u8]) -> u64 {
    MADE.with_borrow_mut(Vec::clear);
    let mut input = Input::new(data);
    let max_wr = 1 + u32::from(input.byte() & 63);
    let (max_sge, max_inline) = (u32::from(input.byte()) & 15, input.byte());
    let mut program = Program {
        send: SendQueue::new(made(Size::send(max_wr, max_sge, max_inline.into(), false))),
        receive: RecvQueue::new(made(Size::receive(max_wr, max_sge))),
        completions: made(Writer::new(max_wr)),
        cursor: SendCursor::default(),
        held: VecDeque::new(),
        sent: VecDeque::new(),
        received: VecDeque::new(),
        scribbled: 0,
        next: 0,
        max_wr: max_wr as usize,
        max_sge: max_sge as usize,
        max_inline: max_inline.into(),
    };
    input.drive(MAX_OPERATIONS, |input| {
        program.step(input);
    });
    program.scribbled
}

/// The sizes asked for are within all limits.
fn made<T>(queue: Result<T, VerbsError>) -> T {
    queue.expect("the sizes are within the limits")
}

struct Program {
    send: SendQueue<Shared>,
    receive: RecvQueue<Shared>,
    completions: Writer<Shared>,
    cursor: SendCursor,
    /// Slots fetched and not released.
    held: VecDeque<u16>,
    /// Posted and not fetched: cookies, with the length of the message or the number of elements.
    sent: VecDeque<(u64, u64)>,
    received: VecDeque<(u64, u64)>,
    /// How many words were written past the library.
    scribbled: u64,
    next: u64,
    /// What the queues were made for.
    max_wr: usize,
    max_sge: usize,
    max_inline: usize,
}

impl Program {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 7 {
            0 | 1 => self.post_send(input),
            2 => self.post_receive(input),
            3 => self.fetch_send(),
            4 => self.fetch_receive(),
            5 => self.complete(input),
            6 => {
                if let Some(slots) = self.held.pop_front() {
                    self.send.release(slots);
                }
                if input.byte() > 250 {
                    self.send.discard(&mut self.cursor);
                    self.receive.discard();
                    self.held.clear();
                    self.sent.clear();
                    self.received.clear();
                }
            }
            _ => self.scribble(input),
        }
    }

    fn sges(input: &mut Input<'_>) -> Vec<Sge> {
        let count = usize::from(input.byte()) % (MAX_SGE + 2);
        let sge = |input: &mut Input<'_>| Sge {
            addr: input.u64(),
            length: u32::from(input.u16()) << (input.byte() & 15),
            lkey: Lkey(input.u32()),
        };
        (0..count).map(|_| sge(input)).collect()
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let remote = Remote {
            addr: input.u64(),
            rkey: Rkey(input.u32()),
        };
        let op = match input.byte() & 7 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(7),
            2 => SendOp::SendInvalidate(remote.rkey),
            3 => SendOp::Write(remote),
            4 => SendOp::WriteImm(remote, 8),
            5 => SendOp::Read(remote),
            6 => SendOp::Atomic(
                remote,
                AtomicOp::CompareSwap {
                    compare: 1,
                    swap: 2,
                },
            ),
            _ => SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 3 }),
        };
        let flags = SendFlags(u32::from(input.byte()) & 0x1f);
        let inline = input.flag().then(|| {
            let length = usize::from(input.u16()) % (MAX_INLINE + 2);
            input.bytes(length)
        });
        let sges = if inline.is_some() {
            Vec::new()
        } else {
            Self::sges(input)
        };
        let wr_id = self.next;
        self.next += 1;
        let request = SendWr {
            wr_id,
            op,
            flags,
            sges: &sges,
            inline,
            route: 0,
        };
        if self.send.post(&[request]).is_ok() {
            let length = match inline {
                Some(inline) => inline.len() as u64,
                None if matches!(op, SendOp::Atomic(..)) => 8,
                None => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            };
            self.sent.push_back((wr_id, length));
        }
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let sges = Self::sges(input);
        let wr_id = self.next;
        self.next += 1;
        if self.receive.post(&[RecvWr { wr_id, sges: &sges }]).is_ok() {
            self.received.push_back((wr_id, sges.len() as u64));
        }
    }

    fn fetch_send(&mut self) {
        let fetched = self.send.fetch(&mut self.cursor);
        if let Ok(Some((request, _, slots))) = &fetched {
            assert!(request.length <= MAX_MESSAGE, "{} bytes", request.length);
            match &request.local {
                Local::Sges(sges) => assert!(sges.len() <= self.max_sge),
                Local::Inline(bytes) => {
                    let length = bytes.len();
                    assert!(length <= self.max_inline && length == request.length as usize);
                }
            }
            assert!(*slots > 0);
            self.held.push_back(*slots);
            assert!(self.held.len() <= self.max_wr, "more than it was made for");
        }
        if self.scribbled == 0 {
            let fetched = fetched.expect("nobody scribbled");
            let told = fetched.map(|(request, ..)| (request.wr_id, u64::from(request.length)));
            assert_eq!(told, self.sent.pop_front());
        }
    }

    fn fetch_receive(&mut self) {
        let fetched = self.receive.fetch();
        if let Ok(Some(receive)) = &fetched {
            assert!(receive.sges.len() <= self.max_sge);
        }
        if self.scribbled == 0 {
            let fetched = fetched.expect("nobody scribbled");
            let told = fetched.map(|receive| (receive.wr_id, receive.sges.len() as u64));
            assert_eq!(told, self.received.pop_front());
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let completion = Completion {
            wr_id: input.u64(),
            status: if input.flag() {
                Status::Success
            } else {
                Status::Flushed
            },
            opcode: WorkOpcode::Receive,
            qpn: Qpn::from_wire(input.u32()),
            byte_len: input.u32(),
            extra: Extra::Immediate(input.u32()),
            src_qp: Qpn::default(),
            route: 0,
            solicited: input.flag(),
            vendor_err: VendorError::None,
            ticks: 0,
        };
        if input.flag() {
            self.completions.queue().arm(input.flag());
        }
        let pushed = self.completions.push(&completion).is_ok();
        self.completions.publish();
        self.completions.take_notification();
        let mut out = [completion; 4];
        let polled = self.completions.queue().poll(&mut out);
        assert!(polled.is_err() || polled.is_ok_and(|polled| polled <= out.len()));
        if self.scribbled == 0 {
            assert!(pushed && polled == Ok(1), "one pushed, {polled:?} polled");
            let told = (out[0].wr_id, out[0].status, out[0].qpn);
            assert_eq!(told, (completion.wr_id, completion.status, completion.qpn));
        }
    }

    /// Writes anything anywhere into the rings made so far.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let (which, at, shape) = (input.byte(), input.u16(), input.byte());
        let value = input.u64();
        self.write(which, at, shape, value);
        // Words of a few bytes, as they may come between two looks of the node.
        let mut rng = Rng::new(value);
        for _ in 0..shape >> 4 {
            let [which, shape, ..] = rng.next().to_le_bytes();
            self.write(which, rng.next() as u16, shape, rng.next());
        }
    }

    fn write(&mut self, which: u8, at: u16, shape: u8, value: u64) {
        MADE.with_borrow(|made| {
            if made.is_empty() {
                return;
            }
            let ring = &made[usize::from(which) % made.len()].0;
            // Indices are worth more attention than what they point to.
            let at = if shape & 3 == 0 {
                usize::from(at) & 8
            } else {
                usize::from(at)
            };
            let word = &ring[at % ring.len()];
            let value = match shape >> 2 & 3 {
                0 => value,
                1 => word.load(Ordering::Relaxed).wrapping_add(value & 0xffff),
                2 => word.load(Ordering::Relaxed) ^ 1 << (value & 63),
                _ => u64::MAX,
            };
            word.store(value, Ordering::Relaxed);
            self.scribbled += 1;
        });
    }
}
