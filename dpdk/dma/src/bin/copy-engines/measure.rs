//! What is measured, and how.

use crate::arena::{Arena, Block, Case};
use std::collections::VecDeque;
use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use trunkline_dataplane::copy::Copier;
use trunkline_dma::{CopyEngine, Dmadev, Offload, Ticket};

/// Bytes that a round copies of each case by each means.
const BYTES: usize = 64 << 20;
/// Copies in a batch.
pub(crate) const BATCHES: [usize; 3] = [1, 8, 32];
/// Batches whose median is a round's figure for handing copies over.
const HANDED_OVER: usize = 40;
/// Slower than any copy of the thread that plays an engine, in bytes per microsecond, and how long
/// that thread may take to wake up.
const SLOW: u64 = 2_000;
const WAKE_UP: Duration = Duration::from_micros(150);
/// Copies that are under way while the CPU sums.
const WINDOW: usize = 32;
/// Bytes that are handed over together meanwhile.
const KICKED: usize = 64 << 10;

/// What each round found, in nanoseconds a block.
#[derive(Debug)]
pub(crate) struct Samples {
    case: Case,
    fused: Vec<f64>,
    copy_then_sum: Vec<f64>,
    copy: Vec<f64>,
    sum: Vec<f64>,
    hand_over: [Vec<f64>; 3],
    sum_beside_engine: Vec<f64>,
    fused_on_two_cores: Vec<f64>,
}

/// The median of all rounds, and the quartiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Nanoseconds a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) case: Case,
    /// The CPU copies and sums in one pass.
    pub(crate) fused: Figure,
    /// The CPU copies, and sums the copy then.
    pub(crate) copy_then_sum: Figure,
    /// The CPU copies.
    pub(crate) copy: Figure,
    /// The CPU sums.
    pub(crate) sum: Figure,
    /// The CPU hands a copy to an engine and hears that it is over, in batches of [`BATCHES`];
    /// `None` where there are fewer blocks than that.
    pub(crate) hand_over: [Option<Figure>; 3],
    /// One core sums while another copies; all the time that it takes.
    pub(crate) sum_beside_engine: Figure,
    /// Two cores copy and sum; all the time that it takes.
    pub(crate) fused_on_two_cores: Figure,
}

impl Samples {
    pub(crate) const fn new(case: Case) -> Self {
        Self {
            case,
            fused: Vec::new(),
            copy_then_sum: Vec::new(),
            copy: Vec::new(),
            sum: Vec::new(),
            hand_over: [const { Vec::new() }; 3],
            sum_beside_engine: Vec::new(),
            fused_on_two_cores: Vec::new(),
        }
    }
}

impl Figure {
    /// `None`: there are no samples.
    fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let at = |part: usize| {
            samples
                .get(samples.len().checked_sub(1)? * part / 4)
                .copied()
        };
        Some(Self {
            median: at(2)?,
            low: at(1)?,
            high: at(3)?,
        })
    }
}

impl Measured {
    /// `None`: there was no round.
    pub(crate) fn of(samples: Samples) -> Option<Self> {
        Some(Self {
            case: samples.case,
            fused: Figure::of(samples.fused)?,
            copy_then_sum: Figure::of(samples.copy_then_sum)?,
            copy: Figure::of(samples.copy)?,
            sum: Figure::of(samples.sum)?,
            hand_over: samples.hand_over.map(Figure::of),
            sum_beside_engine: Figure::of(samples.sum_beside_engine)?,
            fused_on_two_cores: Figure::of(samples.fused_on_two_cores)?,
        })
    }
}

/// Measures a case once by each means.
///
/// # Errors
/// A system call failed.
pub(crate) fn round(
    arena: &mut Arena,
    engine: &mut Offload<Dmadev>,
    samples: &mut Samples,
) -> io::Result<()> {
    let blocks = BYTES / arena.case.block;
    let per_block = |time: Duration| time.as_nanos() as f64 / blocks as f64;
    let mut by_cpu =
        |means: fn(&mut Arena, usize)| cpu_time(|| means(arena, blocks)).map(per_block);
    samples.fused.push(by_cpu(fused)?);
    samples.copy_then_sum.push(by_cpu(copy_then_sum)?);
    samples.copy.push(by_cpu(copy)?);
    samples.sum.push(by_cpu(sum)?);
    for (batch, samples) in BATCHES.into_iter().zip(&mut samples.hand_over) {
        // No two copies under way may write the same block.
        if batch <= arena.case.most_under_way() {
            samples.extend(hand_over(arena, engine, batch));
        }
    }
    let start = Instant::now();
    sum_beside(arena, engine, blocks);
    samples.sum_beside_engine.push(per_block(start.elapsed()));
    let time = fused_on_two_cores(arena, blocks)?;
    samples.fused_on_two_cores.push(per_block(time));
    Ok(())
}

/// Does something with so many blocks, which no engine has.
fn each(arena: &mut Arena, blocks: usize, mut act: impl FnMut(Block, Copier) -> u32) {
    let copier = Copier::detect();
    for _ in 0..blocks {
        black_box(act(arena.block(), copier));
    }
}

