//! One completion queue of a program that several workers complete into: a ring for each.
//!
//! Every ring keeps its single producer; the program's side merges them when it polls. Completions
//! of one QP come from one worker, so they stay in order. A queue of one ring is that ring, and
//! costs nothing more.

use super::{CompletionQueue, CqOverflow, Entries, GATE, Notify};
use crate::error::VerbsError;
use crate::ring::RingMemory;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_conn::work::Completion;
use trunkline_wire::Qpn;

/// Lets one event through for each arming, whichever ring raises it.
struct Gate<W> {
    armed: Armed<W>,
    notify: Arc<dyn Notify>,
}

/// Whether an event is asked for.
#[derive(Debug)]
enum Armed<W> {
    Here(AtomicBool),
    /// A word in the header of the first ring: the program arms in one process, and workers notify
    /// in another.
    Shared(W),
}

impl<W: RingMemory> Armed<W> {
    /// Sets it, and gives what it was.
    fn swap(&self, armed: bool) -> bool {
        match self {
            Self::Here(word) => word.swap(armed, Ordering::SeqCst),
            Self::Shared(header) => {
                header.as_slice()[GATE].swap(armed.into(), Ordering::SeqCst) != 0
            }
        }
    }
}

impl<W: fmt::Debug> fmt::Debug for Gate<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}

impl<W: RingMemory> Notify for Gate<W> {
    fn notify(&self) {
        if self.armed.swap(false) {
            self.notify.notify();
        }
    }
}

/// The rings of all workers as one queue.
#[derive(Debug)]
pub struct MergedQueue<W> {
    rings: Vec<Arc<CompletionQueue<W>>>,
    gate: Option<Arc<Gate<W>>>,
    /// The ring that the next poll begins with, so that none is starved.
    next: AtomicUsize,
    arming: Mutex<()>,
}

