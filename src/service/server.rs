//! The thread of a service: it lets programs in, answers them in turns, and buries them.

use super::board::Board;
use super::client::{Client, Stage};
use super::events::{Addressee, Owners};
use super::greeting::{self, Judged, Judges, Told};
use super::idle::Idle;
use super::limits::Limits;
use super::listener::Listener;
use super::reaper::{Left, Reaper, Remains};
use super::shortage::{REMEDY, Shortage};
use super::turn::{Answered, Parting, Turn, attach, deliver, hear};
use super::turned_away::TurnedAway;
use super::users::Users;
use crate::error::Error;
use crate::node::Node;
use crate::observe::log;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;
use trunkline_dataplane::process::with_signals_blocked;
use trunkline_host::Closer;
use trunkline_host::control::answers::{Detached, Failed, Refused};
use trunkline_host::control::attributes::Reason;
use trunkline_host::control::{Answer, MAX_MESSAGE, Text};
use trunkline_host::segment::check_overcommit;
use trunkline_host::socket::{peer, try_send_with_fds};

/// What the thread waits for; programs have tokens from [`FIRST`] on, two each.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const EVENTS: u64 = 2;
const FIRST: u64 = 4;
/// Added to the token of a program: its process has ended.
const ENDED: u64 = 1;

/// Requests of a program that are answered in a turn.
const TURN: usize = 16;
/// Programs that are let in, and events that are told, in a round.
const ROUND: usize = 64;

/// How long the thread waits while there is something to do, and while others are to have done it.
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
const A_WHILE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// What the thread has.
pub(super) struct Server {
    node: Node,
    listener: Listener,
    limits: Limits,
    budgets: Users,
    board: Arc<Board>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    judges: Judges,
    owners: Owners,
    clients: BTreeMap<u64, Attached>,
    next: u64,
    reaping: VecDeque<Reaper>,
    /// What is busy with what programs left, with the users of these.
    closing: Vec<(u32, Closing)>,
    /// Closes the sockets of those that are not let in.
    turned_away: TurnedAway,
    shortage: Shortage,
    /// What programs asked for beyond limits.
    beyond_limits: Shortage,
    idle: Idle,
    /// Programs that want to be let in are waited for.
    listens: bool,
    /// Who is attached has changed, or what they have.
    is_news: bool,
    buffer: Box<[u8; MAX_MESSAGE]>,
}

/// A program, and what tells of the end of its process, if that can be told.
struct Attached {
    client: Client,
    process: Option<OwnedFd>,
}

/// A program that is gone but for descriptors that are not closed yet, or for a page of it.
enum Closing {
    /// A thread closes them, or judges one, or waits for a page.
    Thread(JoinHandle<()>),
    /// So does the closer that it had.
    Closer(Closer),
}

impl Closing {
    fn is_over(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.is_finished(),
            Self::Closer(closer) => closer.pending() == 0,
        }
    }
}

impl Server {
    pub(super) fn new(
        node: Node,
        listener: Listener,
        limits: Limits,
        board: Arc<Board>,
        wake: Arc<OwnedFd>,
    ) -> Result<Self, Error> {
        check_overcommit().map_err(|error| {
            let error = std::io::Error::new(std::io::ErrorKind::Unsupported, error.to_string());
            Error::system("segments")(error)
        })?;
        let system = |e: rustix::io::Errno| Error::system("epoll of a service")(e.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system)?;
        let watched = [
            (listener.as_fd(), LISTENER),
            (wake.as_fd(), WAKE),
            (node.event_fd(), EVENTS),
        ];
        for (fd, token) in watched {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(system)?;
        }
        let turned_away = TurnedAway::new(listener.spare());
        Ok(Self {
            node,
            listener,
            limits,
            budgets: Users::default(),
            board,
            judges: Judges::new(Arc::clone(&wake)),
            wake,
            epoll,
            owners: Owners::default(),
            clients: BTreeMap::new(),
            next: FIRST,
            reaping: VecDeque::new(),
            closing: Vec::new(),
            turned_away,
            shortage: Shortage::default(),
            beyond_limits: Shortage::default(),
            idle: Idle::begin(Instant::now()),
            listens: true,
            is_news: false,
            buffer: Box::new([0; MAX_MESSAGE]),
        })
    }