fn fused(arena: &mut Arena, blocks: usize) {
    // SAFETY: the arena lives, and no engine has a copy.
    each(arena, blocks, |block, copier| unsafe {
        block.copy_and_sum(copier)
    });
}

fn copy_then_sum(arena: &mut Arena, blocks: usize) {
    each(arena, blocks, |block, copier| {
        // SAFETY: the arena lives, and no engine has a copy.
        unsafe { block.copy(copier) };
        // SAFETY: as above.
        unsafe { block.sum(copier) }
    });
}

fn copy(arena: &mut Arena, blocks: usize) {
    each(arena, blocks, |block, copier| {
        // SAFETY: the arena lives, and no engine has a copy.
        unsafe { block.copy(copier) };
        0
    });
}

fn sum(arena: &mut Arena, blocks: usize) {
    // SAFETY: the arena lives, and no engine has a copy.
    each(arena, blocks, |block, copier| unsafe { block.sum(copier) });
}

/// What the CPU spends on a copy that an engine does: handing over a batch, and hearing that it is
/// over. While the engine copies this waits, and does not count.
fn hand_over(arena: &mut Arena, engine: &mut Offload<Dmadev>, batch: usize) -> Option<f64> {
    let waits = Duration::from_micros((batch * arena.case.block) as u64 / SLOW) + WAKE_UP;
    let clock = clock_cost();
    let mut figures = Vec::with_capacity(HANDED_OVER);
    let mut done = [Ticket(0); 64];
    for _ in 0..HANDED_OVER {
        let start = Instant::now();
        for _ in 0..batch {
            submit(arena, engine);
        }
        engine.kick();
        let handed_over = start.elapsed();
        let waiting = Instant::now();
        while waiting.elapsed() < waits {
            spin_loop();
        }
        let polling = Instant::now();
        let heard_of = engine.poll(&mut done);
        let polled = polling.elapsed();
        if heard_of == batch {
            let spent = (handed_over + polled).saturating_sub(2 * clock);
            figures.push(spent.as_nanos() as f64 / batch as f64);
        } else {
            // The engine's thread had no core; what comes late does not count.
            drain(engine, batch - heard_of);
        }
    }
    Figure::of(figures).map(|figure| figure.median)
}

/// Takes the tickets of `left` copies.
fn drain(engine: &mut Offload<Dmadev>, mut left: usize) {
    let mut done = [Ticket(0); 64];
    engine.kick();
    while left > 0 {
        left -= engine.poll(&mut done);
        spin_loop();
    }
}

fn submit(arena: &mut Arena, engine: &mut Offload<Dmadev>) -> Block {
    let block = arena.block();
    // SAFETY: the arena lives until the ticket is polled, and nobody writes it meanwhile. Sides do
    // not overlap, and no more copies are under way than there are destinations.
    let taken = unsafe { engine.submit(Ticket(0), &block.job()) };
    taken.expect("a window is less than what the engine takes");
    block
}

/// Sums each block once the engine has copied it, while that copies others.
fn sum_beside(arena: &mut Arena, engine: &mut Offload<Dmadev>, blocks: usize) {
    let copier = Copier::detect();
    let mut done = [Ticket(0); 64];
    let window = WINDOW.min(arena.case.most_under_way());
    let batch = KICKED.div_ceil(arena.case.block);
    let mut under_way = VecDeque::with_capacity(window);
    let mut left = blocks;
    while left > 0 || !under_way.is_empty() {
        while left > 0 && under_way.len() < window {
            under_way.push_back(submit(arena, engine));
            left -= 1;
            if left.is_multiple_of(batch) {
                engine.kick();
            }
        }
        engine.kick();
        let over = engine.poll(&mut done);
        for block in under_way.drain(..over) {
            // SAFETY: the arena lives, and the engine has copied it.
            black_box(unsafe { block.sum(copier) });
        }
        spin_loop();
    }
}

/// Half of the blocks on either core, each in memory of its own of the size of the case.
fn fused_on_two_cores(arena: &mut Arena, blocks: usize) -> io::Result<Duration> {
    let case = arena.case;
    let half = blocks / 2;
    let begin = Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = pin(1);
            let mut arena = Arena::new(case);
            fused(&mut arena, case.sources.max(case.destinations) / case.block);
            begin.wait();
            fused(&mut arena, half);
            pinned.map(|()| Instant::now())
        });
        begin.wait();
        let start = Instant::now();
        fused(arena, half);
        let own = Instant::now();
        let other = other.join().expect("it does not panic")?;
        Ok(own.max(other) - start)
    })
}

/// Has this thread run on one core.
///
/// # Errors
/// There is no such core for this process.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    // SAFETY: all zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a number of the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: a set, and its size; this thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The time that this thread ran meanwhile, whoever else wanted the core.
fn cpu_time(act: impl FnOnce()) -> io::Result<Duration> {
    let start = thread_time()?;
    act();
    Ok(thread_time()?.saturating_sub(start))
}

fn thread_time() -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for a time.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What is measured when nothing is done.
fn clock_cost() -> Duration {
    let costs = std::iter::repeat_with(|| Instant::now().elapsed());
    costs.take(64).min().unwrap_or_default()
}