impl<W: RingMemory + 'static> MergedQueue<W> {
    /// A queue of one ring for each of `workers`, all of which `make` makes of whom they are to
    /// notify. One event for each arming reaches `notify`.
    ///
    /// # Errors
    /// Those of `make`.
    ///
    /// # Panics
    /// There are no workers, or not as many rings.
    pub fn new<E>(
        workers: usize,
        notify: Arc<dyn Notify>,
        make: impl FnOnce(Arc<dyn Notify>) -> Result<Vec<Arc<CompletionQueue<W>>>, E>,
    ) -> Result<Self, E> {
        Self::gated(workers, Armed::Here(AtomicBool::new(false)), notify, make)
    }

    /// One side's half of a queue whose program and workers are in different processes: `header` is
    /// that of the first worker's ring, and `make` makes the rings over memory that both sides
    /// have. The program's side is never notified.
    ///
    /// # Errors
    /// Those of `make`.
    ///
    /// # Panics
    /// There are no workers, or not as many rings.
    pub fn apart<E>(
        workers: usize,
        header: W,
        notify: Arc<dyn Notify>,
        make: impl FnOnce(Arc<dyn Notify>) -> Result<Vec<Arc<CompletionQueue<W>>>, E>,
    ) -> Result<Self, E> {
        Self::gated(workers, Armed::Shared(header), notify, make)
    }

    fn gated<E>(
        workers: usize,
        armed: Armed<W>,
        notify: Arc<dyn Notify>,
        make: impl FnOnce(Arc<dyn Notify>) -> Result<Vec<Arc<CompletionQueue<W>>>, E>,
    ) -> Result<Self, E> {
        assert!(workers > 0, "somebody has to complete");
        let gate = (workers > 1).then(|| {
            Arc::new(Gate {
                armed,
                notify: Arc::clone(&notify),
            })
        });
        let notify = match &gate {
            Some(gate) => Arc::clone(gate) as Arc<dyn Notify>,
            None => notify,
        };
        let rings = make(notify)?;
        assert_eq!(rings.len(), workers, "a ring for each worker");
        Ok(Self {
            rings,
            gate,
            next: AtomicUsize::new(0),
            arming: Mutex::new(()),
        })
    }

    /// Completions that each worker finds room for.
    pub fn capacity(&self) -> u32 {
        self.rings[0].capacity()
    }

    /// Makes room for `depth` completions of each worker, to which their rings are moved then: with
    /// its memory where a ring is in use, so that nobody waits for that later.
    ///
    /// # Errors
    /// As [`Entries::new`].
    pub fn entries(&self, depth: u32) -> Result<Vec<Entries<W>>, VerbsError> {
        let entries = |ring: &Arc<CompletionQueue<W>>| {
            let entries = Entries::new(depth)?;
            if ring.ring_bytes() > 0 {
                entries.allocate();
            }
            Ok(entries)
        };
        self.rings.iter().map(entries).collect()
    }

    /// Whether a worker found no room for a completion.
    pub fn is_in_error(&self) -> bool {
        self.rings.iter().any(|ring| ring.is_in_error())
    }

    /// Lets go of what a QP that is gone completed, as [`CompletionQueue::forget`].
    pub fn forget(&self, gone: Qpn) {
        self.rings.iter().for_each(|ring| ring.forget(gone));
    }

    /// Polls from other entries from now on, as [`CompletionQueue::move_to`]: `resized` gives those
    /// of each worker.
    ///
    /// # Errors
    /// As there; the queue polls from the old ones then.
    pub fn move_to<E: From<VerbsError>>(
        &self,
        resized: impl FnOnce() -> Result<Vec<W>, E>,
    ) -> Result<(), E> {
        // All rings are held when `resized` is called; the innermost one takes the last entries.
        fn hold<W: RingMemory, E: From<VerbsError>>(
            rings: &[Arc<CompletionQueue<W>>],
            resized: Box<dyn FnOnce() -> Result<Vec<W>, E> + '_>,
        ) -> Result<Vec<W>, E> {
            let Some((first, others)) = rings.split_first() else {
                return resized();
            };
            let mut left = Vec::new();
            first.move_to(|| {
                left = hold(others, resized)?;
                let missing = VerbsError::InvalidArgument { what: "entries" };
                left.pop().ok_or_else(|| E::from(missing))
            })?;
            Ok(left)
        }
        hold(&self.rings, Box::new(resized)).map(drop)
    }

    /// Takes completions into `out`, of each worker the oldest first; gives how many.
    ///
    /// # Errors
    /// The queue is in error, and all that it had taken before was polled.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, CqOverflow> {
        match &self.rings[..] {
            [only] => only.poll(out),
            rings => self.poll_all(rings, out),
        }
    }

    fn poll_all(
        &self,
        rings: &[Arc<CompletionQueue<W>>],
        out: &mut [Completion],
    ) -> Result<usize, CqOverflow> {
        let first = self.next.load(Ordering::Relaxed);
        let (mut taken, mut error) = (0, None);
        for step in 0..rings.len() {
            let at = (first + step) % rings.len();
            match rings[at].poll(&mut out[taken..]) {
                Ok(more) => taken += more,
                Err(overflow) => error = Some(overflow),
            }
            if taken == out.len() {
                // Whoever comes next begins behind the ring that filled this one's room.
                self.next.store(at + 1, Ordering::Relaxed);
                break;
            }
        }
        match error {
            Some(overflow) if taken == 0 => Err(overflow),
            _ => Ok(taken),
        }
    }

    /// Asks for one event at the next completion of any worker, or at the next solicited one; see
    /// [`CompletionQueue::arm`]. Poll once more before sleeping.
    pub fn arm(&self, solicited_only: bool) {
        let Some(gate) = &self.gate else {
            return self.rings[0].arm(solicited_only);
        };
        let guard = self.arming.lock().unwrap_or_else(PoisonError::into_inner);
        // The gate opens first: a ring that is armed from before may fire from here on, which is
        // the event asked for. Were it the other way round, such a ring could fire in vain and be
        // left unarmed.
        let pending = gate.armed.swap(true);
        for ring in &self.rings {
            if pending {
                ring.arm(solicited_only);
            } else {
                // What is left of an arming that another ring has answered does not count.
                ring.arm_anew(solicited_only);
            }
        }
        drop(guard);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::super::Writer;
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use trunkline_conn::work::{Extra, Status, VendorError, WorkOpcode};
    use trunkline_wire::Qpn;

    type Heap = Arc<[AtomicU64]>;

    #[derive(Default)]
    struct Bell(AtomicU64);

    impl Notify for Bell {
        fn notify(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Merged {
        queue: MergedQueue<Heap>,
        writers: Vec<Mutex<Writer<Heap>>>,
        notify: Arc<dyn Notify>,
        bell: Arc<Bell>,
    }

    fn merged(workers: usize, depth: u32) -> Merged {
        let bell = Arc::new(Bell::default());
        let mut given = None;
        let writers: Vec<_> = (0..workers).map(|_| Writer::new(depth).unwrap()).collect();
        let queue = MergedQueue::new(workers, Arc::clone(&bell) as Arc<dyn Notify>, |notify| {
            given = Some(notify);
            let rings = writers.iter().map(|writer| Arc::clone(writer.queue()));
            Ok::<_, VerbsError>(rings.collect())
        });
        Merged {
            queue: queue.unwrap(),
            writers: writers.into_iter().map(Mutex::new).collect(),
            notify: given.unwrap(),
            bell,
        }
    }

    impl Merged {
        /// What the engine of one worker does in one round.
        fn complete(&self, worker: usize, wr_id: u64, solicited: bool) {
            let mut writer = self.writers[worker].lock().unwrap();
            writer.push(&completion(worker, wr_id, solicited)).unwrap();
            writer.publish();
            if writer.take_notification() {
                self.notify.notify();
            }
        }

        fn events(&self) -> u64 {
            self.bell.0.swap(0, Ordering::SeqCst)
        }

        fn poll(&self, most: usize) -> Vec<(u32, u64)> {
            let mut out = vec![completion(0, 0, false); most];
            let taken = self.queue.poll(&mut out).unwrap();
            let parts = out[..taken].iter().map(|one| (one.byte_len, one.wr_id));
            parts.collect()
        }
    }

    fn completion(worker: usize, wr_id: u64, solicited: bool) -> Completion {
        Completion {
            wr_id,
            status: Status::Success,
            opcode: WorkOpcode::Send,
            qpn: Qpn::GSI,
            byte_len: worker as u32,
            extra: Extra::None,
            src_qp: Qpn::GSI,
            route: 0,
            solicited,
            vendor_err: VendorError::None,
            ticks: 0,
        }
    }

    #[test]
    fn completions_of_all_workers_come_out_each_worker_s_in_order() {
        let merged = merged(3, 16);
        for wr_id in 0..10 {
            for worker in 0..3 {
                merged.complete(worker, wr_id, false);
            }
        }
        let mut next = [0; 3];
        for _ in 0..10 {
            for (worker, wr_id) in merged.poll(3) {
                assert_eq!(wr_id, next[worker as usize], "worker {worker}");
                next[worker as usize] += 1;
            }
        }
        assert_eq!(next, [10; 3]);
        assert_eq!(merged.poll(3), []);
    }

    #[test]
    fn a_busy_worker_does_not_starve_another() {
        let merged = merged(2, 64);
        for wr_id in 0..60 {
            merged.complete(0, wr_id, false);
        }
        merged.complete(1, 1000, false);
        let polled: Vec<_> = (0..2).flat_map(|_| merged.poll(4)).collect();
        assert!(polled.contains(&(1, 1000)), "{polled:?}");
    }

    #[test]
    fn an_arming_raises_one_event_whichever_workers_complete() {
        let merged = merged(2, 16);
        merged.complete(0, 0, false);
        assert_eq!(merged.events(), 0, "nobody armed");
        for round in 0..4 {
            merged.queue.arm(false);
            merged.complete(round % 2, 1, false);
            merged.complete(1 - round % 2, 2, false);
            merged.complete(round % 2, 3, false);
            assert_eq!(merged.events(), 1, "round {round}");
        }
    }

    #[test]
    fn what_is_left_of_an_arming_for_any_does_not_answer_one_for_solicited() {
        let merged = merged(2, 16);
        merged.queue.arm(false);
        merged.complete(0, 1, false);
        assert_eq!(merged.events(), 1);
        merged.queue.arm(true);
        merged.complete(1, 2, false);
        assert_eq!(merged.events(), 0, "not solicited");
        merged.complete(1, 3, true);
        assert_eq!(merged.events(), 1);
    }

    #[test]
    fn an_arming_for_any_is_not_narrowed_by_a_later_one() {
        let merged = merged(2, 16);
        merged.queue.arm(false);
        merged.queue.arm(true);
        merged.complete(1, 1, false);
        assert_eq!(merged.events(), 1);
    }

    #[test]
    fn a_queue_with_a_ring_in_error_gives_what_all_rings_have_first() {
        let merged = merged(3, 4);
        merged.complete(0, 1, false);
        let mut writer = merged.writers[1].lock().unwrap();
        writer.fail();
        writer.publish();
        merged.complete(2, 2, false);
        assert_eq!(merged.poll(8), [(0, 1), (2, 2)]);
        let mut out = [Completion::BLANK];
        let overflow = CqOverflow { capacity: 4 };
        assert_eq!(merged.queue.poll(&mut out), Err(overflow));
    }

    #[test]
    fn a_queue_of_one_ring_notifies_as_that_ring_does() {
        let merged = merged(1, 16);
        merged.queue.arm(false);
        merged.complete(0, 1, false);
        merged.complete(0, 2, false);
        assert_eq!(merged.events(), 1);
        assert_eq!(merged.poll(8), [(0, 1), (0, 2)]);
    }

    #[test]
    fn nobody_sleeps_through_a_completion() {
        const EACH: u64 = 20_000;
        let merged = Arc::new(merged(2, 1 << 16));
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let merged = Arc::clone(&merged);
                thread::spawn(move || {
                    for wr_id in 0..EACH {
                        merged.complete(worker, wr_id, false);
                        if wr_id % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut got = 0;
        while got < 2 * EACH {
            merged.queue.arm(false);
            got += merged.poll(256).len() as u64;
            if got == 2 * EACH {
                break;
            }
            // As a program that sleeps: armed, found nothing more, waits for the event.
            loop {
                let more = merged.poll(256).len() as u64;
                got += more;
                if more == 0 {
                    break;
                }
            }
            let mut spins = 0_u64;
            while got < 2 * EACH && merged.events() == 0 {
                spins += 1;
                assert!(spins < 200_000_000, "asleep with {got} of {}", 2 * EACH);
                std::hint::spin_loop();
            }
        }
        for worker in workers {
            worker.join().unwrap();
        }
    }
}
