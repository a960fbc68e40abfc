#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::super::Event;
use super::receives::MOST_READ;
use super::*;
use crate::allowed::Allowed;
use crate::queue::{MAX_WR, Producer, RecvQueue, SharedRecvQueue};
use crate::sync::AtomicU64;
use crate::wqe::RecvWr;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::thread;
use trunkline_conn::mem::Sge;
use trunkline_wire::Lkey;

type Heap = Arc<[AtomicU64]>;

/// An SRQ, and what it tells.
struct Watched {
    srq: Srq<Heap>,
    events: Events,
}

impl Watched {
    fn new(max_wr: u32) -> Self {
        let receives = SharedReceives::new(PdId(0), max_wr, 4).unwrap();
        Self::of(&Arc::new(receives))
    }

    /// As a worker has it that others share it with.
    fn of(receives: &Arc<SharedReceives<Heap>>) -> Self {
        let srq = Srq {
            id: SrqId::named(2, 3),
            receives: Arc::clone(receives),
        };
        Self {
            srq,
            events: Events::new(),
        }
    }

    fn queue(&self) -> &Arc<SharedRecvQueue<Heap>> {
        self.srq.receives.queue()
    }

    /// The ring that receives are read from.
    fn ring(&self) -> Arc<RecvQueue<Heap>> {
        Arc::clone(&self.srq.receives.lock().queue)
    }

    fn posted(&self) -> u32 {
        self.queue().posted()
    }

    fn post(&self, wr_id: u64) -> bool {
        let request = RecvWr::new().wr_id(wr_id);
        self.queue().post(&[request]).is_ok()
    }

    fn take(&mut self) -> Option<u64> {
        let taken = self.srq.take(&mut self.events).ok().flatten();
        taken.map(|receive| receive.wr_id)
    }

    fn take_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.take()).collect()
    }

    fn set_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        self.srq.set_limit(limit, &mut self.events)
    }

    fn resize(&mut self, max_wr: u32) -> Result<(), VerbsError> {
        self.srq.resize(max_wr, &mut self.events, |_| Ok(None))
    }

    fn limit(&self) -> u32 {
        self.srq.attributes().limit
    }

    fn told(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.pop()).collect()
    }

    fn reached(&self) -> Event {
        Event::SrqLimitReached { srq: self.srq.id }
    }
}

#[test]
fn the_receive_that_was_posted_last_is_taken_first() {
    let mut it = Watched::new(8);
    assert!(!it.srq.has_receive());
    (0..4).for_each(|id| assert!(it.post(id)));
    let mut taken = vec![it.take().unwrap()];
    assert!(it.post(4));
    assert!(it.srq.has_receive());
    taken.extend(it.take_all());
    assert_eq!(taken, [3, 4, 2, 1, 0]);
    assert!(!it.srq.has_receive());
}

#[test]
fn a_message_does_not_wait_until_a_long_list_of_receives_is_read() {
    let mut it = Watched::new(MAX_WR);
    (0..MAX_WR.into()).for_each(|id| assert!(it.post(id)));
    let mut taken = vec![it.take().unwrap()];
    assert_eq!(
        taken,
        [MOST_READ as u64 - 1],
        "the last of those that were read"
    );
    taken.push(it.take().unwrap());
    assert_eq!(taken[1], 2 * MOST_READ as u64 - 1);
    it.resize(MAX_WR).unwrap();
    taken.extend(it.take_all());
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..MAX_WR.into()));
}

#[test]
fn there_is_room_for_as_many_as_were_asked_for_and_no_more() {
    let mut it = Watched::new(8);
    for round in 0..100 {
        while it.post(round) {}
        assert_eq!(it.posted(), 8);
        let some = round % 9;
        let taken = (0..some).filter_map(|_| it.take()).count() as u64;
        assert_eq!(taken, some);
        assert_eq!(u64::from(it.posted()), 8 - some);
    }
}

#[test]
fn a_limit_is_told_once_when_fewer_are_left_and_then_it_is_disarmed() {
    let mut it = Watched::new(8);
    (0..8).for_each(|id| assert!(it.post(id)));
    it.set_limit(6).unwrap();
    for left in [7, 6] {
        it.take().unwrap();
        assert_eq!((it.posted(), it.told()), (left, vec![]));
        assert_eq!(it.limit(), 6);
    }
    it.take().unwrap();
    assert_eq!(it.told(), [it.reached()]);
    assert_eq!(it.limit(), 0);
    it.take_all();
    assert_eq!(it.told(), []);
}

