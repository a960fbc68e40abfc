//! What programs of RDMA-CM hear of each way in which an attempt or a connection ends, and that
//! nothing is left of it: one table, one runner.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::address;
use common::faulty::{self, Fault, Switch};
use common::host::{Host, PORT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::{CmEventKind, CmId, EventChannel, Kind, Params, PortSpace, Setting};
use trunkline::{Node, QpState, RecvWr, Status};

/// How long anything may take: a silent peer is asked for 25 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing more must come after the last event of a row: longer than the time wait of 1 s.
const SETTLE: Duration = Duration::from_millis(1500);

/// Who connects is 0, who listens 1.
type Side = usize;
const ACTIVE: Side = 0;
const PASSIVE: Side = 1;

/// What a program does, or what befalls it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The active side finds the way to an address; to the listener's without one.
    Resolve(Option<&'static str>),
    /// It connects, with a QP.
    Connect,
    /// A side hears an event that begins so.
    Hears(Side, &'static str),
    Accept,
    Reject,
    Disconnect(Side),
    /// Both sides disconnect, each in a thread of its own.
    DisconnectBoth,
    DestroyListener,
    /// A side gives up the ID of its connection.
    Destroy(Side),
    /// No datagram leaves a side or arrives there any more.
    Silence(Side),
    /// A side's process ends without a word.
    Die(Side),
    /// The passive side fetches no events from now on, and one waits for it.
    Neglect,
}

use Step::{
    Accept, Connect, Destroy, DestroyListener, Die, Disconnect, DisconnectBoth, Hears, Neglect,
    Reject, Resolve, Silence,
};

/// The last event of an attempt or a connection that is over, told by how it begins.
const OVER: [&str; 5] = [
    "Rejected",
    "Unreachable",
    "Nobody",
    "ConnectError",
    "TimewaitExit",
];

/// One way to end.
struct Row {
    name: &'static str,
    steps: &'static [Step],
    /// All that each side hears, in order.
    hears: [&'static [&'static str]; 2],
}

/// What a side has of RDMA-CM, as long as its process lives.
struct Program {
    host: Host,
    channel: EventChannel,
    /// IDs of connections: one at most.
    id: Option<CmId>,
}

struct Scene {
    programs: [Option<Program>; 2],
    switches: Vec<Switch>,
    listener: Option<CmId>,
    to: SocketAddr,
    heard: [Vec<String>; 2],
    neglects: bool,
}

/// Short for an event, with what tells it apart from others of its kind.
fn short(kind: &CmEventKind) -> String {
    match kind {
        CmEventKind::ConnectRequest { .. } => "ConnectRequest".into(),
        CmEventKind::Established { .. } => "Established".into(),
        CmEventKind::AddressError(_) => "AddressError".into(),
        CmEventKind::Rejected { reason, .. } => format!("Rejected {}", reason.code()),
        CmEventKind::Unreachable { .. } => "Unreachable".into(),
        CmEventKind::Disconnected { reason } => format!("Disconnected {reason:?}"),
        other => format!("{other:?}"),
    }
}

impl Program {
    fn new(own: IpAddr, node: Node) -> Self {
        let host = Host::of(node, own);
        let channel = host.node.create_event_channel().unwrap();
        Self {
            host,
            channel,
            id: None,
        }
    }

    fn id(&self) -> &CmId {
        self.id.as_ref().unwrap()
    }

    /// A QP with a receive.
    fn create_qp(&self) {
        let Host {
            pd, cq, options, ..
        } = &self.host;
        let qp = self.id().create_qp(pd, cq, cq, options).unwrap();
        let receive = RecvWr::new().wr_id(7);
        qp.post_recv(&[receive]).unwrap();
    }

    /// What is wrong with the QP of an ID whose attempt or connection is over.
    fn still_lives(&self) -> Option<String> {
        let qp = self.id.as_ref()?.qp()?;
        let flushed = self.host.cq.poll_one().unwrap();
        let flushed = flushed.map(|done| (done.wr_id, done.status));
        let found = (qp.state(), flushed);
        let over = (QpState::Error, Some((7, Status::Flushed)));
        (found != over).then(|| format!("its QP is {found:?}"))
    }
}

impl Scene {
    fn new() -> Self {
        let mut switches = Vec::new();
        let programs = [(); 2].map(|()| {
            let own = address();
            // A peer that vanishes is found out soon.
            let builder = Node::builder()
                .peer_timeout(Duration::from_millis(400))
                .keep_alive(Duration::from_millis(50));
            let (node, switch) = faulty::node(own, builder);
            switches.push(switch);
            Some(Program::new(own, node))
        });
        let [Some(active), Some(passive)] = &programs else {
            unreachable!()
        };
        assert_eq!(active.host.node.live_objects().qps, 0);
        let listener = passive.channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
        let to = listener.bind((passive.host.address, PORT).into()).unwrap();
        listener.listen(0).unwrap();
        Self {
            programs,
            switches,
            listener: Some(listener),
            to,
            heard: Default::default(),
            neglects: false,
        }
    }

    fn program(&self, side: Side) -> &Program {
        self.programs[side].as_ref().unwrap()
    }

    /// Fetches what there is at both sides.
    fn fetch(&mut self) {
        for side in [ACTIVE, PASSIVE] {
            let Some(program) = &mut self.programs[side] else {
                continue;
            };
            if side == PASSIVE && self.neglects {
                continue;
            }
            while let Some(event) = program.channel.poll_event() {
                self.heard[side].push(short(&event.kind));
                if let CmEventKind::ConnectRequest { .. } = event.kind {
                    program.id = Some(event.id);
                }
            }
        }
    }

    /// Fetches events until `done`; gives whether that came.
    fn until(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            self.fetch();
            if done(self) {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take(&mut self, step: Step) {
        let none = Params::default();
        match step {
            Resolve(to) => {
                let to = to.map_or(self.to, |to| to.parse().unwrap());
                let active = self.programs[ACTIVE].as_mut().unwrap();
                let id = active.channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
                id.resolve_addr(to, PATIENCE).unwrap();
                active.id = Some(id);
            }
            Connect => {
                let active = self.program(ACTIVE);
                active.create_qp();
                // QPs that ask for long timeouts would outlast their connection.
                active.id().set(Setting::AckTimeout(8)).unwrap();
                active.id().connect(&none).unwrap();
            }
            Hears(side, what) => {
                let has = |scene: &Self| scene.heard[side].iter().any(|e| e.starts_with(what));
                assert!(self.until(has), "{what} does not come: {:?}", self.heard);
            }
            Accept => {
                let passive = self.program(PASSIVE);
                passive.create_qp();
                passive.id().accept(&none).unwrap();
            }
            Reject => self.program(PASSIVE).id().reject(b"no").unwrap(),
            Disconnect(side) => self.program(side).id().disconnect().unwrap(),
            DisconnectBoth => std::thread::scope(|scope| {
                for side in [ACTIVE, PASSIVE] {
                    let id = self.program(side).id().clone();
                    scope.spawn(move || id.disconnect().unwrap());
                }
            }),
            DestroyListener => self.listener = None,
            Destroy(side) => self.programs[side].as_mut().unwrap().id = None,
            Silence(side) => self.switches[side].set(Fault::Silent),
            Die(side) => {
                self.switches[side].set(Fault::Silent);
                if side == PASSIVE {
                    self.listener = None;
                }
                self.programs[side] = None;
            }
            Neglect => {
                self.neglects = true;
                let timeout = Timespec {
                    tv_sec: PATIENCE.as_secs() as i64,
                    tv_nsec: 0,
                };
                let fd = self.program(PASSIVE).channel.fd();
                let waiting = PollFd::new(&fd, PollFlags::IN);
                assert_eq!(poll(&mut [waiting], Some(&timeout)), Ok(1));
            }
        }
    }
}

/// Plays a row; gives what was wrong with it.
fn play(row: &Row) -> Result<(), String> {
    let mut scene = Scene::new();
    row.steps.iter().for_each(|step| scene.take(*step));
    let all = |scene: &Scene| [0, 1].map(|side| scene.heard[side].len() >= row.hears[side].len());
    scene.until(|scene| all(scene) == [true; 2]);
    let settled = Instant::now() + SETTLE;
    scene.until(|_| Instant::now() > settled);
    if scene.heard.each_ref().map(Vec::as_slice) != row.hears {
        return Err(format!("heard {:?}, not {:?}", scene.heard, row.hears));
    }
    let ends = |heard: &[String]| {
        let last = heard.last();
        last.is_some_and(|last| OVER.iter().any(|over| last.starts_with(over)))
    };
    for (program, heard) in scene.programs.iter().zip(&scene.heard) {
        let over = program.as_ref().filter(|_| ends(heard));
        if let Some(wrong) = over.and_then(Program::still_lives) {
            return Err(format!("after {heard:?} {wrong}"));
        }
    }
    scene.listener = None;
    for program in scene.programs.iter_mut().flatten() {
        program.id = None;
    }
    let left = |scene: &Scene| {
        let programs = scene.programs.iter().flatten();
        let objects = programs.map(|program| program.host.node.live_objects());
        objects.map(|o| o.qps + o.flows).sum::<usize>()
    };
    if !scene.until(|scene| left(scene) == 0) {
        let nodes = scene.programs.iter().flatten();
        let objects: Vec<_> = nodes.map(|p| p.host.node.live_objects()).collect();
        return Err(format!("there are left {objects:?}"));
    }
    Ok(())
}

/// Up to where a connection stands at both sides.
macro_rules! steps {
    (resolved $($more:expr),*) => {
        &[Resolve(None), Hears(ACTIVE, "AddressResolved"), $($more),*]
    };
    (asked $($more:expr),*) => {
        steps!(resolved Connect, Hears(PASSIVE, "ConnectRequest") $(, $more)*)
    };
    (connected $($more:expr),*) => {
        steps!(asked Accept, Hears(ACTIVE, "Est"), Hears(PASSIVE, "Est") $(, $more)*)
    };
}

const ROWS: &[Row] = &[
    Row {
        name: "the peer rejects",
        steps: steps!(asked Reject),
        hears: [&["AddressResolved", "Rejected 28"], &["ConnectRequest"]],
    },
    Row {
        name: "nobody listens",
        steps: steps!(resolved DestroyListener, Connect),
        hears: [&["AddressResolved", "Rejected 8"], &[]],
    },
    Row {
        name: "the peer's process dies before it is asked",
        steps: steps!(resolved Die(PASSIVE), Connect),
        hears: [&["AddressResolved", "Nobody"], &[]],
    },
    Row {
        name: "the peer's process dies before it accepts",
        steps: steps!(asked Die(PASSIVE)),
        hears: [&["AddressResolved", "Nobody"], &["ConnectRequest"]],
    },
    Row {
        name: "the peer's process dies after it has accepted",
        steps: steps!(connected Die(PASSIVE)),
        hears: [
            &[
                "AddressResolved",
                "Established",
                "Disconnected Failed",
                "TimewaitExit",
            ],
            &["ConnectRequest", "Established"],
        ],
    },
    Row {
        name: "the process that asked dies before it is answered",
        steps: steps!(asked Die(ACTIVE), Accept),
        hears: [
            &["AddressResolved"],
            &["ConnectRequest", "Unreachable", "TimewaitExit"],
        ],
    },
    Row {
        name: "the active side disconnects",
        steps: steps!(connected Disconnect(ACTIVE)),
        hears: [
            &[
                "AddressResolved",
                "Established",
                "Disconnected Local",
                "TimewaitExit",
            ],
            &[
                "ConnectRequest",
                "Established",
                "Disconnected Peer",
                "TimewaitExit",
            ],
        ],
    },
    Row {
        name: "the passive side disconnects",
        steps: steps!(connected Disconnect(PASSIVE)),
        hears: [
            &[
                "AddressResolved",
                "Established",
                "Disconnected Peer",
                "TimewaitExit",
            ],
            &[
                "ConnectRequest",
                "Established",
                "Disconnected Local",
                "TimewaitExit",
            ],
        ],
    },
    Row {
        name: "the active side disconnects and destroys its ID at once",
        steps: steps!(connected Disconnect(ACTIVE), Destroy(ACTIVE)),
        hears: [
            &["AddressResolved", "Established"],
            &[
                "ConnectRequest",
                "Established",
                "Disconnected Peer",
                "TimewaitExit",
            ],
        ],
    },
    Row {
        name: "the passive side destroys its ID",
        steps: steps!(connected Destroy(PASSIVE)),
        hears: [
            &[
                "AddressResolved",
                "Established",
                "Disconnected Peer",
                "TimewaitExit",
            ],
            &["ConnectRequest", "Established"],
        ],
    },
    Row {
        name: "the listener is destroyed while a request waits",
        steps: steps!(resolved Connect, Neglect, DestroyListener),
        hears: [&["AddressResolved", "Rejected 28"], &[]],
    },
    Row {
        name: "the listener is destroyed once a request was fetched",
        steps: steps!(asked DestroyListener, Accept, Hears(ACTIVE, "Est"), Hears(PASSIVE, "Est")),
        hears: [
            &["AddressResolved", "Established"],
            &["ConnectRequest", "Established"],
        ],
    },
    Row {
        name: "the ID is destroyed while it connects",
        steps: steps!(asked Destroy(ACTIVE)),
        hears: [&["AddressResolved"], &["ConnectRequest", "Rejected 4"]],
    },
    Row {
        name: "the request's ID is destroyed undecided",
        steps: steps!(asked Destroy(PASSIVE)),
        hears: [&["AddressResolved", "Rejected 28"], &["ConnectRequest"]],
    },
    Row {
        name: "there is no way to the address",
        steps: &[Resolve(Some("192.0.2.1:1"))],
        hears: [&["AddressError"], &[]],
    },
    Row {
        name: "the peer is silent",
        steps: steps!(resolved Silence(PASSIVE), Connect),
        hears: [&["AddressResolved", "Unreachable"], &[]],
    },
];

#[test]
fn each_side_hears_of_each_end_what_rdma_cm_says_and_nothing_is_left() {
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let rows = ROWS.iter().map(|row| (row, scope.spawn(move || play(row))));
        let rows: Vec<_> = rows.collect();
        let outcome = rows.into_iter().map(|(row, played)| {
            let played = played.join().unwrap_or_else(|_| Err("it panicked".into()));
            played.err().map(|why| format!("{}: {why}", row.name))
        });
        outcome.flatten().collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn both_sides_may_disconnect_at_once_and_each_hears_of_one_end() {
    // Which of the two comes first is chance.
    for _ in 0..10 {
        let mut scene = Scene::new();
        let steps: &[Step] = steps!(connected DisconnectBoth);
        steps.iter().for_each(|step| scene.take(*step));
        for side in [ACTIVE, PASSIVE] {
            scene.take(Hears(side, "TimewaitExit"));
            let ends = scene.heard[side]
                .iter()
                .filter(|e| e.starts_with("Disconnected"));
            assert_eq!(ends.count(), 1, "{:?}", scene.heard);
        }
    }
}

#[test]
fn a_program_that_waits_for_events_has_no_qps_of_ids_it_destroyed_a_while_ago() {
    let mut scene = Scene::new();
    let steps: &[Step] = steps!(connected Destroy(ACTIVE));
    steps.iter().for_each(|step| scene.take(*step));
    let active = scene.program(ACTIVE);
    let qps = || active.host.node.live_objects().qps;
    assert_eq!(
        qps(),
        1,
        "late packets must not meet another QP of its number"
    );
    let long = Duration::from_secs(6);
    std::thread::scope(|scope| {
        // It is told nothing, and does nothing but wait.
        let waiting = scope.spawn(|| active.channel.get_event(long).is_none());
        let end = Instant::now() + long / 2;
        while qps() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(qps(), 0, "the time wait was over long ago");
        assert!(waiting.join().unwrap());
    });
}
