//! Whatever engine copies, the bytes are the same.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::sync::Mutex;
use support::{FAULTS, Faulty, law_bytes_are_those_of_plain_copies};
use trunkline_dataplane::copy::Bounds;
use trunkline_dma::{CopyEngine, Cpu, Device, Dmadev, Full, Job, Offload, Outcome, Ticket, set_up};

/// A process has one device of `dma_skeleton`.
static SKELETON: Mutex<()> = Mutex::new(());

/// A device that copies when it is kicked.
#[derive(Debug, Default)]
struct Inline {
    taken: Vec<(u64, Job)>,
    copied: Vec<u64>,
}

// SAFETY: it copies before it reports.
unsafe impl Device for Inline {
    fn depth(&self) -> usize {
        64
    }

    unsafe fn push(&mut self, number: u64, job: &Job) -> bool {
        self.taken.push((number, *job));
        true
    }

    fn kick(&mut self) {
        for (number, job) in self.taken.drain(..) {
            let (from, to) = (job.source(), job.destination());
            // SAFETY: who pushed the job promised it until it is reported.
            unsafe { to.copy_from_nonoverlapping(from, job.length()) };
            self.copied.push(number);
        }
    }

    fn reap(&mut self, mut over: impl FnMut(u64, Outcome)) {
        for number in self.copied.drain(..) {
            over(number, Outcome::Copied);
        }
    }
}

fn skeleton() -> Dmadev {
    Dmadev::open(set_up(&[]).unwrap(), "dma_skeleton").unwrap()
}

#[test]
fn the_cpu_copies_what_plain_copies_do() {
    for seed in 0..4 {
        law_bytes_are_those_of_plain_copies(seed, 400, &mut Cpu::new(64));
    }
}

#[test]
fn a_device_with_faults_leaves_the_bytes_of_plain_copies() {
    for seed in 0..8 {
        let device = Faulty::new(Inline::default(), FAULTS, !seed);
        let mut engine = Offload::new(device);
        law_bytes_are_those_of_plain_copies(seed, 400, &mut engine);
        let counters = engine.counters();
        assert!(counters.copied > 0, "{counters:?}");
        assert!(counters.refused > 0 && counters.failed > 0, "{counters:?}");
        assert_eq!(counters.copied + counters.refused + counters.failed, 400);
    }
}

#[test]
fn dma_skeleton_leaves_the_bytes_of_plain_copies() {
    let _alone = SKELETON.lock().unwrap();
    for seed in 0..4 {
        let mut engine = Offload::new(skeleton());
        law_bytes_are_those_of_plain_copies(seed, 400, &mut engine);
        let counters = engine.counters();
        assert_eq!((counters.copied, counters.failed), (400, 0), "{counters:?}");
    }
}

#[test]
fn dma_skeleton_with_faults_leaves_the_bytes_of_plain_copies() {
    let _alone = SKELETON.lock().unwrap();
    for seed in 0..4 {
        let device = Faulty::new(skeleton(), FAULTS, !seed);
        let mut engine = Offload::new(device);
        law_bytes_are_those_of_plain_copies(seed, 400, &mut engine);
        let counters = engine.counters();
        assert!(counters.refused > 0 && counters.failed > 0, "{counters:?}");
    }
}

/// A job of eight bytes between two buffers that are never freed.
fn small_job() -> Job {
    let from = Box::leak(Box::new([7_u8; 8])).as_mut_ptr();
    let to = Box::leak(Box::new([0_u8; 8])).as_mut_ptr();
    let within = Bounds::of(to, 8);
    Job::place(from, to, 8, within)
}

#[test]
fn an_engine_takes_as_many_jobs_as_it_says_and_no_more() {
    let mut engine = Offload::new(Inline::default());
    let depth = engine.room();
    let jobs: Vec<_> = std::iter::repeat_with(small_job).take(depth + 1).collect();
    for (at, job) in jobs[..depth].iter().enumerate() {
        // SAFETY: buffers of this job alone, which stay.
        assert_eq!(unsafe { engine.submit(Ticket(at as u64), job) }, Ok(()));
    }
    assert_eq!(engine.room(), 0);
    // SAFETY: as above.
    let refused = unsafe { engine.submit(Ticket(0), &jobs[depth]) };
    assert_eq!(refused, Err(Full));
    let mut done = vec![Ticket(0); depth];
    engine.kick();
    assert_eq!(engine.poll(&mut done), depth);
    assert_eq!(engine.room(), depth);
}

#[test]
fn an_engine_that_is_dropped_has_copied_what_it_took() {
    let _alone = SKELETON.lock().unwrap();
    let jobs: Vec<_> = std::iter::repeat_with(small_job).take(100).collect();
    let mut engine = Offload::new(skeleton());
    for job in &jobs {
        // SAFETY: buffers of this job alone, which stay.
        unsafe { engine.submit(Ticket(0), job) }.unwrap();
    }
    drop(engine);
    for job in &jobs {
        // SAFETY: eight bytes that stay, and that nobody writes any more.
        let bytes = unsafe { std::slice::from_raw_parts(job.destination(), 8) };
        assert_eq!(bytes, [7; 8]);
    }
}

#[test]
fn a_device_that_there_is_none_of_is_an_error() {
    let error = Dmadev::open(set_up(&[]).unwrap(), "dma_nobody")
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("adding of dma_nobody: "), "{error}");
}