#[test]
fn a_limit_that_is_reached_when_it_is_armed_is_told_at_once() {
    let mut it = Watched::new(8);
    (0..3).for_each(|id| assert!(it.post(id)));
    it.set_limit(3).unwrap();
    assert_eq!((it.told(), it.limit()), (vec![], 3));
    it.set_limit(4).unwrap();
    assert_eq!((it.told(), it.limit()), (vec![it.reached()], 0));
    // The program arms it anew, or takes it back.
    it.set_limit(2).unwrap();
    it.set_limit(0).unwrap();
    it.take_all();
    assert_eq!(it.told(), []);
}

#[test]
fn a_limit_beyond_the_size_is_refused_and_leaves_what_is_armed() {
    let mut it = Watched::new(8);
    (0..8).for_each(|id| assert!(it.post(id)));
    it.set_limit(8).unwrap();
    let refused = Allowed::Range(0, 8).refuse("srq_limit", 9);
    assert_eq!(it.set_limit(9), Err(refused));
    assert_eq!((it.told(), it.limit()), (vec![], 8));
}

#[test]
fn a_broken_ring_is_told_once_and_what_was_read_before_is_taken() {
    let mut it = Watched::new(8);
    (0..3).for_each(|id| assert!(it.post(id)));
    assert_eq!(it.take(), Some(2));
    it.ring().break_tail();
    assert_eq!(it.take_all(), [1, 0]);
    assert_eq!(it.take(), None);
    assert_eq!(it.told(), [Event::SrqError { srq: it.srq.id }]);
    assert_eq!(it.resize(16), Err(VerbsError::SrqInError { srq: 2 }));
    assert_eq!(it.told(), []);
}

#[test]
fn an_srq_in_error_stays_so_whatever_becomes_of_its_ring() {
    let mut it = Watched::new(8);
    assert!(it.post(0));
    assert!(matches!(it.srq.take(&mut it.events), Ok(Some(_))));
    assert!(matches!(it.srq.take(&mut it.events), Ok(None)));
    assert!(!it.srq.has_receive() && !it.queue().is_in_error());
    let tail = it.ring().break_tail();
    assert!(it.srq.has_receive(), "an error is something to find");
    assert!(it.srq.take(&mut it.events).is_err());
    assert_eq!(it.told(), [Event::SrqError { srq: it.srq.id }]);
    it.ring().mend_tail(tail);
    assert!(it.post(1), "the ring is whole again");
    assert!(it.srq.has_receive() && it.queue().is_in_error());
    assert!(it.srq.take(&mut it.events).is_err());
    assert_eq!(it.told(), []);
}

#[test]
fn a_new_size_has_room_for_what_is_posted_and_for_the_limit() {
    let mut it = Watched::new(8);
    (0..5).for_each(|id| assert!(it.post(id)));
    assert_eq!(it.take(), Some(4));
    let range = |least| Allowed::Range(least, MAX_WR);
    assert_eq!(it.resize(3), Err(range(4).refuse("max_wr", 3)));
    it.set_limit(2).unwrap();
    it.resize(4).unwrap();
    assert!(!it.post(5), "it is full");
    assert_eq!(it.take(), Some(3));
    assert_eq!(it.take(), Some(2));
    assert_eq!(it.resize(1), Err(range(2).refuse("max_wr", 1)));
    assert_eq!(it.take(), Some(1));
    assert_eq!(it.told(), [it.reached()]);
    it.resize(1).unwrap();
    assert_eq!(it.take(), Some(0));
    assert_eq!(it.resize(0), Err(range(1).refuse("max_wr", 0)));
    let beyond = range(1).refuse("max_wr", u64::from(MAX_WR) + 1);
    assert_eq!(it.resize(MAX_WR + 1), Err(beyond));
    let now = SrqAttributes {
        max_wr: 1,
        max_sge: 4,
        limit: 0,
    };
    assert_eq!(it.srq.attributes(), now);
}

#[test]
fn receives_keep_their_elements_in_a_new_size() {
    let mut it = Watched::new(8);
    let sges: Vec<_> = (1..=4)
        .map(|at| Sge {
            addr: u64::from(at) << 32,
            length: at,
            lkey: Lkey(at),
        })
        .collect();
    let request = RecvWr::new().wr_id(7).sges(&sges);
    it.queue().post(&[request]).unwrap();
    it.resize(64).unwrap();
    let receive = it.srq.take(&mut it.events).unwrap().unwrap();
    assert_eq!((receive.wr_id, &receive.sges[..]), (7, &sges[..]));
}

