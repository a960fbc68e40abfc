//! Random copies between two arenas, by any engine, against plain copies of the same arenas.

mod faulty;

pub(crate) use faulty::{FAULTS, Faulty};

use std::collections::VecDeque;
use trunkline_dataplane::copy::Bounds;
use trunkline_dataplane::prng::Prng;
use trunkline_dma::{CopyEngine, Job, Ticket};

/// Bytes of each arena.
const ARENA: usize = 8 << 20;
/// The longest copy.
const LONGEST: usize = 1 << 20;
/// Polls without a ticket, each with a pause, after which an engine has lost a job.
const PATIENCE: u32 = 2_000_000;

/// A copy that was not polled: ranges of the arenas.
#[derive(Clone, Copy, Debug)]
struct Flight {
    ticket: Ticket,
    /// Whether it is from the buffers into registered memory.
    is_placement: bool,
    source: usize,
    destination: usize,
    length: usize,
}

impl Flight {
    /// What it reaches of the registered arena and of the buffers.
    fn ranges(self) -> [(usize, usize); 2] {
        let (source, destination) = (self.source, self.destination);
        match self.is_placement {
            true => [(destination, self.length), (source, self.length)],
            false => [(source, self.length), (destination, self.length)],
        }
    }

    /// Whether one writes what the other reaches. (That both read the same is allowed, and does
    /// happen.)
    fn meets(self, other: Self) -> bool {
        let written = |one: Self| if one.is_placement { 0 } else { 1 };
        let overlap = |side: usize| {
            let ((a, a_length), (b, b_length)) = (self.ranges()[side], other.ranges()[side]);
            a < b + b_length && b < a + a_length
        };
        overlap(written(self)) || overlap(written(other))
    }
}

/// Two arenas and what they must become.
struct Arenas {
    registered: Vec<u8>,
    buffers: Vec<u8>,
    /// Copied plainly, when a job is submitted.
    expected_registered: Vec<u8>,
    expected_buffers: Vec<u8>,
}

impl Arenas {
    fn new(prng: &mut Prng) -> Self {
        let mut fill = || -> Vec<u8> {
            let words = std::iter::repeat_with(|| prng.next_u64().to_ne_bytes());
            words.take(ARENA / 8).flatten().collect()
        };
        let (registered, buffers) = (fill(), fill());
        Self {
            expected_registered: registered.clone(),
            expected_buffers: buffers.clone(),
            registered,
            buffers,
        }
    }

    /// The addresses of both arenas. From here on they are used by these alone.
    fn addresses(&mut self) -> (*mut u8, *mut u8) {
        (self.registered.as_mut_ptr(), self.buffers.as_mut_ptr())
    }

    fn copy_plainly(&mut self, flight: Flight) {
        let (from, to) = match flight.is_placement {
            true => (&self.expected_buffers, &mut self.expected_registered),
            false => (&self.expected_registered, &mut self.expected_buffers),
        };
        let from = &from[flight.source..][..flight.length];
        to[flight.destination..][..flight.length].copy_from_slice(from);
    }

    /// Bytes that a copy was to write.
    fn expected(&self, flight: Flight) -> &[u8] {
        let arena = match flight.is_placement {
            true => &self.expected_registered,
            false => &self.expected_buffers,
        };
        &arena[flight.destination..][..flight.length]
    }
}

/// A length of 1 byte to 1 MiB, each magnitude as likely as the others.
fn length(prng: &mut Prng) -> usize {
    let most = 1_u64 << prng.below(u64::from(LONGEST.ilog2()) + 1);
    1 + prng.below(most) as usize
}

fn draw(prng: &mut Prng, ticket: u64) -> Flight {
    let length = length(prng);
    let mut place = || prng.below((ARENA - length) as u64 + 1) as usize;
    let (source, destination) = (place(), place());
    Flight {
        ticket: Ticket(ticket),
        is_placement: prng.chance(500_000),
        source,
        destination,
        length,
    }
}

/// The law: whatever engine copies, whatever goes wrong in it, the bytes are those of plain copies,
/// in place when the ticket is polled, and tickets come in the order of their jobs.
///
/// # Panics
/// The law is broken.
pub(crate) fn law_bytes_are_those_of_plain_copies(
    seed: u64,
    jobs: u64,
    engine: &mut impl CopyEngine,
) {
    let mut prng = Prng::new(seed);
    let mut arenas = Arenas::new(&mut prng);
    let (registered, buffers) = arenas.addresses();
    let within = Bounds::of(registered, ARENA);
    let mut flights: VecDeque<Flight> = VecDeque::new();
    for ticket in 0..jobs {
        let flight = draw(&mut prng, ticket);
        let blocks = |flights: &VecDeque<Flight>| flights.iter().any(|one| one.meets(flight));
        while engine.room() == 0 || blocks(&flights) {
            engine.kick();
            settle(
                engine,
                &mut flights,
                &arenas,
                &mut prng,
                (registered, buffers),
            );
        }
        arenas.copy_plainly(flight);
        let at = |base: *mut u8, offset: usize| base.wrapping_add(offset);
        let job = match flight.is_placement {
            true => Job::place(
                at(buffers, flight.source),
                at(registered, flight.destination),
                flight.length,
                within,
            ),
            false => Job::gather(
                at(registered, flight.source),
                at(buffers, flight.destination),
                flight.length,
                within,
            ),
        };
        // SAFETY: the arenas live until all tickets are polled and are reached by nobody else; no
        // job in flight reaches what this one writes, nor the other way round.
        unsafe { engine.submit(flight.ticket, &job) }.expect("there is room");
        flights.push_back(flight);
        if prng.chance(300_000) {
            engine.kick();
        }
        if prng.chance(200_000) {
            settle(
                engine,
                &mut flights,
                &arenas,
                &mut prng,
                (registered, buffers),
            );
        }
    }
    engine.kick();
    while !flights.is_empty() {
        settle(
            engine,
            &mut flights,
            &arenas,
            &mut prng,
            (registered, buffers),
        );
    }
    assert!(
        arenas.registered == arenas.expected_registered,
        "seed {seed}"
    );
    assert!(arenas.buffers == arenas.expected_buffers, "seed {seed}");
}

/// Polls until a ticket comes, or at once if nothing is under way; checks what comes.
fn settle(
    engine: &mut impl CopyEngine,
    flights: &mut VecDeque<Flight>,
    arenas: &Arenas,
    prng: &mut Prng,
    (registered, buffers): (*mut u8, *mut u8),
) {
    let mut done = [Ticket(u64::MAX); 40];
    let room = 1 + prng.below(done.len() as u64) as usize;
    engine.kick();
    for _ in 0..PATIENCE {
        let count = engine.poll(&mut done[..room]);
        for ticket in &done[..count] {
            let flight = flights.pop_front().expect("a ticket is of a job");
            assert_eq!(flight.ticket, *ticket, "in the order of submission");
            let base = if flight.is_placement {
                registered
            } else {
                buffers
            };
            let start = base.wrapping_add(flight.destination);
            // SAFETY: inside an arena, and no job in flight writes there.
            let bytes = unsafe { std::slice::from_raw_parts(start, flight.length) };
            assert!(bytes == arenas.expected(flight), "{flight:?}");
        }
        if count > 0 || flights.is_empty() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the engine does not end {:?}", flights.front());
}
