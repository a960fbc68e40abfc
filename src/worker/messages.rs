//! What workers of one node tell each other: bounded queues without locks, two into each worker.
//!
//! Packets that came out at the wrong worker's port, management datagrams for another worker, news
//! of peers, and the two ends of connections between QPs of the node itself. A full queue loses
//! packets, as a network does; what must not be lost waits with its sender for the next round.
//! Anybody can make packets come out at the wrong worker, so that these have a queue of their own,
//! which is read after the other one.

use crate::platform::NodePlatform;
use crate::verbs::connection::ConnectionOptions;
use crate::worker::wakeup::Wakeup;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use trunkline_cm::ib::Met;
use trunkline_cm::{Concerns, Offer, PeerMode, Quote};
use trunkline_conn::ingress::Arrival;
use trunkline_conn::time::Instant;
use trunkline_qpmap::{Burst, CqId, PeerIdentity};
use trunkline_wire::{BthView, MAD_LEN, Path, Qpn, Worker, Workers};

/// Messages that may wait for one worker in each of its two queues.
const ROOM: usize = 1024;
/// Packets whose memory waits to be used again: as many as a worker takes in at a time. Anybody can
/// have more of them handed over, once.
const EMPTY: usize = 256;

/// A packet that came out at the wrong worker. Its memory goes back to that one, for others: while
/// packets are handed over at a steady rate nothing is allocated.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// The worker that it came out at.
    from: u8,
    arrival: Arrival,
    datagram: Vec<u8>,
}

/// Something for another worker.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// A packet whose number is the other worker's.
    Packet(Box<HandedOver>),
    /// A management datagram, its ICRC checked, with whom it concerns.
    Mad(Box<(Path, [u8; MAD_LEN], Concerns)>),
    /// A QP of an ordinary host that the sender has a new connection with.
    Met(Met),
    /// The peer of a QP whose connection belongs to an ID of the receiver works.
    QpHeard(Qpn),
    /// The peer's QP is gone; the connection of ours belongs to an ID of the receiver.
    PeerQpGone(Qpn),
    /// A QP whose connection belongs to an ID of the receiver has failed.
    QpFailed(Qpn),
    /// A CQ of the program has overrun at the sender.
    CqFailed(CqId),
    /// A peer's host says that nobody is there, and quotes a connect request of the receiver.
    Refused(IpAddr, Quote),
    /// What a peer turned out to be.
    Peer(IpAddr, PeerMode),
    /// A peer has agreed to a connection as this incarnation of itself, at this time.
    Incarnation(PeerIdentity, Instant),
    /// A QP of the sender talks to one of the other worker.
    Loop(Box<LoopRequest>),
    /// The answer: the asking end, and the other end, if there is one.
    Looped(Offer, Option<Offer>),
}

/// Asks for the other end of a connection within the node.
#[derive(Debug)]
pub(crate) struct LoopRequest {
    pub(crate) from: u8,
    pub(crate) near: Offer,
    pub(crate) options: ConnectionOptions,
    pub(crate) private: bool,
}

/// One worker's way to the others.
#[derive(Debug)]
pub(crate) struct Messages {
    own: Worker,
    inbox: Inbox,
    /// In the order of workers; the own one too.
    outboxes: Vec<Outbox>,
    /// What has to wait for room, in all outboxes.
    waiting: usize,
    /// What came before the worker went to sleep.
    found: Option<WorkerMessage>,
    pub(crate) counters: HandOvers,
}

/// What waits for a worker: what must arrive, what may be lost, and memory of packets that it has
/// handed over.
#[derive(Debug)]
struct Inbox {
    news: Receiver<WorkerMessage>,
    packets: Receiver<WorkerMessage>,
    empty: Receiver<Box<HandedOver>>,
}

impl Inbox {
    fn next(&self) -> Option<WorkerMessage> {
        let news = self.news.try_recv();
        news.or_else(|_| self.packets.try_recv()).ok()
    }
}

/// The way to a worker.
#[derive(Debug)]
struct Outbox {
    news: SyncSender<WorkerMessage>,
    packets: SyncSender<WorkerMessage>,
    empty: SyncSender<Box<HandedOver>>,
    wakeup: Arc<Wakeup>,
    /// News that have to wait for room.
    waiting: VecDeque<WorkerMessage>,
}