/// What may happen to an SRQ.
#[derive(Clone, Debug)]
enum Step {
    Post,
    Take,
    Limit(u32),
    Resize(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Post),
        3 => Just(Step::Take),
        1 => (0..12u32).prop_map(Step::Limit),
        1 => (0..12u32).prop_map(Step::Resize),
    ];
    vec(step, 0..200)
}

proptest! {
    #[test]
    fn an_srq_agrees_with_a_stack_of_receives_and_a_limit(steps in steps()) {
        let mut it = Watched::new(6);
        let (mut posted, mut max_wr, mut limit) = (Vec::new(), 6, 0);
        for (wr_id, step) in (0..).zip(steps) {
            match step {
                Step::Post => {
                    let room = posted.len() < max_wr as usize;
                    prop_assert_eq!(it.post(wr_id), room);
                    posted.extend(room.then_some(wr_id));
                }
                Step::Take => prop_assert_eq!(it.take(), posted.pop()),
                Step::Limit(to) => {
                    prop_assert_eq!(it.set_limit(to).is_ok(), to <= max_wr);
                    limit = if to <= max_wr { to } else { limit };
                }
                Step::Resize(to) => {
                    let least = limit.max(posted.len() as u32).max(1);
                    prop_assert_eq!(it.resize(to).is_ok(), to >= least);
                    max_wr = if to >= least { to } else { max_wr };
                }
            }
            let reached = (posted.len() as u32) < limit;
            limit = if reached { 0 } else { limit };
            let told = reached.then(|| it.reached());
            prop_assert_eq!(it.told(), Vec::from_iter(told));
            let attributes = SrqAttributes { max_wr, max_sge: 4, limit };
            prop_assert_eq!(it.srq.attributes(), attributes);
            prop_assert_eq!(it.posted() as usize, posted.len());
        }
    }
}

#[test]
fn nothing_is_lost_or_doubled_when_sizes_change_while_threads_post() {
    const EACH: u64 = 4_000;
    const THREADS: u64 = 2;
    let mut it = Watched::new(64);
    let mut taken = Vec::new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let queue = Arc::clone(it.queue());
            scope.spawn(move || {
                for wr_id in thread * EACH..(thread + 1) * EACH {
                    while queue.post(&[RecvWr::new().wr_id(wr_id)]).is_err() {
                        thread::yield_now();
                    }
                }
            });
        }
        let (mut round, mut resized) = (0, 0);
        while (taken.len() as u64) < THREADS * EACH {
            round += 1;
            taken.extend(it.take());
            if round % 16 == 0 {
                resized += u32::from(it.resize(1 << (round / 16 % 8)).is_ok());
            }
        }
        assert!(resized > 0, "some sizes were taken");
    });
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..THREADS * EACH));
    assert_eq!(it.told(), []);
}

#[test]
fn an_srq_whose_producer_is_elsewhere_keeps_what_is_posted_when_it_is_resized() {
    let mut it = Watched::new(2);
    let memory = Heap::zeroed(it.queue().size().ring_words());
    let size = it.queue().size();
    assert!(it.queue().begin(memory.clone()));
    let producer = Producer::new(size, memory);
    let post = |producer: &Producer<Heap>, wr_id| {
        let request = RecvWr::new().wr_id(wr_id);
        producer.post(&[request]).is_ok()
    };
    assert!(post(&producer, 1) && post(&producer, 2) && !post(&producer, 3));
    let mut given = None;
    let resized = it.srq.resize(4, &mut it.events, |size| {
        let memory = Heap::zeroed(size.ring_words());
        given = Some(Producer::new(size, memory.clone()));
        Ok(Some(memory))
    });
    resized.unwrap();
    let producer = given.unwrap();
    assert!(post(&producer, 3) && post(&producer, 4) && !post(&producer, 5));
    assert_eq!(it.take_all(), [4, 3, 2, 1]);
    assert!(post(&producer, 6), "there is room again");
    let refused = it.srq.resize(8, &mut it.events, |_| {
        Err(VerbsError::InvalidArgument { what: "memory" })
    });
    assert!(refused.is_err());
    assert_eq!((it.take_all(), it.srq.attributes().max_wr), (vec![6], 4));
}

/// The workers that take from an SRQ at once.
const WORKERS: usize = 2;

