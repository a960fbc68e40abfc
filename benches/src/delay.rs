//! A line of delay in user space, for kernels without one: moves frames between two interfaces,
//! each after a time. What else a path has (rate, queue) is the kernel's `tbf` behind it.

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// All protocols, in network byte order as `socket(2)` and `packet(7)` want it.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Bytes that a socket may hold: more than a path ever does.
const BUFFER: usize = 64 << 20;
/// Largest frame.
const FRAME: usize = 16 << 10;
/// What the line says when it works.
pub(crate) const READY: &str = "delaying";

/// Arguments of the line.
#[derive(Args, Debug)]
pub struct DelayArgs {
    /// Interfaces that it joins.
    left: String,
    right: String,
    /// Delay of each way in ns.
    ns: u64,
}

/// Frames on their way to an interface.
#[derive(Debug)]
struct Way {
    socket: Socket,
    frames: VecDeque<(Instant, Vec<u8>)>,
}

impl Way {
    fn open(interface: &str) -> Result<Self> {
        let protocol = Protocol::from(i32::from(ALL));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))
            .context("cannot open a packet socket")?;
        let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
        let address = address(index.trim().parse()?);
        socket
            .bind(&address)
            .with_context(|| interface.to_owned())?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(BUFFER)?;
        socket.set_send_buffer_size(BUFFER)?;
        let frames = VecDeque::new();
        Ok(Self { socket, frames })
    }

    /// Sends what is due at `now`. What the interface has no room for is gone, as on any path.
    fn send(&mut self, now: Instant) {
        while let Some((at, _)) = self.frames.front()
            && *at <= now
            && let Some((_, frame)) = self.frames.pop_front()
        {
            let _ = (&self.socket).write(&frame);
        }
    }

    fn next(&self) -> Option<Instant> {
        self.frames.front().map(|(at, _)| *at)
    }
}

/// The address of an interface for packet sockets.
fn address(index: i32) -> SockAddr {
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a `sockaddr_ll` is one of the addresses that the storage is for, and valid as zeros.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = libc::AF_PACKET as u16;
    link.sll_protocol = ALL;
    link.sll_ifindex = index;
    // SAFETY: the storage holds an address of this length, with its family.
    unsafe { SockAddr::new(storage, length) }
}

/// Moves frames until it is killed.
///
/// # Errors
/// No such interface, or no privilege.
pub fn run(arguments: &DelayArgs) -> Result<()> {
    let mut ways = [Way::open(&arguments.left)?, Way::open(&arguments.right)?];
    let delay = Duration::from_nanos(arguments.ns);
    ensure!(delay < Duration::from_secs(10), "a delay of {delay:?}");
    println!("{READY}");
    let mut buffer = vec![0; FRAME];
    loop {
        for (from, to) in [(0, 1), (1, 0)] {
            loop {
                match (&ways[from].socket).read(&mut buffer) {
                    Ok(length) => {
                        let at = Instant::now() + delay;
                        ways[to].frames.push_back((at, buffer[..length].to_vec()));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).context("cannot read frames"),
                }
            }
        }
        let now = Instant::now();
        ways.iter_mut().for_each(|way| way.send(now));
        let next = ways.iter().filter_map(Way::next).min();
        let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
        let wait = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let [left, right] = &ways;
        let mut fds =
            [left, right].map(|way| PollFd::from_borrowed_fd(way.socket.as_fd(), PollFlags::IN));
        poll(&mut fds, wait.as_ref()).context("cannot wait")?;
    }
}