    /// Serves until the service ends.
    pub(super) fn run(mut self) {
        let board = Arc::clone(&self.board);
        let mut is_unused = false;
        while !self.board.stop.load(Ordering::SeqCst) {
            let mut ready = [const { MaybeUninit::uninit() }; ROUND];
            let held_up = self.turned_away.go_on();
            let is_short = self.listener.is_short();
            let pause = match held_up || is_short {
                _ if !self.reaping.is_empty() => Some(&AT_ONCE),
                true => Some(&A_WHILE),
                false => None,
            };
            self.listen(!is_short && !self.turned_away.is_full());
            let idle = self.idle_pause();
            if idle.is_some_and(|pause| pause == AT_ONCE) && self.nobody_came() {
                is_unused = true;
                break;
            }
            let pause = pause.or(idle.as_ref());
            match epoll::wait(&self.epoll, &mut ready[..], pause) {
                Ok((ready, _)) => {
                    let ready: Vec<_> = ready.iter().map(|event| event.data.u64()).collect();
                    for token in ready {
                        self.heed(token);
                    }
                }
                // A signal, or no memory at the moment.
                Err(_) => std::thread::yield_now(),
            }
            self.reap();
            self.post();
        }
        self.part_with_all();
        // Its place is free by now, for whoever serves there next.
        board.unused.store(is_unused, Ordering::SeqCst);
    }

    /// How long the service goes on if nobody comes; `None`: for as long as it likes.
    fn idle_pause(&mut self) -> Option<Timespec> {
        let after = self.board.idle_after()?;
        let is_used = !self.clients.is_empty();
        let left = self.idle.left(after, is_used, Instant::now())?;
        Timespec::try_from(left).ok()
    }

    /// Lets in who has come meanwhile; whether that was nobody.
    fn nobody_came(&mut self) -> bool {
        self.let_in();
        self.clients.is_empty()
    }

    fn heed(&mut self, token: u64) {
        self.is_news = true;
        match token {
            LISTENER => self.let_in(),
            WAKE => self.hear_others(),
            EVENTS => self.tell_events(),
            token if token % 2 == ENDED => self.process_ended(token - ENDED),
            token => self.serve(token),
        }
    }

    /// A child of the process may have the socket still: as a program that is no sign of life, but
    /// who only holds the service does so for as long as somebody has the socket.
    fn process_ended(&mut self, token: u64) {
        let Some(attached) = self.clients.get_mut(&token) else {
            return;
        };
        if attached.client.stage == Stage::Holding {
            if let Some(process) = attached.process.take() {
                let _ = epoll::delete(&self.epoll, &process);
            }
            return;
        }
        // It may have said before that it ends.
        self.serve(token);
        let reason = Parting::new(Reason::Asked, "its process has ended");
        self.part_with(token, &reason);
    }

    fn let_in(&mut self) {
        for _ in 0..ROUND {
            if self.turned_away.is_full() {
                return self.listen(false);
            }
            let socket = match self.listener.accept() {
                Some(Ok(socket)) => socket,
                Some(Err(socket)) => {
                    let uid = peer(socket.as_fd()).ok().map(|peer| peer.uid);
                    self.refuse(uid, socket, &greeting::no_descriptor());
                    continue;
                }
                None => return,
            };
            let Ok(peer) = peer(socket.as_fd()) else {
                self.turned_away.close(None, socket);
                continue;
            };
            let admitted = greeting::admit(peer, &self.limits, self.users());
            if let Err(why) = admitted {
                self.refuse(Some(peer.uid), socket, &why);
                continue;
            }
            let workers = self.node.workers().count();
            let budgets = self.budgets.budgets(peer.uid, &self.limits);
            match Client::new(socket, peer, workers, &self.limits, budgets) {
                Ok(client) => self.enter(client),
                // No descriptor is left for its events.
                Err(socket) => self.refuse(Some(peer.uid), socket, &greeting::no_descriptor()),
            }
        }
    }

    /// Says why a program is not let in, which has asked nothing yet: this answers what it says
    /// first.
    fn refuse(&mut self, uid: Option<u32>, socket: OwnedFd, why: &greeting::TurnedAway) {
        self.note_shortage(why.0);
        if why.0 == Reason::TooManyClients
            && let Some(refusals) = self.count_beyond_limit()
        {
            log::turned_away(uid, refusals, &why.1);
        }
        let refused = greeting::refused(why).to_bytes(0);
        // It may be gone.
        let _ = try_send_with_fds(socket.as_fd(), &refused, &[]);
        self.turned_away.close(uid, socket);
    }

    /// Counts a program that goes for want of a descriptor, and says so now and then.
    fn note_shortage(&mut self, reason: Reason) {
        if reason != Reason::NoDescriptor {
            return;
        }
        self.board
            .without_descriptor
            .fetch_add(1, Ordering::Relaxed);
        if let Some(programs) = self.shortage.note(Instant::now()) {
            log::without_descriptor(programs, REMEDY);
        }
    }