impl Outbox {
    /// The way of another worker to the same one.
    fn beside(&self) -> Self {
        Self {
            news: self.news.clone(),
            packets: self.packets.clone(),
            empty: self.empty.clone(),
            wakeup: Arc::clone(&self.wakeup),
            waiting: VecDeque::new(),
        }
    }

    /// Puts a message into one of the two queues. Gives it back where that is full.
    fn post(
        &self,
        queue: &SyncSender<WorkerMessage>,
        message: WorkerMessage,
    ) -> Result<(), WorkerMessage> {
        queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) | TrySendError::Disconnected(message) => message,
        })?;
        // Between the message and the look at whether its reader sleeps: one of the two sees the
        // other, see `is_busy`.
        fence(Ordering::SeqCst);
        self.wakeup.ring();
        Ok(())
    }

    /// Sends what waits, as far as there is room. Returns how many were sent.
    fn retry(&mut self) -> usize {
        let waiting = self.waiting.len();
        while let Some(message) = self.waiting.pop_front() {
            if let Err(message) = self.post(&self.news, message) {
                self.waiting.push_front(message);
                break;
            }
        }
        waiting - self.waiting.len()
    }
}

/// What came out at one worker and was for another: none of it where a port knows the workers, but
/// for what the network or its sender had joined to one unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HandOvers {
    /// Packets of connections and QPs.
    pub packets: u64,
    /// Management datagrams.
    pub management: u64,
    /// Of both, those lost because too much waited for the other worker. They come again.
    pub lost: u64,
}

impl HandOvers {
    /// Adds those of another worker.
    pub const fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.management += other.management;
        self.lost += other.lost;
    }
}

impl Messages {
    /// The ways of all workers to each other, woken by their wakeups.
    pub(crate) fn between(workers: Workers, wakeups: &[Arc<Wakeup>]) -> Vec<Self> {
        let way = |wakeup: &Arc<Wakeup>| {
            let (news, packets, empty) =
                (sync_channel(ROOM), sync_channel(ROOM), sync_channel(EMPTY));
            let outbox = Outbox {
                news: news.0,
                packets: packets.0,
                empty: empty.0,
                wakeup: Arc::clone(wakeup),
                waiting: VecDeque::new(),
            };
            let inbox = Inbox {
                news: news.1,
                packets: packets.1,
                empty: empty.1,
            };
            (outbox, inbox)
        };
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = wakeups.iter().map(way).unzip();
        workers
            .iter()
            .zip(inboxes)
            .map(|(own, inbox)| Self {
                own,
                inbox,
                outboxes: outboxes.iter().map(Outbox::beside).collect(),
                waiting: 0,
                found: None,
                counters: HandOvers::default(),
            })
            .collect()
    }

    /// All workers of the node.
    pub(crate) const fn workers(&self) -> Workers {
        self.own.of()
    }

    /// Index of this worker.
    pub(crate) const fn own(&self) -> u8 {
        self.own.index()
    }

    /// The worker that `number` belongs to, if it is another one.
    pub(crate) fn other(&self, number: Qpn) -> Option<u8> {
        let owner = self.workers().owner(number.get());
        (owner != self.own()).then_some(owner)
    }

    /// Hands a packet over, if its number is another worker's.
    pub(crate) fn pass_on(&mut self, arrival: &Arrival, datagram: &[u8]) -> bool {
        let Ok((bth, _)) = BthView::split(datagram) else {
            return false;
        };
        let Some(to) = self.other(bth.dest_qp()) else {
            return false;
        };
        self.counters.packets += 1;
        let packet = match self.inbox.empty.try_recv() {
            Ok(mut packet) => {
                packet.arrival = *arrival;
                packet.datagram.clear();
                packet.datagram.extend_from_slice(datagram);
                packet
            }
            Err(_) => Box::new(HandedOver {
                from: self.own(),
                arrival: *arrival,
                datagram: datagram.to_vec(),
            }),
        };
        self.try_send(to, WorkerMessage::Packet(packet));
        true
    }

    /// A packet that was handed over has been taken in: its memory goes back. Where enough waits
    /// for use, it is freed.
    fn give_back(&self, packet: Box<HandedOver>) {
        let _ = self.outboxes[usize::from(packet.from)]
            .empty
            .try_send(packet);
    }

