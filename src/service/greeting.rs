//! How a program is let in, or turned away.

use super::client::{Client, Stage};
use super::limits::Limits;
use super::shortage::REMEDY;
use super::trust::{Patiences, Trusted};
use crate::node::Node;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use trunkline_dataplane::ProcessMemory;
use trunkline_host::control::answers::{Refused, Welcome};
use trunkline_host::control::attributes::Reason;
use trunkline_host::control::{Answer, Text, VERSION};
use trunkline_host::socket::Peer;

/// Requests that a program may have unanswered.
const MAX_REQUESTS: u32 = 16;
/// Bytes of the stack of a thread that judges a descriptor.
const STACK: usize = 64 << 10;

/// Why a program is not let in.
pub(super) type TurnedAway = (Reason, String);

pub(super) fn refused((reason, text): &TurnedAway) -> Answer {
    let text = Text::clipped(text);
    let reason = *reason;
    Refused { reason, text }.into()
}

/// Why a program is not let in for which no descriptor is left.
pub(super) fn no_descriptor() -> TurnedAway {
    (Reason::NoDescriptor, REMEDY.to_owned())
}

/// Checks that a program of this user may come, beside those of `users`.
pub(super) fn admit(
    peer: Peer,
    limits: &Limits,
    users: impl Iterator<Item = u32>,
) -> Result<(), TurnedAway> {
    let uid = peer.uid;
    if !limits.users.is_empty() && !limits.users.contains(&uid) {
        let text = format!("the service is not for user {uid}");
        return Err((Reason::NotAllowed, text));
    }
    let (mut all, mut own) = (0_u32, 0_u32);
    for user in users {
        all += 1;
        own += u32::from(user == uid);
    }
    if all >= limits.clients {
        let text = format!(
            "{all} programs have places here, which is the most (--programs of trunkline serve): \
             those of all users, those that hold the service, and those that have not ended yet"
        );
        return Err((Reason::TooManyClients, text));
    }
    if own >= limits.clients_per_user {
        let text = format!(
            "{own} programs of user {uid} have places here, which is the most \
             (--programs-per-user of trunkline serve): those that hold the service, and those that \
             have not ended yet, too"
        );
        return Err((Reason::TooManyClients, text));
    }
    Ok(())
}

/// Checks that a program speaks the language of this service.
pub(super) fn understand(version: u32) -> Result<(), TurnedAway> {
    if version == VERSION {
        return Ok(());
    }
    let text = format!("the program speaks version {version}, and this service {VERSION}");
    Err((Reason::Version, text))
}

pub(super) fn welcome(node: &Node, limits: &Limits) -> Answer {
    Welcome {
        version: VERSION,
        gid: node.gid(),
        workers: node.workers().count(),
        max_qps: limits.qps,
        quota: limits.segment_bytes,
        max_requests: MAX_REQUESTS,
    }
    .into()
}

/// What other threads tell that of the service.
pub(super) enum Told {
    /// What was found out about a descriptor.
    Judged(Judged),
    /// The memory of a program, by its token, blocked for longer than anybody waits.
    TooSlow(u64),
}

/// What was found out about a descriptor: the program that sent it, the number of its request, and
/// its memory.
pub(super) struct Judged {
    pub(super) token: u64,
    pub(super) number: u32,
    pub(super) memory: Result<ProcessMemory, String>,
}

/// Judges the descriptors that programs send with their first message. A file system that the
/// program runs itself may not answer, so each is judged by a thread of its own, and a program
/// that waits for it is the only one that does.
#[derive(Debug)]
pub(super) struct Judges {
    wake: Arc<OwnedFd>,
    sender: Sender<Told>,
    told: Receiver<Told>,
    patiences: Patiences,
}

impl Judges {
    /// `wake` is raised when there is something to hear.
    pub(super) fn new(wake: Arc<OwnedFd>) -> Self {
        let (sender, told) = channel();
        Self {
            wake,
            sender,
            told,
            patiences: Patiences::default(),
        }
    }

    /// Has a descriptor judged; it is closed there if it is not what it should be. Workers reach
    /// the memory by themselves if its user is one of the `trusted`.
    ///
    /// # Errors
    /// The system has no thread for it: the program is to be turned away.
    pub(super) fn judge(
        &mut self,
        client: &mut Client,
        (token, number): (u64, u32),
        descriptor: OwnedFd,
        trusted: Trusted,
    ) -> Result<(), TurnedAway> {
        let (uid, own) = (client.peer.uid, rustix::process::geteuid().as_raw());
        let patience = (!trusted.includes(uid, own)).then(|| self.patiences.with(uid));
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        let tell = move |told| {
            // The service may have ended.
            let _ = sender.send(told);
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        let thread = std::thread::Builder::new()
            .name("trunkline-judge".into())
            .stack_size(STACK);
        let judge = move || {
            let memory = match patience {
                None => ProcessMemory::new(descriptor),
                Some(patience) => {
                    let tell = tell.clone();
                    let on_slow = move || tell(Told::TooSlow(token));
                    ProcessMemory::with_patience(descriptor, patience, on_slow)
                }
            };
            tell(Told::Judged(Judged {
                token,
                number,
                memory: memory.map_err(|error| error.to_string()),
            }));
        };
        match trunkline_dataplane::process::with_signals_blocked(|| thread.spawn(judge)) {
            Ok(thread) => {
                client.judge = Some(thread);
                client.stage = Stage::Judged;
                Ok(())
            }
            Err(error) => Err((Reason::Failed, format!("thread: {error}"))),
        }
    }

    /// The next thing to hear.
    pub(super) fn next(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}