    /// Waits for programs that want to be let in, or does not for now.
    fn listen(&mut self, waits: bool) {
        if std::mem::replace(&mut self.listens, waits) == waits {
            return;
        }
        let flags = match waits {
            true => EventFlags::IN,
            false => EventFlags::empty(),
        };
        let (listener, data) = (self.listener.as_fd(), EventData::new_u64(LISTENER));
        let changed = epoll::modify(&self.epoll, listener, data, flags);
        debug_assert!(changed.is_ok(), "the instance watches it: {changed:?}");
    }

    /// The users of programs that are here, or of which something is left.
    fn users(&self) -> impl Iterator<Item = u32> {
        let attached = self.clients.values();
        let attached = attached.map(|attached| attached.client.peer.uid);
        let reaping = self.reaping.iter().map(Reaper::uid);
        let closing = self
            .closing
            .iter()
            .filter(|(_, closing)| !closing.is_over());
        let closing = closing.map(|(uid, _)| *uid);
        attached.chain(reaping).chain(closing)
    }

    /// Begins to listen to a program.
    fn enter(&mut self, client: Client) {
        let token = self.next;
        self.next += 2;
        let pid = client.peer.pid;
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid.get()).ok()?));
        let process = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(process)) => Some(process),
            // It has ended, and a child of it may keep the socket.
            Some(Err(Errno::SRCH)) => return self.turn_away(client),
            // Its end would not be told while such a child is there.
            Some(Err(Errno::MFILE | Errno::NFILE)) => {
                let uid = client.peer.uid;
                let socket = client.into_socket();
                return self.refuse(Some(uid), socket, &greeting::no_descriptor());
            }
            Some(Err(_)) | None => None,
        };
        let watch = |fd, token| {
            epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN).is_ok()
        };
        let ended = process.as_ref();
        if watch(client.socket(), token)
            && ended.is_none_or(|process| watch(process.as_fd(), token + ENDED))
        {
            self.clients.insert(token, Attached { client, process });
        } else {
            self.turn_away(client);
        }
    }

    /// A program that has said nothing yet is not let in after all.
    fn turn_away(&mut self, client: Client) {
        let uid = client.peer.uid;
        self.turned_away.close(Some(uid), client.into_socket());
    }

    /// Answers some requests of a program.
    fn serve(&mut self, token: u64) {
        for _ in 0..TURN {
            match self.serve_one(token) {
                Ok(true) => {}
                Ok(false) => break,
                Err(parting) => return self.part_with(token, &parting),
            }
        }
    }

    /// Answers the next request of a program; false: there is none.
    fn serve_one(&mut self, token: u64) -> Result<bool, Parting> {
        let Some(attached) = self.clients.get_mut(&token) else {
            return Ok(false);
        };
        let client = &mut attached.client;
        let Some(received) = hear(client, &mut self.buffer)? else {
            return Ok(false);
        };
        let mut turn = Turn {
            node: &self.node,
            limits: &self.limits,
            owners: &mut self.owners,
            judges: &mut self.judges,
            client,
            token,
        };
        let message = &self.buffer[..received.bytes];
        let Some(Answered {
            number,
            reply,
            tells,
        }) = turn.attend(message, received.descriptors)?
        else {
            return Ok(true);
        };
        if tells {
            // What follows from the request is told before its answer is.
            self.tell_events();
        }
        if let Answer::Failed(Failed { text, .. }) = &reply.answer
            && reply.is_beyond_limit
        {
            self.note_beyond_limit(token, text.as_str());
        }
        match self.clients.get(&token) {
            Some(attached) => deliver(&attached.client, number, &reply).map(|()| true),
            None => Ok(false),
        }
    }

    /// Counts what was refused for a limit; gives how many the log has not heard of where it is to
    /// be told now.
    fn count_beyond_limit(&mut self) -> Option<u64> {
        self.board.beyond_limits.fetch_add(1, Ordering::Relaxed);
        self.beyond_limits.note(Instant::now())
    }

    /// Counts what was refused for a limit, and says so now and then.
    fn note_beyond_limit(&mut self, token: u64, why: &str) {
        if let Some(refusals) = self.count_beyond_limit()
            && let Some(attached) = self.clients.get(&token)
        {
            log::beyond_limit(&attached.client.status(), refusals, why);
        }
    }

    /// Hears what other threads tell.
    fn hear_others(&mut self) {
        // Whoever raises it comes after this again.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        while let Some(told) = self.judges.next() {
            match told {
                Told::Judged(judged) => self.welcome(judged),
                Told::TooSlow(token) => {
                    let why = "its memory blocked for longer than the service waits";
                    self.part_with(token, &Parting::new(Reason::TooSlow, why));
                }
            }
        }
    }

    /// Attaches a program whose descriptor was judged.
    fn welcome(&mut self, judged: Judged) {
        let token = judged.token;
        let Some(attached) = self.clients.get_mut(&token) else {
            return;
        };
        let client = &mut attached.client;
        let welcome = match judged.memory {
            Ok(memory) => {
                client.memory = Some(memory);
                let welcome = attach(client, &self.node, &self.limits);
                welcome.and_then(|reply| deliver(client, judged.number, &reply))
            }
            Err(why) => Err(Parting {
                number: judged.number,
                ..Parting::new(Reason::BadMessage, why)
            }),
        };
        if let Err(parting) = welcome {
            self.part_with(token, &parting);
        }
    }

    /// Hands events to the programs that they are for.
    fn tell_events(&mut self) {
        for _ in 0..ROUND {
            // Asked before, as the last event tells of the end.
            let is_over = !self.node.shared.life.is_up();
            let Some(event) = self.node.poll_event() else {
                if is_over {
                    // It is readable for good, and there is nothing more to tell.
                    let _ = epoll::delete(&self.epoll, self.node.event_fd());
                }
                return;
            };
            match self.owners.addressee(&event) {
                Addressee::One((token, object), kind) => {
                    if let Some(attached) = self.clients.get(&token) {
                        attached.client.events.tell(kind, Some(object));
                    }
                }
                Addressee::All(kind) => {
                    for attached in self.clients.values() {
                        attached.client.events.tell(kind, None);
                    }
                }
                Addressee::Nobody => {}
            }
        }
    }

    /// Parts with a program: leaves what it has to the reaper, which says why.
    fn part_with(&mut self, token: u64, parting: &Parting) {
        let Some(attached) = self.clients.remove(&token) else {
            return;
        };
        let Attached { client, process } = attached;
        let (reason, text) = (parting.reason, Text::clipped(&parting.text));
        let last: Answer = match client.stage {
            Stage::Attached => Detached { reason, text }.into(),
            Stage::Silent | Stage::Judged | Stage::Holding => Refused { reason, text }.into(),
        };
        let _ = epoll::delete(&self.epoll, client.socket());
        if let Some(process) = process {
            let _ = epoll::delete(&self.epoll, &process);
        }
        self.note_shortage(reason);
        if parting.is_violation() {
            self.board.violations.fetch_add(1, Ordering::Relaxed);
        }
        log::parted(&client.status(), &parting.text, parting.is_violation());
        let uid = client.peer.uid;
        let (judge, closer, left) = client.into_parts(parting.number, &last);
        let busy = [judge.map(Closing::Thread), Some(Closing::Closer(closer))];
        let busy = busy.into_iter().flatten();
        let busy = busy.filter(|closing| !closing.is_over());
        self.closing.extend(busy.map(|closing| (uid, closing)));
        let reaper = Reaper::new(&self.node.shared, left, parting.in_order);
        self.reaping.push_back(reaper);
    }

    fn part_with_all(mut self) {
        let tokens: Vec<_> = self.clients.keys().copied().collect();
        for token in tokens {
            self.part_with(token, &Parting::in_order(Reason::Ending, "it has ended"));
        }
        while !self.reaping.is_empty() {
            self.reap();
        }
    }

    /// A step for what is left of one program.
    fn reap(&mut self) {
        self.closing.retain(|(_, closing)| !closing.is_over());
        let Some(mut reaper) = self.reaping.pop_front() else {
            return;
        };
        match reaper.step(&self.node.shared, &mut self.owners) {
            Left::More => self.reaping.push_back(reaper),
            Left::Remains(remains) => self.close(remains),
        }
    }

    /// Lets go of what a program left, on a thread: it counts as one of its user's until that is
    /// done.
    fn close(&mut self, mut remains: Remains) {
        let uid = remains.uid;
        let copier = remains.copier.take().map(Closing::Thread);
        self.closing.extend(copier.map(|closing| (uid, closing)));
        let thread = std::thread::Builder::new().name("trunkline-close".into());
        // Without a thread for it that is done here, where few would make it take long.
        if let Ok(thread) = with_signals_blocked(|| thread.spawn(move || drop(remains))) {
            self.closing.push((uid, Closing::Thread(thread)));
        }
    }

    /// Says who is attached.
    fn post(&mut self) {
        if !std::mem::take(&mut self.is_news) {
            return;
        }
        let clients = self.clients.values();
        let attached = clients.filter(|attached| attached.client.stage == Stage::Attached);
        let all = attached.map(|attached| attached.client.status());
        *self.board.clients() = all.collect();
    }
}