    /// Hands a management datagram over.
    pub(crate) fn pass_on_management(
        &mut self,
        to: u8,
        path: &Path,
        mad: &[u8; MAD_LEN],
        concerns: Concerns,
    ) {
        self.counters.management += 1;
        self.try_send(to, WorkerMessage::Mad(Box::new((*path, *mad, concerns))));
    }

    /// Sends what may be lost.
    pub(crate) fn try_send(&mut self, to: u8, message: WorkerMessage) {
        let outbox = &self.outboxes[usize::from(to)];
        if let Err(lost) = outbox.post(&outbox.packets, message) {
            self.counters.lost += 1;
            if let WorkerMessage::Packet(packet) = lost {
                self.give_back(packet);
            }
        }
    }

    /// Sends what must arrive.
    pub(crate) fn send(&mut self, to: u8, message: WorkerMessage) {
        let outbox = &mut self.outboxes[usize::from(to)];
        outbox.waiting.push_back(message);
        self.waiting += 1;
        self.waiting -= outbox.retry();
    }

    /// Sends to all others what must arrive.
    pub(crate) fn send_all(&mut self, message: impl Fn() -> WorkerMessage) {
        for other in self.workers().iter().map(Worker::index) {
            if other != self.own() {
                self.send(other, message());
            }
        }
    }

    /// Sends what waits for room, as far as there is some. Who takes nothing holds up no other.
    pub(crate) fn retry(&mut self) {
        if self.waiting > 0 {
            self.waiting -= self.outboxes.iter_mut().map(Outbox::retry).sum::<usize>();
        }
    }

    /// Whether something waits to be sent or read. Asked by a worker that is about to sleep, after
    /// it said so.
    pub(crate) fn is_busy(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.found = self.found.take().or_else(|| self.inbox.next());
        self.found.is_some() || self.waiting > 0
    }

    /// The next message from another worker.
    pub(crate) fn next(&mut self) -> Option<WorkerMessage> {
        self.found.take().or_else(|| self.inbox.next())
    }

