//! How those who drive workers sleep: in a call that returns when there is something to do, or on a
//! descriptor that is readable then.

use crate::error::Error;
use crate::node::life::Life;
use crate::node::shared::Shared;
use crate::worker::handle::WorkerHandle;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause after an error of the operating system that passes.
const TROUBLE_PAUSE: Duration = Duration::from_millis(1);
/// Longest time that the kernel is asked to wait at once: a longer one begins again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Sleep of a worker whose port has to be polled.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
const NEVER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The operating system could not just now.
pub(crate) fn wait_out(life: &Life) {
    life.note_passing();
    std::thread::sleep(TROUBLE_PAUSE);
}

/// What a worker that has nothing to do waits for, beside packets and programs.
struct Outlook {
    /// Until its next timer is due, if one is armed.
    timer: Option<Duration>,
    /// Which descriptor of its port was full.
    full: Option<usize>,
}

impl Outlook {
    /// That of a worker; `None`: there is something to do now.
    ///
    /// # Errors
    /// The node is down.
    fn of(handle: &WorkerHandle) -> Result<Option<Self>, Error> {
        handle.life().check()?;
        let port = handle.port()?;
        let mut core = handle.core()?;
        if core.is_busy(&**port) {
            return Ok(None);
        }
        let (now, next) = (core.clock.now(), core.next_timeout());
        let timer = next.map(|at| Duration::from_nanos(at.since(now)));
        if timer.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let full = port.full();
        Ok(Some(Self { timer, full }))
    }
}

const fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos() as i64,
    }
}

/// Waits until a packet comes for one of these workers, a port that was full takes more, a program
/// rings a worker, a timer of one is due, a descriptor `beside` them is readable, or `longest` is
/// over.
///
/// # Errors
/// The node is down.
pub(crate) fn wait<'a>(
    handles: &[&WorkerHandle],
    beside: impl IntoIterator<Item = BorrowedFd<'a>>,
    longest: Duration,
) -> Result<(), Error> {
    let mut timeout = longest.min(LONGEST_WAIT);
    let mut full = Vec::with_capacity(handles.len());
    for handle in handles {
        let Some(outlook) = Outlook::of(handle)? else {
            return Ok(());
        };
        timeout = timeout.min(outlook.timer.unwrap_or(LONGEST_WAIT));
        full.push(outlook.full);
    }
    if handles.iter().any(|handle| handle.ports.is_empty()) {
        std::thread::sleep(timeout.min(SHORT_SLEEP));
        return Ok(());
    }
    if timeout.is_zero() {
        return Ok(());
    }
    // The first descriptor of a port receives. A full one tells when it takes more.
    let ports = handles
        .iter()
        .map(|handle| (handle.ports[0].as_fd(), PollFlags::IN));
    let full = handles.iter().zip(full);
    let full = full.filter_map(|(handle, at)| Some((handle.ports[at?].as_fd(), PollFlags::OUT)));
    let wakes = handles.iter().filter_map(|handle| handle.wakeup.fd());
    let wakes = wakes.map(|fd| (fd, PollFlags::IN));
    let programs = handles.iter().filter_map(|handle| handle.programs_fd());
    let programs = programs.map(|fd| (fd, PollFlags::IN));
    let beside = beside.into_iter().map(|fd| (fd, PollFlags::IN));
    let fds = ports.chain(full).chain(wakes).chain(programs).chain(beside);
    let fds = fds.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events));
    let mut fds: Vec<_> = fds.collect();
    poll_once(&mut fds, timeout, handles[0].life());
    Ok(())
}

/// The same for workers that their program drives. From here to a worker's next round, whoever has
/// work for it wakes all that sleep: what one of them meets is not taken from the others.
///
/// # Errors
/// The node is down.
pub(crate) fn wait_inline(
    handles: &[&WorkerHandle],
    beside: Option<BorrowedFd<'_>>,
    longest: Duration,
) -> Result<(), Error> {
    for handle in handles.iter().filter(|handle| !handle.ports.is_empty()) {
        if handle.wakeup.equip().is_err() {
            wait_out(handle.life());
            return Ok(());
        }
        handle.wakeup.fall_asleep();
    }
    let link = handles.iter().find_map(|handle| handle.link.as_ref());
    let link = link.map(|link| link.changed());
    wait(handles, link.into_iter().chain(beside), longest)
}

/// Waits in a call of a program until the descriptor `fd` is readable, the node does nothing any
/// more, an inline node has something to do, or `longest` is over.
///
/// # Errors
/// The node is down, or the operating system has no descriptor left.
pub(crate) fn wait_for(
    shared: &Shared,
    fd: BorrowedFd<'_>,
    longest: Duration,
) -> Result<(), Error> {
    if shared.is_inline() {
        return wait_inline(&shared.all_handles(), Some(fd), longest);
    }
    let fds = [fd, shared.life.end_fd()?];
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll_once(&mut fds, longest.min(LONGEST_WAIT), &shared.life);
    Ok(())
}