/// What each worker took, and told, while a thread posted `count` receives; it takes until all are
/// there.
fn taken_at_once(receives: &Arc<SharedReceives<Heap>>, count: u64) -> Vec<(Vec<u64>, Vec<Event>)> {
    let left = AtomicU64::new(count);
    thread::scope(|scope| {
        let workers = [(); WORKERS].map(|()| {
            scope.spawn(|| {
                let (mut it, mut taken) = (Watched::of(receives), Vec::new());
                while left.load(Ordering::Relaxed) > 0 {
                    match it.take() {
                        Some(wr_id) => {
                            taken.push(wr_id);
                            left.fetch_sub(1, Ordering::Relaxed);
                        }
                        None => thread::yield_now(),
                    }
                }
                (taken, it.told())
            })
        });
        let queue = receives.queue();
        for wr_id in 0..count {
            while queue.post(&[RecvWr::new().wr_id(wr_id)]).is_err() {
                thread::yield_now();
            }
        }
        workers.map(|worker| worker.join().unwrap()).into()
    })
}

#[test]
fn each_receive_goes_to_one_of_the_workers_that_take_at_once() {
    const COUNT: u64 = 20_000;
    let receives = Arc::new(SharedReceives::new(PdId(0), 64, 4).unwrap());
    let workers = taken_at_once(&receives, COUNT);
    let mut taken = Vec::new();
    for (of_worker, told) in workers {
        taken.extend(of_worker);
        assert_eq!(told, []);
    }
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..COUNT));
    assert!(!Watched::of(&receives).srq.has_receive());
}

#[test]
fn workers_that_take_at_once_tell_of_the_limit_and_of_a_broken_ring_once() {
    for _ in 0..100 {
        let receives = Arc::new(SharedReceives::new(PdId(0), 64, 4).unwrap());
        let mut first = Watched::of(&receives);
        (0..64).for_each(|id| assert!(first.post(id)));
        first.set_limit(32).unwrap();
        // All are read, so that they are taken before the ring is found broken.
        assert_eq!(first.take(), Some(63));
        first.ring().break_tail();
        let taking = || {
            let mut it = Watched::of(&receives);
            (it.take_all().len(), it.told())
        };
        let (mut taken, mut told) = (0, Vec::new());
        thread::scope(|scope| {
            let workers = [(); WORKERS].map(|()| scope.spawn(taking));
            for (of_worker, news) in workers.map(|worker| worker.join().unwrap()) {
                taken += of_worker;
                told.extend(news);
            }
        });
        assert_eq!(taken, 63);
        let error = Event::SrqError { srq: first.srq.id };
        assert!(told.len() == 2 && told.contains(&error) && told.contains(&first.reached()));
        assert!(receives.queue().is_in_error());
    }
}

#[test]
fn a_peer_holds_no_more_of_an_srq_than_it_leaves_to_others_at_whichever_workers() {
    let receives = Arc::new(SharedReceives::new(PdId(0), 8, 4).unwrap());
    let mut workers = [(); WORKERS].map(|()| Watched::of(&receives));
    (0..8).for_each(|id| assert!(workers[0].post(id)));
    let peers = [1, 2].map(|last| Gid([last; 16]));
    let mut hold = |at: usize, peer: Gid| {
        let it = &mut workers[at % WORKERS];
        it.srq.hold(peer, &mut it.events).unwrap().is_some()
    };
    for (peer, got) in peers.into_iter().zip([4, 2]) {
        assert_eq!((0..8).filter(|at| hold(*at, peer)).count(), got);
    }
    for (at, it) in workers.iter().enumerate() {
        it.srq.give_back(peers[at]);
    }
    assert!(workers[1].srq.take(&mut Events::new()).is_ok());
}

#[test]
fn an_srq_is_busy_while_qps_of_any_worker_use_it_and_the_last_one_gives_its_domain_back() {
    let receives = Arc::new(SharedReceives::<Heap>::new(PdId(7), 8, 4).unwrap());
    let mut workers = [(); WORKERS].map(|()| Srqs::new());
    let indices = workers
        .each_mut()
        .map(|srqs| srqs.insert(Arc::clone(&receives)));
    drop(receives);
    assert_eq!(indices, [0; WORKERS]);
    assert_eq!(workers[0][0].id(), workers[1][0].id());
    workers[1].attach(0);
    let busy = VerbsError::Busy {
        what: "SRQ",
        users: 1,
    };
    assert_eq!(
        workers.each_mut().map(|srqs| srqs.remove(0)),
        [Err(busy), Err(busy)]
    );
    workers[1].detach(0);
    let gone = workers.each_mut().map(|srqs| srqs.remove(0));
    assert_eq!(gone, [Ok(None), Ok(Some(PdId(7)))]);
}