    /// Takes in a packet, and those that come next as long as that `may_go_on`, which is asked when
    /// one is here; gives how many these were.
    pub(crate) fn take_in(
        &mut self,
        mut burst: Burst<'_, NodePlatform>,
        first: Box<HandedOver>,
        may_go_on: impl Fn(usize) -> bool,
    ) -> usize {
        let (mut packet, mut taken) = (first, 0);
        loop {
            burst.handle_datagram(&packet.arrival, &packet.datagram);
            self.give_back(packet);
            packet = match self.next() {
                Some(WorkerMessage::Packet(next)) if may_go_on(taken) => next,
                other => {
                    self.found = other;
                    return taken;
                }
            };
            taken += 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use trunkline_conn::ingress::Identification;
    use trunkline_qpmap::{Config, Engine};
    use trunkline_wire::IpFields;

    fn some<const N: usize>() -> [Messages; N] {
        let workers = Workers::new(N as u8).unwrap();
        let wakeups: Vec<_> = (0..N).map(|_| Arc::new(Wakeup::default())).collect();
        let messages = Messages::between(workers, &wakeups);
        messages.try_into().unwrap()
    }

    fn packet_to(qpn: u8) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes[7] = qpn;
        bytes
    }

    fn arrival() -> Arrival {
        let address = IpAddr::from([127, 0, 0, 1]);
        Arrival {
            path: Path {
                src: address,
                dst: address,
                src_port: 4791,
                traffic_class: 0,
                ip: IpFields::DEFAULT,
            },
            identification: Identification::Seen(0),
            ce: false,
            waited_ns: 0,
        }
    }

    #[test]
    fn a_packet_of_another_worker_is_handed_over_and_an_own_one_is_not() {
        let [mut first, mut second] = some();
        assert!(!first.pass_on(&arrival(), &packet_to(4)));
        assert!(first.pass_on(&arrival(), &packet_to(5)));
        assert!(!first.pass_on(&arrival(), &[5; 3]), "no packet at all");
        let Some(WorkerMessage::Packet(packet)) = second.next() else {
            panic!("a packet was handed over");
        };
        assert_eq!(packet.datagram, packet_to(5));
        assert!(second.next().is_none() && first.next().is_none());
        assert_eq!((first.counters.packets, first.counters.lost), (1, 0));
    }

    #[test]
    fn packets_of_a_steady_rate_are_handed_over_in_the_same_memory() {
        let [mut first, mut second] = some();
        let mut memory = Vec::new();
        for _ in 0..100 {
            assert!((4..8).all(|low| first.pass_on(&arrival(), &packet_to(2 * low + 1))));
            let packets = std::iter::from_fn(|| match second.next() {
                Some(WorkerMessage::Packet(packet)) => Some(packet),
                _ => None,
            });
            let packets: Vec<_> = packets.collect();
            assert_eq!(packets.len(), 4);
            memory.extend(packets.iter().map(|packet| packet.datagram.as_ptr()));
            packets
                .into_iter()
                .for_each(|packet| second.give_back(packet));
        }
        memory.sort();
        memory.dedup();
        assert_eq!(memory.len(), 4);
    }

    /// Memory that was freed may be had again at the same place, so that it is told by its size.
    #[test]
    fn packets_that_a_worker_takes_in_leave_their_memory_to_those_that_come_next() {
        const LONG: usize = 4000;
        let [mut first, mut second] = some();
        let mut engine = Engine::new(Config::default());
        let mut hand_over = |length| {
            for _ in 0..4 {
                let mut packet = packet_to(5);
                packet.resize(length, 0);
                assert!(first.pass_on(&arrival(), &packet));
            }
            let Some(WorkerMessage::Packet(packet)) = second.next() else {
                panic!("a packet was handed over");
            };
            let room = packet.datagram.capacity();
            let burst = engine.burst_handed_over(Instant::from_nanos(1));
            assert_eq!(second.take_in(burst, packet, |_| true), 3);
            room
        };
        hand_over(LONG);
        for _ in 0..100 {
            assert!(hand_over(16) >= LONG, "it has new memory");
        }
    }

    #[test]
    fn memory_of_packets_that_nobody_takes_is_used_again_and_bounded() {
        let [mut first, second] = some();
        for _ in 0..3 * ROOM {
            assert!(first.pass_on(&arrival(), &packet_to(5)));
        }
        assert_eq!(first.counters.lost, 2 * ROOM as u64);
        drop(second);
        assert!(std::iter::from_fn(|| first.inbox.empty.try_recv().ok()).count() <= EMPTY);
    }

    fn news(host: u8) -> WorkerMessage {
        WorkerMessage::Peer(IpAddr::from([127, 0, 0, host]), PeerMode::Trunkline)
    }

    #[test]
    fn a_full_queue_loses_packets_and_keeps_what_must_arrive() {
        let [mut first, mut second] = some();
        for _ in 0..=ROOM {
            assert!(first.pass_on(&arrival(), &packet_to(5)));
            first.send(1, news(8));
        }
        assert_eq!(first.counters.packets, ROOM as u64 + 1);
        assert_eq!(first.counters.lost, 1);
        assert!(first.is_busy(), "some wait for room");
        assert!(second.is_busy());
        assert_eq!(std::iter::from_fn(|| second.next()).count(), 2 * ROOM);
        first.retry();
        assert!(!first.is_busy());
        assert!(matches!(second.next(), Some(WorkerMessage::Peer(..))));
        assert!(!second.is_busy());
    }

    /// Anybody can make packets and management datagrams come out at the wrong worker.
    #[test]
    fn news_of_a_worker_wait_for_no_packets_that_came_out_there() {
        let [mut first, mut second] = some();
        for _ in 0..=ROOM {
            assert!(first.pass_on(&arrival(), &packet_to(5)));
        }
        first.send(1, news(9));
        assert!(!first.is_busy(), "it is under way");
        assert!(matches!(second.next(), Some(WorkerMessage::Peer(..))));
        assert!(matches!(second.next(), Some(WorkerMessage::Packet(_))));
    }

    #[test]
    fn a_worker_that_does_not_look_holds_up_no_news_for_another() {
        let [mut first, _second, mut third, mut fourth] = some();
        for host in 0..=ROOM {
            first.send(1, news(host as u8));
        }
        first.send(2, news(7));
        assert!(third.next().is_some(), "it is under way");
        for _ in 0..=ROOM {
            first.send(3, news(8));
        }
        while fourth.next().is_some() {}
        first.retry();
        assert!(fourth.next().is_some(), "it waits for its own room alone");
        assert!(first.is_busy(), "what is for the second still waits");
    }
}