fn poll_once(fds: &mut [PollFd<'_>], timeout: Duration, life: &Life) {
    match poll(fds, Some(&timespec(timeout))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        // Too many descriptors for a limit that was lowered meanwhile, or no memory.
        Err(_) => wait_out(life),
    }
}

/// A descriptor that is readable when a worker that its program drives has something to do: an
/// epoll instance over its port, a timer and what it is woken by.
#[derive(Debug)]
pub(crate) struct WaitFd {
    epoll: OwnedFd,
    timer: OwnedFd,
    watched: Mutex<Watched>,
}

/// What a [`WaitFd`] waits for.
#[derive(Debug, Default)]
struct Watched {
    /// Which descriptor of the port, until it takes more.
    full: Option<usize>,
    /// When the timer fires, or has fired.
    alarm: Option<Instant>,
}

impl Watched {
    /// Whether the timer has to be set for a wait of `left`, at `now`. One that fires too early
    /// costs a look at the node, seldom; to set it costs a system call, each time. One that has
    /// fired stays readable until it is set.
    fn needs_alarm(&self, now: Instant, left: Option<Duration>) -> bool {
        let pending = self.alarm.filter(|at| *at > now);
        match (pending, left.and_then(|left| now.checked_add(left))) {
            (Some(at), Some(wanted)) => wanted < at,
            (Some(_), None) => false,
            (None, wanted) => wanted.is_some() || self.alarm.is_some(),
        }
    }
}

impl WaitFd {
    /// That of a worker whose port has descriptors.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new(handle: &WorkerHandle) -> Result<Self, Error> {
        handle.wakeup.equip()?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| Error::system("timerfd of a worker")(e.into()))?;
        let woken = handle.wakeup.fd().into_iter();
        let link = handle.link.iter().map(|link| link.changed());
        let of_port = handle.ports.first().into_iter().map(AsFd::as_fd);
        let epoll = readable(woken.chain(of_port).chain(link).chain([timer.as_fd()]))?;
        let watched = Mutex::default();
        Ok(Self {
            epoll,
            timer,
            watched,
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Gets ready to be waited on. `false`: there is something to do first.
    ///
    /// From here to the worker's next round, whoever has work for it makes the descriptor readable,
    /// and so it stays, also where this is called again.
    ///
    /// # Errors
    /// The node is down, or the operating system has no memory.
    pub(crate) fn try_wait(&self, handle: &WorkerHandle) -> Result<bool, Error> {
        handle.wakeup.fall_asleep();
        let Some(outlook) = Outlook::of(handle)? else {
            return Ok(false);
        };
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        self.watch_room(handle, &mut watched.full, outlook.full)?;
        self.arm(&mut watched, outlook.timer)?;
        Ok(true)
    }

    /// Sets the timer, where it would not fire in time; without a time it need not fire.
    fn arm(&self, watched: &mut Watched, left: Option<Duration>) -> Result<(), Error> {
        let now = Instant::now();
        if !watched.needs_alarm(now, left) {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: NEVER,
            it_value: left.map_or(NEVER, timespec),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .map_err(|e| Error::system("timerfd of a worker")(e.into()))?;
        watched.alarm = left.and_then(|left| now.checked_add(left));
        Ok(())
    }

    /// Waits for room in the port's descriptor `full`, and in no other one any more.
    fn watch_room(
        &self,
        handle: &WorkerHandle,
        watched: &mut Option<usize>,
        full: Option<usize>,
    ) -> Result<(), Error> {
        if *watched == full {
            return Ok(());
        }
        let (none, room) = (EventFlags::empty(), EventFlags::OUT);
        let change = |at: usize, room: EventFlags| {
            let (port, data) = (&handle.ports[at], EventData::new_u64(0));
            if at == 0 {
                // It is waited for until it has something to receive, too, and always.
                epoll::modify(&self.epoll, port, data, EventFlags::IN | room)
            } else if room.is_empty() {
                epoll::delete(&self.epoll, port)
            } else {
                epoll::add(&self.epoll, port, data, room)
            }
            .map_err(|e| Error::system("epoll of a worker")(e.into()))
        };
        if let Some(at) = *watched {
            change(at, none)?;
            *watched = None;
        }
        if let Some(at) = full {
            change(at, room)?;
            *watched = full;
        }
        Ok(())
    }
}

/// An epoll instance that is readable when one of these descriptors is.
///
/// # Errors
/// The operating system has no descriptor left.
pub(crate) fn readable<'a>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> Result<OwnedFd, Error> {
    let system = |e: rustix::io::Errno| Error::system("epoll of a worker")(e.into());
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system)?;
    for fd in fds {
        epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN).map_err(system)?;
    }
    Ok(epoll)
}

#[cfg(test)]
mod tests;
