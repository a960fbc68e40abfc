//! Clients that are killed in the middle of their traffic, and their peer.

use super::client::{Addresses, End, Memory, Shape, check};
use crate::process::{Parent, SILENCE};
use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::net::UdpSocket;
use std::time::Duration;
use trunkline::{Completion, RecvWr, SendWr, Status};

/// What victims and their witness have.
const TRAFFIC: Shape = Shape {
    qps: 0,
    depth: 16,
    size: 4096,
    memory: Memory::Segment,
};
/// After so many messages a victim is in the middle of its traffic.
const FLOWING: u64 = 32;
/// More numbers of QPs than rest at a worker.
const RESTING: usize = 1100;
/// Messages of a witness to its victim, without bytes, one always under way: an end that wants
/// nothing of its peer does not hear that it is gone.
const GREETING: u64 = u64::MAX;

/// Time that is the same in all processes, in ns.
pub(super) fn now_ns() -> Result<u64> {
    let now: Duration = clock_gettime(ClockId::Monotonic).try_into()?;
    Ok(u64::try_from(now.as_nanos())?)
}

/// The bytes of a message, by its number.
fn fill(number: u64, bytes: &mut [u8]) {
    let first = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (at, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&first.wrapping_add(at).to_le_bytes());
    }
}

/// Sends until it is killed, or told to end.
///
/// # Errors
/// A request that failed.
pub(super) fn victim(parent: &Parent, socket: &str) -> Result<()> {
    let end = End::open(socket, Shape { qps: 1, ..TRAFFIC })?;
    end.connect(&parent.exchange(&end.addresses())?)?;
    let be_greeted = || end.qps[0].post_recv(&[RecvWr::new().wr_id(GREETING)]);
    be_greeted()?;
    be_greeted()?;
    let mut bytes = [0; TRAFFIC.size];
    let mut number = 0;
    let mut send = |slot: usize| {
        fill(number, &mut bytes);
        number += 1;
        end.mr.write(slot * TRAFFIC.size, &bytes)?;
        let sges = [end.mr.sge(slot * TRAFFIC.size, TRAFFIC.size)];
        let request = SendWr::send().wr_id(slot as u64).sges(&sges).signaled();
        anyhow::Ok(end.qps[0].post_send(&[request])?)
    };
    (0..TRAFFIC.depth).try_for_each(&mut send)?;
    let mut found = [Completion::BLANK; TRAFFIC.depth];
    while !parent.has_line() {
        for done in end.completions(&mut found, SILENCE)? {
            check(done)?;
            if done.wr_id == GREETING {
                be_greeted()?;
            } else {
                send(done.wr_id as usize)?;
            }
        }
    }
    Ok(())
}

/// As a victim with its traffic, as far as the system is concerned, but of no service: sends over
/// loopback to itself until it is killed.
///
/// # Errors
/// A socket that fails.
pub(super) fn stranger(parent: &Parent) -> Result<()> {
    let (from, to) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
    from.connect(to.local_addr()?)?;
    let mut memory = vec![0; TRAFFIC.size * TRAFFIC.depth];
    for number in 0.. {
        for message in memory.chunks_exact_mut(TRAFFIC.size) {
            fill(number, message);
            from.send(message)?;
        }
        for message in memory.chunks_exact_mut(TRAFFIC.size) {
            to.recv(message)?;
        }
        if number * TRAFFIC.depth as u64 == FLOWING {
            parent.say(&())?;
        }
    }
    Ok(())
}

/// Connects QPs that go at once, more than numbers of QPs rest at the service: those that rest
/// keep their places in its tables (LIMITS.md), so that it has as many places from here on as
/// however many victims may take.
///
/// # Errors
/// The service refuses.
pub(super) fn churn(socket: &str) -> Result<()> {
    let mut end = End::open(socket, TRAFFIC)?;
    for _ in 0..RESTING * usize::from(end.workers()) {
        for _ in 0..2 {
            end.add_qp()?;
        }
        for (qp, peer) in [(0, 1), (1, 0)] {
            end.qps[qp].connect(end.qps[peer].address())?;
        }
        end.qps.clear();
        end.take_events();
    }
    Ok(())
}

/// What became of a victim, seen from its peer.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Gone {
    /// When its peer heard it.
    pub(super) at_ns: u64,
    /// Bytes that came, all as they were sent.
    pub(super) verified: u64,
}

/// Receives of one victim after another, each on a QP of its own.
///
/// # Errors
/// Wrong bytes, or a victim whose end is not heard.
pub(super) fn witness(parent: &Parent, socket: &str) -> Result<()> {
    let mut end = End::open(socket, TRAFFIC)?;
    for life in 0.. {
        parent.hear_line()?;
        end.add_qp()?;
        let victim: Addresses = parent.exchange(&end.addresses())?;
        end.connect(&victim)?;
        for slot in 0..TRAFFIC.depth {
            receive(&end, life, slot)?;
        }
        parent.say(&())?;
        let gone = watch(parent, &end, life)?;
        end.qps.clear();
        end.take_events();
        parent.say(&gone)?;
    }
    Ok(())
}

fn receive(end: &End, life: usize, slot: usize) -> Result<()> {
    let sges = [end.mr.sge(slot * TRAFFIC.size, TRAFFIC.size)];
    let id = (life * TRAFFIC.depth + slot) as u64;
    Ok(end.qps[0].post_recv(&[RecvWr::new().wr_id(id).sges(&sges)])?)
}

fn greet(end: &End) -> Result<()> {
    let greeting = SendWr::send().wr_id(GREETING).signaled();
    Ok(end.qps[0].post_send(&[greeting])?)
}

/// Receives until the victim is gone.
fn watch(parent: &Parent, end: &End, life: usize) -> Result<Gone> {
    greet(end)?;
    let (mut bytes, mut expected) = ([0; TRAFFIC.size], [0; TRAFFIC.size]);
    let mut number = 0;
    let mut found = [Completion::BLANK; TRAFFIC.depth];
    loop {
        let done = end.completions(&mut found, SILENCE)?;
        ensure!(!done.is_empty(), "nobody says that the victim is gone");
        for done in done {
            let id = done.wr_id as usize;
            if done.wr_id != GREETING && id / TRAFFIC.depth != life {
                // Of a QP that is gone.
                continue;
            }
            if done.status != Status::Success {
                return Ok(Gone {
                    at_ns: now_ns()?,
                    verified: number * TRAFFIC.size as u64,
                });
            }
            if done.wr_id == GREETING {
                greet(end)?;
                continue;
            }
            let slot = id % TRAFFIC.depth;
            end.mr.read(slot * TRAFFIC.size, &mut bytes)?;
            fill(number, &mut expected);
            ensure!(bytes == expected, "message {number} has wrong bytes");
            number += 1;
            receive(end, life, slot)?;
            if number == FLOWING {
                parent.say(&())?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_other_numbers_have_other_bytes_everywhere() {
        let [mut one, mut other] = [[0; 64]; 2];
        fill(1, &mut one);
        fill(2, &mut other);
        assert!(one.chunks(8).zip(other.chunks(8)).all(|(a, b)| a != b));
        let again = one;
        fill(1, &mut one);
        assert_eq!(one, again);
    }
}
